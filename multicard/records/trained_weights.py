"""Determines whether the ranks of a script trained together, from digests of their weights.

Each rank makes digests at its end. Ranks that exchange gradients have the same values in all
parameters that they share. Ranks with other shapes, or with parts of tensors, are divided, not
apart. Examples are tensor, pipeline and expert parallelism, and sharded optimisers.

Does not import torch.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

# If no more than this share of the tensors is equal, the equal ones are taken for tensors that no
# rank trained.
FEW_SHARE = 0.1


class Relation(StrEnum):
    """How the ranks of a run trained."""

    together = "together"
    apart = "apart"
    divided = "divided"
    unknown = "unknown"


class ApartBy(StrEnum):
    """The evidence that ranks trained apart."""

    group = "group"
    values = "values"
    steps = "steps"


class Weights(Struct):
    """The weights of a rank at its end.

    shapes: a digest of the shapes of all tensors.
    digests: digests of the tensors that it holds completely and that are not constant.
    divided: it holds parts of tensors.
    changed: weights were written after the last step, as by a checkpoint that one rank loads.
    averaged: the ranks average their models every few steps, and differ in between.
    """

    shapes: str = ""
    digests: list[str] = []
    divided: bool = False
    changed: bool = False
    averaged: bool = False


class Held(Struct):
    """What a rank has trained so far: whether it joined a process group, and its weights, if they
    are known.
    """

    grouped: bool = True
    weights: Weights | None = None


def compared(ranks: Sequence[Weights | None]) -> Relation:
    """Return how the ranks trained, by their weights; unknown if any rank's are not known."""
    known_weights = [weights for weights in ranks if weights is not None]
    if len(known_weights) < len(ranks) or not all(weights.digests for weights in known_weights):
        divided = any(weights.divided for weights in known_weights)
        return Relation.divided if divided else Relation.unknown
    first, *others = known_weights
    if all(
        weights.shapes == first.shapes and weights.digests == first.digests for weights in others
    ):
        return Relation.together
    if any(weights.divided or weights.shapes != first.shapes for weights in known_weights):
        return Relation.divided
    if any(weights.changed or weights.averaged for weights in known_weights):
        return Relation.unknown
    shared = set(first.digests).intersection(*(weights.digests for weights in others))
    return Relation.divided if len(shared) > FEW_SHARE * len(first.digests) else Relation.apart


def apart_by(
    relation: Relation, grouped: bool, steps: Sequence[int], is_stopped: bool
) -> ApartBy | None:
    """Return the evidence that ranks trained apart; None if they did not, or if it is not known.

    Args:
        relation: how the weights at the end relate.
        grouped: all ranks joined a process group.
        steps: the number of steps of each rank.
        is_stopped: the script was stopped, perhaps after different steps on different ranks.
    """
    if not grouped:
        return ApartBy.group
    if relation is Relation.apart:
        return ApartBy.values
    if relation is Relation.unknown and len({*steps}) > 1 and not is_stopped:
        return ApartBy.steps
    return None
