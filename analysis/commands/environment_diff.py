"""In what the circumstances of two sweeps differ, beside what was compared: a line each."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from analysis.runs import grouping
from analysis.runs.caveats import MARKS
from analysis.runs.columns import RESERVED
from analysis.runs.load import Run
from multicard.config.base import NOT_IDENTITY
from multicard.records.text_table import clean

CLOCK_APART = 0.02  # of mean clocks that is worth a word
IN_FORCE = ("python", "platform", "numa", "malloc")
SAMPLED = {"sm_clock_mean_mhz": "SM clock", "memory_clock_mean_mhz": "memory clock"}


def lines(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line for each version, device, driver, clock, flag or mark that A's runs and B's do not share."""
    ours, theirs = _facts(a), _facts(b)
    names = dict.fromkeys([*ours, *theirs])
    told = [
        f"{name}: {_listed(ours.get(name, ()))} in A, {_listed(theirs.get(name, ()))} in B"
        for name in names
        if set(ours.get(name, ())) != set(theirs.get(name, ()))
    ]
    return [*told, *_clocks(a, b), *_marks(a, b), *_keys(a, b)]


def _facts(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What the environments of some runs say, by name; each value once."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _of(run):
            if value is not None:
                found.setdefault(name, {})[clean(str(value))] = None
    return {name: sorted(values) for name, values in found.items()}


def _of(run: Run) -> Iterable[tuple[str, Any]]:
    machine = run.environment()
    yield "commit", grouping.commit(run)
    yield "hardware", run["hardware"]
    yield "hosts", run["hosts"]
    for name in IN_FORCE:
        yield name, machine.get(name)
    for group in ("packages", "flags"):
        for name, value in _dict(machine.get(group)).items():
            yield name, value
    cpu = _dict(machine.get("cpu"))
    yield "CPU", cpu.get("model")
    yield "CPU cores", cpu.get("cores")
    for gpu in machine.get("gpus") or ():
        yield "driver", _dict(gpu).get("driver")
        yield "highest SM clock, MHz", _dict(gpu).get("sm_clock_max_mhz")
    for key in grouping.PLACES:
        yield key, run[key]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(values: Iterable[str]) -> str:
    return " and ".join(values) or "nothing"


def _clocks(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    told = []
    for key, name in SAMPLED.items():
        ours, theirs = _sampled(a, key), _sampled(b, key)
        if ours is not None and theirs is not None and abs(theirs / ours - 1) > CLOCK_APART:
            told.append(f"{name} while it ran: {ours:,.0f} MHz in A, {theirs:,.0f} MHz in B (means)")
    return told


def _sampled(runs: Sequence[Run], key: str) -> float | None:
    devices = [device for run in runs for device in _dict(run.record().get("gpu")).get("devices", ())]
    known = [device[key] for device in devices if device.get(key) is not None]
    return float(np.mean(known)) if known else None


def _marks(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    told = []
    for mark in MARKS:
        ours, theirs = (sum(bool(run[mark.column]) for run in runs) for runs in (a, b))
        if ours / len(a) != theirs / len(b):
            told.append(f"{mark.meaning}: {ours} of {len(a)} runs of A, {theirs} of {len(b)} of B")
    return told


def _keys(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """Keys of the configuration that one side alone has, as where one is of an older version."""
    ours, theirs = ({name for run in runs for name in run.columns} - RESERVED for runs in (a, b))
    only = {"A": sorted(ours - theirs), "B": sorted(theirs - ours)}
    apart = {side: [k for k in keys if k.partition(".")[0] not in NOT_IDENTITY] for side, keys in only.items()}
    return [f"only {side} knows {', '.join(map(clean, keys))}" for side, keys in apart.items() if keys]
