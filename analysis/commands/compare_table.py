"""What `compare` prints: a table of the cells, and what its figures mean."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from analysis.commands.compare import FASTER, SAME, SLOWER, Compared, ok_runs
from analysis.formatting import counted
from analysis.runs import grouping, steps
from analysis.runs.load import Run
from analysis.stats import between_runs
from analysis.stats.between_runs import CONFIDENCE, MAX_RUNS, Ratio
from multicard.records import figures, text_table
from multicard.records.text_table import clean


def lines(compared: Sequence[Compared], width: int | None, margin: float = between_runs.MARGIN) -> list[str]:
    """The table, a line for each cell, and a summary."""
    keys = grouping.apart([dict(cell.cell) for cell in compared], [key for key, _ in compared[0].cell])
    rows = [_row(cell, keys, margin) for cell in compared]
    headings = [name for name in rows[0] if name in keys or any(row[name] not in ("-", "") for row in rows)]
    table = text_table.text(headings, [[row[name] for name in headings] for row in rows], width)
    verdicts = Counter(cell.verdict if cell.verdict in (FASTER, SLOWER, SAME) else "without" for cell in compared)
    counts = [f"{verdicts[verdict]} {verdict}" for verdict in (FASTER, SLOWER, SAME)]
    counts += [f"{verdicts['without']} without a verdict"] if verdicts["without"] else []
    return [*table, "", f"B against A, by cell: {', '.join(counts)}", *_explanations(compared, margin)]


def _explanations(compared: Sequence[Compared], margin: float) -> list[str]:
    explained = [f"B / A: the ratio of mean step times, with its {CONFIDENCE:.0%} interval; below 1, B is faster"]
    judged = [cell for cell in compared if cell.judged]
    if any(cell.verdict in (SAME, "undecided") for cell in compared):
        explained.append(f"{SAME}: the whole interval lies within {margin:.0%} (--margin); undecided: it does not")
    if judged:
        explained.append("could see: a difference that such runs would show 4 times of 5")
    if len(judged) > 1:
        explained.append("of 20 cells without a difference, 1 is expected to be called faster or slower by chance")
    with_step = [cell for cell in compared if cell.step is not None]
    if any(cell.step is not None and not cell.step.repeated for cell in with_step):
        explained.append("intervals over the steps of single runs do not show how runs differ")
    if with_step:
        explained += with_step[0].machines.described([run for cell in with_step for run in (cell.a[0], cell.b[0])])
    return [*explained, *_left_out(with_step)]


def _left_out(compared: Sequence[Compared]) -> list[str]:
    """The runs of compared cells that did not end ok, and are in no mean."""
    lines = []
    for side in ("A", "B"):
        runs = [run for cell in compared for run in (cell.a if side == "A" else cell.b)]
        unended = Counter(clean(run["status"]) for run in runs if run["status"] != "ok")
        lines += [f"left out of {side}: {count} {status}" for status, count in unended.items()]
    return lines


def _row(compared: Compared, keys: Sequence[str], margin: float) -> dict[str, str]:
    step, epoch, values = compared.step, compared.epoch, dict(compared.cell)
    counts = len(ok_runs(compared.a)), len(ok_runs(compared.b))
    marks = dict.fromkeys("".join(run["marks"] for run in (*compared.a, *compared.b)))
    return {
        **{key: grouping.typed(values[key]) for key in keys},
        "A": compared.sides[0],
        "B": compared.sides[1],
        "A step s": "-" if step is None else _step_s(compared.a),
        "B step s": "-" if step is None else _step_s(compared.b),
        "B / A": "-" if step is None else f"{step.ratio:.3f}",
        "interval": _interval(step),
        "by epochs": "-" if epoch is None else f"{epoch.ratio:.3f} ({_interval(epoch)})",
        "runs": "" if counts == (1, 1) else f"{counts[0]} and {counts[1]}",
        "verdict": compared.verdict,
        "could see": _least_difference(step),
        "to decide": _to_decide(compared, margin),
        "marks": "".join(marks),
    }


def _step_s(runs: Sequence[Run]) -> str:
    return figures.seconds(float(np.mean([steps.measured_s(run).mean() for run in ok_runs(runs)])))


def _interval(ratio: Ratio | None) -> str:
    bounds = None if ratio is None else ratio.bounds()
    return "-" if bounds is None else "{:.3f} to {:.3f}".format(*bounds)


def _least_difference(step: Ratio | None) -> str:
    least = None if step is None else step.least_difference()
    return "-" if least is None else f"{least:.1%}"


def _to_decide(compared: Compared, margin: float) -> str:
    """How many runs a side would decide what is undecided."""
    if compared.step is None or not compared.verdict.startswith("undecided"):
        return "-"
    runs = compared.step.runs_to_decide(margin)
    return f"over {MAX_RUNS} runs a side" if runs is None else f"{counted(runs, 'run')} a side"
