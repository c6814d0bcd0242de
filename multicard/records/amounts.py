"""Determines how much the runs of a script trained.

No key of the configuration says so: a script ends when its own arguments or files make it end.
Amounts are counted in samples, or else in tokens, or else in the steps of all ranks. Runs with
different numbers of steps may have trained equally much, because the size of a step is not known.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from multicard.messages import Message

TOLERANCE = 0.01  # Amounts that differ by less count as equal: last batches may be smaller.
STEPS_TOLERANCE = (
    0.05  # The tolerance for numbers of steps: the last step of an epoch may be partial.
)
SAMPLES = "samples"
TOKENS = "tokens"
STEPS = "steps of all ranks"
# The figure for each unit; the most telling unit comes first.
FIGURE_OF_UNIT = {SAMPLES: "samples_trained", TOKENS: "tokens", STEPS: "steps_of_ranks"}

Figures = Callable[[str], Any]  # Returns a figure of a run by its name.


class Amounts(NamedTuple):
    """How much each of several runs trained, in a unit that is known for all of them."""

    unit: str
    of_runs: Sequence[float]

    @property
    def least(self) -> float:
        return min(self.of_runs)

    @property
    def most(self) -> float:
        return max(self.of_runs)

    @property
    def tolerance(self) -> float:
        return TOLERANCE if self.are_known else STEPS_TOLERANCE

    @property
    def are_equal(self) -> bool:
        return self.least >= (1 - self.tolerance) * self.most

    @property
    def are_known(self) -> bool:
        """False if only the number of steps is known."""
        return self.unit != STEPS

    @property
    def range(self) -> str:
        return f"{self.least:,.0f} to {self.most:,.0f} {self.unit}"

    def classes(self) -> list[float]:
        """Return, for each run, the least amount that is equal to its amount within the tolerance.

        Runs that trained equally much have the same value.
        """
        least_of_class: dict[float, float] = {}
        least = 0.0
        for amount in sorted(self.of_runs):
            if not least or least < (1 - self.tolerance) * amount:
                least = amount
            least_of_class[amount] = least
        return [least_of_class[amount] for amount in self.of_runs]


def of_runs(runs: Sequence[Figures]) -> Amounts | None:
    """Return the amounts of runs of a script; None if not even all numbers of steps are known."""
    for unit, figure in FIGURE_OF_UNIT.items():
        values = [value(figure) for value in runs]
        if values and all(values):
            return Amounts(unit, values)
    return None


def unequal_repetitions(amounts: Amounts) -> Message:
    """Return a note that repetitions of a setting trained unequal amounts, with likely causes."""
    return Message(
        "amounts.unequal-repetitions",
        f"repetitions of one setting trained unequal amounts ({amounts.range}): the script may"
        " continue from files of an earlier run in its working folder, or stop early",
        unit=amounts.unit,
        least=amounts.least,
        most=amounts.most,
    )
