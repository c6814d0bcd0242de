"""Works: which runs may be ranked against one another, as they did the same work, as much of it.

Keys say what work a run did and, of training and tuning, how much. Of scripts none does: how much
they trained is in their records (`multicard.records.amounts`). Where settings trained different
amounts, the time of as much work compares them (`is_at_pace`). An argument that by itself sets how
long a script trains, as a number of steps, is part of its work: of its values none is recommended.
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

LEFT_OUT = amounts.TOLERANCE  # of an epoch's rows, up to which they count as all
WORDS = "words"  # of a script's command line
AS_LONG = 0.1  # relative difference up to which runs took the time that a script sets itself
UNLIKE = 0.8  # of an amount, below which last batches that are left out do not explain it
EXPLAINED = 0.5  # of a difference of amounts, by the number of steps, where that sets the amount


def is_script(run: Run) -> bool:
    return run["kind"] == ScriptRecord.kind


def by_work(runs: Sequence[Run], mix: bool, at_pace: bool = False) -> dict[Cell, list[Run]]:
    """The runs by the work that they did, its amount included.

    Args:
        at_pace: the number of steps, or of epochs, is the amount, whatever the ranks trained in it:
            the time of as much work, `pace_s`, compares such runs.
    """
    settings = grouping.settings(runs)
    keys = [name for name in settings if name == DATA or Role.work in schema.of(name)]
    columns = ("kind", *keys, *(() if mix else ORIGIN))
    works: dict[Cell, list[Run]] = {}
    same_keys = grouped(
        runs,
        lambda run: (*((key, run[key]) for key in columns), ("trained", trained(run, at_pace))),
    )
    for cell, own in same_keys.items():
        if is_script(own[0]):
            works |= _of_scripts(cell, own, settings, at_pace)
        else:
            works[cell] = own
    return works


def _of_scripts(
    cell: Cell, runs: Sequence[Run], settings: Sequence[str], at_pace: bool
) -> dict[Cell, list[Run]]:
    """The runs of one script by the arguments that set how long it trains, and, but `at_pace`, by
    how much they trained.
    """
    lengths = length_keys(runs, settings)
    works: dict[Cell, list[Run]] = {}
    for own_lengths, own in grouping.group(runs, lengths).items():
        found = None if at_pace else script_amounts(own)
        if found is None or found.are_equal:
            works[*cell, *own_lengths] = own
            continue
        for run, amount in zip(own, found.classes(), strict=True):
            said = ("trained", f"{amount:,.0f} {found.unit}")
            works.setdefault((*cell[:-1], said, *own_lengths), []).append(run)
    return works


def lengths_of(work: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """The arguments in the name of a script's work that set how long it trains."""
    return tuple(key for key, _ in work if _is_argument(key))


def _is_argument(key: str) -> bool:
    return key == WORDS or key.startswith("args.")


def length_keys(runs: Sequence[Run], settings: Sequence[str]) -> list[str]:
    """The arguments of a script that by themselves set how long it trains.

    Two runs that differ in such a one alone take other numbers of steps and train other amounts in
    proportion, and take other times. A batch size changes how much a step trains, and
    a script that ends after so many seconds takes as long.
    """
    keys = [key for key in settings if len({run[key] for run in runs}) > 1]
    found = list[str]()
    for key in filter(_is_argument, keys):
        rest = [other for other in keys if other != key]
        for own in grouping.group(runs, rest).values():
            values = grouping.group(own, [key]).values()
            pairs = combinations([each[0] for each in values], 2)
            if any(_is_other_length(a, b) for a, b in pairs):
                found.append(key)
                break
    return found


def _is_other_length(a: Run, b: Run) -> bool:
    amounts_of_pair = script_amounts([a, b])
    if amounts_of_pair is None or not amounts_of_pair.are_known or amounts_of_pair.are_equal:
        return False
    steps = _log_ratio(a["steps_of_ranks"], b["steps_of_ranks"])
    took = _log_ratio(a["total_s"], b["total_s"])
    amount = _log_ratio(*amounts_of_pair.of_runs)
    if steps is None or amount is None:
        return False
    takes_as_long = took is not None and abs(took) < math.log1p(AS_LONG)
    return not takes_as_long and abs(amount - steps) < EXPLAINED * abs(steps)


