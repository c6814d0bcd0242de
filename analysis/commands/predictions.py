"""`predictions`: compare predictions on this machine with the measurements of the same runs.

Each figure and basis gets a row. It has the median and mean size of the relative error, and the
bias: the mean error with its sign, above 0 if too much was predicted. It also has the share of runs
inside the 90 % interval, this share's own 95 % interval, and the median half-width of the 90 %
interval. Below the table stand the verdicts on memory. `--csv` has each predicted figure of each
run.

Only runs that ended ok are compared. Their times and energy count unless other processes or a
profiler slowed them. Their memory counts only on GPUs, because the memory of a CPU rank is resident
and includes Python. For runs out of memory, only the verdict counts.

A prediction may also have times for the case that others stay as busy. If they did, these times are
compared too, on a separate basis.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.job import count
from multicard.estimate.observations import SAME_LOAD, Basis, explain_marks
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
from ..table_columns import Column, sortable_table
from ..table_columns import rows as rows_of

AS_BUSY = " as busy"  # Follows the basis of times that suppose that others stay as busy.
TIMES = ("step_s", "total_s")
# Each measured column with the field of the prediction.
PREDICTED = {
    "step_s": "step_s",
    "total_s": "total_s",
    "energy_joules": "energy_joules",
    MEMORY: "allocated_bytes",
}
NAMES = {"step_s": "step", "total_s": "total", "energy_joules": "energy", MEMORY: "memory"}
BASES = tuple(basis for basis in Basis if basis is not Basis.unknown)  # The best one first.
VERDICTS = ("yes", "tight", "no")
OUT_OF_MEMORY = "oom"
LEAST = 1e-9  # Figures below it (seconds, joules or bytes) are not compared.
VERDICT_HEADINGS = ("predicted to fit", "fitted", "ran out of memory")
# The columns of CSV and JSON.
COLUMNS = ("column", "basis", "predicted", "low", "high", "measured", "error", "inside")
NOTES = (
    Message(
        "predictions.error",
        "error: of the predicted figure, relative to the measured one; bias: the mean error with"
        " its sign, + if too much was predicted",
    ),
    Message(
        "predictions.inside",
        "inside: the share of runs whose measured figure lies within the 90 % interval, and the"
        " 95 % interval of this share",
    ),
)
UNPREDICTED = Message("predictions.none", "without a prediction")
ON_CPU = Message(
    "predictions.cpu-memory",
    "memory of CPU ranks is not compared: it is resident memory, Python and libraries included",
)
REMEDY = Message(
    "predictions.remedy",
    "runs are predicted before they start, from earlier records, so the first run has no"
    " prediction; measure more cells, as with `-m gpus=1,2`, or give another folder",
)


class PredictedAndMeasured(NamedTuple):
    """One predicted figure of a run with its 90 % interval, and the measured figure.

    All are in the unit of the column's name.

    basis: the prediction's basis with the marks of the runs that it rests on, as "scaled&" or
        "scaled& as busy".
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
        """The marks that its basis contains."""
        prediction = self.run.prediction
        return "" if prediction is None or self.column == MEMORY else prediction.marks

    @property
    def error(self) -> float:
        """The error relative to the measured figure, above 0 if too much was predicted."""
        return (self.predicted - self.measured) / self.measured

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high

    def values(self) -> dict[str, Any]:
        return {"folder": str(self.run.folder)} | {name: getattr(self, name) for name in COLUMNS}


@dataclass
class Comparisons:
    """All comparisons of some runs.

    verdicts: the number of runs by the verdict on their memory, and whether they ran out of it.
    left_out: the number of runs of which some figure is not compared, by the reason.
    """

    figures: list[PredictedAndMeasured] = field(default_factory=list)
    verdicts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def of_column(self, column: str) -> list[PredictedAndMeasured]:
        return [figure for figure in self.figures if figure.column == column]

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
    """Compare each run with its prediction, and count why figures are not compared."""
    comparisons = Comparisons()
    for run in runs:
        prediction = run.prediction
        ended = run["status"]
        on_cpu = run["cpu_ranks"]
        if prediction is None:
            comparisons.left_out[UNPREDICTED] += 1
            continue
        reason = _why_left_out(run)
        others_stayed_as_busy = ended == "ok" and _others_stayed_as_busy(run, prediction)
        if others_stayed_as_busy:
            comparisons.figures += _figures_as_busy(run, prediction)
        elif reason is not None:
            text = f"times and energy left out, {reason}"
            comparisons.left_out[Message("predictions.no-times", text, reason=reason)] += 1
        elif prediction.step_s is None and prediction.total_s is None:
            text = f"times not known, {prediction.about}"
            comparisons.left_out[
                Message("predictions.unknown-times", text, about=prediction.about)
            ] += 1
        if ended == "ok":
            comparisons.figures += _figures(
                run, prediction, [MEMORY] if reason is not None else [*PREDICTED]
            )
            if on_cpu and prediction.allocated_bytes:
                comparisons.left_out[ON_CPU] += 1
        if (
            prediction.fits in VERDICTS
            and not on_cpu
            and not run["disturbed"]
            and ended in ("ok", OUT_OF_MEMORY)
        ):
            comparisons.verdicts[prediction.fits, ended == OUT_OF_MEMORY] += 1
    return comparisons


