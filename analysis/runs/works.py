"""Group runs by their work: only runs that did the same amount of the same work may be ranked.

Keys of the configuration define the work and, for training and tuning, its amount. For scripts no
key does: their records say how much they trained (`multicard.records.amounts`). If settings trained
different amounts, they are compared by the time per amount (`is_at_pace`).

Some arguments of a script set by themselves how long it trains, such as a number of steps. They are
part of the script's work, so none of their values is recommended.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from multicard.config import schema
from multicard.config.roles import Role
from multicard.records import amounts
from multicard.records.amounts import Amounts
from multicard.records.comparable import DATA
from multicard.records.schema import ScriptRecord

from . import grouping
from .columns import KINDS
from .grouping import ORIGIN, PACE, Cell, grouped
from .load import Run

# A smaller share of an epoch's rows may be left out: the rows still count as all.
MAX_LEFT_OUT = amounts.TOLERANCE
COMMAND_WORDS = "words"  # The key of the words on a script's command line.
# Scripts may train for a fixed time. Times with a smaller relative difference may be such a time.
EQUAL_TIME = 0.1
MIN_RATIO_OF_AMOUNTS = (
    0.8  # Last batches that are left out do not explain a smaller ratio of amounts.
)
# If an argument sets the number of steps, the steps explain at least this share of a difference in
# amounts.
EXPLAINED_SHARE = 0.5


def is_script(run: Run) -> bool:
    return run["kind"] == ScriptRecord.kind


def by_work(runs: Sequence[Run], mix: bool, at_pace: bool = False) -> dict[Cell, list[Run]]:
    """Group the runs by the work that they did, including its amount.

    Args:
        at_pace: the number of steps or epochs is the amount, however much the ranks trained in
            them. Such runs are compared by their time per amount, `pace_s`.
    """
    settings = grouping.settings(runs)
    keys = [name for name in settings if name == DATA or Role.work in schema.of(name)]
    columns = ("kind", *keys, *(() if mix else ORIGIN))
    works: dict[Cell, list[Run]] = {}
    runs_by_keys = grouped(
        runs,
        lambda run: (*((key, run[key]) for key in columns), ("trained", trained(run, at_pace))),
    )
    for cell, cell_runs in runs_by_keys.items():
        if is_script(cell_runs[0]):
            works |= _by_script_work(cell, cell_runs, settings, at_pace)
        else:
            works[cell] = cell_runs
    return works


def _by_script_work(
    cell: Cell, runs: Sequence[Run], settings: Sequence[str], at_pace: bool
) -> dict[Cell, list[Run]]:
    """Group the runs of a script by the arguments that set how long it trains.

    Unless `at_pace`, they are also grouped by how much they trained.
    """
    lengths = length_keys(runs, settings)
    works: dict[Cell, list[Run]] = {}
    for length_cell, length_runs in grouping.group(runs, lengths).items():
        amounts_of_runs = None if at_pace else script_amounts(length_runs)
        if amounts_of_runs is None or amounts_of_runs.are_equal:
            works[*cell, *length_cell] = length_runs
            continue
        for run, amount in zip(length_runs, amounts_of_runs.classes(), strict=True):
            trained_amount = ("trained", f"{amount:,.0f} {amounts_of_runs.unit}")
            works.setdefault((*cell[:-1], trained_amount, *length_cell), []).append(run)
    return works


def lengths_of(work: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the arguments in a script's work that set how long it trains."""
    return tuple(key for key, _ in work if _is_argument(key))


def _is_argument(key: str) -> bool:
    return key == COMMAND_WORDS or key.startswith("args.")


def length_keys(runs: Sequence[Run], settings: Sequence[str]) -> list[str]:
    """Return the arguments of a script that set by themselves how long it trains.

    If two runs differ only in such an argument, their steps, amounts and times differ in
    proportion. With another batch size, a step trains another amount. A script that ends after a
    fixed time takes equally long.
    """
    keys = [key for key in settings if len({run[key] for run in runs}) > 1]
    keys_of_length = list[str]()
    for key in filter(_is_argument, keys):
        other_keys = [other for other in keys if other != key]
        for matching_runs in grouping.group(runs, other_keys).values():
            values = grouping.group(matching_runs, [key]).values()
            pairs = combinations([repetitions[0] for repetitions in values], 2)
            if any(_is_other_length(a, b) for a, b in pairs):
                keys_of_length.append(key)
                break
    return keys_of_length


def _is_other_length(a: Run, b: Run) -> bool:
    amounts_of_pair = script_amounts([a, b])
    if amounts_of_pair is None or not amounts_of_pair.are_known or amounts_of_pair.are_equal:
        return False
    step_ratio = _log_ratio(a["steps_of_ranks"], b["steps_of_ranks"])
    time_ratio = _log_ratio(a["total_s"], b["total_s"])
    amount_ratio = _log_ratio(*amounts_of_pair.of_runs)
    if step_ratio is None or amount_ratio is None:
        return False
    takes_equal_time = time_ratio is not None and abs(time_ratio) < math.log1p(EQUAL_TIME)
    return not takes_equal_time and abs(amount_ratio - step_ratio) < EXPLAINED_SHARE * abs(
        step_ratio
    )