def _log_ratio(a: float | None, b: float | None) -> float | None:
    return math.log(a / b) if a and b else None


def did_work_of(run: Run, kind: str, settings: Mapping[str, Any]) -> bool:
    """True for settings of a kind with the work of a run, wherever its data lie."""
    own = {key: run[key] for key in settings if Role.work in schema.of(key)}
    return run["kind"] == kind and all(
        str(value) == str(settings[key]) for key, value in own.items()
    )


def trained(run: Run, at_pace: bool = False) -> str:
    """The amount of work of a run: "all rows", "100 preference pairs". Of a script its record alone
    says it (`script_amounts`).

    With `max_steps`, a tuning run on more GPUs takes more rows. Without it, rows that make no whole
    step are left out: over 1 % of them are another amount. Runs on preference pairs have rewards in
    their records; packed rows are counted as sequences.
    """
    if is_script(run):
        return "all samples"
    limited = KINDS[run["kind"]].curve == "step" and run["max_steps"] is not None
    unit = "packed sequences" if limited and run["packed"] else "rows"
    unit = unit if run["reward_accuracy"] is None else "preference pairs"
    if limited and at_pace and run[PACE] is not None:
        return f"{unit} of {run['max_steps']} steps"
    is_part = not at_pace and (run["rows_share"] or 1.0) < 1 - LEFT_OUT
    return f"{run['samples_trained'] if limited or is_part else 'all'} {unit}"


def script_amounts(runs: Sequence[Run]) -> Amounts | None:
    """How much each of these runs of a script trained; None of other runs."""
    if not runs or not all(map(is_script, runs)):
        return None
    return amounts.of_runs([run.__getitem__ for run in runs])


def unequal_amounts(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, float, float] | None:
    """The unit and the mean amounts that the runs of two settings of a script trained, where some
    of them are over 1 % apart. None where all are equal, or not known.
    """
    found = script_amounts([*a, *b])
    if found is None or found.are_equal:
        return None
    of_a = math.fsum(found.of_runs[: len(a)]) / len(a)
    of_b = math.fsum(found.of_runs[len(a) :]) / len(b)
    return found.unit, of_a, of_b


def did_as_much(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """True for the runs of two settings of one work that trained the same amount of it."""
    return trained(a[0]) == trained(b[0]) and unequal_amounts(a, b) is None


def unit_of_pace(runs: Sequence[Run]) -> str | None:
    """The work of which `pace_s` is the time; None where these runs have none in common."""
    kind = KINDS[runs[0]["kind"]]
    if not is_script(runs[0]):
        return kind.paced
    if all(run["samples_per_s"] for run in runs):
        return kind.paced
    has_tokens = all(run["tokens_per_s"] and not run["samples_per_s"] for run in runs)
    return "thousand tokens" if has_tokens else None


def is_at_pace(runs: Sequence[Run]) -> bool:
    """True for runs of one work that trained different amounts of it, so that the time of as much
    work alone compares them.
    """
    if is_script(runs[0]):
        found = script_amounts(runs)
        is_unequal = found is not None and not found.are_equal
        return is_unequal and unit_of_pace(runs) is not None
    return len(set(map(trained, runs))) > 1


def unlike(runs: Sequence[Run]) -> Amounts | None:
    """The amounts of runs of one work, where some that differ in their ranks alone trained neither
    as much nor as many steps a rank, by more than last batches explain. None where there are none.

    A script that divides its data among ranks trains as much, and one that takes so many steps
    takes as many.
    """
    found = script_amounts(runs)
    if found is None or found.are_equal:
        return None
    settings = [key for key in grouping.settings(runs) if Role.ranks not in schema.of(key)]
    for alike in grouping.group(runs, settings).values():
        own = script_amounts(alike)
        steps = [run["steps_of_ranks"] / grouping.ranks(run) for run in alike]
        if own is None or not own.are_known:
            continue
        if own.least < UNLIKE * own.most and min(steps) < UNLIKE * max(steps):
            return own
    return None


def unknown_amounts(runs: Sequence[Run]) -> Amounts | None:
    """The amounts of runs of a script that neither their times nor their rates compare; None where
    one of these does.
    """
    found = script_amounts(runs)
    if found is None or found.are_equal or is_at_pace(runs):
        return None
    return found
