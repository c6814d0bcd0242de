"""When two shares of right answers, each the mean over the runs of a setting, differ by more than chance explains.

Chance is twofold: other images would have been answered otherwise, and another training (seed) would have gone
otherwise. The first follows from the number of answers, the second from the runs that were repeated.
"""

import math
from dataclasses import dataclass

from multicard.measure.repeated_runs import CONFIDENCE, Spread, Term, combined, student_quantile

PRIOR_SD = 0.002  # of the accuracy of runs with other seeds, before any was repeated


@dataclass(frozen=True)
class Share:
    """The mean share of right answers over `runs` runs, which gave so many `answers` together."""

    share: float
    answers: int
    runs: int = 1


def differ(a: Share, b: Share, spread: Spread) -> bool:
    """Whether two shares differ at 95 %, by their answers and by how runs differ.

    Of the answers, one right and one wrong are added (Agresti and Caffo 2000). Where nothing was repeated, runs are
    taken to differ by PRIOR_SD exactly.
    """
    adjusted = [((one.share * one.answers + 1) / (one.answers + 2), one.answers + 2) for one in (a, b)]
    of_answers = Term(sum(share * (1 - share) / count for share, count in adjusted), math.inf)
    degrees = spread.term.degrees if spread.degrees else math.inf
    of_runs = Term(spread.variance * (1 / a.runs + 1 / b.runs), degrees)
    total = combined([of_answers, of_runs])
    limit = student_quantile(CONFIDENCE, total.degrees) * math.sqrt(total.variance)
    return abs(adjusted[0][0] - adjusted[1][0]) > limit
