"""Decide which cells of a race are out, and how likely it is that the best cell is among them."""

import math
from collections.abc import Mapping, Sequence

from scipy.special import stdtr

from multicard.decide.race.outcome import BEATEN
from multicard.decide.race.posterior import Posterior
from multicard.messages import Message, code_of

# The probability with which the best cell may be dropped, as a share of 1 - confidence.
DROP_SHARE = 0.1
SPENT_AT_ONCE = 0.25  # One look may spend this share of the probability that is left for drops.
NOISE_DEGREES = 3  # Degrees of freedom of a cell's noise before its first block.


class Elimination:
    """The cells that are out.

    Attributes:
        reasons: why each cell is out, by cell.
        spent: the probability that the best cell is among the beaten ones.
        stopped: cells that returned and need a new process.

    Args:
        confidence: the confidence that the race is to reach.
    """

    def __init__(self, confidence: float) -> None:
        self.reasons: dict[int, str] = {}
        self.spent = 0.0
        self.stopped: set[int] = set()
        self._accepted_risk = DROP_SHARE * (1 - confidence)
        self._risks: dict[int, float] = {}  # How much each beaten cell added to `spent`.

    @property
    def beaten(self) -> list[int]:
        """Cells that are out because they were beaten."""
        return [cell for cell, reason in self.reasons.items() if code_of(reason) == BEATEN]

    @property
    def failed(self) -> set[int]:
        """Cells that are out for another reason."""
        return self.reasons.keys() - {*self.beaten}

    def out(self, cell: int, reason: str) -> None:
        """Take out a cell that cannot go on. If it is out already, its first reason stays."""
        self.reasons.setdefault(cell, reason)

    def drop(
        self,
        posterior: Posterior,
        leader: int,
        cells: Sequence[int],
        blocks: Mapping[int, int],
    ) -> None:
        """Drop beaten cells, the worst first.

        Cells drop as long as the sum of their probabilities of being the best stays small enough.

        Args:
            cells: the cells that may drop out.
            blocks: the number of undisturbed blocks of each cell.
        """
        gaps = {cell: posterior.difference(leader, cell) for cell in cells if cell != leader}
        risks = {cell: risk(gap, blocks[cell]) for cell, gap in gaps.items()}
        allowed_risk = SPENT_AT_ONCE * (self._accepted_risk - self.spent)
        for cell in sorted(risks, key=lambda cell: risks[cell]):
            allowed_risk -= risks[cell]
            if allowed_risk < 0:
                break
            self.spent += risks[cell]
            self._risks[cell] = risks[cell]
            mean, sd = gaps[cell]
            share = -math.expm1(-mean)
            at_least = max(-math.expm1(2 * sd - mean), 0.0)
            sentence = f"beaten: {share:.1%} behind the leader, at least {at_least:.1%}"
            self.reasons[cell] = Message("race.beaten", sentence, behind=share, at_least=at_least)

    def may_be_best(self, behind: tuple[float, float], blocks: int) -> bool:
        """Return True if a cell that is `behind` the leader (mean, sd) would not drop out."""
        return risk(behind, blocks) > self._accepted_risk

    def take_back(self, cell: int) -> None:
        """Return a beaten cell to the race."""
        self.spent -= self._risks.pop(cell)
        del self.reasons[cell]
        self.stopped.add(cell)

    def take_all_back(self) -> None:
        """Return all beaten cells to the race."""
        for cell in [*self._risks]:
            self.take_back(cell)


def risk(behind: tuple[float, float], blocks: int) -> float:
    """Return the probability that a cell `behind` the leader (mean, sd) is the better one.

    Few blocks say little about the noise of the cell itself. Student's t allows for that.
    """
    mean, sd = behind
    return float(stdtr(NOISE_DEGREES + blocks, -mean / sd))
