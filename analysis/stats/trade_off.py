"""The trade-off (Pareto) front of settings, and when two measured shares count as different."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Z = 1.96  # the two-sided normal quantile at 95 %
T = TypeVar("T")


def front(settings: Sequence[T], better: Sequence[Callable[[T, T], bool]]) -> list[T]:
    """The settings that no other setting beats: no worse in every quantity, and better in at least one.

    Args:
        better: for each quantity, whether the first of two settings is better in it; neither is where they are equal.
    """

    def beats(a: T, b: T) -> bool:
        return any(quantity(a, b) for quantity in better) and not any(quantity(b, a) for quantity in better)

    return [setting for setting in settings if not any(beats(other, setting) for other in settings)]


def shares_differ(a: float, a_samples: int, b: float, b_samples: int) -> bool:
    """Whether two shares of so many samples differ at 95 % (Agresti and Caffo 2000: one right, one wrong added)."""
    adjusted = [((share * n + 1) / (n + 2), n + 2) for share, n in ((a, a_samples), (b, b_samples))]
    error = math.sqrt(sum(share * (1 - share) / n for share, n in adjusted))
    return abs(adjusted[0][0] - adjusted[1][0]) > Z * error
