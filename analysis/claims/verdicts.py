"""The verdict on a claim, and the figures that it rests on."""

from dataclasses import dataclass

from multicard.records import limits
from multicard.records.schema_parts import Limit

from .claim_files import Claim
from .comparison import ILLUSTRATED, UNMEASURED


@dataclass(frozen=True, kw_only=True)
class ClaimFigure:
    """The result of one comparison of a claim.

    what: the sides that are compared.
    where: the cell in which they are compared.
    over, under, upto: the bounds, as in `comparison.Comparison`.
    estimate, low, high: the figure and its interval in `unit`. They are None if there is no figure
        or no interval, and `why` says the reason.
    confidence: the confidence of this interval. The intervals of a claim together cover at 95 %.
    verdict: the verdict on this comparison alone.
    runs: the number of runs that are compared.
    basis: the samples that the interval rests on.
    part: the index of the claim's rule.
    beyond: True for cells that the papers do not have. Such a comparison decides nothing.
    doubtful: True if the figure is more than GPUs can reach.
    doubts: the reasons why it decides nothing, whatever its figure (`conditions`).
    """

    what: str
    where: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    unit: str = ""
    over: float
    under: float
    upto: float
    verdict: str = UNMEASURED
    runs: int
    basis: str = ""
    text: str = "-"
    why: str = ""
    part: int
    beyond: bool = False
    doubtful: bool = False
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherSetting:
    """Another setting that tests the same claim.

    apart: the columns in which it differs from the first setting.
    figures: the number of its figures.
    """

    apart: str
    setting: str
    verdict: str
    marks: str
    figures: int


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, and what the runs show about it.

    verdict: `holds`, `exceeds`, `does not hold`, `undecided`, `half measured`, `not measured`, or
        `illustrated` if the runs may not decide.
    shows: the verdict that the runs would give if they were allowed to decide.
    figures: the figures of the most telling setting; empty if nothing was measured.
    asked: the number of comparisons that all cells of the paper would give.
    n: the number of runs that are compared.
    limits: the limits of all these runs.
    why: what decided the verdict, what is missing, or why nothing could be decided.
    setting: what was measured, and on which machine.
    apart: the columns in which it differs from other settings of the experiment.
    unlike: the differences from the papers that keep these runs from deciding. Differences do not
        count if the claim is counted, or if the experiment makes them for a reason.
    lost: cells without a run that ended ok, and how their runs ended.
    command: the command that measures the claim, or what is missing; None if it was measured.
    others: other settings, each judged by itself.
    """

    claim: Claim
    verdict: str
    shows: str = ""
    figures: tuple[ClaimFigure, ...] = ()
    asked: int = 0
    n: int = 0
    limits: tuple[Limit, ...] = ()
    why: str = ""
    setting: str = ""
    apart: str = ""
    unlike: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    command: str | None = None
    others: tuple[OtherSetting, ...] = ()

    @property
    def marks(self) -> str:
        """The signs of what limits its runs."""
        return limits.signs(self.limits)

    @property
    def decides(self) -> bool:
        """True if it confirms or refutes the papers, or would do so with more runs."""
        return bool(self.n) and self.verdict != ILLUSTRATED

    @property
    def in_words(self) -> str:
        """The verdict in words: "illustrated" also says what the runs show."""
        return f"{self.verdict}: {self.shows}" if self.verdict == ILLUSTRATED else self.verdict