def _why_left_out(run: Run) -> str | None:
    """Return why the times and the energy of a run are not compared, or None if they are."""
    if run["status"] != "ok":
        return Message("predictions.ended", f"ended {run['status']}", status=run["status"])
    slowing_limits = limits.forbidding(
        run.limits, Forbids.rate, Forbids.prediction, Forbids.verdict
    )
    return slowing_limits[0].says if slowing_limits else None


def _others_stayed_as_busy(run: Run, prediction: Prediction) -> bool:
    """Return True if others were as busy as the prediction supposes.

    It is False if anything else limits the run's times.
    """
    slowing_limits = limits.forbidding(
        run.limits, Forbids.rate, Forbids.prediction, Forbids.verdict
    )
    if prediction.as_busy is None or any(
        limit.code != limits.LOADED.code for limit in slowing_limits
    ):
        return False
    return abs(limits.busy_share(run.record()) - prediction.as_busy.busy) <= SAME_LOAD


def _figures_as_busy(run: Run, prediction: Prediction) -> Iterator[PredictedAndMeasured]:
    """Yield the times of a run that were predicted for others that stay as busy."""
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
    """Yield the figures of a run that were predicted, in these columns."""
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


def accuracies(comparisons: Comparisons) -> list[Column]:
    """Return the columns of the table of accuracies: a row for each figure and basis.

    If a figure has several bases, a further row has all of them. Errors are shares of the measured
    figure. Half-widths are shares of the predicted figure.
    """
    groups: list[tuple[str, str, list[PredictedAndMeasured]]] = []
    for column in PREDICTED:
        column_figures = comparisons.of_column(column)
        bases = dict.fromkeys((*BASES, *(figure.basis for figure in column_figures)))
        figures_by_basis = {
            str(basis): group
            for basis in bases
            if (group := [figure for figure in column_figures if figure.basis == basis])
        }
        figures_by_basis |= {"all": column_figures} if len(figures_by_basis) > 1 else {}
        groups += [(NAMES[column], basis, group) for basis, group in figures_by_basis.items()]
    errors = [[figure.error for figure in group] for *_, group in groups]
    shares = [
        wilson(sum(figure.inside for figure in group), len(group), CONFIDENCE)
        for *_, group in groups
    ]
    half_widths = [
        [(figure.high - figure.low) / 2 / figure.predicted for figure in group]
        for *_, group in groups
    ]
    return [
        Column("figure", "figure", [figure for figure, *_ in groups]),
        Column("basis", "basis", [basis for _, basis, _ in groups]),
        Column("runs", "runs", [*map(len, errors)]),
        Column(
            "median error",
            "median_error",
            [statistics.median(map(abs, group_errors)) for group_errors in errors],
            "{:.1%}".format,
        ),
        Column(
            "mean error",
            "mean_error",
            [statistics.fmean(map(abs, group_errors)) for group_errors in errors],
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
    """Return the tables and notes, and every predicted figure of every run.

    Figures are in the unit of their column's name.

    Raises:
        ValueError: no run under these folders can be compared. The message has the reasons and the
            remedy.
    """
    comparisons = compare(runs)
    if not comparisons.figures and not comparisons.verdicts:
        where = ", ".join(map(str, folders))
        notes = "; ".join(comparisons.notes)
        raise Refusal(
            "predictions.nothing",
            f"nothing can be compared of the runs under {where} ({notes}): {REMEDY}",
            folders=where,
            left_out=[*comparisons.left_out],
            remedy=REMEDY,
        )
    counts = comparisons.verdicts
    verdicts = [
        [verdict, str(counts[verdict, False]), str(counts[verdict, True])]
        for verdict in VERDICTS
        if counts
    ]
    shown_tables = [
        shown_table
        for shown_table in (
            sortable_table(accuracies(comparisons)),
            TextTable(VERDICT_HEADINGS, verdicts, [""]),
        )
        if shown_table.rows
    ]
    meanings = explain_marks(figure.marks for figure in comparisons.figures)
    notes_below = ["", *(NOTES if comparisons.figures else ()), *meanings, *comparisons.notes]
    shown_tables[-1] = shown_tables[-1]._replace(below=notes_below)

    def content(rows: Rows) -> dict[str, Any]:
        verdicts = [
            {"fits": fits, "ran_out": ran_out, "runs": number}
            for (fits, ran_out), number in counts.items()
        ]
        content_fields = {"accuracies": rows_of(accuracies(comparisons)), "verdicts": verdicts}
        return content_fields | {"figures": rows, "left_out": comparisons.left_out}

    def lines(width: int | None) -> list[str]:
        return list(chain.from_iterable(shown_table.lines(width) for shown_table in shown_tables))

    return Output(
        lines,
        lambda: shown_tables,
        [figure.values() for figure in comparisons.figures],
        ("folder", *COLUMNS),
        content,
    )
