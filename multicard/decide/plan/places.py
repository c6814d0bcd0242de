"""Where jobs of a plan run: on GPUs and cores of this machine that they lease, or as jobs of SLURM."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from multicard.decide.plan import job_process
from multicard.sweep.shares import Machine, MachineShare, Pool

Record = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What starts a task on a number of GPUs.

    Fields:
        words: of the command, after `python`.
        cores: that it gets; on CPU ranks (`on_gpus` is False) they stand for its GPUs.
        record: reads what the run has left in its folder; None before it has left a record.
        age_s: for how many seconds it has run by now; None while it is queued.
    """

    words: tuple[str, ...]
    gpus: int
    cores: int
    on_gpus: bool
    record: Callable[[], Record | None]
    age_s: Callable[[], float | None] = lambda: 0.0


@dataclass
class Process:
    """A task's process, with its share of the machine; None on SLURM."""

    popen: subprocess.Popen[bytes]
    share: MachineShare | None = None

    def has_ended(self) -> bool:
        """Whether it has; what is left of its process group is killed where it failed."""
        if self.popen.returncode is not None:
            return True
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return False
            if ended.si_status != 0:  # before the wait below, after which its number may be another's
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        return True

    def interrupt(self) -> None:
        if self.popen.returncode is None:
            self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all of its process group."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)


class Place(Protocol):
    """keeps_jobs: whether what was started goes on without the plan's command."""

    keeps_jobs: bool

    def start(self, start: Start, gpu_ids: Sequence[int], log: Path) -> Process | None: ...

    def give_back(self, process: Process) -> None: ...

    def wait_no_more(self) -> None: ...


@dataclass
class ThisMachine:
    """GPU k of the plan is the k-th of this machine; CPU ranks have the cores of their numbers.

    planned: GPUs of the plan's node. What the machine has besides them stands in for those that other commands lease.
    """

    planned: int
    keeps_jobs = False
    machine: Machine = field(default_factory=Machine)

    def start(self, start: Start, gpu_ids: Sequence[int], log: Path) -> Process | None:
        """Start a task; None while others have leased what it needs, which is said."""
        share = self._leased(start, gpu_ids)
        return None if share is None else _on(share, start, log)

    def start_together(self, starts: Sequence[Start], log: Path) -> list[Process]:
        """Start tasks side by side, on the first GPUs of the plan; none while others have leased what one of them
        needs, which is said."""
        gpus = sum(start.gpus for start in starts)
        cores = min(sum(start.cores for start in starts), len(self.machine.whole.cpus))
        share = self._leased(replace(starts[0], gpus=gpus, cores=cores), range(gpus))
        if share is None:
            return []
        processes, ids, cpus = list[Process](), [*(share.gpus or ())], [*share.cpus]
        for start in starts:
            own = None if share.gpus is None else tuple(ids[: start.gpus])
            part = MachineShare(own, tuple(cpus[: start.cores]), share.lease)
            processes.append(_on(part, start, log))
            del ids[: start.gpus], cpus[: start.cores]
        return processes

    def give_back(self, process: Process) -> None:
        if process.share is not None:
            self.machine.give_back(process.share)

    def wait_no_more(self) -> None:
        self.machine.wait_no_more()

    def _leased(self, start: Start, gpu_ids: Sequence[int]) -> MachineShare | None:
        wanted = start.gpus if start.on_gpus else None, start.cores
        return self.machine.lease((wanted, tuple(gpu_ids)), self._among(start, gpu_ids))

    def _among(self, start: Start, gpu_ids: Sequence[int]) -> Pool:
        """What the task may take: first that of its GPUs in the plan, then what the plan has no use for; cores of other
        GPUs too, where there are fewer than GPUs."""
        whole, free = self.machine.whole, self.machine.free
        each = max(start.cores // start.gpus, 1)
        slots = [*gpu_ids, *range(self.planned, max(len(whole.gpus), len(whole.cpus)))]
        gpus = [whole.gpus[slot] for slot in slots if slot < len(whole.gpus)]
        cpus = [cpu for slot in slots for cpu in whole.cpus[slot * each : (slot + 1) * each]]
        if each * self.planned > len(whole.cpus):
            cpus += [cpu for cpu in whole.cpus if cpu not in cpus]
        return Pool([gpu for gpu in gpus if gpu in free.gpus], [cpu for cpu in cpus if cpu in free.cpus])


class Slurm:
    """Each task is a job of SLURM, submitted and waited for by a command of its own on this machine."""

    keeps_jobs = True

    def start(self, start: Start, gpu_ids: Sequence[int], log: Path) -> Process | None:
        del gpu_ids  # SLURM chooses
        return Process(started(start.words, log, (), (), {**os.environ}))

    def give_back(self, process: Process) -> None:
        """Nothing is leased."""

    def wait_no_more(self) -> None:
        """Nothing is waited for here."""


def _on(share: MachineShare, start: Start, log: Path) -> Process:
    environment = {**os.environ}
    if share.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(share.gpus)
    return Process(started(start.words, log, share.cpus, share.names, environment), share)


def started(
    command: Sequence[str], log: Path, cpus: Sequence[int], leased: Sequence[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """The process of a command, in a group of its own, which a terminal's Ctrl-C does not reach."""
    line = job_process.words(os.getpid(), cpus, leased, command)
    with log.open("ab") as file:
        return subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment, process_group=0
        )
