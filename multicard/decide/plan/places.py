"""Where the cells of a plan run: on GPUs and cores of this machine that they lease, or as jobs of SLURM."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from multicard.machine import shares
from multicard.machine.shares import Pool
from multicard.measure import timing
from multicard.measure.timing import clock_s
from multicard.records import run_folder
from multicard.sweep import executor, slurm_submit, slurm_wait
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.command import Command
from multicard.sweep.executor import Executor
from multicard.sweep.job import SUBMITTED
from multicard.sweep.streak import Streak


class ThisMachine:
    """Cells as processes here: GPU k of the plan is the k-th of this machine; CPU ranks have the cores of their number.

    Args:
        planned: GPUs of the plan's node. What the machine has besides them stands in for those that other commands
            lease.
    """

    keeps_jobs = False

    def __init__(self, sweep: Path, planned: int) -> None:
        self.executor, self.planned = Executor(sweep, signal.SIGTERM, reports=False), planned
        self.machine = self.executor.machine

    def start(self, cell: Cell, gpu_ids: Sequence[int]) -> str | None:
        """Start a cell. Returns its log; None while others have leased what it needs, which is said."""
        wanted = shares.demand(cell.config, self.machine.whole)
        share = self.machine.lease((wanted, tuple(gpu_ids)), self._among(max(wanted[1] // len(gpu_ids), 1), gpu_ids))
        if share is None:
            return None
        process = self.executor.start(cell, share)
        return f"{self.executor.folder}/{process.pid}_0_log.out"

    def ended(self) -> list[Cell]:
        """The cells that have ended since the last call, with their records."""
        return self.executor.collect_ended()

    def age_s(self, _: Cell) -> float | None:
        """Seconds for which a cell has run; None while it is queued."""
        return 0.0

    def interrupt(self) -> None:
        """End what was started."""
        self.executor.interrupt()

    def wait_no_more(self) -> None:
        """Let those pass that wait behind this command."""
        self.machine.wait_no_more()

    def _among(self, cores_each: int, gpu_ids: Sequence[int]) -> Pool:
        """The GPUs and cores that a cell may take: first those of its place in the plan, then those that the plan does
        not use; cores of other GPUs too, where there are fewer than GPUs."""
        whole, free = self.machine.whole, self.machine.free
        slots = [*gpu_ids, *range(self.planned, max(len(whole.gpus), len(whole.cpus)))]
        gpus = [whole.gpus[slot] for slot in slots if slot < len(whole.gpus)]
        cpus = [cpu for slot in slots for cpu in whole.cpus[slot * cores_each : (slot + 1) * cores_each]]
        if cores_each * self.planned > len(whole.cpus):
            cpus += [cpu for cpu in whole.cpus if cpu not in cpus]
        return Pool([gpu for gpu in gpus if gpu in free.gpus], [cpu for cpu in cpus if cpu in free.cpus])


class Slurm:
    """Each cell is a job of SLURM; those that an earlier command submitted are found in the queue."""

    keeps_jobs = True

    def __init__(self) -> None:
        self.queue = slurm_wait.Queue([], {}, Streak())
        self.refused: list[Cell] = []
        self.asked_s = self.changed_s = clock_s()

    def start(self, cell: Cell, gpu_ids: Sequence[int]) -> str | None:
        del gpu_ids  # SLURM chooses
        sweep = Sweep(Command(cell.workload), [cell])
        jobs = slurm_submit.submit(sweep)
        if sweep.refused:
            cell.result = sweep.refused[0].result
            self.refused.append(cell)
            return ""
        self.queue.cells.append(cell)
        self.queue.jobs |= jobs
        return f"{cell.folder.parent}/{SUBMITTED}/{jobs[cell.number]}_0_log.out"

    def ended(self) -> list[Cell]:
        ended, self.refused, now_s = self.refused, [], clock_s()
        poll_s = min(max((now_s - self.changed_s) / 10, slurm_wait.SHORTEST_POLL_S), slurm_wait.LONGEST_POLL_S)
        if self.queue.jobs and now_s - self.asked_s >= poll_s:
            self.asked_s = now_s
            ended = [*ended, *self.queue.poll()]
            self.queue.cells = [cell for cell in self.queue.cells if cell.number in self.queue.jobs]
        self.changed_s = now_s if ended else self.changed_s
        return ended

    def age_s(self, cell: Cell) -> float | None:
        with suppress(FileNotFoundError):
            return timing.age_s((cell.folder / run_folder.RUNNING).stat())
        return None

    def interrupt(self) -> None:
        """Do nothing: jobs stay in the queue, and run."""

    def wait_no_more(self) -> None:
        """Do nothing: no leases are waited for."""


Place = ThisMachine | Slurm  # keeps_jobs: its jobs go on without the plan's command


def probe(cells: Sequence[Cell], on_slurm: bool) -> None:
    """Measure probes: here one at a time, so that none slows another, on SLURM all at once."""
    if on_slurm:
        sweep = Sweep(Command(cells[0].workload), [*cells])
        slurm_wait.wait(sweep, slurm_submit.submit(sweep), Streak())
        return
    for cell in cells:
        executor.run_all(Sweep(Command(cell.workload), [cell]))
