"""Pair the cells of two sweeps that agree in all settings, and judge each pair by its step time."""

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
from multicard.records.comparable import DATA, PRESET, PRESET_DECIDES, following_preset
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

MAX_NAMED = 6  # The most missing cells that a refusal names.
FASTER = "faster"
SLOWER = "slower"
SAME = "no difference"
UNDECIDED = "undecided"
Sides = tuple[str, str]  # The names of A and B in messages.
VERDICTS = {repeated_runs.ABOVE: SLOWER, repeated_runs.BELOW: FASTER, repeated_runs.WITHIN: SAME}
FEW_STEPS = Message("compare.few-steps", f"{UNDECIDED}: too few steps")
ONE_RUN = Message("compare.one-run", f"{UNDECIDED}: one run a side")


@dataclass(frozen=True)
class CellComparison:
    """One cell of the comparison, with its runs on both sides and its verdict.

    step: the ratio of the step times, B / A. If it is None, `verdict` says why there is no ratio.
    sides: the two values that are compared, if one sweep is compared with itself.
    machines: how step times of repeated runs differ on these machines.
    step_s: the mean step time over the runs of A, and of B.
    held_out: the held-out losses, for tuning runs that have held-out rows.
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
        """True if repeated runs allow a verdict on the step time."""
        return self.step is not None and self.step.error is not None and self.step.repeated

    def regressed(self, gate: float, confidence: float) -> bool:
        """Return True if B is slower by more than `gate` (0.05: 5 %), or lacks a figure that A has.

        The whole interval of the ratio must lie beyond the gate.
        """
        if code_of(self.verdict) == "compare.untold":
            return False
        if self.step is None:
            return any(run["status"] == "ok" for run in self.a)
        bounds = self.step.bounds(confidence)
        return self.judged and bounds is not None and bounds[0] > 1 + gate

    def cleared(self, gate: float, confidence: float) -> bool:
        """Return True if B is shown not to be slower by more than `gate`.

        This also holds if neither side has a figure.
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
    """Compare the cells of A and B that agree in all settings except the keys `by`.

    If A and B are the same runs, each value of these keys is compared with each other value.

    Args:
        a: the runs of the first sweep.
        b: the runs of the second sweep, or `a` itself.
        by: the keys in which the two sides of a cell may differ.
        common: leave out cells that only one side has.
        mix: average over different commits, machines, data and cores in a cell.
        margin: the verdict is `no difference` if the whole interval lies within this relative
            difference.

    Raises:
        ValueError: only one side has a cell, a cell mixes commits or machines, a key is unknown,
            or both sweeps contain the same run.
    """
    places_a, places_b = ({os.path.realpath(run.folder) for run in runs} for runs in (a, b))
    if places_a != places_b:
        if shared_runs := len(places_a & places_b):
            text = (
                f"{count(shared_runs, 'run')} in both A and B: name two folders that have none in"
                " common"
            )
            raise Refusal("compare.overlap", text, runs=shared_runs)
        return _compare_sides(
            a, b, by, common, partial(_judge_cell, RepeatedRuns(a, b), mix, margin)
        )
    if not by:
        problem = "B is missing" if b is a else "A and B are the same runs"
        text = (
            f"{problem}: name another sweep as B, or `--by KEY` to compare that key's values"
            " within A"
        )
        raise Refusal("compare.no-other", text, missing=b is a)
    groups = _by_value(a, by)
    judge = partial(_judge_cell, RepeatedRuns(a), mix, margin)
    comparisons = list[CellComparison]()
    for sides in combinations(groups, 2):
        side_a, side_b = sides
        cells = _compare_sides(groups[side_a], groups[side_b], by, common, judge, sides)
        comparisons.extend(replace(cell, sides=sides) for cell in cells)
    return comparisons


def _by_value(runs: Sequence[Run], by: Sequence[str]) -> dict[str, list[Run]]:
    """Group the runs of one sweep by their values of the keys `by`; numbers ascend.

    The groups' names are the values as a command line has them.
    """
    keys = [_setting_key(name, runs) for name in by]
    measured_runs = [run for run in runs if run["status"] != "refused"]
    with_values = [
        run
        for run in measured_runs
        if all(key in run.columns and (key != DATA or run[DATA]) for key in keys)
    ]
    groups = grouping.group(with_values, keys)

    def numbers(cell: Cell) -> list[Any]:
        # The sort is stable, so cells with other values keep their order.
        return [value if isinstance(value, int | float) else 0 for _, value in cell]

    labels = {cell: grouping.label(cell, keys) for cell in sorted(groups, key=numbers)}
    if len(groups) < 2:
        shared_value = next(iter(labels.values()), f"no {', '.join(keys)}")
        raise Refusal(
            "compare.one-value",
            f"--by {','.join(by)}: all runs have {shared_value}, so there is nothing to compare",
            key="--by",
            by=[*by],
            value=shared_value,
        )
    return {label: groups[cell] for cell, label in labels.items()}


