"""`compare`: two sweeps cell by cell, by the time of a step.

A cell holds the runs of one configuration. Its repetitions (seeds) are averaged with the same weight. The time is the
mean of the measured steps, which, unlike a median, adds up to the time of the work. Its interval holds how runs of the
machine differ from one another, and the scatter of the steps (`analysis.stats.between_runs`). Where there are enough
epochs, the ratio of their mean `train_s` is shown beside it with its own interval: it includes what lies between the
steps, and each epoch (but the first, with the warm-up) is a sample.

Within one sweep, `--by KEY` compares each value of that key with each other.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from analysis.commands import environment_diff
from analysis.formatting import counted
from analysis.runs import grouping, steps
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.runs.sql import column_names, known
from analysis.stats import between_runs
from analysis.stats.between_runs import CONFIDENCE, MARGIN, PRIOR_SD, Machines, Ratio, RepeatedRuns, Spread
from multicard.records.comparable import DATA
from multicard.records.text_table import clean

MIN_EPOCHS = 3  # beside the first, that a run must have for an interval over them
MAX_NAMED = 6  # missing cells in a refusal
FASTER, SLOWER, SAME, UNDECIDED = "faster", "slower", "no difference", "undecided"
VERDICTS = {between_runs.ABOVE: SLOWER, between_runs.BELOW: FASTER, between_runs.WITHIN: SAME}


@dataclass(frozen=True)
class Compared:
    """One cell. Without `step`, `verdict` says why there is no ratio. `sides` are the values compared in one sweep.

    machines: how runs differ in the time of a step.
    """

    cell: Cell
    a: list[Run]
    b: list[Run]
    step: Ratio | None
    epoch: Ratio | None
    verdict: str
    sides: tuple[str, str] = ("", "")
    machines: Machines = Machines({}, PRIOR_SD)

    @property
    def judged(self) -> bool:
        return self.step is not None and self.step.error is not None and self.step.repeated

    def regressed(self, gate: float, confidence: float) -> bool:
        """Whether B is slower by more than `gate` (0.05: 5 %) over its whole interval, or lacks a figure that A has."""
        if self.step is None:
            return any(run["status"] == "ok" for run in self.a)
        bounds = self.step.bounds(confidence)
        return self.judged and bounds is not None and bounds[0] > 1 + gate


def compare(
    a: Sequence[Run], b: Sequence[Run], by: Sequence[str], common: bool, mix: bool, margin: float = MARGIN
) -> list[Compared]:
    """The cells that agree in all settings but the keys `by`: of two sweeps, or, where A and B are the same runs, of
    each two values of these keys.

    Args:
        common: leave out cells that only one side has.
        mix: average runs of several commits or machines within a cell.
        margin: the relative difference within which the whole interval must lie for `no difference`.

    Raises:
        ValueError: cells that only one side has, or that mix commits or machines; an unknown key; runs in both sweeps.
    """
    places_a, places_b = ({os.path.realpath(run.folder) for run in runs} for runs in (a, b))
    if places_a != places_b:
        if shared := len(places_a & places_b):
            raise ValueError(f"{counted(shared, 'run')} in both A and B: name two folders that have none in common")
        return _pair(a, b, by, common, Judge([a, b], mix, margin))
    if not by:
        what = "B is missing" if b is a else "A and B are the same runs"
        raise ValueError(f"{what}: name another sweep as B, or --by KEY to compare that key's values within A")
    groups, judge = _by_value(a, by), Judge([a], mix, margin)
    return [
        replace(compared, sides=(side_a, side_b))
        for side_a, side_b in combinations(groups, 2)
        for compared in _pair(groups[side_a], groups[side_b], by, common, judge, (side_a, side_b))
    ]


def _by_value(runs: Sequence[Run], by: Sequence[str]) -> dict[str, list[Run]]:
    """The runs of one sweep by their values of the keys `by`, as they are typed: numbers ascend."""
    keys = [_setting(name, runs) for name in by]
    with_values = [run for run in runs if all(key in run.columns and (key != DATA or run[DATA]) for key in keys)]
    groups = grouping.group(with_values, keys)
    labels = {cell: grouping.label(cell, keys) for cell in sorted(groups, key=_order)}
    if len(groups) < 2:
        same = next(iter(labels.values()), f"no {', '.join(keys)}")
        raise ValueError(f"--by {','.join(by)}: all runs have {same}, and no other value to compare it with")
    return {label: groups[cell] for cell, label in labels.items()}


def _setting(name: str, runs: Sequence[Run]) -> str:
    """The key of this name, in any case, that says what was measured.

    Raises:
        ValueError: there is none, or it says something else.
    """
    settings, lower = grouping.settings(runs), name.strip().casefold()
    if lower not in map(str.casefold, settings):
        if lower in grouping.PLACES:
            raise ValueError(f"--by: {lower} says where data lie, not what they are; --by data compares other data")
        if lower in map(str.casefold, column_names(runs)):
            raise ValueError(f"--by: {lower} is no setting; name an axis or a key of the configuration, as precision")
    return known(name, settings, "--by")


def _order(cell: Cell) -> list[Any]:
    """The sort key of a cell: numbers by their size, all else where it was (a stable sort)."""
    return [value if isinstance(value, int | float) else 0 for _, value in cell]


def _pair(
    a: Sequence[Run],
    b: Sequence[Run],
    by: Sequence[str],
    common: bool,
    judge: "Judge",
    sides: tuple[str, str] = ("A", "B"),
) -> list[Compared]:
    names = grouping.settings([*a, *b])
    compared_keys = {key for name in by for key in grouping.meant(_setting(name, [*a, *b]), names)}
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
    return [judge.cell(cell, cells_a[cell], cells_b[cell], sides) for cell in shared]


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


class Judge:
    """Judges cells by how the runs at hand differ where they were repeated.

    Args:
        sweeps: all runs of each. mix, margin: as of `compare`.
    """

    def __init__(self, sweeps: Sequence[Sequence[Run]], mix: bool, margin: float) -> None:
        self.mix, self.margin = mix, margin
        repeated = RepeatedRuns(*sweeps)
        self.by_step, self.by_epoch = repeated.of_column("step_s"), repeated.of_column("train_s")

    def cell(self, cell: Cell, a: list[Run], b: list[Run], sides: tuple[str, str]) -> Compared:
        ok_a, ok_b = ok_runs(a), ok_runs(b)
        if not ok_a or not ok_b:
            ended_a, ended_b = (" and ".join(sorted({run["status"] for run in runs})) for runs in (a, b))
            return Compared(cell, a, b, None, None, f"A {ended_a}, B {ended_b}")
        for side, runs in zip(sides, (ok_a, ok_b), strict=True):
            mixture = grouping.mixture(runs) or grouping.unlike(runs)
            if mixture is not None and not self.mix:
                raise ValueError(
                    f"{side} mixes commits, machines, data or cores in one cell: {mixture} (--mix averages over them)"
                )
        ok_a, ok_b = (sorted(runs, key=lambda run: (run["seed"] or 0, run["repetition"] or 1)) for runs in (ok_a, ok_b))
        spreads = _spreads(self.by_step, ok_a, ok_b)
        try:
            steps_a, steps_b = ([steps.measured_s(run) for run in runs] for runs in (ok_a, ok_b))
            step = between_runs.ratio(steps_a, steps_b, spreads, _had_the_same_batches(ok_a, ok_b, steps_a, steps_b))
        except ValueError as error:
            return Compared(cell, a, b, None, None, f"no steps: {clean(str(error))}")
        epochs_a, epochs_b = ([steps.epochs_s(run) for run in runs] for runs in (ok_a, ok_b))
        enough = min(len(samples) for samples in (*epochs_a, *epochs_b)) >= MIN_EPOCHS
        of_epochs = _spreads(self.by_epoch, ok_a, ok_b)
        epoch = between_runs.ratio(epochs_a, epochs_b, of_epochs, independent=True) if enough else None
        return Compared(cell, a, b, step, epoch, _verdict(step, self.margin), machines=self.by_step)


def _spreads(machines: Machines, a: Sequence[Run], b: Sequence[Run]) -> tuple[Spread, Spread]:
    return machines.of(a[0]), machines.of(b[0])


def _had_the_same_batches(
    a: Sequence[Run], b: Sequence[Run], steps_a: Sequence[np.ndarray], steps_b: Sequence[np.ndarray]
) -> bool:
    """Whether steps of the same number can be paired: the seeds and the numbers of steps are the same.

    A key of `--by` may still give them other batches. Pairing is right then too, and gains nothing.
    """
    seeds_a, seeds_b = ([run["seed"] for run in runs] for runs in (a, b))
    return seeds_a == seeds_b and [*map(len, steps_a)] == [*map(len, steps_b)]


def ok_runs(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["status"] == "ok"]


def _verdict(step: Ratio, margin: float) -> str:
    if step.error is None:
        return f"{UNDECIDED}: too few steps"
    if not step.repeated:
        return f"{UNDECIDED}: one run a side"
    return VERDICTS.get(step.verdict(margin), UNDECIDED)


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
    """Whether no cell regressed by more than `gate`, and a line about it.

    If each cell is slower by the gate, one of them all is found to be slower by more in 5 % of the cases (Bonferroni).
    """
    judged = sum(cell.judged for cell in compared)
    confidence = 1 - 2 * (1 - CONFIDENCE) / max(1, judged)  # of an interval whose lower bound alone counts
    slower = sum(cell.regressed(gate, confidence) for cell in compared)
    unjudged = sum(cell.step is not None and not cell.judged for cell in compared)
    result = f"{slower} of {counted(len(compared), 'cell')} slower by more, or failed" if slower else "passed"
    rest = f"; {unjudged} with too few runs or steps to judge" if unjudged else ""
    return not slower, f"gate {100 * gate:g}%: {result}{rest}"
