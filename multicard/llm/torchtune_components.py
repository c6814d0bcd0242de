"""Define components that torchtune's configurations name: random weights, and the step log.

Random weights are generated on the model's device when they are read, so that no weight is held in
memory twice.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils._pytree import tree_map_only
from torchao.dtypes.nf4tensor import implements_torch_function
from torchtune import config, training

STD = 0.02  # The initializer range of Llama and Qwen.
# Numbers that one call generates. With this few, each number has its own thread on a GPU of at
# least 65,536 threads, so the values do not depend on the GPU. In a larger call, a thread generates
# several numbers: how many depends on the number of multiprocessors.
NUMBERS_PER_CALL = 2**16


class RandomWeight(torch.Tensor):
    """A weight without memory, whose values are generated whenever an operation reads them.

    The values only depend on the seed, the weight's name, and the type of device, because the
    generators of GPU and CPU differ. All ranks, and any number of them, see the same values.

    Linears and embeddings are normal with standard deviation 0.02, biases are 0, and norms are 1.
    Adapters start as in LoRA: A is uniform within 1/sqrt(in), and B is 0. Numbers are generated in
    float32 and then rounded to the weight's type.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(
        cls, name: str, seed: int, shape: torch.Size, dtype: torch.dtype, device: torch.device
    ) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, name: str, seed: int, *_: Any) -> None:
        self.weight_name = name
        self.seed = zlib.crc32(f"{seed} {name}".encode())

    def to(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Return an ordinary tensor, even if type and device do not change."""
        return self.generate().to(*arguments, **keywords)

    def generate(self) -> torch.Tensor:
        return self.write(torch.empty(self.shape, dtype=self.dtype, device=self.device))

    def write(self, out: torch.Tensor) -> torch.Tensor:
        """Fill `out`, which is contiguous and has the weight's shape, type and device."""
        name = self.weight_name
        if name.endswith(".bias") or "lora_b" in name:
            return out.zero_()
        if out.dim() == 1:
            return out.fill_(1.0)
        generator = torch.Generator(out.device).manual_seed(self.seed)
        numbers = torch.empty(min(NUMBERS_PER_CALL, out.numel()), device=out.device)
        bound = 1 / math.sqrt(out.shape[1])
        for chunk in out.view(-1).split(NUMBERS_PER_CALL):
            chunk_numbers = numbers[: len(chunk)]
            if "lora_a" in name:
                chunk.copy_(chunk_numbers.uniform_(-bound, bound, generator=generator))
            else:
                chunk.copy_(chunk_numbers.normal_(0.0, STD, generator=generator))
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and isinstance(weight := args[1], cls):
            out = args[0]
            has_same_form = (out.dtype, out.device, out.shape) == (
                weight.dtype,
                weight.device,
                weight.shape,
            )
            if has_same_form and out.is_contiguous():
                return weight.write(out)
        args, kwargs = tree_map_only(cls, cls.generate, (args, kwargs or {}))
        return func(*args, **kwargs)


@implements_torch_function(torch.Tensor.copy_)
def copy_into_nf4(nf4: torch.Tensor, values: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Quantise ordinary values into an NF4 tensor.

    NF4 tensors reject operations with tensors of a class that they do not know.
    """
    if isinstance(values, RandomWeight):
        values = values.generate()
    with torch._C.DisableTorchFunctionSubclass():
        return nf4.copy_(values, *rest)


def random_weights(
    model: dict[str, Any], seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Return the state dict of a torchtune model with random weights.

    Args:
        model: The component that builds the model.
        device: The device that generates them: "cpu", or "cuda" for the current GPU.
    """
    with torch.device("meta"):
        meta_state = config.instantiate(OmegaConf.create(model)).state_dict()
    target_device = torch.empty(0, device=device).device  # The device with its index.
    return {
        name: RandomWeight(name, seed, meta.shape, dtype, target_device)
        for name, meta in meta_state.items()
    }


class RandomCheckpointer:
    """A checkpointer for torchtune's recipes that loads random weights and saves nothing.

    Args:
        dtype: The run's precision, in torchtune's terms. The weights are rounded to it before
            anything is computed from them.
        device: The device that generates the weights.
    """

    def __init__(
        self, model: dict[str, Any], seed: int, dtype: str = "fp32", device: str = "cpu", **_: Any
    ) -> None:
        self._arguments = model, seed, training.get_dtype(dtype, torch.device(device)), device

    def load_checkpoint(self) -> dict[str, Any]:
        return {training.MODEL_KEY: random_weights(*self._arguments)}

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Save nothing: the run only serves to measure."""


class StepLog:
    """A metric logger that passes each step's figures to `listener`. Only rank 0 has a listener."""

    def __init__(self, **_: Any) -> None:
        self.listener: Callable[[Mapping[str, Any]], None] | None = None

    def log_config(self, _: Any) -> None:
        """Do nothing: the run folder already holds config.yaml and torchtune.yaml."""

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        if self.listener is not None:
            self.listener(payload)

    def close(self) -> None:
        self.listener = None
