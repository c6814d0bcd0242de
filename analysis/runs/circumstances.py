"""The circumstances in which runs were measured, and what of them two sides do not share.

A difference of two settings counts for them only where nothing else differs: versions, clocks, the
load that others made, and the time, as a machine drifts. `compare` names all differences; a
recommendation and the effects name those that do not follow from the settings (`doubts`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from msgspec import UNSET

from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.messages import Message
from multicard.records import limits
from multicard.records.limits import BUSY_SHARE
from multicard.records.schema import AnyRecord, VisionRecord
from multicard.records.schema_environment import Cpu
from multicard.records.text_table import clean

from . import grouping
from .grouping import DATA
from .load import Run

APART = 0.02  # relative difference of means that is reported
PAUSE_S = 3600.0  # between two sides, from which on they are said to be measured at other times
CLOCKS = {"sm_clock_mean_mhz": "SM clock", "memory_clock_mean_mhz": "memory clock"}
SIDES = ("A", "B")


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line for each version, device, driver, flag, mark or clock that A's runs and B's do not
    share; and one if they were not measured by turns.
    """
    return [
        *_turns(a, b),
        *_differing(_facts(a, _all_of_run), _facts(b, _all_of_run)),
        *_means(a, b),
    ]


def doubts(a: Sequence[Run], b: Sequence[Run], names: Sequence[str]) -> list[str]:
    """What differs between the runs of two settings and does not follow from these: a message each.

    Args:
        names: what the two settings are called.
    """
    versions = _differing(_facts(a, _versions), _facts(b, _versions), names)
    return [
        *_at_other_times(a, b, names),
        *_under_other_load(a, b, names),
        *versions,
        *_clocks(a, b, names),
    ]


def _at_other_times(a: Sequence[Run], b: Sequence[Run], names: Sequence[str]) -> list[str]:
    """That all runs of one side had ended PAUSE_S before those of the other began."""
    begins = [[run["started_at"] for run in side] for side in (a, b)]
    ends = [[run["ended_at"] for run in side] for side in (a, b)]
    if not all(all(times) and times for times in (*begins, *ends)):
        return []
    first, last = (0, 1) if max(ends[0]) < min(begins[1]) else (1, 0)
    pause_s = _moment(min(begins[last])) - _moment(max(ends[first]))
    if pause_s < PAUSE_S:
        return []
    apart = count(round(pause_s / 3600), "hour")
    said = f"{names[first]} was measured {apart} before {names[last]}, and machines drift"
    return [
        Message("doubt.other-times", said, earlier=names[first], later=names[last], pause_s=pause_s)
    ]


def _moment(timestamp: str) -> float:
    """Unix time, in seconds."""
    return datetime.fromisoformat(timestamp).timestamp()


def _under_other_load(a: Sequence[Run], b: Sequence[Run], names: Sequence[str]) -> list[str]:
    """That others kept another share of the cores busy beside one side than beside the other."""
    shares = [
        np.mean([limits.busy_share(run.record()) for run in side]) if side else 0.0
        for side in (a, b)
    ]
    if abs(shares[0] - shares[1]) <= BUSY_SHARE:
        return []
    said = (
        f"other programs used {shares[0]:.0%} of the cores beside {names[0]},"
        f" {shares[1]:.0%} beside {names[1]}"
    )
    return [
        Message(
            "doubt.other-load", said, shares=[float(share) for share in shares], sides=list(names)
        )
    ]


def _differing(
    facts_a: dict[str, set[str]], facts_b: dict[str, set[str]], names: Sequence[str] = SIDES
) -> list[str]:
    """A line for each fact of which the two sides have other values."""
    lines = []
    for name in {**facts_a, **facts_b}:
        if facts_a.get(name) != facts_b.get(name):
            in_a = _listed(facts_a.get(name))
            in_b = _listed(facts_b.get(name))
            said = f"{name}: {in_a} in {names[0]}, {in_b} in {names[1]}"
            lines.append(Message("compare.differs", said, name=name, a=in_a, b=in_b))
    return lines


