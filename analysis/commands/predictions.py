"""`predictions`: how well predictions have done on this machine, against what the runs then measured.

For each predicted figure and each basis: the median and the mean of the relative errors' sizes, the bias (the mean with
its sign; above 0 where too much was predicted), the share of runs inside the 90 % interval with its own 95 % interval,
and the median of that interval's half-width. Then the verdicts on memory, and the runs that were predicted worst.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.commands import list_runs
from analysis.formatting import counted
from analysis.runs.columns import legend
from analysis.runs.load import Skipped
from analysis.runs.predicted import BASES, MEMORY, PREDICTED, VERDICTS, Comparison, Comparisons
from analysis.stats.intervals import wilson
from multicard.measure.repeated_runs import CONFIDENCE
from multicard.records import figures, text_table
from multicard.records.text_table import clean

NAMES = {"step_s": "step", "total_s": "total", "energy_joules": "energy", MEMORY: "memory"}
ALL = "all"
WORST = 5  # runs that are named
ERROR_HEADINGS = (
    "figure",
    "basis",
    "runs",
    "median error",
    "mean error",
    "bias",
    "inside",
    "95% interval",
    "half-width",
)
VERDICT_HEADINGS = ("predicted to fit", "fitted", "ran out of memory")
WORST_HEADINGS = ("figure", "basis", "predicted", "interval", "measured", "error", "inside", "marks", "folder")
ROW = ("folder", "column", "basis", "predicted", "low", "high", "measured", "error", "inside")  # in CSV and JSON
NOTES = (
    "error: of the predicted figure, relative to the measured one; bias: its mean with the sign, + where too much",
    "inside: runs that measured a figure within the 90 % interval, and the 95 % interval of this share",
)
CPU_NOTE = "memory of CPU ranks is resident, Python and libraries included, and is not compared"
REMEDY = (
    "a run is predicted before it starts, from the records there are, and the first has none; "
    "measure more cells, as python train_vision.py -m gpus=1,2 does, or give another folder"
)


@dataclass(frozen=True)
class Accuracy:
    """How well one figure was predicted on one basis; errors are shares of the measured figure.

    covered: the share of runs inside their interval; low, high: its 95 % interval (Wilson).
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

    @staticmethod
    def of(column: str, basis: str, compared: Sequence[Comparison]) -> "Accuracy":
        sizes = [abs(comparison.error) for comparison in compared]
        share = wilson(sum(comparison.inside for comparison in compared), len(compared), CONFIDENCE)
        return Accuracy(
            NAMES[column],
            basis,
            len(compared),
            statistics.median(sizes),
            statistics.fmean(sizes),
            statistics.fmean(comparison.error for comparison in compared),
            share.estimate,
            share.low,
            share.high,
            statistics.median(comparison.half_width for comparison in compared),
        )

    @property
    def texts(self) -> list[str]:
        return [
            self.figure,
            self.basis,
            str(self.runs),
            f"{self.median_error:.1%}",
            f"{self.mean_error:.1%}",
            f"{self.bias:+.1%}",
            f"{self.covered:.0%}",
            f"{self.covered_low:.0%} to {self.covered_high:.0%}",
            f"±{self.half_width:.1%}",
        ]


def accuracies(compared: Comparisons) -> list[Accuracy]:
    """A row for each figure and basis, and one for all bases of a figure where it has several."""
    rows = []
    for column in PREDICTED:
        by_basis = {
            basis: [each for each in compared.figures if (each.column, each.basis) == (column, basis)]
            for basis in dict.fromkeys((*BASES, *(each.basis for each in compared.figures)))
        }
        filled = {basis: group for basis, group in by_basis.items() if group}
        rows += [Accuracy.of(column, basis, group) for basis, group in filled.items()]
        if len(filled) > 1:
            rows.append(Accuracy.of(column, ALL, [each for group in filled.values() for each in group]))
    return rows


