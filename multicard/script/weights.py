"""Digests of the parameters that a rank of a script trains.

Each rank makes its digests after the timed steps and without any exchange.
`records.trained_weights` compares those of all ranks.
"""

import gc
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import torch

from multicard.records.trained_weights import Weights

# So many elements of a tensor are compared, evenly spaced: training changes all of them, or rows of
# a table.
SAMPLED = 1 << 14
# Ranks of these libraries hold stages or parts of a model, even if their tensors have equal shapes.
DIVIDING = (
    "torch.distributed.pipelining",
    "deepspeed.runtime.pipe",
    "megatron.core.pipeline_parallel",
    "colossalai",
)

# Classes, by module, that average the ranks' models every few steps (local SGD). The ranks differ
# between two averages.
AVERAGING = {
    "torch.distributed.algorithms.model_averaging.averagers": "ModelAverager",
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook": "PostLocalSGDState",
    "torchft.local_sgd": "LocalSGD",
}


class TrainedParameters:
    """The parameters of the optimizer whose steps count.

    They are held as long as the optimizer lives. When the script drops it, the digests are made at
    once and the parameters are released, so that the script needs no more memory than without us.

    Attributes:
        made: the digests, once the optimizer is gone; None before, and if they could not be made.
    """

    def __init__(self) -> None:
        self.made: Weights | None = None
        self._optimizer: Any = lambda: None
        self._parameters: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._process = os.getpid()
        self._averages = False

    def hold(self, optimizer: Any) -> None:
        """Hold the parameters of this optimizer: its steps count from now on."""
        self.made = None
        self._parameters = []
        self._optimizer = weakref.ref(optimizer, self._optimizer_gone)
        with suppress(Exception):  # Wrappers have parameter groups of other kinds.
            self._parameters = trained_parameters(optimizer)
        self._averages = averages_models()
        self.note_step()

    def note_step(self) -> None:
        """Note that a step of the optimizer has ended."""
        self._versions = _versions(self._parameters)

    def digests(self) -> Weights | None:
        """Return digests of the parameters as they are now; None if nobody knows.

        Waits for their device.
        """
        optimizer = self._optimizer()
        if optimizer is None or not self._parameters:
            return self.made
        weights = None
        # A broken device, or tensors of a kind without values: nobody knows the digests.
        with suppress(Exception):
            weights = digests_of(trained_parameters(optimizer) or self._parameters)
            weights.changed = _versions(self._parameters) != self._versions
            weights.averaged = self._averages or averages_models()
        return weights

    def release(self) -> None:
        """Hold nothing any more."""
        self._optimizer = lambda: None
        self._parameters = []

    def _optimizer_gone(self, optimizer: Any) -> None:
        if optimizer is not self._optimizer or os.getpid() != self._process:
            return  # Another optimizer counts by now, or the script forked this process.
        with suppress(Exception):
            if self._parameters:
                self.made = digests_of(self._parameters)
                self.made.changed = _versions(self._parameters) != self._versions
                self.made.averaged = self._averages
        self.release()


def _versions(parameters: Sequence[torch.Tensor]) -> list[int]:
    """Return how often the first and the last parameter were written to.

    That is cheap enough for each step.
    """
    with suppress(Exception):
        return [parameters[place]._version for place in (0, -1)] if parameters else []
    return []


def averages_models() -> bool:
    """Return True if an object exists that averages the ranks' models now and then."""
    averaging_classes = [
        getattr(sys.modules[name], kind, None)
        for name, kind in AVERAGING.items()
        if name in sys.modules
    ]
    kinds = tuple(kind for kind in averaging_classes if isinstance(kind, type))
    return bool(kinds) and any(issubclass(type(each), kinds) for each in gc.get_objects())


def trained_parameters(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters that an optimizer steps, in its order."""
    parameters = []
    for group in optimizer.param_groups:
        parameters.extend(tensor for tensor in group["params"] if tensor.requires_grad)
    return parameters


def digests_of(parameters: Iterable[torch.Tensor]) -> Weights:
    """Return the digests of some parameters. Waits for their device: call it after timed steps."""
    weights = Weights(divided=any(name in sys.modules for name in DIVIDING))
    shapes = blake2b(digest_size=8)
    with torch.no_grad():
        for tensor in parameters:
            shapes.update(f"{tuple(tensor.shape)} {tensor.dtype}\n".encode())
            if _is_part(tensor):
                weights.divided = True
                continue
            digest = _digest(tensor)
            if digest is not None:
                weights.digests.append(digest)
    weights.shapes = shapes.hexdigest()
    return weights


def _is_part(tensor: torch.Tensor) -> bool:
    """Return True for one rank's part of a larger tensor: of FSDP, tensor parallelism or
    DeepSpeed's stage 3.
    """
    kinds = {kind.__name__ for kind in type(tensor).__mro__}
    return (
        bool(kinds & {"DTensor", "FlatParameter"})
        or hasattr(tensor, "ds_id")
        or hasattr(tensor, "_fsdp_flattened")
    )


def _digest(tensor: torch.Tensor) -> str | None:
    """Return the digest of a sample of the elements.

    Return None if the values say nothing: the tensor has none, all are equal, or none is finite, as
    after a training that diverged. Ranks that trained apart may all have such values.
    """
    if tensor.is_meta or not tensor.numel():
        return None
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLED)]
    sample = sample.to("cpu", torch.float64 if sample.is_floating_point() else None)
    if bool((sample == sample[0]).all()) or not bool(torch.isfinite(sample).any()):
        return None
    return blake2b(sample.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