def _turns(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line where the runs of one side all started before those of the other."""
    times_a, times_b = ([run["started_at"] for run in runs if run["started_at"]] for runs in (a, b))
    if (
        not times_a
        or not times_b
        or not (max(times_a) < min(times_b) or max(times_b) < min(times_a))
    ):
        return []
    first, last = ("A", "B") if max(times_a) < min(times_b) else ("B", "A")
    said = (
        f"all runs of {first} are older than those of {last}: a drift of the machine counts as a"
        " difference"
    )
    return [Message("compare.not-by-turns", said, older=first)]


def _facts(
    runs: Sequence[Run], of_run: Callable[[Run], Iterable[tuple[str, Any]]]
) -> dict[str, set[str]]:
    """Values that some runs record, by name."""
    facts: dict[str, set[str]] = {}
    for run in runs:
        for name, value in of_run(run):
            if value not in (None, UNSET):
                facts.setdefault(name, set()).add(clean(str(value)))
    return facts


def _listed(values: Iterable[str] | None) -> str:
    return " and ".join(sorted(values or ())) or "nothing"


def _versions(run: Run) -> Iterator[tuple[str, Any]]:
    """What no setting of a sweep changes: the code, and versions of what it runs on."""
    environment = run.environment()
    yield "commit", grouping.commit(run)
    yield "hardware", run["hardware"]
    # no roles: fields of an environment
    yield from ((name, getattr(environment, name)) for name in ("python", "platform"))
    yield from environment.packages.items()
    for gpu in environment.gpus:
        yield "driver", gpu.driver


def _all_of_run(run: Run) -> Iterator[tuple[str, Any]]:
    environment = run.environment()
    cpu = environment.cpu or Cpu()
    yield from _versions(run)
    yield "hosts", run["hosts"]
    # no roles: fields of an environment
    yield from ((name, getattr(environment, name)) for name in ("numa", "malloc"))
    yield from (environment.flags or {}).items()
    yield from (("CPU", cpu.model), ("CPU cores", cpu.cores))
    for gpu in environment.gpus:
        yield "highest SM clock, MHz", gpu.sm_clock_max_mhz
    yield from ((name, run[name]) for name in ("threads", *schema.keys(Role.place), DATA))
    yield from ((limit.says, "yes") for limit in run.limits)


def _means(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line for each mean that differs between A and B by more than APART: of clocks over the
    devices, and of the work of a step, by which its time is no measure of speed.
    """
    differing = []
    works = means_apart(*([step_work(run.record()) for run in side] for side in (a, b)))
    if works is not None:
        said = f"a step trains {works[0]:,.1f} samples or tokens in A, {works[1]:,.1f} in B"
        differing.append(Message("compare.step-work", said, a=works[0], b=works[1]))
    return [*differing, *_clocks(a, b)]


def _gpu_values(records: Sequence[AnyRecord], key: str) -> list[Any]:
    """The values of a key of each GPU that was sampled during these runs."""
    values = []
    for record in records:
        if record.gpu:
            values.extend(getattr(gpu, key) for gpu in record.gpu.devices)
    return values


def _clocks(a: Sequence[Run], b: Sequence[Run], names: Sequence[str] = SIDES) -> list[str]:
    records = [[run.record() for run in side] for side in (a, b)]
    differing = []
    for key, name in CLOCKS.items():
        clocks = means_apart(*(_gpu_values(side, key) for side in records))
        if clocks is not None:
            at_a, at_b = (
                f"{clock:,.0f} MHz in {side}" for clock, side in zip(clocks, names, strict=True)
            )
            said = f"{name} during the runs: {at_a}, {at_b} (means)"
            differing.append(Message("compare.clock", said, name=name, a=clocks[0], b=clocks[1]))
    return differing


def means_apart(a: Sequence[float | None], b: Sequence[float | None]) -> tuple[float, float] | None:
    """The means of the known values of each side; None where they differ by at most APART,
    or a side has none.
    """
    known = [[value for value in side if value is not None] for side in (a, b)]
    mean_a, mean_b = (float(np.mean(values)) if values else math.nan for values in known)
    return (mean_a, mean_b) if abs(mean_b / mean_a - 1) > APART else None


def step_work(record: AnyRecord) -> float | None:
    """Tokens, or samples where none are known, that a step trained on."""
    tokens = None if isinstance(record, VisionRecord) else record.tokens
    amount = tokens.non_padding if tokens is not None else record.samples_trained
    steps = sum(epoch.steps or 0 for epoch in record.epochs)
    return amount / steps if amount and steps else None
