"""`compare`: two sweeps cell by cell, by the time of a step.

A cell is what runs of one configuration measured; its repetitions (seeds) are averaged, each run counting the same. The
time is the mean of the measured steps, which adds up to the time that the work takes, as a median would not. The
interval is `analysis.bootstrap`'s. Where epochs are enough, the ratio of their mean `train_s` is shown beside it, with
its own interval: it has what lies between the steps, and each epoch (but the first, with the warm-up) is a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis import formatting
from analysis.runs import grouping, steps
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.runs.sql import known
from analysis.stats import bootstrap
from analysis.stats.bootstrap import Ratio
from multicard.records import text_table
from multicard.records.text_table import clean

FEW = 3  # epochs beside the first that a run must have for an interval over them
FASTER, SLOWER, SAME = "faster", "slower", "no difference"
NAMED = 6  # missing cells in the line of a refusal


@dataclass(frozen=True)
class Compared:
    """One cell. Without `step`, `verdict` says why there is no ratio."""

    cell: Cell
    a: list[Run]
    b: list[Run]
    step: Ratio | None
    epoch: Ratio | None
    verdict: str

    def regressed(self, gate: float) -> bool:
        """Whether B is slower by more than `gate` (0.05: 5 %), its whole interval, or has no figure where A has."""
        if self.step is None:
            return any(run["status"] == "ok" for run in self.a)
        return self.step.low is not None and self.step.low > 1 + gate


def compare(a: Sequence[Run], b: Sequence[Run], by: Sequence[str], common: bool, mix: bool) -> list[Compared]:
    """The cells of two sweeps that match in all that says what was measured, less the keys `by`.

    Args:
        common: leave out cells that one side alone has.
        mix: average runs of several commits or machines within a cell.

    Raises:
        ValueError: cells that one side alone has, or that mix commits or machines; a key that there is not.
    """
    keys = _keys(a, b, by)
    ours, theirs = (grouping.group([run for run in runs if _configured(run)], keys) for runs in (a, b))
    _refused(ours, theirs, b)
    _refused(theirs, ours, a)
    if not common:
        _require_same(ours, theirs, keys)
    shared = [cell for cell in ours if cell in theirs]
    if not shared:
        raise ValueError("A and B have no cell in common")
    return [_compared(cell, ours[cell], theirs[cell], mix) for cell in shared]


def gated(compared: Sequence[Compared], gate: float) -> tuple[bool, str]:
    """Whether no cell regressed by more than `gate`, and the line that says so."""
    slower = sum(one.regressed(gate) for one in compared)
    unjudged = sum(one.step is not None and one.step.low is None for one in compared)
    told = f"{slower} of {len(compared)} cells are slower by more, or failed" if slower else "passed"
    rest = f"; {unjudged} with too few steps to judge" if unjudged else ""
    return not slower, f"gate {100 * gate:g}%: {told}{rest}"


def lines(compared: Sequence[Compared], limit: int | None) -> list[str]:
    """The table, a line per cell, and what it says altogether."""
    keys = grouping.apart([dict(one.cell) for one in compared], [key for key, _ in compared[0].cell])
    rows = [_row(one, keys) for one in compared]
    told = [name for name in rows[0] if name in keys or any(row[name] not in ("-", "") for row in rows)]
    table = text_table.text(told, [[row[name] for name in told] for row in rows], limit)
    counts = {verdict: sum(one.verdict == verdict for one in compared) for verdict in (FASTER, SLOWER, SAME)}
    rest = len(compared) - sum(counts.values())
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + (f", {rest} without" * (rest > 0))
    return [*table, "", f"B against A, by cell: {summary}", *_explained(compared)]


def _explained(compared: Sequence[Compared]) -> list[str]:
    told = [
        f"B / A is the ratio of mean step times, with its {bootstrap.CONFIDENCE:.0%} interval: below 1, B is faster"
    ]
    judged = [one for one in compared if one.step is not None and one.step.low is not None]
    if len(judged) > 1:
        told.append("of 20 cells that do not differ, 1 is expected to be called faster or slower by chance")
    if any(min(len(_ok(one.a)), len(_ok(one.b))) < 2 for one in judged):
        told.append("intervals over the steps of one run do not know how runs differ: repeat with seed=0,1,2")
    return told


def _configured(run: Run) -> bool:
    """Whether the record has a configuration: a refused run has its axes alone."""
    return run["status"] != "refused"


def _keys(a: Sequence[Run], b: Sequence[Run], by: Sequence[str]) -> list[str]:
    """What must match: kind, axes and keys that both sides know, but for those compared."""
    names = grouping.settings([*a, *b])
    meant = {key for name in by for key in grouping.meant(known(name, names, "--by"), names)}
    ours, theirs = ({name for run in runs for name in run.columns} for runs in (a, b))
    return ["kind", *(name for name in names if name not in meant and name in ours and name in theirs)]


def _refused(ours: dict[Cell, list[Run]], theirs: dict[Cell, list[Run]], runs: Sequence[Run]) -> None:
    """Add to `theirs` the cells of `ours` that were refused there, which are known by their axes alone."""
    for run in runs:
        if _configured(run):
            continue
        for cell in ours:
            if all(run.columns.get(key, value) == value for key, value in cell) and cell not in theirs:
                theirs[cell] = [run]


def _require_same(ours: dict[Cell, list[Run]], theirs: dict[Cell, list[Run]], keys: Sequence[str]) -> None:
    alone = [cell for cell in ours if cell not in theirs], [cell for cell in theirs if cell not in ours]
    if not any(alone):
        return
    for key in keys:
        a, b = ({dict(cell)[key] for cell in side} for side in (ours, theirs))
        if not a & b and "." not in key:
            told = [" or ".join(sorted(map(grouping.typed, values))) for values in (a, b)]
            remedy = "" if key == "kind" else f" (--by {key} where that is what you compare)"
            raise ValueError(f"A and B did different work: {key} is {told[0]} in A and {told[1]} in B{remedy}")
    told_keys = grouping.apart([dict(cell) for cell in (*ours, *theirs)], keys)
    said = [
        f"{other} has no {_some([grouping.label(cell, told_keys) for cell in missing])}"
        for other, missing in zip("BA", alone, strict=True)
        if missing
    ]
    remedy = " (--common compares the cells that both have)" if any(cell in theirs for cell in ours) else ""
    raise ValueError("; ".join(said) + remedy)


def _some(labels: Sequence[str]) -> str:
    rest = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return ", no ".join(labels[:NAMED]) + rest


def _ok(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["status"] == "ok"]


def _compared(cell: Cell, a: list[Run], b: list[Run], mix: bool) -> Compared:
    ours, theirs = _ok(a), _ok(b)
    if not ours or not theirs:
        ended = [" and ".join(sorted({run["status"] for run in runs})) for runs in (a, b)]
        return Compared(cell, a, b, None, None, f"A {ended[0]}, B {ended[1]}")
    for side, runs in (("A", ours), ("B", theirs)):
        mixture = grouping.mixture(runs)
        if mixture is not None and not mix:
            raise ValueError(f"{side} mixes commits or machines in one cell: {mixture} (--mix averages over them)")
    try:
        step = bootstrap.ratio([steps.measured_s(run) for run in ours], [steps.measured_s(run) for run in theirs])
    except ValueError as error:
        return Compared(cell, a, b, None, None, f"no steps: {clean(str(error))}")
    return Compared(cell, a, b, step, _epochs(ours, theirs), _verdict(step))


def _epochs(a: Sequence[Run], b: Sequence[Run]) -> Ratio | None:
    ours, theirs = ([steps.epochs_s(run) for run in runs] for runs in (a, b))
    if min(len(samples) for samples in (*ours, *theirs)) < FEW:
        return None
    return bootstrap.ratio(ours, theirs, block=1, min_samples=FEW)


def _verdict(step: Ratio) -> str:
    if step.low is None or step.high is None:
        return f"undecided: fewer than {bootstrap.MIN_SAMPLES} steps"
    if step.low > 1:
        return SLOWER
    return FASTER if step.high < 1 else SAME


def _row(one: Compared, keys: Sequence[str]) -> dict[str, str]:
    values = dict(one.cell)
    step_s = [_step_s(_ok(runs)) for runs in (one.a, one.b)] if one.step is not None else ["-", "-"]
    counts = len(_ok(one.a)), len(_ok(one.b))
    marks = dict.fromkeys("".join(run["marks"] for run in (*one.a, *one.b)))
    return {
        **{key: grouping.typed(values[key]) for key in keys},
        "A step s": step_s[0],
        "B step s": step_s[1],
        "B / A": "-" if one.step is None else f"{one.step.ratio:.3f}",
        "interval": _interval(one.step),
        "by epochs": "-" if one.epoch is None else f"{one.epoch.ratio:.3f} ({_interval(one.epoch)})",
        "runs": "" if counts == (1, 1) else f"{counts[0]} and {counts[1]}",
        "verdict": one.verdict,
        "marks": "".join(marks),
    }


def _step_s(runs: Sequence[Run]) -> str:
    return formatting.seconds(float(np.mean([steps.measured_s(run).mean() for run in runs])))


def _interval(found: Ratio | None) -> str:
    return "-" if found is None or found.low is None else f"{found.low:.3f} to {found.high:.3f}"
