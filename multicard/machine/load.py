"""The CPU time of other processes while a run was measured, from Linux's accounts."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicard.measure.timing import clock_s

STAT = Path("/proc/stat")
WATCHED_S = 1.0  # for which the load before a prediction is measured
# columns of /proc/stat; time of guests is in the first two
USER = 0
NICE = 1
SYSTEM = 2
STEAL = 7
CoreTimes = dict[int, tuple[float, float]]  # busy and stolen seconds by core


class LoadMeter:
    """Counts from its making to `end`: the CPU time of all processes less that of `root`, by
    default this one, and its descendants.

    A descendant that has ended counts by what its parent knows of it. Interrupts belong to nobody
    and are left out; what a hypervisor gave to others (steal) is a figure of its own.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._began_s = clock_s()
        self._own_s = own_cpu_s(root)
        self._cores_s = cores_s(STAT.read_text())

    def end(self) -> dict[str, Any]:
        """The record's `load`."""
        seconds = max(clock_s() - self._began_s, 1e-9)
        now_s = cores_s(STAT.read_text())
        own_s = own_cpu_s(self._root) - self._own_s
        return {
            "seconds": seconds,
            **others(self._cores_s, now_s, own_s, seconds, os.sched_getaffinity(0)),
        }


def busy_share_now(seconds: float = WATCHED_S) -> float:
    """The share of this process's cores that others have, measured for so long."""
    watched = LoadMeter()
    time.sleep(seconds)
    found = watched.end()
    return (found["others_cores"] + found["stolen_cores"]) / len(os.sched_getaffinity(0))


def others(
    before: CoreTimes, after: CoreTimes, own_s: float, seconds: float, usable: set[int]
) -> dict[str, float]:
    """The mean number of cores that were busy with others' work; `own_s` is the CPU time of the
    run's processes in between, all of it on `usable` cores.
    """
    mine = before.keys() & after.keys() & usable  # cores may go offline
    busy_s, stolen_s = (
        sum(after[core][kind] - before[core][kind] for core in mine) for kind in (0, 1)
    )
    return {"others_cores": max(0.0, busy_s - own_s) / seconds, "stolen_cores": stolen_s / seconds}


def busy_cores(load: Mapping[str, float]) -> float:
    """The mean number of cores that others had, by a `load`: busy with their work,
    or stolen by a hypervisor.
    """
    return load["others_cores"] + load["stolen_cores"]


def cores_s(stat: str) -> CoreTimes:
    """Busy and stolen seconds of each core since the machine's start,
    from the text of /proc/stat.
    """
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    counts = {}
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(column) for column in columns]
            busy = ticks[USER] + ticks[NICE] + ticks[SYSTEM]
            counts[int(name[3:])] = (busy * tick_s, ticks[STEAL] * tick_s)
    return counts


def own_cpu_s(root: int | None = None) -> float:
    """CPU time of a process, by default this one, its descendants, and those of them that ended."""
    import psutil

    this = psutil.Process(root)
    total_s = 0.0
    # the parents after their children, whom they outlive
    for process in (*this.children(recursive=True), this):
        try:
            total_s += sum(process.cpu_times()[:4])  # user, system, and both of ended children
        except psutil.NoSuchProcess:
            continue
    return total_s
