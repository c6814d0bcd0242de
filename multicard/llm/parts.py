"""Describe the tensors that a run trained, as they are written after the training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")  # Parts of the names of parameters.
# Types and shapes of the tensors in a file, by their names.
TensorEntries = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class TensorPart:
    """A tensor to be written.

    Attributes:
        tensor: The tensor on this rank, which may be a shard. Reading it as a whole calls
            collectives, so all ranks must do so together.
        form: Converts the whole tensor to what the file holds, which has the same shape.
    """

    tensor: torch.Tensor
    form: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor

    def gather(self) -> torch.Tensor:
        """Return the whole tensor on the CPU, in the form of the file. All ranks must call this."""
        tensor = self.tensor.detach()
        whole_tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return self.form(whole_tensor).cpu()

    def tensor_entries(self, name: str) -> TensorEntries:
        """Return the types and shapes of the tensors in the file, in their order."""
        return {name: (self.tensor.dtype, tuple(self.tensor.shape))}

    def tensors_to_write(self, name: str, whole_tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors in the file, computed from the whole tensor."""
        return {name: whole_tensor}


@dataclass(frozen=True)
class TrainedParts:
    """What an engine trained.

    Attributes:
        parts: The trained tensors, by the names of PEFT (adapters) or of transformers (weights).
        others: The tensors of the adapters' base model, by transformers' names. Only used if no
            other place holds them.
        adapter: PEFT's configuration of the adapters, or None if all weights were trained.
        reader: The class of transformers that reads the model.
        tied: True if the output is tied to the embeddings.
        linears: Names of the weights of linear layers, if all weights were trained.
        groupsize: Number of weights that share a scale once the linears are quantised, or None if
            they are not quantised.
    """

    parts: dict[str, TensorPart]
    others: dict[str, TensorPart]
    adapter: dict[str, Any] | None
    tied: bool
    reader: str = "AutoModelForCausalLM"
    linears: frozenset[str] = frozenset()
    groupsize: int | None = None


def unwrapped_name(name: str) -> str:
    """Return the name of a parameter without the names of wrappers around its modules."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
