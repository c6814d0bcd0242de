"""The trade-off (Pareto) front of settings."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def front(settings: Sequence[T], better: Sequence[Callable[[T, T], bool]]) -> list[T]:
    """The settings that no setting of the front beats: no worse in every quantity, and better in at least one.

    Of three, the first may beat the second and the second the third, and yet the first not the third: what cannot be
    told apart is not transitive. The third is on the front then, since only a setting beats it that is not.

    Args:
        better: for each quantity, whether the first of two settings is better in it; neither is where they are equal.
    """

    def beats(a: int, b: int) -> bool:
        first, second = settings[a], settings[b]
        return any(is_better(first, second) for is_better in better) and not any(
            is_better(second, first) for is_better in better
        )

    left, chosen = list(range(len(settings))), set[int]()
    while left:
        unbeaten = [one for one in left if not any(beats(other, one) for other in left)] or left  # or a circle
        chosen.update(unbeaten)
        left = [one for one in left if one not in chosen and not any(beats(other, one) for other in unbeaten)]
    return [setting for index, setting in enumerate(settings) if index in chosen]
