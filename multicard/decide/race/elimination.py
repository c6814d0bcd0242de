"""Which cells of a race are out, and how likely it is that the best one is among them."""

import math
from collections.abc import Mapping, Sequence

from scipy.special import stdtr

from multicard.decide.race.outcome import BEATEN
from multicard.decide.race.posterior import Posterior
from multicard.messages import Message, code_of

DROP_SHARE = 0.1  # of 1 - confidence, for dropping the best cell
SPENT_AT_ONCE = 0.25  # of the probability that is left for dropping the best cell
NOISE_DEGREES = 3  # of freedom of a cell's noise before its first block


class Elimination:
    """Cells that are out.

    reasons: of each. spent: the probability that the best cell is among the beaten ones.
    stopped: cells that returned, and need a new process.

    Args:
        confidence: of the race.
    """

    def __init__(self, confidence: float) -> None:
        self.reasons: dict[int, str] = {}
        self.spent = 0.0
        self.stopped: set[int] = set()
        self._most = DROP_SHARE * (1 - confidence)
        self._risks: dict[int, float] = {}  # of beaten cells: what each took of `spent`

    @property
    def beaten(self) -> list[int]:
        """Cells that are out because they were beaten."""
        return [cell for cell, reason in self.reasons.items() if code_of(reason) == BEATEN]

    @property
    def failed(self) -> set[int]:
        """Cells that are out for another reason."""
        return self.reasons.keys() - {*self.beaten}

    def out(self, cell: int, reason: str) -> None:
        """Take a cell out that cannot go on. The first reason stays."""
        self.reasons.setdefault(cell, reason)

    def drop(
        self,
        posterior: Posterior,
        leader: int,
        cells: Sequence[int],
        blocks: Mapping[int, int],
    ) -> None:
        """Drop beaten cells, the worst first,
        as far as their probabilities to be the best allow it.

        Args:
            cells: that may drop out.
            blocks: of each, those that nobody disturbed.
        """
        behind = {cell: posterior.difference(leader, cell) for cell in cells if cell != leader}
        wrong = {cell: risk(apart, blocks[cell]) for cell, apart in behind.items()}
        allowed = SPENT_AT_ONCE * (self._most - self.spent)
        for cell in sorted(wrong, key=lambda cell: wrong[cell]):
            allowed -= wrong[cell]
            if allowed < 0:
                break
            self.spent += wrong[cell]
            self._risks[cell] = wrong[cell]
            mean, sd = behind[cell]
            share = -math.expm1(-mean)
            least = max(-math.expm1(2 * sd - mean), 0.0)
            sentence = f"beaten: {share:.1%} behind the leader, at least {least:.1%}"
            self.reasons[cell] = Message("race.beaten", sentence, behind=share, at_least=least)

    def may_be_best(self, behind: tuple[float, float], blocks: int) -> bool:
        """True for a cell so far behind the leader (mean, sd) that would not have dropped out."""
        return risk(behind, blocks) > self._most

    def take_back(self, cell: int) -> None:
        """Undo that a beaten cell dropped out."""
        self.spent -= self._risks.pop(cell)
        del self.reasons[cell]
        self.stopped.add(cell)

    def take_all_back(self) -> None:
        """Undo that beaten cells dropped out."""
        for cell in [*self._risks]:
            self.take_back(cell)


def risk(behind: tuple[float, float], blocks: int) -> float:
    """The probability that a cell that is so far behind the leader (mean, sd) is the better one.

    Its few blocks tell little of its own noise: Student's t allows for that.
    """
    mean, sd = behind
    return float(stdtr(NOISE_DEGREES + blocks, -mean / sd))
