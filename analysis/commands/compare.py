"""`compare`: two sweeps cell by cell, by the time of a step.

A cell holds the runs of one configuration. Its repetitions (seeds) are averaged with the same weight. The time is the
mean of the measured steps, which, unlike a median, adds up to the time of the work. Its interval is a bootstrap over
steps and runs. Where there are enough epochs, the ratio of their mean `train_s` is shown beside it with its own
interval: it includes what lies between the steps, and each epoch (but the first, with the warm-up) is a sample.

Within one sweep, `--by KEY` compares each value of that key with each other.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from analysis import formatting
from analysis.commands import environment_diff
from analysis.runs import grouping, steps
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.runs.sql import known
from analysis.stats import bootstrap
from analysis.stats.bootstrap import Ratio
from multicard.records import text_table
from multicard.records.comparable import DATA
from multicard.records.text_table import clean

MIN_EPOCHS = 3  # beside the first, that a run must have for an interval over them
MAX_NAMED = 6  # missing cells in a refusal
FASTER, SLOWER, SAME = "faster", "slower", "no difference"


@dataclass(frozen=True)
class Compared:
    """One cell. Without `step`, `verdict` says why there is no ratio. `sides` are the values compared in one sweep."""

    cell: Cell
    a: list[Run]
    b: list[Run]
    step: Ratio | None
    epoch: Ratio | None
    verdict: str
    sides: tuple[str, str] = ("", "")

    def regressed(self, gate: float) -> bool:
        """Whether B is slower by more than `gate` (0.05: 5 %) over its whole interval, or lacks a figure that A has."""
        if self.step is None:
            return any(run["status"] == "ok" for run in self.a)
        return self.step.low is not None and self.step.low > 1 + gate


def compare(a: Sequence[Run], b: Sequence[Run], by: Sequence[str], common: bool, mix: bool) -> list[Compared]:
    """The cells that agree in all settings but the keys `by`: of two sweeps, or, where A and B are the same runs, of
    each two values of these keys.

    Args:
        common: leave out cells that only one side has.
        mix: average runs of several commits or machines within a cell.

    Raises:
        ValueError: cells that only one side has, or that mix commits or machines; an unknown key; runs in both sweeps.
    """
    places_a, places_b = ({os.path.realpath(run.folder) for run in runs} for runs in (a, b))
    if places_a != places_b:
        if shared := len(places_a & places_b):
            raise ValueError(f"{shared} runs are in both A and B: name two folders that have none in common")
        return _pair(a, b, by, common, mix)
    if not by:
        raise ValueError("A and B are the same runs: name another sweep as B, or --by KEY to compare that key's values")
    groups = _by_value(a, by)
    return [
        replace(compared, sides=(side_a, side_b))
        for side_a, side_b in combinations(groups, 2)
        for compared in _pair(groups[side_a], groups[side_b], by, common, mix, (side_a, side_b))
    ]


def _by_value(runs: Sequence[Run], by: Sequence[str]) -> dict[str, list[Run]]:
    """The runs of one sweep by their values of the keys `by`, as they are typed: numbers ascend."""
    names = grouping.settings(runs)
    keys = [known(name, names, "--by") for name in by]
    groups = grouping.group([run for run in runs if all(key in run.columns for key in keys)], keys)
    labels = {cell: grouping.label(cell, keys) for cell in sorted(groups, key=_order)}
    if len(groups) < 2:
        same = next(iter(labels.values()), f"no {', '.join(keys)}")
        raise ValueError(f"--by {','.join(by)}: all runs have {same}, and no other value to compare it with")
    return {label: groups[cell] for cell, label in labels.items()}


def _order(cell: Cell) -> list[Any]:
    """The sort key of a cell: numbers by their size, all else where it was (a stable sort)."""
    return [value if isinstance(value, int | float) else 0 for _, value in cell]


def _pair(
    a: Sequence[Run], b: Sequence[Run], by: Sequence[str], common: bool, mix: bool, sides: tuple[str, str] = ("A", "B")
) -> list[Compared]:
    names = grouping.settings([*a, *b])
    compared_keys = {key for name in by for key in grouping.meant(known(name, names, "--by"), names)}
    compared_keys |= {DATA} if grouping.have_data(compared_keys) else set()
    in_a, in_b = ({name for run in runs for name in run.columns if name != DATA or run[name]} for runs in (a, b))
    keys = ["kind", *(name for name in names if name not in compared_keys and name in in_a and name in in_b)]
    # A refused run has its axes alone, and no configuration
    cells_a, cells_b = (grouping.group([run for run in runs if run["status"] != "refused"], keys) for runs in (a, b))
    _add_refused(cells_a, cells_b, b)
    _add_refused(cells_b, cells_a, a)
    if not common:
        _require_same(cells_a, cells_b, keys, sides)
    shared = [cell for cell in cells_a if cell in cells_b]
    if not shared:
        raise ValueError(f"{' and '.join(sides)} have no cell in common")
    return [_compared(cell, cells_a[cell], cells_b[cell], mix, sides) for cell in shared]


def _add_refused(cells: dict[Cell, list[Run]], others: dict[Cell, list[Run]], runs: Sequence[Run]) -> None:
    """Add to `others` the cells whose runs were refused there, which are known by their axes alone."""
    for run in runs:
        if run["status"] == "refused":
            for cell in cells:
                if all(run.columns.get(key, value) == value for key, value in cell) and cell not in others:
                    others[cell] = [run]


def _require_same(
    cells_a: dict[Cell, list[Run]], cells_b: dict[Cell, list[Run]], keys: Sequence[str], sides: tuple[str, str]
) -> None:
    only_a, only_b = (
        [cell for cell in cells_a if cell not in cells_b],
        [cell for cell in cells_b if cell not in cells_a],
    )
    if not only_a and not only_b:
        return
    for key in keys:
        a, b = ({dict(cell)[key] for cell in cells} for cells in (cells_a, cells_b))
        if not a & b and "." not in key:
            in_a, in_b = (" or ".join(sorted(map(grouping.typed, values))) for values in (a, b))
            remedy = "" if key == "kind" else f" (--by {key} if that is what you compare)"
            side_a, side_b = sides
            raise ValueError(
                f"{side_a} and {side_b} did different work: {key} is {in_a} in {side_a} and {in_b} in {side_b}{remedy}"
            )
    telling = grouping.apart([dict(cell) for cell in (*cells_a, *cells_b)], keys)
    missing = []
    for side, cells in zip(reversed(sides), (only_a, only_b), strict=True):
        labels = [grouping.label(cell, telling) for cell in cells]
        rest = f" and {len(labels) - MAX_NAMED} more" if len(labels) > MAX_NAMED else ""
        missing += [f"{side} has no {', no '.join(labels[:MAX_NAMED])}{rest}"] if labels else []
    remedy = " (--common compares the cells that both have)" if any(cell in cells_b for cell in cells_a) else ""
    raise ValueError("; ".join(missing) + remedy)


def _compared(cell: Cell, a: list[Run], b: list[Run], mix: bool, sides: tuple[str, str]) -> Compared:
    ok_a, ok_b = _ok(a), _ok(b)
    if not ok_a or not ok_b:
        ended_a, ended_b = (" and ".join(sorted({run["status"] for run in runs})) for runs in (a, b))
        return Compared(cell, a, b, None, None, f"A {ended_a}, B {ended_b}")
    for side, runs in zip(sides, (ok_a, ok_b), strict=True):
        mixture = grouping.mixture(runs) or grouping.unlike(runs)
        if mixture is not None and not mix:
            raise ValueError(
                f"{side} mixes commits, machines, data or cores in one cell: {mixture} (--mix averages over them)"
            )
    try:
        step = bootstrap.ratio([steps.measured_s(run) for run in ok_a], [steps.measured_s(run) for run in ok_b])
    except ValueError as error:
        return Compared(cell, a, b, None, None, f"no steps: {clean(str(error))}")
    epochs_a, epochs_b = ([steps.epochs_s(run) for run in runs] for runs in (ok_a, ok_b))
    enough = min(len(samples) for samples in (*epochs_a, *epochs_b)) >= MIN_EPOCHS
    epoch = bootstrap.ratio(epochs_a, epochs_b, block=1, min_samples=MIN_EPOCHS) if enough else None
    return Compared(cell, a, b, step, epoch, _verdict(step))


def _ok(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["status"] == "ok"]


def _verdict(step: Ratio) -> str:
    if step.low is None or step.high is None:
        return f"undecided: fewer than {bootstrap.MIN_SAMPLES} steps"
    if step.low > 1:
        return SLOWER
    return FASTER if step.high < 1 else SAME


def differing_circumstances(compared: Sequence[Compared]) -> list[str]:
    """How the environments of A's runs and B's differ, by the values compared where there are several pairs of them."""
    pairs = dict.fromkeys(cell.sides for cell in compared)
    lines = []
    for sides in pairs:
        cells = [cell for cell in compared if cell.sides == sides]
        a, b = [run for cell in cells for run in cell.a], [run for cell in cells for run in cell.b]
        where = f"A {sides[0]}, B {sides[1]}: " if len(pairs) > 1 else ""
        lines += [f"{where}{line}" for line in environment_diff.lines(a, b)]
    return lines


def gated(compared: Sequence[Compared], gate: float) -> tuple[bool, str]:
    """Whether no cell regressed by more than `gate`, and a line about it."""
    slower = sum(cell.regressed(gate) for cell in compared)
    unjudged = sum(cell.step is not None and cell.step.low is None for cell in compared)
    result = f"{slower} of {len(compared)} cells are slower by more, or failed" if slower else "passed"
    rest = f"; {unjudged} with too few steps to judge" if unjudged else ""
    return not slower, f"gate {100 * gate:g}%: {result}{rest}"


def lines(compared: Sequence[Compared], width: int | None) -> list[str]:
    """The table, a line for each cell, and a summary."""
    keys = grouping.apart([dict(cell.cell) for cell in compared], [key for key, _ in compared[0].cell])
    rows = [_row(cell, keys) for cell in compared]
    headings = [name for name in rows[0] if name in keys or any(row[name] not in ("-", "") for row in rows)]
    table = text_table.text(headings, [[row[name] for name in headings] for row in rows], width)
    verdicts = Counter(cell.verdict if cell.verdict in (FASTER, SLOWER, SAME) else "without" for cell in compared)
    counts = [f"{verdicts[verdict]} {verdict}" for verdict in (FASTER, SLOWER, SAME)]
    counts += [f"{verdicts['without']} without a verdict"] if verdicts["without"] else []
    return [*table, "", f"B against A, by cell: {', '.join(counts)}", *_explanations(compared)]


def _explanations(compared: Sequence[Compared]) -> list[str]:
    explained = [
        f"B / A: the ratio of mean step times, with its {bootstrap.CONFIDENCE:.0%} interval; below 1, B is faster"
    ]
    judged = [cell for cell in compared if cell.step is not None and cell.step.low is not None]
    if len(judged) > 1:
        explained.append("of 20 cells without a difference, 1 is expected to be called faster or slower by chance")
    if any(min(len(_ok(cell.a)), len(_ok(cell.b))) < 2 for cell in judged):
        explained.append("intervals over the steps of one run do not show how runs differ: repeat with seed=0,1,2")
    return explained


def _row(compared: Compared, keys: Sequence[str]) -> dict[str, str]:
    step, epoch, values = compared.step, compared.epoch, dict(compared.cell)
    counts = len(_ok(compared.a)), len(_ok(compared.b))
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
        "marks": "".join(marks),
    }


def _step_s(runs: Sequence[Run]) -> str:
    return formatting.seconds(float(np.mean([steps.measured_s(run).mean() for run in _ok(runs)])))


def _interval(ratio: Ratio | None) -> str:
    return "-" if ratio is None or ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
