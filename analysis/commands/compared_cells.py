"""The cells of two sweeps that agree in all settings, each with its verdict on a step's time."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.measure import repeated_runs
from multicard.measure.repeated_runs import MARGIN, Ratio
from multicard.messages import Message, Refusal, code_of
from multicard.records import limits
from multicard.records.comparable import DATA
from multicard.records.limits import Forbids
from multicard.records.text_table import clean, first_few

from ..runs import circumstances, grouping, works
from ..runs.grouping import Cell, ok_runs
from ..runs.load import Run
from ..runs.sql import column_names, known
from ..stats import between_runs
from ..stats.between_runs import Machines, RepeatedRuns
from . import compared_losses
from .compared_losses import ComparedLosses

MAX_NAMED = 6  # missing cells in a refusal
FASTER = "faster"
SLOWER = "slower"
SAME = "no difference"
UNDECIDED = "undecided"
Sides = tuple[str, str]  # what A and B are called
VERDICTS = {repeated_runs.ABOVE: SLOWER, repeated_runs.BELOW: FASTER, repeated_runs.WITHIN: SAME}
FEW_STEPS = Message("compare.few-steps", f"{UNDECIDED}: too few steps")
ONE_RUN = Message("compare.one-run", f"{UNDECIDED}: one run a side")


@dataclass(frozen=True)
class CellComparison:
    """One cell. Without `step`, `verdict` says why there is no ratio.
    `sides` are the values compared in one sweep.

    machines: how runs differ in the time of a step. step_s: its mean over the runs of A, and of B.
    held_out: their held-out losses, of tuning with such rows.
    """

    cell: Cell
    a: list[Run]
    b: list[Run]
    step: Ratio | None
    verdict: str
    sides: Sides = ("", "")
    machines: Machines | None = None
    step_s: tuple[float | None, float | None] = (None, None)
    held_out: ComparedLosses | None = None

    @property
    def judged(self) -> bool:
        return self.step is not None and self.step.error is not None and self.step.repeated

    def regressed(self, gate: float, confidence: float) -> bool:
        """True if B is slower by more than `gate` (0.05: 5 %) over its whole interval,
        or lacks a figure that A has.
        """
        if code_of(self.verdict) == "compare.untold":
            return False
        if self.step is None:
            return any(run["status"] == "ok" for run in self.a)
        bounds = self.step.bounds(confidence)
        return self.judged and bounds is not None and bounds[0] > 1 + gate

    def cleared(self, gate: float, confidence: float) -> bool:
        """True if B is shown not to be slower by more than `gate`;
        also where A has no figure either.
        """
        if self.step is None:
            return code_of(self.verdict) != "compare.untold" and not any(
                run["status"] == "ok" for run in self.a
            )
        bounds = self.step.bounds(confidence)
        return self.judged and bounds is not None and bounds[1] < 1 + gate


Judge = Callable[[Cell, list[Run], list[Run], Sides], CellComparison]


def compare(
    a: Sequence[Run],
    b: Sequence[Run],
    by: Sequence[str],
    common: bool,
    mix: bool,
    margin: float = MARGIN,
) -> list[CellComparison]:
    """The cells that agree in all settings but the keys `by`: of two sweeps, or, where A and B are
    the same runs, of each two values of these keys.

    Args:
        common: leave out cells that only one side has.
        margin: the relative difference within which the
            whole interval must lie for `no difference`.

    Raises:
        ValueError: cells that only one side has, or that mix commits or machines; an unknown key;
            runs in both sweeps.
    """
    places_a, places_b = ({os.path.realpath(run.folder) for run in runs} for runs in (a, b))
    if places_a != places_b:
        if shared := len(places_a & places_b):
            said = (
                f"{count(shared, 'run')} in both A and B: name two folders that have none in common"
            )
            raise Refusal("compare.overlap", said, runs=shared)
        return _pair(a, b, by, common, partial(_judged, RepeatedRuns(a, b), mix, margin))
    if not by:
        what = "B is missing" if b is a else "A and B are the same runs"
        said = (
            f"{what}: name another sweep as B, or `--by KEY` to compare that key's values within A"
        )
        raise Refusal("compare.no-other", said, missing=b is a)
    groups = _by_value(a, by)
    judge = partial(_judged, RepeatedRuns(a), mix, margin)
    compared = list[CellComparison]()
    for sides in combinations(groups, 2):
        side_a, side_b = sides
        cells = _pair(groups[side_a], groups[side_b], by, common, judge, sides)
        compared.extend(replace(cell, sides=sides) for cell in cells)
    return compared


def _by_value(runs: Sequence[Run], by: Sequence[str]) -> dict[str, list[Run]]:
    """The runs of one sweep by their values of the keys `by`, as they are typed: numbers ascend."""
    keys = [_setting(name, runs) for name in by]
    measured = [run for run in runs if run["status"] != "refused"]
    with_values = [
        run
        for run in measured
        if all(key in run.columns and (key != DATA or run[DATA]) for key in keys)
    ]
    groups = grouping.group(with_values, keys)

    def numbers(cell: Cell) -> list[Any]:  # the sort is stable: all else stays where it was
        return [value if isinstance(value, int | float) else 0 for _, value in cell]

    labels = {cell: grouping.label(cell, keys) for cell in sorted(groups, key=numbers)}
    if len(groups) < 2:
        same = next(iter(labels.values()), f"no {', '.join(keys)}")
        raise Refusal(
            "compare.one-value",
            f"--by {','.join(by)}: all runs have {same}, and no other value to compare it with",
            key="--by",
            by=[*by],
            value=same,
        )
    return {label: groups[cell] for cell, label in labels.items()}


def _setting(name: str, runs: Sequence[Run]) -> str:
    """The key of this name, in any case; raises ValueError
    where it says nothing of what was measured.
    """
    settings = grouping.settings(runs)
    lower = name.strip().casefold()
    if lower not in map(str.casefold, settings):
        if lower in schema.keys(Role.place):
            raise Refusal(
                "compare.by-place",
                f"--by: {lower} says where data lie, not what they are; `--by data` compares other"
                " data",
                key="--by",
                name=lower,
            )
        if lower in map(str.casefold, column_names(runs)):
            raise Refusal(
                "compare.by-figure",
                f"--by: {lower} is not a setting; name an axis or a key of the configuration, as"
                " `--by precision`",
                key="--by",
                name=lower,
            )
    return known(name, settings, "--by")


def _columns_of(runs: Sequence[Run]) -> set[str]:
    """The columns that any of the runs has; the data only where it is known."""
    columns = set[str]()
    for run in runs:
        columns.update(name for name in run.columns if name != DATA or run[name])
    return columns


def _pair(
    a: Sequence[Run],
    b: Sequence[Run],
    by: Sequence[str],
    common: bool,
    judge: Judge,
    sides: Sides = ("A", "B"),
) -> list[CellComparison]:
    names = grouping.settings([*a, *b])
    compared_keys = set()
    for name in by:
        compared_keys.update(grouping.meant(_setting(name, [*a, *b]), names))
    compared_keys |= {DATA} if grouping.have_data(compared_keys) else set()
    in_a = _columns_of(a)
    in_b = _columns_of(b)
    keys = [
        "kind",
        *(name for name in names if name not in compared_keys and name in in_a and name in in_b),
    ]
    # A refused run has its axes alone, and no configuration
    cells_a, cells_b = (
        grouping.group([run for run in runs if run["status"] != "refused"], keys) for runs in (a, b)
    )
    if not (cells_a and cells_b):
        side = sides[1] if cells_a else sides[0]
        raise Refusal("compare.all-refused", f"all runs of {side} were refused", side=side)
    if not common:
        _require_same(cells_a, cells_b, keys, sides)
    shared = [cell for cell in cells_a if cell in cells_b]
    if not shared:
        raise Refusal(
            "compare.nothing-common",
            f"{' and '.join(sides)} have no cell in common",
            sides=[*sides],
        )
    return [judge(cell, cells_a[cell], cells_b[cell], sides) for cell in shared]


def _require_same(
    cells_a: dict[Cell, list[Run]],
    cells_b: dict[Cell, list[Run]],
    keys: Sequence[str],
    sides: Sides,
) -> None:
    lacks = {sides[1]: [cell for cell in cells_a if cell not in cells_b]}
    lacks[sides[0]] = [cell for cell in cells_b if cell not in cells_a]
    if not any(lacks.values()):
        return
    for key in keys:
        a, b = ({dict(cell)[key] for cell in cells} for cells in (cells_a, cells_b))
        if not a & b and "." not in key:
            in_a, in_b = (" or ".join(sorted(map(grouping.typed, values))) for values in (a, b))
            remedy = "" if key == "kind" else f" (`--by {key}` if that is what you compare)"
            work = f"{key} is {in_a} in {sides[0]} and {in_b} in {sides[1]}"
            raise Refusal(
                "compare.other-work",
                f"{sides[0]} and {sides[1]} did different work: {work}{remedy}",
                key=key,
                a=in_a,
                b=in_b,
            )
    telling = grouping.apart([dict(cell) for cell in (*cells_a, *cells_b)], keys)
    labels = {
        side: [grouping.label(cell, telling) for cell in cells]
        for side, cells in lacks.items()
        if cells
    }
    missing = [
        f"{side} has no {first_few(own, MAX_NAMED, ', no ')}" for side, own in labels.items()
    ]
    common = any(cell in cells_b for cell in cells_a)
    remedy = " (`--common` compares the cells that both have)" if common else ""
    raise Refusal(
        "compare.missing-cells", "; ".join(missing) + remedy, missing=labels, common=common
    )


def _judged(
    repeated: RepeatedRuns,
    mix: bool,
    margin: float,
    cell: Cell,
    a: list[Run],
    b: list[Run],
    sides: Sides,
) -> CellComparison:
    """A cell by the time of its steps, and by its held-out losses where it has some."""
    judged = _timed(repeated.of_column("step_s"), mix, margin, cell, a, b, sides)
    if code_of(judged.verdict) == "compare.untold":
        return judged
    return replace(judged, held_out=compared_losses.compared(repeated, a, b))


def _timed(
    machines: Machines,
    mix: bool,
    margin: float,
    cell: Cell,
    a: list[Run],
    b: list[Run],
    sides: Sides,
) -> CellComparison:
    """A cell by how runs at hand differ in the time of a step (`machines`); mix,
    margin: see `compare`.
    """
    ok_a = ok_runs(a)
    ok_b = ok_runs(b)
    if not ok_a or not ok_b:
        ended_a, ended_b = (
            " and ".join(sorted({run["status"] for run in runs})) for runs in (a, b)
        )
        return CellComparison(
            cell,
            a,
            b,
            None,
            Message("compare.ended", f"A {ended_a}, B {ended_b}", a=ended_a, b=ended_b),
        )
    for side, runs in zip(sides, (ok_a, ok_b), strict=True):
        if not mix and (mixture := grouping.mixture(runs) or grouping.mixed_data_or_cores(runs)):
            mixed = f"{side} mixes commits, machines, data or cores in one cell"
            said = f"{mixed}: {mixture} (`--mix` averages over them)"
            raise Refusal("compare.mixed", said, key="--mix", side=side, mixture=mixture)
    untold = _untold([*ok_a, *ok_b]) or _other_step_work(ok_a, ok_b)
    if untold is not None:
        return CellComparison(cell, a, b, None, untold)
    ok_a, ok_b = grouping.undisturbed(ok_a), grouping.undisturbed(ok_b)
    ok_a, ok_b = (
        sorted(runs, key=lambda run: (run["seed"] or 0, run["repetition"] or 1))
        for runs in (ok_a, ok_b)
    )
    try:
        steps_a, steps_b = ([run.measured_s() for run in runs] for runs in (ok_a, ok_b))
        # Steps of the same seeds and numbers have the same batches, unless a key of --by changes
        # those: pairing is right then too, and gains nothing.
        paired = [run["seed"] for run in ok_a] == [run["seed"] for run in ok_b]
        paired = paired and [*map(len, steps_a)] == [*map(len, steps_b)]
        spreads = machines.of(ok_a), machines.of(ok_b)
        step = between_runs.ratio(steps_a, steps_b, spreads, paired)
    except ValueError as error:
        reason = str(error) if isinstance(error, Refusal) else clean(str(error))
        return CellComparison(
            cell, a, b, None, Message("compare.no-steps", f"no steps: {reason}", reason=reason)
        )
    mean_a_s, mean_b_s = (
        float(np.mean([samples.mean() for samples in side])) for side in (steps_a, steps_b)
    )
    if step.error is None or not step.repeated:
        verdict = FEW_STEPS if step.error is None else ONE_RUN
    else:
        verdict = VERDICTS.get(step.verdict(margin), UNDECIDED)
    return CellComparison(cell, a, b, step, verdict, machines=machines, step_s=(mean_a_s, mean_b_s))


def _untold(runs: Sequence[Run]) -> Message | None:
    """Why nothing can be said of a cell with these runs of both sides; None where something can."""
    forbidden = [Forbids.verdict]
    if len({grouping.ranks(run) for run in runs}) > 1:
        forbidden.append(Forbids.speed_up)
    found = limits.forbidding(grouping.limits_of(runs), *forbidden)
    if not found:
        return None
    return _nothing_told(str(found[0].says), found[0].code)


def _nothing_told(why: str, limit: str) -> Message:
    """The verdict on a cell whose runs forbid one."""
    return Message("compare.untold", f"{UNDECIDED}: {why}", limit=limit)


def _other_step_work(a: Sequence[Run], b: Sequence[Run]) -> Message | None:
    """That a script's steps train other amounts on both sides, so that their times tell nothing."""
    if not all(map(works.is_script, [*a, *b])):
        return None
    sides = ([circumstances.step_work(run.record()) for run in runs] for runs in (a, b))
    found = circumstances.means_apart(*sides)
    if found is None:
        return None
    said = (
        f"a step trains {found[0]:,.1f} samples or tokens in A, {found[1]:,.1f} in B;"
        " `multicard best` compares the time of as much work"
    )
    return _nothing_told(said, "step-work")
