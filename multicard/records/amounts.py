"""How much runs of a script trained. No key says so: a script ends when its own arguments, or its
files, have it end.

Amounts are counted in samples, else in tokens, and where neither is known in the steps of all
ranks. Runs with other numbers of steps may have trained as much: how much is not known of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from multicard.messages import Message

TOLERANCE = 0.01  # relative difference up to which amounts count as equal, as of last batches
OF_STEPS = 0.05  # the same of steps: an epoch may end with one that is not filled
SAMPLES = "samples"
TOKENS = "tokens"
STEPS = "steps of all ranks"
# the figure of each unit, the one that tells most first
FIGURE_OF_UNIT = {SAMPLES: "samples_trained", TOKENS: "tokens", STEPS: "steps_of_ranks"}

Figures = Callable[[str], Any]  # a figure of a run by its name


class Amounts(NamedTuple):
    """How much each of some runs trained, in a unit that all of them know."""

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
        return TOLERANCE if self.are_known else OF_STEPS

    @property
    def are_equal(self) -> bool:
        return self.least >= (1 - self.tolerance) * self.most

    @property
    def are_known(self) -> bool:
        """False where nothing but the steps is known."""
        return self.unit != STEPS

    @property
    def range(self) -> str:
        return f"{self.least:,.0f} to {self.most:,.0f} {self.unit}"

    def classes(self) -> list[float]:
        """Of each run the least amount that is equal to its own: the same of runs that did as
        much.
        """
        found: dict[float, float] = {}
        first = 0.0
        for amount in sorted(self.of_runs):
            if not first or first < (1 - self.tolerance) * amount:
                first = amount
            found[amount] = first
        return [found[amount] for amount in self.of_runs]


def of_runs(runs: Sequence[Figures]) -> Amounts | None:
    """The amounts of runs of a script; None where not even the steps of all of them are known."""
    for unit, figure in FIGURE_OF_UNIT.items():
        found = [value(figure) for value in runs]
        if found and all(found):
            return Amounts(unit, found)
    return None


def unequal_repetitions(amounts: Amounts) -> Message:
    """That repetitions of one setting trained other amounts, and why that may be."""
    return Message(
        "amounts.unequal-repetitions",
        f"repetitions of one setting trained unequal amounts ({amounts.range}): the script may go"
        " on from files that an earlier run left in its working folder, or stop early",
        unit=amounts.unit,
        least=amounts.least,
        most=amounts.most,
    )
