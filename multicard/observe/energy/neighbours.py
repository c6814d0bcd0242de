"""Foreign processes on the GPUs of a run."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Presence:
    """A process on a GPU: when it was first and last seen there, and the most memory that it held."""

    first_s: float
    last_s: float
    memory_bytes: int | None


class Neighbours:
    """Separates the run's own processes from foreign ones in NVML's lists.

    Descendants of this process are the run's own, other visible processes foreign. To a container NVML may list PIDs of
    the host, which are not visible: one that was there before the ranks started is foreign, and of later ones the first
    are taken as own, up to the number of ranks that were not seen otherwise. A host PID that another process has here
    is judged as that process. What comes and goes between two samples is missed, and in containers where NVML lists
    nothing no process is seen.

    Args:
        ranks: processes of the run on this node.
        ask_name: NVML's name of a process that is not visible here.
    """

    def __init__(self, ranks: int, ask_name: Callable[[int], str | None]) -> None:
        self._ranks, self._ask_name = ranks, ask_name
        self._own: dict[int, bool | None] = {}  # None: not visible. In order of appearance
        self._names: dict[int, str | None] = {}
        self._presence: dict[tuple[str, int], Presence] = {}

    def note(self, time_s: float, gpu: str, pid: int, memory_bytes: int | None, before_ranks: bool = False) -> None:
        """Note that a process is on a GPU.

        Args:
            before_ranks: the ranks have not started yet.
        """
        if pid not in self._own:
            own, name = identify(pid)
            self._own[pid] = False if before_ranks and own is None else own
            self._names[pid] = name or self._ask_name(pid)
        presence = self._presence.setdefault((gpu, pid), Presence(time_s, time_s, memory_bytes))
        presence.last_s = time_s
        if memory_bytes is not None:
            presence.memory_bytes = max(memory_bytes, presence.memory_bytes or 0)

    def foreign(self) -> list[dict[str, Any]]:
        """Every foreign process, a row for each GPU that it was on."""
        visible_ranks = sum(own is True and pid != os.getpid() for pid, own in self._own.items())
        hidden = [pid for pid, own in self._own.items() if own is None]
        foreign = {pid for pid, own in self._own.items() if own is False}
        foreign |= {*hidden[max(0, self._ranks - visible_ranks) :]}
        return [
            {
                "gpu": gpu,
                "pid": pid,
                "name": self._names[pid],
                "memory_bytes": presence.memory_bytes,
                "seen_s": [presence.first_s, presence.last_s],
            }
            for (gpu, pid), presence in self._presence.items()
            if pid in foreign
        ]


def identify(pid: int) -> tuple[bool | None, str | None]:
    """True for this process and its descendants (None: not visible), and the process's name."""
    import psutil

    try:
        process = psutil.Process(pid)
        return os.getpid() in (pid, *(parent.pid for parent in process.parents())), process.name()
    except psutil.NoSuchProcess:
        return None, None
    except psutil.AccessDenied:  # visible, and another user's
        return False, None
