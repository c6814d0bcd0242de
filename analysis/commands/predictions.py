"""`predictions`: accuracy of predictions on this machine, against the measurements of the same runs.

For each figure and basis: median and mean of the relative errors' sizes, the bias (their mean with the sign; above 0
where too much was predicted), the share of runs inside the 90 % interval with its own 95 % interval, and the median of
that interval's half-width. Then the verdicts on memory, and the poorest predictions.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.commands import list_runs
from analysis.runs.columns import legend
from analysis.runs.load import Skipped
from analysis.runs.predicted import BASES, MEMORY, PREDICTED, VERDICTS, Comparison, Comparisons
from analysis.stats.intervals import wilson
from multicard.config.job import count
from multicard.measure.repeated_runs import CONFIDENCE
from multicard.records import figures, text_table
from multicard.records.text_table import clean

NAMES = {"step_s": "step", "total_s": "total", "energy_joules": "energy", MEMORY: "memory"}
ALL = "all"
WORST = 5  # runs that are named
# fmt: off
ERROR_HEADINGS = (
    "figure", "basis", "runs", "median error", "mean error", "bias", "inside", "95% interval", "half-width",
)
# fmt: on
VERDICT_HEADINGS = ("predicted to fit", "fitted", "ran out of memory")
WORST_HEADINGS = ("figure", "basis", "predicted", "interval", "measured", "error", "inside", "marks", "folder")
COLUMNS = ("column", "basis", "predicted", "low", "high", "measured", "error", "inside")  # in CSV and JSON
NOTES = (
    "error: of the predicted figure, relative to the measured one; bias: its mean with the sign, + where too much",
    "inside: runs that measured a figure within the 90 % interval, and the 95 % interval of this share",
)
CPU_NOTE = "memory of CPU ranks is resident, Python and libraries included, and is not compared"
REMEDY = (
    "a run is predicted before it starts, from the records there are, and the first has none; "
    "measure more cells, as python train_vision.py -m gpus=1,2 does, or give another folder"
)


class Accuracy(NamedTuple):
    """Accuracy of one figure's predictions on one basis; errors are shares of the measured figure.

    covered: the share of runs inside their interval, with its 95 % interval (Wilson).
    half_width: the median, relative to the predicted figure.
    """

    figure: str
    basis: str
    runs: int
    median_error: float
    mean_error: float
    bias: float
    covered: float
    covered_low: float | None
    covered_high: float | None
    half_width: float

    @property
    def texts(self) -> list[str]:
        errors = f"{self.median_error:.1%}", f"{self.mean_error:.1%}", f"{self.bias:+.1%}"
        share = f"{self.covered:.0%}", f"{self.covered_low:.0%} to {self.covered_high:.0%}"
        return [self.figure, self.basis, str(self.runs), *errors, *share, f"±{self.half_width:.1%}"]


def _accuracy(column: str, basis: str, compared: Sequence[Comparison]) -> Accuracy:
    errors = [comparison.error for comparison in compared]
    sizes, share = [*map(abs, errors)], wilson(sum(each.inside for each in compared), len(compared), CONFIDENCE)
    means = statistics.median(sizes), statistics.fmean(sizes), statistics.fmean(errors)
    half_width = statistics.median(each.half_width for each in compared)
    covered = share.estimate, share.low, share.high
    return Accuracy(NAMES[column], basis, len(compared), *means, *covered, half_width)


def accuracies(compared: Comparisons) -> list[Accuracy]:
    """A row for each figure and basis, and one for all bases of a figure where it has several."""
    rows = []
    for column in PREDICTED:
        own = [each for each in compared.figures if each.column == column]
        bases = dict.fromkeys((*BASES, *(each.basis for each in own)))
        groups = {str(basis): group for basis in bases if (group := [each for each in own if each.basis == basis])}
        groups |= {ALL: own} if len(groups) > 1 else {}
        rows += [_accuracy(column, basis, group) for basis, group in groups.items()]
    return rows


def verdict_rows(compared: Comparisons) -> list[list[str]]:
    """Counts of runs that fitted and that ran out of memory, by the verdict before; empty without any verdict."""
    counts = compared.verdicts
    return [[verdict, str(counts[verdict, False]), str(counts[verdict, True])] for verdict in VERDICTS if counts]


def worst(compared: Comparisons) -> list[Comparison]:
    """The poorest figure of each of the runs that were predicted worst."""
    by_run: dict[Path, Comparison] = {}
    for comparison in sorted(compared.figures, key=lambda comparison: -abs(comparison.error)):
        by_run.setdefault(comparison.run.folder, comparison)
    return list(by_run.values())[:WORST]


def worst_texts(each: Comparison) -> list[str]:
    values = (figures.text(each.column, value) for value in (each.predicted, each.low, each.high, each.measured))
    unit = " s" * each.column.endswith("_s")
    predicted, low, high, measured = (f"{value}{unit}" for value in values)
    shown = [predicted, f"{low} to {high}", measured, f"{each.error:+.1%}", "yes" if each.inside else "no"]
    return [NAMES[each.column], each.basis, *shown, each.run["marks"], str(each.run.folder)]


def notes(compared: Comparisons) -> list[str]:
    """Lines on what is not compared, with the reasons."""
    left_out, unknown = compared.left_out.items(), compared.unknown.items()
    lines = [f"times and energy of {count(number, 'run')} left out: {clean(why)}" for why, number in left_out]
    lines += [f"times of {count(number, 'run')} not known: {clean(why)}" for why, number in unknown]
    if compared.unpredicted:
        lines.append(f"no prediction is in {count(compared.unpredicted, 'run')}")
    return [*lines, *([CPU_NOTE] if compared.cpu_memory else [])]


def require_some(compared: Comparisons, where: str) -> None:
    """Refuse runs without any prediction.

    Raises:
        ValueError: with the remedy.
    """
    if not compared.any:
        why = "".join(f" ({clean(about)})" for about in list(compared.unknown)[:1] if about)
        raise ValueError(f"nothing was predicted of the runs under {where}{why}: {REMEDY}")


def lines(compared: Comparisons, limit: int | None) -> list[str]:
    """The printed tables and notes; `limit`: the width of a line in cells, None for any."""
    poorest = worst(compared)
    tables = (
        ([], ERROR_HEADINGS, [row.texts for row in accuracies(compared)]),
        ([""], VERDICT_HEADINGS, verdict_rows(compared)),
        (["", "worst:"], WORST_HEADINGS, list(map(worst_texts, poorest))),
    )
    printed = [
        line for above, headings, rows in tables if rows for line in (*above, *text_table.text(headings, rows, limit))
    ]
    marks = legend(comparison.run["marks"] for comparison in poorest)
    return [*printed, "", *(NOTES if compared.figures else ()), *notes(compared), *marks]


def write_csv(path: Path, compared: Comparisons) -> None:
    """Every predicted figure of every run, in the unit of its column's name."""
    path.write_text(text_table.to_csv(("folder", *COLUMNS), [[*_values(each).values()] for each in compared.figures]))


def write_json(path: Path, compared: Comparisons, skipped: Sequence[Skipped]) -> None:
    """The same, with the tables, what was left out, and the records that were skipped."""
    verdicts = compared.verdicts.items()
    content: dict[str, Any] = {
        "accuracies": [row._asdict() for row in accuracies(compared)],
        "verdicts": [{"fits": fits, "ran_out": ran_out, "runs": count} for (fits, ran_out), count in verdicts],
        "figures": list(map(_values, compared.figures)),
        **{name: getattr(compared, name) for name in ("left_out", "unknown", "unpredicted")},
        "skipped": list_runs.skipped_rows(skipped),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _values(comparison: Comparison) -> dict[str, Any]:
    return {"folder": str(comparison.run.folder)} | {name: getattr(comparison, name) for name in COLUMNS}
