"""Processes on the GPUs of a run that are none of its own."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Seen:
    """A process on a GPU: when it was first and last seen there, and the most memory that it held."""

    first_s: float
    last_s: float
    memory_bytes: int | None


class Neighbours:
    """Tells the run's own processes from others, by what NVML lists.

    A process that descends from this one is ours, and one that does not is not. NVML may list the PIDs of the host to a
    container, where no such process is to be seen: one that was there before the ranks started is not ours then, and
    of those that came later as many are taken for ours, the first to come, as there are ranks that were not seen
    otherwise. A PID of the host that happens to be another process's here is judged as that one. What comes and goes
    between two samples is missed, and where NVML lists nothing (some containers) nothing is found.

    Args:
        ranks: processes of the run on this node.
        ask_name: NVML's name of a process that cannot be seen here.
    """

    def __init__(self, ranks: int, ask_name: Callable[[int], str | None]) -> None:
        self._ranks, self._ask_name = ranks, ask_name
        self._ours: dict[int, bool | None] = {}  # None: cannot be seen. In the order in which they came
        self._names: dict[int, str | None] = {}
        self._seen: dict[tuple[str, int], Seen] = {}

    def note(self, time_s: float, gpu: str, pid: int, memory_bytes: int | None, before: bool = False) -> None:
        """A process is on a GPU now.

        Args:
            before: the ranks have not started yet.
        """
        if pid not in self._ours:
            ours, name = look(pid)
            self._ours[pid] = False if before and ours is None else ours
            self._names[pid] = name or self._ask_name(pid)
        seen = self._seen.setdefault((gpu, pid), Seen(time_s, time_s, memory_bytes))
        seen.last_s = time_s
        if memory_bytes is not None:
            seen.memory_bytes = max(memory_bytes, seen.memory_bytes or 0)

    def others(self) -> list[dict[str, Any]]:
        """Every process that is not ours, a row for each GPU that it was seen on."""
        mine = sum(ours is True and pid != os.getpid() for pid, ours in self._ours.items())
        hidden = [pid for pid, ours in self._ours.items() if ours is None]
        foreign = {pid for pid, ours in self._ours.items() if ours is False} | {*hidden[max(0, self._ranks - mine) :]}
        return [
            {
                "gpu": gpu,
                "pid": pid,
                "name": self._names[pid],
                "memory_bytes": seen.memory_bytes,
                "seen_s": [seen.first_s, seen.last_s],
            }
            for (gpu, pid), seen in self._seen.items()
            if pid in foreign
        ]


def look(pid: int) -> tuple[bool | None, str | None]:
    """Whether a process is this one or descends from it (None: there is none to be seen), and its name."""
    import psutil

    try:
        process = psutil.Process(pid)
        return os.getpid() in (pid, *(parent.pid for parent in process.parents())), process.name()
    except psutil.NoSuchProcess:
        return None, None
    except psutil.AccessDenied:  # it is there, and another user's
        return False, None
