"""The trade-off (Pareto) front of settings: the same in `best`, the report and the charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """A quantity in which settings are compared.

    cost: of a setting, less is better; None where it is not known, which neither dominates nor is dominated.
    better: True where the first of two settings is better by more than their runs differ.
    """

    cost: Callable[[T], float | None]
    better: Callable[[T, T], bool]


def front(settings: Sequence[T], quantities: Sequence[Quantity[T]]) -> list[T]:
    """The settings that no other dominates, as far as each is told from those before it.

    A setting is dominated by another whose figures are nowhere worse and somewhere better. Of settings that runs do not
    tell apart, the first alone is on the front: a setting joins it that is better than each member in some quantity, by
    more than runs differ.

    Args:
        settings: the best first.
    """
    members: list[T] = []
    for setting in settings:
        if any(_dominates(other, setting, quantities) for other in settings):
            continue
        if all(any(quantity.better(setting, member) for quantity in quantities) for member in members):
            members.append(setting)
    return members


def _dominates(a: T, b: T, quantities: Sequence[Quantity[T]]) -> bool:
    known = [(quantity.cost(a), quantity.cost(b)) for quantity in quantities]
    pairs = [(cost_a, cost_b) for cost_a, cost_b in known if cost_a is not None and cost_b is not None]
    return all(cost_a <= cost_b for cost_a, cost_b in pairs) and any(cost_a < cost_b for cost_a, cost_b in pairs)


def equals(settings: Sequence[T], best: T, quantities: Sequence[Quantity[T]]) -> list[T]:
    """The other settings that the runs tell from the best in no quantity."""

    def told(a: T, b: T) -> bool:
        return any(quantity.better(a, b) for quantity in quantities)

    return [
        setting for setting in settings if setting is not best and not told(best, setting) and not told(setting, best)
    ]
