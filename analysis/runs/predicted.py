"""Predictions of runs compared with their measurements; no column of a run has a prediction.

Runs that ended ok are compared: their times and energy unless others or a profiler slowed them, their memory on GPUs
alone (a CPU rank's is resident and holds Python too). Of runs out of memory only the verdict counts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from analysis.runs.columns import MARKS
from analysis.runs.load import Run
from multicard.estimate.observations import Basis
from multicard.records.schema_parts import Interval, Prediction

MEMORY = "peak_memory_bytes"
# Each measured column, and the prediction's field
PREDICTED = {"step_s": "step_s", "total_s": "total_s", "energy_joules": "energy_joules", MEMORY: "allocated_bytes"}
BASES = tuple(basis for basis in Basis if basis is not Basis.unknown)  # best first
VERDICTS = ("yes", "tight", "no")
SLOWED = ("disturbed", "loaded", "crowded", "oversubscribed", "profiled")  # marks; such runs do not teach times either
OUT_OF_MEMORY = "oom"
LEAST = 1e-9  # below which a figure in seconds, joules or bytes is none


@dataclass(frozen=True)
class Comparison:
    """One predicted figure of a run, with its 90 % interval, and the measured one, in the unit of the column's name.

    basis: with the marks of the runs behind it, as "scaled&".
    """

    run: Run
    column: str
    basis: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Relative to the measured figure; above 0 where too much was predicted."""
        return (self.predicted - self.measured) / self.measured

    @property
    def inside(self) -> bool:
        """True where the measured figure lies in the interval."""
        return self.low <= self.measured <= self.high

    @property
    def half_width(self) -> float:
        """Half of the interval, relative to the predicted figure."""
        return (self.high - self.low) / 2 / self.predicted


@dataclass
class Comparisons:
    """All comparisons of some runs, and counts of the runs that are not among them.

    verdicts: runs by the verdict on their memory, and True where they ran out of it.
    left_out: runs with a prediction whose times are not compared, by reason; unknown: those whose time could not be
    predicted, by reason. unpredicted: runs without prediction. cpu_memory: runs on CPU ranks with one of their memory.
    """

    figures: list[Comparison] = field(default_factory=list)
    verdicts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    unpredicted: int = 0
    cpu_memory: int = 0

    @property
    def any(self) -> bool:
        """True where a run has a prediction with a figure or a verdict."""
        return bool(self.figures or self.verdicts or self.left_out)


def compare(runs: Sequence[Run]) -> Comparisons:
    compared = Comparisons()
    for run in runs:
        prediction, ended, on_cpu = run.prediction, run["status"], run["cpu_ranks"]
        if prediction is None:
            compared.unpredicted += 1
            continue
        reason = _left_out(run)
        if reason is not None:
            compared.left_out[reason] += 1
        elif prediction.step_s is None and prediction.total_s is None:
            compared.unknown[prediction.about] += 1
        if ended == "ok":
            compared.figures += _figures(run, prediction, [MEMORY] if reason is not None else [*PREDICTED])
            compared.cpu_memory += bool(on_cpu and prediction.allocated_bytes)
        if prediction.fits in VERDICTS and not on_cpu and not run["disturbed"] and ended in ("ok", OUT_OF_MEMORY):
            compared.verdicts[prediction.fits, ended == OUT_OF_MEMORY] += 1
    return compared


def _left_out(run: Run) -> str | None:
    """The reason for which the times of a run are not compared; None where they are."""
    if run["status"] != "ok":
        return "ran out of memory" if run["status"] == OUT_OF_MEMORY else f"ended {run['status']}"
    return next((mark.meaning for mark in MARKS if mark.column in SLOWED and run[mark.column]), None)


def _figures(run: Run, prediction: Prediction, columns: Sequence[str]) -> Iterator[Comparison]:
    for column in columns:
        interval: Interval | None = getattr(prediction, PREDICTED[column])
        measured = run[column]
        if interval is None or not measured or (column == MEMORY and run["cpu_ranks"]):
            continue
        if min(measured, interval.value) > LEAST:
            basis = Basis.of_memory(prediction) if column == MEMORY else prediction.basis + prediction.marks
            yield Comparison(run, column, str(basis), interval.value, interval.low, interval.high, measured)
