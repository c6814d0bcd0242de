"""Measure how much CPU time other processes took during a run, from Linux's accounting."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicard.measure.timing import clock_s

STAT = Path("/proc/stat")
WATCHED_S = 1.0  # Before a prediction, the load is measured for this time.
# Columns of /proc/stat. The first two include the time of guests.
USER = 0
NICE = 1
SYSTEM = 2
STEAL = 7
CoreTimes = dict[int, tuple[float, float]]  # Busy and stolen seconds by core.


class LoadMeter:
    """Measures the load by other processes, from its creation to `end`.

    The load is the CPU time of all processes, less that of `root` (by default this process) and its
    descendants. A descendant that has ended counts as far as its parent accounts for it. Interrupts
    belong to no process and are left out. Time that a hypervisor gave to other machines (steal) is
    a separate figure.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._began_s = clock_s()
        self._own_s = own_cpu_s(root)
        self._cores_s = cores_s(STAT.read_text())

    def end(self) -> dict[str, Any]:
        """Return the record's `load`."""
        seconds = max(clock_s() - self._began_s, 1e-9)
        now_s = cores_s(STAT.read_text())
        own_s = own_cpu_s(self._root) - self._own_s
        return {
            "seconds": seconds,
            **cores_of_others(self._cores_s, now_s, own_s, seconds, os.sched_getaffinity(0)),
        }


def busy_share_now(seconds: float = WATCHED_S) -> float:
    """Measure which share of this process's cores others use."""
    meter = LoadMeter()
    time.sleep(seconds)
    load = meter.end()
    return (load["others_cores"] + load["stolen_cores"]) / len(os.sched_getaffinity(0))


def cores_of_others(
    before: CoreTimes, after: CoreTimes, own_s: float, seconds: float, usable: set[int]
) -> dict[str, float]:
    """Return the mean number of cores that were busy with others' work.

    Args:
        own_s: The CPU time of the run's processes between the two, all of it on `usable` cores.
    """
    shared_cores = before.keys() & after.keys() & usable  # Cores may go offline in between.
    busy_s, stolen_s = (
        sum(after[core][kind] - before[core][kind] for core in shared_cores) for kind in (0, 1)
    )
    return {"others_cores": max(0.0, busy_s - own_s) / seconds, "stolen_cores": stolen_s / seconds}


def busy_cores(load: Mapping[str, float]) -> float:
    """Return the mean number of cores that a `load` took: busy with others' work, or stolen."""
    return load["others_cores"] + load["stolen_cores"]


def cores_s(stat: str) -> CoreTimes:
    """Return each core's busy and stolen seconds since boot, from the text of /proc/stat."""
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
    """Return the CPU time of a process (by default this one) and of its descendants.

    Descendants that have ended are included.
    """
    import psutil

    root_process = psutil.Process(root)
    total_s = 0.0
    # Parents come after their children. If a child ends meanwhile, its parent accounts for it.
    for process in (*root_process.children(recursive=True), root_process):
        try:
            total_s += sum(process.cpu_times()[:4])  # User and system time, of ended children too.
        except psutil.NoSuchProcess:
            continue
    return total_s
