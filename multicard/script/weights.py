"""What a rank of a script trained: digests of the parameters that its counted optimiser steps.

Each rank makes them after what is timed and without any exchange; `records.trained_weights`
compares those of all ranks.
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

# elements of a tensor that are compared, evenly spaced: training changes all, or rows of a table
SAMPLED = 1 << 14
# Libraries whose ranks hold stages or parts of a model, though their tensors may have equal shapes
DIVIDING = (
    "torch.distributed.pipelining",
    "deepspeed.runtime.pipe",
    "megatron.core.pipeline_parallel",
    "colossalai",
)

# Modules and their classes whose objects average the ranks' models every few steps (local SGD), so
# that between two averages the ranks differ
AVERAGING = {
    "torch.distributed.algorithms.model_averaging.averagers": "ModelAverager",
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook": "PostLocalSGDState",
    "torchft.local_sgd": "LocalSGD",
}


class TrainedParameters:
    """The parameters of the optimiser whose steps count.

    They are held as long as the optimiser lives. When the script lets go of it, the digests are
    made at once, and the
    parameters are free: the script's memory stays its own.

    made: the digests, once the optimiser is gone; None before, and where they could not be made.
    """

    def __init__(self) -> None:
        self.made: Weights | None = None
        self._optimizer: Any = lambda: None
        self._parameters: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._process = os.getpid()
        self._averages = False

    def counts(self, optimizer: Any) -> None:
        """The steps of this optimiser count from now on."""
        self.made = None
        self._parameters = []
        self._optimizer = weakref.ref(optimizer, self._let_go)
        with suppress(Exception):  # wrappers have groups of their own kinds
            self._parameters = trained(optimizer)
        self._averages = averages_models()
        self.stepped()

    def stepped(self) -> None:
        """A step of it has ended."""
        self._versions = _versions(self._parameters)

    def digests(self) -> Weights | None:
        """What the parameters hold now; None where nobody knows. Waits for their device."""
        optimizer = self._optimizer()
        if optimizer is None or not self._parameters:
            return self.made
        found = None
        # a broken device, or tensors of a kind that has no values: it is not known
        with suppress(Exception):
            found = of(trained(optimizer) or self._parameters)
            found.changed = _versions(self._parameters) != self._versions
            found.averaged = self._averages or averages_models()
        return found

    def release(self) -> None:
        """Hold nothing any more."""
        self._optimizer = lambda: None
        self._parameters = []

    def _let_go(self, optimizer: Any) -> None:
        if optimizer is not self._optimizer or os.getpid() != self._process:
            return  # another counts by now, or this is a process that the script forked
        with suppress(Exception):
            if self._parameters:
                self.made = of(self._parameters)
                self.made.changed = _versions(self._parameters) != self._versions
                self.made.averaged = self._averages
        self.release()


def _versions(parameters: Sequence[torch.Tensor]) -> list[int]:
    """How often the first and the last parameter were written to. Cheap enough for each step."""
    with suppress(Exception):
        return [parameters[place]._version for place in (0, -1)] if parameters else []
    return []


def averages_models() -> bool:
    """True where an object lives that averages the ranks' models now and then."""
    found = [
        getattr(sys.modules[name], kind, None)
        for name, kind in AVERAGING.items()
        if name in sys.modules
    ]
    kinds = tuple(kind for kind in found if isinstance(kind, type))
    return bool(kinds) and any(issubclass(type(each), kinds) for each in gc.get_objects())


def trained(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that an optimiser steps, in its order."""
    found = []
    for group in optimizer.param_groups:
        found.extend(tensor for tensor in group["params"] if tensor.requires_grad)
    return found


def of(parameters: Iterable[torch.Tensor]) -> Weights:
    """The digests of some parameters. Waits for their device; runs after what is timed."""
    found = Weights(divided=any(name in sys.modules for name in DIVIDING))
    shapes = blake2b(digest_size=8)
    with torch.no_grad():
        for tensor in parameters:
            shapes.update(f"{tuple(tensor.shape)} {tensor.dtype}\n".encode())
            if _is_part(tensor):
                found.divided = True
                continue
            digest = _digest(tensor)
            if digest is not None:
                found.digests.append(digest)
    found.shapes = shapes.hexdigest()
    return found


def _is_part(tensor: torch.Tensor) -> bool:
    """True for what is one rank's part of a larger tensor: of FSDP, tensor parallelism,
    or DeepSpeed's stage 3.
    """
    kinds = {kind.__name__ for kind in type(tensor).__mro__}
    return (
        bool(kinds & {"DTensor", "FlatParameter"})
        or hasattr(tensor, "ds_id")
        or hasattr(tensor, "_fsdp_flattened")
    )


def _digest(tensor: torch.Tensor) -> str | None:
    """Of a sample of the elements; None for a tensor without values,
    or whose values are all alike.
    """
    if tensor.is_meta or not tensor.numel():
        return None
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLED)]
    sample = sample.to("cpu", torch.float64 if sample.is_floating_point() else None)
    if bool((sample == sample[0]).all()):
        return None
    return blake2b(sample.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