def _setting_key(name: str, runs: Sequence[Run]) -> str:
    """Return the key of this name, in any case of letters.

    Raises:
        ValueError: the name is not a key, or the key does not change what was measured.
    """
    settings = grouping.settings(runs)
    lowered = name.strip().casefold()
    if lowered not in map(str.casefold, settings):
        if lowered in schema.keys(Role.place):
            raise Refusal(
                "compare.by-place",
                f"--by: {lowered} says where data lie, not which data they are; `--by data`"
                " compares other data",
                key="--by",
                name=lowered,
            )
        if lowered in map(str.casefold, column_names(runs)):
            raise Refusal(
                "compare.by-figure",
                f"--by: {lowered} is not a setting; name an axis or a key of the configuration, as"
                " in `--by precision`",
                key="--by",
                name=lowered,
            )
    return known(name, settings, "--by")


def _columns_of(runs: Sequence[Run]) -> set[str]:
    """Return the columns that any of the runs has. The data count only if they are known."""
    columns = set[str]()
    for run in runs:
        columns.update(name for name in run.columns if name != DATA or run[name])
    return columns


def _compare_sides(
    a: Sequence[Run],
    b: Sequence[Run],
    by: Sequence[str],
    common: bool,
    judge: Judge,
    sides: Sides = ("A", "B"),
) -> list[CellComparison]:
    """Match the cells of both sides by all shared settings except `by`, and judge each pair."""
    names = grouping.settings([*a, *b])
    compared_keys = set()
    for name in by:
        compared_keys.update(grouping.meant(_setting_key(name, [*a, *b]), names))
    if PRESET in compared_keys:
        compared_keys |= following_preset([run.columns for run in (*a, *b)], names) | {
            PRESET_DECIDES
        }
    compared_keys |= {DATA} if grouping.have_data(compared_keys) else set()
    in_a = _columns_of(a)
    in_b = _columns_of(b)
    keys = [
        "kind",
        *(name for name in names if name not in compared_keys and name in in_a and name in in_b),
    ]
    # A refused run has only the values of its axes and no configuration.
    cells_a, cells_b = (
        grouping.group([run for run in runs if run["status"] != "refused"], keys) for runs in (a, b)
    )
    if not (cells_a and cells_b):
        side = sides[1] if cells_a else sides[0]
        raise Refusal("compare.all-refused", f"all runs of {side} were refused", side=side)
    if not common:
        _require_same_cells(cells_a, cells_b, keys, sides)
    shared_cells = [cell for cell in cells_a if cell in cells_b]
    if not shared_cells:
        raise Refusal(
            "compare.nothing-common",
            f"{' and '.join(sides)} have no cell in common",
            sides=[*sides],
        )
    return [judge(cell, cells_a[cell], cells_b[cell], sides) for cell in shared_cells]


def _require_same_cells(
    cells_a: dict[Cell, list[Run]],
    cells_b: dict[Cell, list[Run]],
    keys: Sequence[str],
    sides: Sides,
) -> None:
    """Refuse cells that only one side has.

    Raises:
        ValueError: some cells are missing. The message names them, or the key in which the two
            sides have no value in common.
    """
    lacking_cells = {sides[1]: [cell for cell in cells_a if cell not in cells_b]}
    lacking_cells[sides[0]] = [cell for cell in cells_b if cell not in cells_a]
    if not any(lacking_cells.values()):
        return
    for key in keys:
        a, b = ({dict(cell)[key] for cell in cells} for cells in (cells_a, cells_b))
        if not a & b and "." not in key:
            in_a, in_b = (" or ".join(sorted(map(grouping.typed, values))) for values in (a, b))
            remedy = "" if key == "kind" else f" (`--by {key}` if that is what you compare)"
            difference = f"{key} is {in_a} in {sides[0]} and {in_b} in {sides[1]}"
            raise Refusal(
                "compare.other-work",
                f"{sides[0]} and {sides[1]} did different work: {difference}{remedy}",
                key=key,
                a=in_a,
                b=in_b,
            )
    distinguishing_keys = grouping.apart([dict(cell) for cell in (*cells_a, *cells_b)], keys)
    labels = {
        side: [grouping.label(cell, distinguishing_keys) for cell in cells]
        for side, cells in lacking_cells.items()
        if cells
    }
    missing_texts = [
        f"{side} has no {first_few(cell_labels, MAX_NAMED, ', no ')}"
        for side, cell_labels in labels.items()
    ]
    have_common_cells = any(cell in cells_b for cell in cells_a)
    remedy = " (`--common` compares the cells that both have)" if have_common_cells else ""
    raise Refusal(
        "compare.missing-cells",
        "; ".join(missing_texts) + remedy,
        missing=labels,
        common=have_common_cells,
    )