def verdict_rows(compared: Comparisons) -> list[list[str]]:
    """How many runs fitted and ran out of memory, by the verdict before; empty without any verdict."""
    counts = compared.verdicts
    if not counts:
        return []
    return [[verdict, str(counts[verdict, False]), str(counts[verdict, True])] for verdict in VERDICTS]


def worst(compared: Comparisons) -> list[Comparison]:
    """The poorest figure of each of the runs that were predicted worst."""
    by_run: dict[Path, Comparison] = {}
    for comparison in sorted(compared.figures, key=lambda comparison: -abs(comparison.error)):
        by_run.setdefault(comparison.run.folder, comparison)
    return list(by_run.values())[:WORST]


def worst_texts(comparison: Comparison) -> list[str]:
    column = comparison.column
    shown = [comparison.predicted, comparison.low, comparison.high, comparison.measured]
    predicted, low, high, measured = (_with_unit(column, value) for value in shown)
    return [
        NAMES[column],
        comparison.basis,
        predicted,
        f"{low} to {high}",
        measured,
        f"{comparison.error:+.1%}",
        "yes" if comparison.inside else "no",
        comparison.run["marks"],
        str(comparison.run.folder),
    ]


def notes(compared: Comparisons) -> list[str]:
    """Lines on the runs of which something is not compared, and why."""
    lines = [
        f"times and energy of {counted(count, 'run')} left out: {clean(why)}"
        for why, count in compared.left_out.items()
    ]
    lines += [f"times of {counted(count, 'run')} not known: {clean(why)}" for why, count in compared.unknown.items()]
    if compared.unpredicted:
        lines.append(f"no prediction is in {counted(compared.unpredicted, 'run')}")
    return [*lines, *([CPU_NOTE] if compared.cpu_memory else [])]


def require_some(compared: Comparisons, where: str) -> None:
    """Refuse runs of which none was predicted.

    Raises:
        ValueError: with what leaves predictions.
    """
    if not compared.any:
        why = "".join(f" ({clean(about)})" for about in list(compared.unknown)[:1] if about)
        raise ValueError(f"nothing was predicted of the runs under {where}{why}: {REMEDY}")


def lines(compared: Comparisons, limit: int | None) -> list[str]:
    """The lines that `predictions` prints; `limit`: the width of a line in cells, None for any."""
    printed = []
    if compared.figures:
        printed += text_table.text(ERROR_HEADINGS, [row.texts for row in accuracies(compared)], limit)
    verdicts = verdict_rows(compared)
    if verdicts:
        printed += ["", *text_table.text(VERDICT_HEADINGS, verdicts, limit)]
    poorest = worst(compared)
    if poorest:
        printed += ["", "worst:", *text_table.text(WORST_HEADINGS, list(map(worst_texts, poorest)), limit)]
    marks = legend(comparison.run["marks"] for comparison in poorest)
    return [*printed, "", *(NOTES if compared.figures else ()), *notes(compared), *marks]


def write_csv(path: Path, compared: Comparisons) -> None:
    """Every predicted figure of every run, in the unit of its column's name."""
    path.write_text(text_table.to_csv(ROW, [[row[name] for name in ROW] for row in map(_row, compared.figures)]))


def write_json(path: Path, compared: Comparisons, skipped: Sequence[Skipped]) -> None:
    """The same, with the tables, what was left out, and the records that were skipped."""
    content: dict[str, Any] = {
        "accuracies": [asdict(row) for row in accuracies(compared)],
        "verdicts": [
            {"fits": verdict, "ran_out": ran_out, "runs": count}
            for (verdict, ran_out), count in compared.verdicts.items()
        ],
        "figures": list(map(_row, compared.figures)),
        **{name: getattr(compared, name) for name in ("left_out", "unknown", "unpredicted")},
        "skipped": list_runs.skipped_rows(skipped),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _row(comparison: Comparison) -> dict[str, Any]:
    return {"folder": str(comparison.run.folder)} | {name: getattr(comparison, name) for name in ROW[1:]}


def _with_unit(column: str, value: float) -> str:
    text = figures.text(column, value)
    return f"{text} s" if column.endswith("_s") else text
