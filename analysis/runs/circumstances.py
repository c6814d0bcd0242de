"""Find the circumstances that differ between two sides of runs.

A difference between two settings is due to them only if nothing else differs: versions, clocks, the
load by other programs, or the time, because machines drift. `compare` lists all differences. A
recommendation and the effects list only differences that the settings do not explain (`doubts`).
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

MIN_DIFFERENCE = 0.02  # Means with a smaller relative difference count as equal.
LONG_PAUSE_S = (
    3600.0  # After a longer pause between two sides, they were measured at different times.
)
CLOCK_NAMES = {"sm_clock_mean_mhz": "SM clock", "memory_clock_mean_mhz": "memory clock"}
SIDES = ("A", "B")


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """Return a line for each circumstance in which the runs of A and B differ.

    These are versions, devices, drivers, flags, marks and clocks. A further line says if the two
    sides were not measured alternately.
    """
    return [
        *_not_alternating(a, b),
        *_differing_facts(_values_by_fact(a, _all_facts), _values_by_fact(b, _all_facts)),
        *_differing_means(a, b),
    ]


def doubts(a: Sequence[Run], b: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return a message for each difference between two settings' runs that they do not explain.

    Args:
        names: the names of the two settings.
    """
    versions = _differing_facts(
        _values_by_fact(a, _version_facts), _values_by_fact(b, _version_facts), names
    )
    return [
        *_at_other_times(a, b, names),
        *_under_other_load(a, b, names),
        *versions,
        *_differing_clocks(a, b, names),
    ]


