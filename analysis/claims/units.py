"""Units in which figures of claims are printed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ClaimUnit:
    """A unit in which a figure of a claim is printed.

    convert: brings the ratio or share that was measured into the unit; it increases.
    text: the words around the number. opposite: those around a number below 0, which `mirrored` makes positive; empty
        where a sign says it.
    of_bottom: the figure says what the bottom has over the top, as "faster by" does.
    """

    name: str
    text: str
    convert: Callable[[float], float]
    digits: int = 1
    of_bottom: bool = False
    opposite: str = ""
    mirrored: Callable[[float], float] = abs

    def number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"

    def phrase(self, estimate: float, low: float | None = None, high: float | None = None) -> str:
        """A figure in words, with its interval: "faster by 25.0 % (20.0 to 30.0)", "slower by 10.0 % (5.0 to 15.0)"."""
        bounds = [] if low is None or high is None or low == high else [low, high]
        is_opposite = bool(self.opposite) and estimate < 0
        if self.opposite and any((bound < 0) != is_opposite for bound in bounds):  # each bound needs words of its own
            texts = [self.phrase(bound) for bound in bounds]
        elif is_opposite:
            texts = [self.number(self.mirrored(bound)) for bound in reversed(bounds)]
        else:
            texts = [self.number(bound) for bound in bounds]
        words, shown = (self.opposite, self.mirrored(estimate)) if is_opposite else (self.text, estimate)
        return words.format(self.number(shown)) + (f" ({' to '.join(texts)})" if texts else "")


def _slower(percent: float) -> float:
    """What the other side is faster by: B is 25 % slower than A where A is 25 % faster than B."""
    share = 1 + percent / 100
    return 100 * (1 / share - 1) if share > 0 else math.inf


UnitName = Literal["faster", "less", "times", "points", "percent"]
UNITS: dict[UnitName, ClaimUnit] = {
    "faster": ClaimUnit(
        "% faster",
        "faster by {} %",
        lambda ratio: 100 * (ratio - 1),
        of_bottom=True,
        opposite="slower by {} %",
        mirrored=_slower,
    ),
    "less": ClaimUnit(
        "% less", "less by {} %", lambda ratio: 100 * (1 - 1 / ratio), of_bottom=True, opposite="more by {} %"
    ),
    "times": ClaimUnit("x", "{} x", float, 2),
    "points": ClaimUnit("points", "{} points", lambda share: 100 * share, 2),
    "percent": ClaimUnit("%", "{} %", lambda share: 100 * share),
}
