"""Whether the ranks of a script trained one model together: by what each of them holds at the end.

Ranks that exchange gradients hold the same values in the parameters that all of them have. Each rank makes digests of
those that its counted optimiser trains, after what is timed and without any exchange; `compared` judges the digests of
all ranks. Ranks that hold other shapes, or parts of tensors, as in tensor, pipeline or expert parallelism and with
sharded optimisers, are divided, and not apart.
"""

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import torch
from msgspec import Struct

SAMPLED = 1 << 14  # elements of a tensor that are compared, evenly spaced: training changes all, or rows of a table
FEW = 0.1  # of the tensors, up to which equal ones are those that no rank has trained, and not common ones
# Libraries whose ranks hold stages or parts of a model, though their tensors may have equal shapes
DIVIDING = ("torch.distributed.pipelining", "deepspeed.runtime.pipe", "megatron.core.pipeline_parallel")
Relation = StrEnum("Relation", ["together", "apart", "divided", "unknown"])


class Weights(Struct):
    """What a rank trained, at its end.

    shapes: of all tensors. digests: of those that it holds whole and that are not constant. divided: it holds parts.
    """

    shapes: str = ""
    digests: list[str] = []
    divided: bool = False


def trained(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that an optimiser steps, in its order."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad]


def of(parameters: Iterable[torch.Tensor]) -> Weights:
    """The digests of some parameters. Waits for their device; runs after what is timed."""
    found, shapes = Weights(divided=any(name in sys.modules for name in DIVIDING)), blake2b(digest_size=8)
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


def compared(ranks: Sequence[Weights | None]) -> Relation:
    """How the ranks trained, by what each of them holds; unknown where one of them does not tell."""
    known = [weights for weights in ranks if weights is not None]
    if len(known) < len(ranks) or not all(weights.digests for weights in known):
        divided = any(weights.divided for weights in known)
        return Relation.divided if divided else Relation.unknown
    first, *others = known
    if all(weights.shapes == first.shapes and weights.digests == first.digests for weights in others):
        return Relation.together
    if any(weights.divided or weights.shapes != first.shapes for weights in known):
        return Relation.divided
    shared = set(first.digests).intersection(*(weights.digests for weights in others))
    return Relation.divided if len(shared) > FEW * len(first.digests) else Relation.apart


def _is_part(tensor: torch.Tensor) -> bool:
    """True for what is one rank's part of a larger tensor: of FSDP, tensor parallelism, or DeepSpeed's stage 3."""
    kinds = {kind.__name__ for kind in type(tensor).__mro__}
    return bool(kinds & {"DTensor", "FlatParameter"}) or hasattr(tensor, "ds_id") or hasattr(tensor, "_fsdp_flattened")


def _digest(tensor: torch.Tensor) -> str | None:
    """Of a sample of the elements; None for a tensor without values, or whose values are all alike."""
    if tensor.is_meta or not tensor.numel():
        return None
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLED)]
    sample = sample.to("cpu", torch.float64 if sample.is_floating_point() else None)
    if bool((sample == sample[0]).all()):
        return None
    return blake2b(sample.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