def _at_other_times(a: Sequence[Run], b: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Say if all runs of one side ended LONG_PAUSE_S or longer before the other side began."""
    start_times = [[run["started_at"] for run in side] for side in (a, b)]
    end_times = [[run["ended_at"] for run in side] for side in (a, b)]
    if not all(all(times) and times for times in (*start_times, *end_times)):
        return []
    earlier, later = (0, 1) if max(end_times[0]) < min(start_times[1]) else (1, 0)
    pause_s = _moment(min(start_times[later])) - _moment(max(end_times[earlier]))
    if pause_s < LONG_PAUSE_S:
        return []
    hours_between = count(round(pause_s / 3600), "hour")
    text = (
        f"{names[earlier]} was measured {hours_between} before {names[later]}, and machines drift"
    )
    return [
        Message(
            "doubt.other-times", text, earlier=names[earlier], later=names[later], pause_s=pause_s
        )
    ]


def _moment(timestamp: str) -> float:
    """Unix time, in seconds."""
    return datetime.fromisoformat(timestamp).timestamp()


def _under_other_load(a: Sequence[Run], b: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Say if other programs used another share of the cores during one side's runs."""
    shares = [
        np.mean([limits.busy_share(run.record()) for run in side]) if side else 0.0
        for side in (a, b)
    ]
    if abs(shares[0] - shares[1]) <= BUSY_SHARE:
        return []
    text = (
        f"other programs used {shares[0]:.0%} of the cores during {names[0]},"
        f" {shares[1]:.0%} during {names[1]}"
    )
    return [
        Message(
            "doubt.other-load", text, shares=[float(share) for share in shares], sides=list(names)
        )
    ]


def _differing_facts(
    facts_a: dict[str, set[str]], facts_b: dict[str, set[str]], names: Sequence[str] = SIDES
) -> list[str]:
    """Return a line for each fact that has other values on the two sides."""
    lines = []
    for name in {**facts_a, **facts_b}:
        if facts_a.get(name) != facts_b.get(name):
            in_a = _joined(facts_a.get(name))
            in_b = _joined(facts_b.get(name))
            text = f"{name}: {in_a} in {names[0]}, {in_b} in {names[1]}"
            lines.append(Message("compare.differs", text, name=name, a=in_a, b=in_b))
    return lines


def _not_alternating(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """Say if all runs of one side started before the first run of the other."""
    times_a, times_b = ([run["started_at"] for run in runs if run["started_at"]] for runs in (a, b))
    if (
        not times_a
        or not times_b
        or not (max(times_a) < min(times_b) or max(times_b) < min(times_a))
    ):
        return []
    older, newer = ("A", "B") if max(times_a) < min(times_b) else ("B", "A")
    text = (
        f"all runs of {older} are older than all runs of {newer}: a drift of the machine counts as"
        " a difference"
    )
    return [Message("compare.not-by-turns", text, older=older)]


def _values_by_fact(
    runs: Sequence[Run], of_run: Callable[[Run], Iterable[tuple[str, Any]]]
) -> dict[str, set[str]]:
    """Return the values that the runs record, by the name of the fact."""
    facts: dict[str, set[str]] = {}
    for run in runs:
        for name, value in of_run(run):
            if value not in (None, UNSET):
                facts.setdefault(name, set()).add(clean(str(value)))
    return facts


def _joined(values: Iterable[str] | None) -> str:
    return " and ".join(sorted(values or ())) or "nothing"


def _version_facts(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield facts that no setting of a sweep changes: the code and the versions it runs on."""
    environment = run.environment()
    yield "commit", grouping.commit(run)
    yield "hardware", run["hardware"]
    # no roles: these are fields of an environment.
    yield from ((name, getattr(environment, name)) for name in ("python", "platform"))
    yield from environment.packages.items()
    for gpu in environment.gpus:
        yield "driver", gpu.driver


def _all_facts(run: Run) -> Iterator[tuple[str, Any]]:
    environment = run.environment()
    cpu = environment.cpu or Cpu()
    yield from _version_facts(run)
    yield "hosts", run["hosts"]
    # no roles: these are fields of an environment.
    yield from ((name, getattr(environment, name)) for name in ("numa", "malloc"))
    yield from (environment.flags or {}).items()
    yield from (("CPU", cpu.model), ("CPU cores", cpu.cores))
    for gpu in environment.gpus:
        yield "highest SM clock, MHz", gpu.sm_clock_max_mhz
    yield from ((name, run[name]) for name in ("threads", *schema.keys(Role.place), DATA))
    yield from ((limit.says, "yes") for limit in run.limits)


def _differing_means(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """Return a line for each mean that differs between A and B by more than MIN_DIFFERENCE.

    Means of clocks are compared over the devices. So is the amount of work in a step: if it
    differs, the time of a step does not measure speed.
    """
    lines = []
    mean_works = differing_means(*([step_work(run.record()) for run in side] for side in (a, b)))
    if mean_works is not None:
        unit = step_work_unit([*a, *b])
        text = f"a step trains {mean_works[0]:,.1f} {unit} in A, {mean_works[1]:,.1f} in B"
        lines.append(
            Message("compare.step-work", text, a=mean_works[0], b=mean_works[1], unit=unit)
        )
    return [*lines, *_differing_clocks(a, b)]


def _gpu_values(records: Sequence[AnyRecord], key: str) -> list[Any]:
    """Return a key's value for each GPU that was sampled during these runs."""
    values = []
    for record in records:
        if record.gpu:
            values.extend(getattr(gpu, key) for gpu in record.gpu.devices)
    return values


def _differing_clocks(
    a: Sequence[Run], b: Sequence[Run], names: Sequence[str] = SIDES
) -> list[str]:
    records = [[run.record() for run in side] for side in (a, b)]
    lines = []
    for key, name in CLOCK_NAMES.items():
        clocks = differing_means(*(_gpu_values(side, key) for side in records))
        if clocks is not None:
            at_a, at_b = (
                f"{clock:,.0f} MHz in {side}" for clock, side in zip(clocks, names, strict=True)
            )
            text = f"{name} during the runs: {at_a}, {at_b} (means)"
            lines.append(Message("compare.clock", text, name=name, a=clocks[0], b=clocks[1]))
    return lines


def differing_means(
    a: Sequence[float | None], b: Sequence[float | None]
) -> tuple[float, float] | None:
    """Return the means of both sides, over the values that are known.

    The result is None if the means differ by at most MIN_DIFFERENCE, or if a side has no
    known value.
    """
    known_values = [[value for value in side if value is not None] for side in (a, b)]
    mean_a, mean_b = (float(np.mean(values)) if values else math.nan for values in known_values)
    return (mean_a, mean_b) if abs(mean_b / mean_a - 1) > MIN_DIFFERENCE else None


def step_work(record: AnyRecord) -> float | None:
    """Return the number of tokens that a step trained on, or of samples if tokens are unknown."""
    tokens = None if isinstance(record, VisionRecord) else record.tokens
    amount = tokens.non_padding if tokens is not None else record.samples_trained
    steps = sum(epoch.steps or 0 for epoch in record.epochs)
    return amount / steps if amount and steps else None


def step_work_unit(runs: Sequence[Run]) -> str:
    """Return the unit of `step_work` in these runs: "images", "tokens" or "samples".

    The result is "samples or tokens" if some of them recorded tokens and others did not.
    """
    units = {_step_work_unit(run.record()) for run in runs}
    return units.pop() if len(units) == 1 else "samples or tokens"


def _step_work_unit(record: AnyRecord) -> str:
    if isinstance(record, VisionRecord):
        return "images"
    return "samples" if record.tokens is None else "tokens"