def _log_ratio(a: float | None, b: float | None) -> float | None:
    return math.log(a / b) if a and b else None


def did_work_of(run: Run, kind: str, settings: Mapping[str, Any]) -> bool:
    """Return True if settings of a kind do the work of a run, wherever its data are stored."""
    work_keys = {key: run[key] for key in settings if Role.work in schema.of(key)}
    return run["kind"] == kind and all(
        str(value) == str(settings[key]) for key, value in work_keys.items()
    )


def trained(run: Run, at_pace: bool = False) -> str:
    """Return the amount of work of a run: "all rows", "100 preference pairs".

    A script's amount is known only from its record (`script_amounts`). With `max_steps`, a tuning
    run on more GPUs trains on more rows. Without it, rows that do not fill a step are left out; if
    that is more than 1 %, the amount is another one. Runs on preference pairs have rewards in their
    records. Packed rows are counted as sequences.
    """
    if is_script(run):
        return "all samples"
    is_limited = KINDS[run["kind"]].curve == "step" and run["max_steps"] is not None
    unit = "packed sequences" if is_limited and run["packed"] else "rows"
    unit = unit if run["reward_accuracy"] is None else "preference pairs"
    if is_limited and at_pace and run[PACE] is not None:
        return f"{unit} of {run['max_steps']} steps"
    is_part = not at_pace and (run["rows_share"] or 1.0) < 1 - MAX_LEFT_OUT
    return f"{run['samples_trained'] if is_limited or is_part else 'all'} {unit}"


def script_amounts(runs: Sequence[Run]) -> Amounts | None:
    """Return how much each run of a script trained, or None if some run is not a script's."""
    if not runs or not all(map(is_script, runs)):
        return None
    return amounts.of_runs([run.__getitem__ for run in runs])


def unequal_amounts(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, float, float] | None:
    """Return the unit and the mean amounts that two settings of a script trained.

    The result is None if all amounts are equal within 1 %, or unknown.
    """
    amounts_of_runs = script_amounts([*a, *b])
    if amounts_of_runs is None or amounts_of_runs.are_equal:
        return None
    mean_a = math.fsum(amounts_of_runs.of_runs[: len(a)]) / len(a)
    mean_b = math.fsum(amounts_of_runs.of_runs[len(a) :]) / len(b)
    return amounts_of_runs.unit, mean_a, mean_b


def did_as_much(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Return True if two settings of one work trained the same amount of it."""
    return trained(a[0]) == trained(b[0]) and unequal_amounts(a, b) is None


def unit_of_pace(runs: Sequence[Run]) -> str | None:
    """Return the amount of work that `pace_s` is the time of, or None if the runs share none."""
    kind = KINDS[runs[0]["kind"]]
    if not is_script(runs[0]):
        return kind.paced
    if all(run["samples_per_s"] for run in runs):
        return kind.paced
    has_tokens = all(run["tokens_per_s"] and not run["samples_per_s"] for run in runs)
    return "thousand tokens" if has_tokens else None


def is_at_pace(runs: Sequence[Run]) -> bool:
    """Return True if runs of one work trained different amounts of it.

    They can then be compared only by the time per amount.
    """
    if is_script(runs[0]):
        amounts_of_runs = script_amounts(runs)
        is_unequal = amounts_of_runs is not None and not amounts_of_runs.are_equal
        return is_unequal and unit_of_pace(runs) is not None
    return len(set(map(trained, runs))) > 1


def unexplained_amounts(runs: Sequence[Run]) -> Amounts | None:
    """Return amounts that ranks do not explain, or None if there are none.

    A script that divides its data among ranks trains the same amount on any number of ranks. One
    with a fixed number of steps takes as many on each rank. These runs differ in their ranks alone,
    but agree neither in amounts nor in steps, by more than last batches explain.
    """
    amounts_of_runs = script_amounts(runs)
    if amounts_of_runs is None or amounts_of_runs.are_equal:
        return None
    settings = [key for key in grouping.settings(runs) if Role.ranks not in schema.of(key)]
    for same_setting_runs in grouping.group(runs, settings).values():
        setting_amounts = script_amounts(same_setting_runs)
        steps = [run["steps_of_ranks"] / grouping.ranks(run) for run in same_setting_runs]
        if setting_amounts is None or not setting_amounts.are_known:
            continue
        if setting_amounts.least < MIN_RATIO_OF_AMOUNTS * setting_amounts.most and min(
            steps
        ) < MIN_RATIO_OF_AMOUNTS * max(steps):
            return setting_amounts
    return None


def unknown_amounts(runs: Sequence[Run]) -> Amounts | None:
    """Return the amounts of a script's runs that neither times nor rates can compare.

    The result is None if the amounts are equal, or if the rates compare the runs.
    """
    amounts_of_runs = script_amounts(runs)
    if amounts_of_runs is None or amounts_of_runs.are_equal or is_at_pace(runs):
        return None
    return amounts_of_runs