def _judge_cell(
    repeated: RepeatedRuns,
    mix: bool,
    margin: float,
    cell: Cell,
    a: list[Run],
    b: list[Run],
    sides: Sides,
) -> CellComparison:
    """Judge a cell by its step time, and by its held-out losses if it has any."""
    comparison = _judge_step_time(repeated.of_column("step_s"), mix, margin, cell, a, b, sides)
    if code_of(comparison.verdict) == "compare.untold":
        return comparison
    return replace(comparison, held_out=compared_losses.compared(repeated, a, b))


def _judge_step_time(
    machines: Machines,
    mix: bool,
    margin: float,
    cell: Cell,
    a: list[Run],
    b: list[Run],
    sides: Sides,
) -> CellComparison:
    """Judge a cell by its step time.

    Args:
        machines: how step times of repeated runs differ.
        mix: see `compare`.
        margin: see `compare`.
        cell: the cell to judge.
        a: its runs in A.
        b: its runs in B.
        sides: the names of A and B.
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
            mixing_side = f"{side} mixes commits, machines, data or cores in one cell"
            text = f"{mixing_side}: {mixture} (`--mix` averages over them)"
            raise Refusal("compare.mixed", text, key="--mix", side=side, mixture=mixture)
    not_comparable = _why_not_comparable([*ok_a, *ok_b]) or _different_step_work(ok_a, ok_b)
    if not_comparable is not None:
        return CellComparison(cell, a, b, None, not_comparable)
    ok_a, ok_b = grouping.undisturbed(ok_a), grouping.undisturbed(ok_b)
    ok_a, ok_b = (
        sorted(runs, key=lambda run: (run["seed"] or 0, run["repetition"] or 1))
        for runs in (ok_a, ok_b)
    )
    try:
        steps_a, steps_b = ([run.measured_s() for run in runs] for runs in (ok_a, ok_b))
        # With the same seeds and step numbers, both sides trained on the same batches, so steps
        # can be paired. If a key of --by changes the batches, pairing is still right but useless.
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


def _why_not_comparable(runs: Sequence[Run]) -> Message | None:
    """Return why these runs of both sides cannot be compared, or None if they can."""
    forbidden_uses = [Forbids.verdict]
    if len({grouping.ranks(run) for run in runs}) > 1:
        forbidden_uses.append(Forbids.speed_up)
    forbidding_limits = limits.forbidding(grouping.limits_of(runs), *forbidden_uses)
    if not forbidding_limits:
        return None
    return _not_comparable(str(forbidding_limits[0].says), forbidding_limits[0].code)


def _not_comparable(why: str, limit: str) -> Message:
    """Return the verdict on a cell whose runs cannot be compared."""
    return Message("compare.untold", f"{UNDECIDED}: {why}", limit=limit)


def _different_step_work(a: Sequence[Run], b: Sequence[Run]) -> Message | None:
    """Return a message if a script's steps train other amounts on both sides.

    In that case, the step times cannot be compared.
    """
    if not all(map(works.is_script, [*a, *b])):
        return None
    amounts_by_side = ([circumstances.step_work(run.record()) for run in runs] for runs in (a, b))
    amounts = circumstances.differing_means(*amounts_by_side)
    if amounts is None:
        return None
    unit = circumstances.step_work_unit([*a, *b])
    text = (
        f"a step trains {amounts[0]:,.1f} {unit} in A and {amounts[1]:,.1f} in B;"
        " `multicard best` compares the times of equal amounts of work"
    )
    return _not_comparable(text, "step-work")
