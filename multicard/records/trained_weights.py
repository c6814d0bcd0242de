"""What the ranks of a script trained, and how these relate:
by digests that each rank made at its end.

Ranks that exchange gradients hold the same values in the parameters that all of them have. Ranks
that hold other shapes, or parts of tensors, as in tensor, pipeline or expert parallelism and with
sharded optimisers, are divided, and not apart. Does not import torch.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

# of the tensors, up to which equal ones are those that no rank has trained, and not common ones
FEW = 0.1


class Relation(StrEnum):
    """How the ranks of a run trained."""

    together = "together"
    apart = "apart"
    divided = "divided"
    unknown = "unknown"


class ApartBy(StrEnum):
    """How it is known that ranks trained apart."""

    group = "group"
    values = "values"
    steps = "steps"


class Weights(Struct):
    """What a rank trained, at its end.

    shapes: of all tensors. digests: of those that it holds whole and that are not constant.
    divided: it holds parts.
    changed: they were written to after the last step, as by a checkpoint that one rank loads.
    averaged: the ranks average their models every few steps, and differ in between.
    """

    shapes: str = ""
    digests: list[str] = []
    divided: bool = False
    changed: bool = False
    averaged: bool = False


class Held(Struct):
    """What a rank has trained so far: whether it joined a process group, and what it holds,
    where that is known.
    """

    grouped: bool = True
    weights: Weights | None = None


def compared(ranks: Sequence[Weights | None]) -> Relation:
    """How the ranks trained, by what each of them holds;
    unknown where one of them does not tell.
    """
    known = [weights for weights in ranks if weights is not None]
    if len(known) < len(ranks) or not all(weights.digests for weights in known):
        divided = any(weights.divided for weights in known)
        return Relation.divided if divided else Relation.unknown
    first, *others = known
    if all(
        weights.shapes == first.shapes and weights.digests == first.digests for weights in others
    ):
        return Relation.together
    if any(weights.divided or weights.shapes != first.shapes for weights in known):
        return Relation.divided
    if any(weights.changed or weights.averaged for weights in known):
        return Relation.unknown
    shared = set(first.digests).intersection(*(weights.digests for weights in others))
    return Relation.divided if len(shared) > FEW * len(first.digests) else Relation.apart


def apart_by(
    relation: Relation, grouped: bool, steps: Sequence[int], is_stopped: bool
) -> ApartBy | None:
    """How it is known that ranks trained apart; None where they did not, or where nobody knows.

    Args:
        relation: of what they hold at the end.
        grouped: all of them joined a process group.
        steps: the number that each of them took.
        is_stopped: the script was ended, perhaps not after the same step on all ranks.
    """
    if not grouped:
        return ApartBy.group
    if relation is Relation.apart:
        return ApartBy.values
    if relation is Relation.unknown and len({*steps}) > 1 and not is_stopped:
        return ApartBy.steps
    return None
