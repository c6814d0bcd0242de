"""`predictions`: accuracy of predictions on this machine,
against the measurements of the same runs.

For each figure and basis: median and mean of the relative errors' sizes, the bias (their mean with
the sign; above 0 where too much was predicted), the share of runs inside the 90 % interval with its
own 95 % interval, and the median of that interval's half-width. Then the verdicts on memory.
`--csv` has each predicted figure of each run.

Runs that ended ok are compared: their times and energy unless others or a profiler slowed them,
their memory on GPUs alone (a CPU rank's is resident and holds Python too). Of runs out of memory
only the verdict counts. Where a prediction says the times if others stay as busy, and they did,
these are compared, on a basis of their own.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.job import count
from multicard.estimate.observations import SAME_LOAD, Basis, explained
from multicard.measure.repeated_runs import CONFIDENCE
from multicard.messages import Message, Refusal
from multicard.records import limits
from multicard.records.limits import Forbids
from multicard.records.output import Output, Rows
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.records.text_table import TextTable, clean

from ..runs.grouping import MEMORY
from ..runs.load import Run
from ..stats.intervals import wilson
from ..table_columns import Column, table
from ..table_columns import rows as rows_of

AS_BUSY = " as busy"  # behind the basis of times if others stay as busy
TIMES = ("step_s", "total_s")
# Each measured column: the prediction's field, and its name in tables
PREDICTED = {
    "step_s": "step_s",
    "total_s": "total_s",
    "energy_joules": "energy_joules",
    MEMORY: "allocated_bytes",
}
NAMES = {"step_s": "step", "total_s": "total", "energy_joules": "energy", MEMORY: "memory"}
BASES = tuple(basis for basis in Basis if basis is not Basis.unknown)  # best first
VERDICTS = ("yes", "tight", "no")
OUT_OF_MEMORY = "oom"
LEAST = 1e-9  # seconds, joules or bytes below which nothing is compared
VERDICT_HEADINGS = ("predicted to fit", "fitted", "ran out of memory")
# in CSV and JSON
COLUMNS = ("column", "basis", "predicted", "low", "high", "measured", "error", "inside")
NOTES = (
    Message(
        "predictions.error",
        "error: of the predicted figure, relative to the measured one; bias: its mean with the"
        " sign, + where too much was predicted",
    ),
    Message(
        "predictions.inside",
        "inside: runs that measured a figure within the 90 % interval, and the 95 % interval of"
        " this share",
    ),
)
UNPREDICTED = Message("predictions.none", "without a prediction")
ON_CPU = Message(
    "predictions.cpu-memory",
    "memory of CPU ranks not compared: it is resident, Python and libraries included",
)
REMEDY = Message(
    "predictions.remedy",
    "runs are predicted before they start, from earlier records, so the first has no prediction;"
    " measure more cells, as with `-m gpus=1,2`, or give another folder",
)


class PredictedAndMeasured(NamedTuple):
    """One predicted figure of a run, with its 90 % interval, and the measured one,
    in the unit of the column's name.

    basis: with the marks of the runs behind it, as "scaled&", or "scaled& as busy".
    """

    run: Run
    column: str
    basis: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def marks(self) -> str:
        """The marks in its basis."""
        prediction = self.run.prediction
        return "" if prediction is None or self.column == MEMORY else prediction.marks

    @property
    def error(self) -> float:
        """Relative to the measured figure; above 0 where too much was predicted."""
        return (self.predicted - self.measured) / self.measured

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high

    def values(self) -> dict[str, Any]:
        return {"folder": str(self.run.folder)} | {name: getattr(self, name) for name in COLUMNS}


@dataclass
class Comparisons:
    """All comparisons of some runs.

    verdicts: runs by the verdict on their memory, and True where they ran out of it.
    left_out: runs of which something is not compared, by the reason.
    """

    figures: list[PredictedAndMeasured] = field(default_factory=list)
    verdicts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def of_column(self, column: str) -> list[PredictedAndMeasured]:
        return [each for each in self.figures if each.column == column]

    @property
    def notes(self) -> list[str]:
        return [
            Message(
                "predictions.left-out",
                f"{clean(reason)}: {count(number, 'run')}",
                reason=reason,
                runs=number,
            )
            for reason, number in self.left_out.items()
        ]


def compare(runs: Sequence[Run]) -> Comparisons:
    compared = Comparisons()
    for run in runs:
        prediction = run.prediction
        ended = run["status"]
        on_cpu = run["cpu_ranks"]
        if prediction is None:
            compared.left_out[UNPREDICTED] += 1
            continue
        reason = _left_out(run)
        stayed = ended == "ok" and _stayed_as_busy(run, prediction)
        if stayed:
            compared.figures += _figures_as_busy(run, prediction)
        elif reason is not None:
            said = f"times and energy left out, {reason}"
            compared.left_out[Message("predictions.no-times", said, reason=reason)] += 1
        elif prediction.step_s is None and prediction.total_s is None:
            said = f"times not known, {prediction.about}"
            compared.left_out[
                Message("predictions.unknown-times", said, about=prediction.about)
            ] += 1
        if ended == "ok":
            compared.figures += _figures(
                run, prediction, [MEMORY] if reason is not None else [*PREDICTED]
            )
            if on_cpu and prediction.allocated_bytes:
                compared.left_out[ON_CPU] += 1
        if (
            prediction.fits in VERDICTS
            and not on_cpu
            and not run["disturbed"]
            and ended in ("ok", OUT_OF_MEMORY)
        ):
            compared.verdicts[prediction.fits, ended == OUT_OF_MEMORY] += 1
    return compared


def _left_out(run: Run) -> str | None:
    """Why the times and the energy of a run are not compared; None where they are."""
    if run["status"] != "ok":
        return Message("predictions.ended", f"ended {run['status']}", status=run["status"])
    slowed = limits.forbidding(run.limits, Forbids.rate, Forbids.prediction, Forbids.verdict)
    return slowed[0].says if slowed else None


def _stayed_as_busy(run: Run, prediction: Prediction) -> bool:
    """True where others were as busy as the prediction supposes,
    and nothing else limits the run's times.
    """
    slowed = limits.forbidding(run.limits, Forbids.rate, Forbids.prediction, Forbids.verdict)
    if prediction.as_busy is None or any(limit.code != limits.LOADED.code for limit in slowed):
        return False
    return abs(limits.busy_share(run.record()) - prediction.as_busy.busy) <= SAME_LOAD


def _figures_as_busy(run: Run, prediction: Prediction) -> Iterator[PredictedAndMeasured]:
    """The times of a run beside those that were predicted if others stay as busy."""
    for column in TIMES:
        interval: PredictedInterval | None = getattr(prediction.as_busy, PREDICTED[column])
        measured = run[column]
        if interval is not None and measured and min(measured, interval.value) > LEAST:
            basis = f"{prediction.basis}{prediction.marks}{AS_BUSY}"
            yield PredictedAndMeasured(
                run, column, basis, interval.value, interval.low, interval.high, measured
            )


def _figures(
    run: Run, prediction: Prediction, columns: Sequence[str]
) -> Iterator[PredictedAndMeasured]:
    for column in columns:
        interval: PredictedInterval | None = getattr(prediction, PREDICTED[column])
        measured = run[column]
        if interval is None or not measured or (column == MEMORY and run["cpu_ranks"]):
            continue
        if min(measured, interval.value) > LEAST:
            basis = (
                Basis.of_memory(prediction)
                if column == MEMORY
                else prediction.basis + prediction.marks
            )
            yield PredictedAndMeasured(
                run, column, str(basis), interval.value, interval.low, interval.high, measured
            )


def accuracies(compared: Comparisons) -> list[Column]:
    """A row for each figure and basis, and one for all bases of a figure where it has several;
    errors are shares of the measured figure, the half-width of the predicted one.
    """
    groups: list[tuple[str, str, list[PredictedAndMeasured]]] = []
    for column in PREDICTED:
        own = compared.of_column(column)
        bases = dict.fromkeys((*BASES, *(each.basis for each in own)))
        known = {
            str(basis): group
            for basis in bases
            if (group := [each for each in own if each.basis == basis])
        }
        known |= {"all": own} if len(known) > 1 else {}
        groups += [(NAMES[column], basis, group) for basis, group in known.items()]
    errors = [[each.error for each in group] for *_, group in groups]
    shares = [
        wilson(sum(each.inside for each in group), len(group), CONFIDENCE) for *_, group in groups
    ]
    half_widths = [
        [(each.high - each.low) / 2 / each.predicted for each in group] for *_, group in groups
    ]
    return [
        Column("figure", "figure", [figure for figure, *_ in groups]),
        Column("basis", "basis", [basis for _, basis, _ in groups]),
        Column("runs", "runs", [*map(len, errors)]),
        Column(
            "median error",
            "median_error",
            [statistics.median(map(abs, own)) for own in errors],
            "{:.1%}".format,
        ),
        Column(
            "mean error",
            "mean_error",
            [statistics.fmean(map(abs, own)) for own in errors],
            "{:.1%}".format,
        ),
        Column("bias", "bias", [*map(statistics.fmean, errors)], "{:+.1%}".format),
        Column("inside", "covered", [share.estimate for share in shares], "{:.0%}".format),
        Column(
            "95% interval",
            "",
            [(share.low, share.high) for share in shares],
            "{0[0]:.0%} to {0[1]:.0%}".format,
        ),
        *(
            Column("", f"covered_{end}", [getattr(share, end) for share in shares])
            for end in ("low", "high")
        ),
        Column(
            "half-width", "half_width", [*map(statistics.median, half_widths)], "±{:.1%}".format
        ),
    ]


def output(runs: Sequence[Run], folders: Sequence[Path]) -> Output:
    """The tables and notes, and every predicted figure of every run,
    in the unit of its column's name.

    Raises:
        ValueError: nothing can be compared of the runs of these folders,
            with the reasons and the remedy.
    """
    compared = compare(runs)
    if not compared.figures and not compared.verdicts:
        where = ", ".join(map(str, folders))
        notes = "; ".join(compared.notes)
        raise Refusal(
            "predictions.nothing",
            f"nothing can be compared of the runs under {where} ({notes}): {REMEDY}",
            folders=where,
            left_out=[*compared.left_out],
            remedy=REMEDY,
        )
    counts = compared.verdicts
    verdicts = [
        [verdict, str(counts[verdict, False]), str(counts[verdict, True])]
        for verdict in VERDICTS
        if counts
    ]
    shown = [
        one
        for one in (table(accuracies(compared)), TextTable(VERDICT_HEADINGS, verdicts, [""]))
        if one.rows
    ]
    meanings = explained(each.marks for each in compared.figures)
    below = ["", *(NOTES if compared.figures else ()), *meanings, *compared.notes]
    shown[-1] = shown[-1]._replace(below=below)

    def content(rows: Rows) -> dict[str, Any]:
        verdicts = [
            {"fits": fits, "ran_out": out, "runs": number} for (fits, out), number in counts.items()
        ]
        own = {"accuracies": rows_of(accuracies(compared)), "verdicts": verdicts}
        return own | {"figures": rows, "left_out": compared.left_out}

    def lines(width: int | None) -> list[str]:
        return list(chain.from_iterable(each.lines(width) for each in shown))

    return Output(
        lines,
        lambda: shown,
        [each.values() for each in compared.figures],
        ("folder", *COLUMNS),
        content,
    )
