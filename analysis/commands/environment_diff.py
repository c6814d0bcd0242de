"""Differences between the circumstances of two sweeps: versions, devices, clocks, marks and keys."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from analysis.runs import grouping
from analysis.runs.columns import MARKS, RESERVED
from analysis.runs.load import Run
from multicard.config.base import NOT_IDENTITY
from multicard.config.job import count
from multicard.records.comparable import DATA
from multicard.records.schema import Cpu
from multicard.records.text_table import clean

CLOCK_APART = 0.02  # relative difference of mean clocks that is reported
CLOCKS = {"sm_clock_mean_mhz": "SM clock", "memory_clock_mean_mhz": "memory clock"}


def lines(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line for each version, device, driver, clock, flag, mark or key that A's runs and B's do not share; and
    one if they were not measured by turns.
    """
    facts_a, facts_b = _facts(a), _facts(b)
    differing = [name for name in {**facts_a, **facts_b} if facts_a.get(name) != facts_b.get(name)]
    facts = [f"{name}: {_listed(facts_a.get(name))} in A, {_listed(facts_b.get(name))} in B" for name in differing]
    return [*_order(a, b), *_rows(a, b), *facts, *_clocks(a, b), *_marks(a, b), *_keys(a, b)]


def _order(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line where the runs of one side all started before those of the other."""
    times_a, times_b = ([run["started_at"] for run in runs if run["started_at"]] for runs in (a, b))
    if not times_a or not times_b or not (max(times_a) < min(times_b) or max(times_b) < min(times_a)):
        return []
    first, last = ("A", "B") if max(times_a) < min(times_b) else ("B", "A")
    return [f"all runs of {first} are older than those of {last}: a drift of the machine counts as a difference"]


def _rows(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """A line where tuning runs of the two sides had other rows, which repetitions of one seed do not show."""
    seeds_a, seeds_b = ({run["seed"] for run in runs if run["kind"] == "llm" and not run["packed"]} for runs in (a, b))
    if not seeds_a or not seeds_b or seeds_a == seeds_b:
        return []
    return ["other seeds in A than in B: their rows, of other lengths, count as a difference"]


def _facts(runs: Sequence[Run]) -> dict[str, set[str]]:
    """Values that the environments of some runs record, by name."""
    facts: dict[str, set[str]] = {}
    for run in runs:
        for name, value in _of_run(run):
            if value not in (None, UNSET):
                facts.setdefault(name, set()).add(clean(str(value)))
    return facts


def _listed(values: Iterable[str] | None) -> str:
    return " and ".join(sorted(values or ())) or "nothing"


def _of_run(run: Run) -> Iterable[tuple[str, Any]]:
    environment = run.environment()
    cpu = environment.cpu or Cpu()
    yield "commit", grouping.commit(run)
    yield from ((name, run[name]) for name in ("hardware", "hosts"))
    yield from ((name, getattr(environment, name)) for name in ("python", "platform", "numa", "malloc"))
    yield from environment.packages.items()
    yield from (environment.flags or {}).items()
    yield from (("CPU", cpu.model), ("CPU cores", cpu.cores))
    for gpu in environment.gpus:
        yield from (("driver", gpu.driver), ("highest SM clock, MHz", gpu.sm_clock_max_mhz))
    yield from ((name, run[name]) for name in ("threads", *grouping.PLACES, DATA))


def _clocks(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    differing = []
    for key, name in CLOCKS.items():
        mean_a, mean_b = _mean_clock_mhz(a, key), _mean_clock_mhz(b, key)
        if mean_a is not None and mean_b is not None and abs(mean_b / mean_a - 1) > CLOCK_APART:
            differing.append(f"{name} during the runs: {mean_a:,.0f} MHz in A, {mean_b:,.0f} MHz in B (means)")
    return differing


def _mean_clock_mhz(runs: Sequence[Run], key: str) -> float | None:
    gpus = [gpu for run in runs if (gpu := run.record().gpu) is not None]
    clocks_mhz = [mhz for gpu in gpus for device in gpu.devices if (mhz := getattr(device, key)) is not None]
    return float(np.mean(clocks_mhz)) if clocks_mhz else None


def _marks(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    differing = []
    for mark in MARKS:
        marked_a, marked_b = (sum(bool(run[mark.column]) for run in runs) for runs in (a, b))
        if marked_a / len(a) != marked_b / len(b):
            differing.append(f"{mark.meaning}: {marked_a} of A's {count(len(a), 'run')}, {marked_b} of B's {len(b)}")
    return differing


def _keys(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """Keys of the configuration that only one side has, as where one is of an older version."""
    names_a, names_b = ({name for run in runs for name in run.columns} - RESERVED for runs in (a, b))
    differing = []
    for side, names in (("A", names_a - names_b), ("B", names_b - names_a)):
        keys = sorted(name for name in names if name.partition(".")[0] not in NOT_IDENTITY)
        differing += [f"only {side} has {', '.join(map(clean, keys))}"] if keys else []
    return differing
