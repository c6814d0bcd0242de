"""Run cells as processes on this machine, each on GPUs or cores of its own.

No other command takes these GPUs or cores meanwhile. Sweeps, races and plans decide which cell
starts next. The executor starts and ends processes.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from multicard.config.placement import require_nodes
from multicard.machine.shares import MachineShare, MachineShares
from multicard.measure.timing import pause
from multicard.messages import Message, say
from multicard.ranks.failures import Failure
from multicard.records import ownership, run_folder
from multicard.records.run_folder import RecordedRun
from multicard.run import outcome
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.drive import Drive, StartedCell
from multicard.sweep.grid import Grid, Pace
from multicard.sweep.job import (
    STARTS_JOBS,
    CellJob,
    LocalJob,
    jobs_folder,
    make_jobs,
    submission,
    terminal_blocked,
)
from multicard.sweep.streak import SameFailureError, Streak

POLL_S = 0.2
NO_LIMIT_MIN = 60 * 24 * 365

# The code of the failure of a process that ended without a record, because it was killed.
NO_RECORD = "cell.no-record"


@dataclass
class Running:
    """The process of a cell."""

    cell: Cell
    job: Any  # A job of submitit.
    share: MachineShare

    @property
    def pid(self) -> int:
        return int(self.job.job_id)

    def has_ended(self) -> bool:
        return self.job.done()


class Executor:
    """Starts and ends the processes of cells, and leases parts of the machine for them.

    Args:
        sweep: the folder that contains the cells' folders.
        kill_signal: sent to the processes when this command is gone; None lets them go on.
        reports: print a line for each cell that has ended.

    Attributes:
        running: processes that have not been collected.
    """

    def __init__(self, sweep: Path, kill_signal: int | None = None, reports: bool = True) -> None:
        import submitit

        self.folder = jobs_folder(sweep)
        self.machine = MachineShares()
        self.reports = reports
        self.ends_with = None if kill_signal is None else (os.getpid(), kill_signal)
        self.running: list[Running] = []
        self._submitit = submitit.AutoExecutor(
            self.folder, cluster="local", local_python=STARTS_JOBS
        )
        self._submitit.update_parameters(timeout_min=NO_LIMIT_MIN)

    def start(self, cell: Cell, share: MachineShare) -> Running:
        """Start a process of the cell on its share of the machine."""
        # The record of a failed attempt must not be mistaken for the new one.
        if run_folder.finished(cell.folder) is None:
            (cell.folder / "result.json").unlink(missing_ok=True)
        gpus = None if share.gpus is None else ",".join(share.gpus)
        with submission() as umask:
            options = {"umask": umask, "gpus": gpus, "cpus": share.cpus, "leased": share.names}
            (job,) = make_jobs([cell], LocalJob, **options, ends_with=self.ends_with)
            self.submit_process(cell, job, share)
        return self.running[-1]

    def submit_process(self, cell: Cell, job: CellJob, share: MachineShare) -> None:
        """Start the job's process, and add it to the running ones. An interruption waits meanwhile.

        The terminal's signals are blocked until the job itself unblocks them. Otherwise submitit's
        process in between would answer Ctrl-C with a traceback. A second later it would kill the
        job, even if the job's end is not recorded yet.
        """
        with terminal_blocked():
            self.running.append(Running(cell, self._submitit.submit(job), share))

    def collect_ended(self) -> list[Cell]:
        """Take the records of processes that have ended, and return their GPUs and cores."""
        ended = [process for process in self.running if process.has_ended()]
        for process in ended:
            self.collect(process)
            self.machine.give_back(process.share)
        return [process.cell for process in ended]

    def collect(self, process: Running, interrupted: bool = False) -> RecordedRun:
        """Take the record of an ended process, which this command has `interrupted` if True."""
        cell = process.cell
        self.running.remove(process)
        cell.result = run_folder.read_run(cell.folder)
        if cell.result is None:
            log = self.log_of(process, "err")
            if interrupted:
                failure = Failure(
                    "interrupt", Message("cell.interrupted-early", "SIGINT before it began")
                )
            else:
                message = Message(
                    "cell.no-record",
                    f"the process of {cell.folder.name} ended without a record",
                    cell=cell.folder.name,
                )
                failure = Failure("exit", message, log=str(log))
            cell.result = outcome.fail(outcome.begin(cell.workload, cell.cfg, cell.folder), failure)
            ownership.release(cell.folder)
        if self.reports:
            say(outcome.line(cell.result, cell.title))
        return cell.result

    def log_of(self, process: Running, stream: str = "out") -> Path:
        """Return where a process writes its output ("out"), or its errors ("err")."""
        return self.folder / f"{process.pid}_0_log.{stream}"

    def interrupt(self) -> None:
        """Make the running processes record their interruption and end, and take the records.

        Each process gets one signal: a second one would disturb the writing of its record. The
        terminal may have sent one too. A job that has just been submitted appears later than its
        cell.
        """
        signalled: set[int] = set()
        while not all(process.has_ended() for process in self.running):
            for process in self.running:
                with suppress(psutil.NoSuchProcess):
                    for child in psutil.Process(process.pid).children():
                        if child.pid not in signalled:
                            signalled.add(child.pid)
                            child.send_signal(signal.SIGINT)
            pause(POLL_S)
        for process in [*self.running]:
            self.collect(process, interrupted=True)


@contextmanager
def ending_on_error(executor: Executor) -> Iterator[None]:
    """If an error or a signal leaves the block, print why and end the running processes."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # The disk may be full, or the terminal gone.
            if isinstance(error, KeyboardInterrupt):
                why = f"interrupted by {str(error) or 'SIGINT'}"
            else:
                why = f"{type(error).__name__}: {error}"
            say(
                Message("sweep.ending", f"{why}: ending the running processes", reason=why),
                error=True,
            )
        executor.interrupt()
        raise


def left_no_record(cause: Failure) -> bool:
    """Return True if a cell's process was killed and left no record."""
    return cause.code == NO_RECORD


class Processes:
    """The backend that measures cells in processes, as many at a time as fit. See `drive.Backend`.

    A cell's `max_jobs` limits how many run at a time.
    """

    shares_terminal = True

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def is_busy(self) -> bool:
        return bool(self.executor.running)

    def start(self, cell: Cell) -> StartedCell | None:
        most = cell.config.max_jobs
        if most is not None and len(self.executor.running) >= most:
            return None
        share = self.executor.machine.take(cell.config)
        if share is None:
            return None
        process = self.executor.start(cell, share)
        return StartedCell(cell, share, self.executor.log_of(process))

    def collect(self) -> list[Cell]:
        pause(POLL_S)
        return self.executor.collect_ended()

    def waiting(self) -> list[Cell]:
        return []

    def give_up(self, why: SameFailureError) -> int:
        return 0


def run_all(sweep: Sweep, streak: Streak | None = None) -> None:
    """Measure the cells that are left in processes of this machine.

    Args:
        streak: the cells that have ended before.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once the running cells have ended.
        SameFailureError: the remaining cells would fail as the cells before did.
    """
    for cell in sweep.left:
        try:
            require_nodes(cell.config, 1)
        except ValueError as error:
            sweep.refuse(cell, str(error))
    sweep.record_refused()
    remaining = sweep.left
    if not remaining:
        return
    sweep.say_start()
    executor = Executor(remaining[0].folder.parent)
    with ending_on_error(executor):
        grid = Grid(remaining, Pace(len(remaining)))
        Drive(grid, Processes(executor), streak or Streak()).run()
