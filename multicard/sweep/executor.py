"""Runs cells as processes on this machine, each on GPUs or cores of its own,
which no other command takes meanwhile.

Sweeps, races and plans decide which cell starts next; the executor starts and ends processes.
`Pace` estimates the time left; `Streak` stops a sweep after several failures of one cause.
Sweeps on SLURM use both too.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from omegaconf import OmegaConf

from multicard.config import schema
from multicard.config.job import count
from multicard.config.placement import require_nodes
from multicard.config.roles import Role
from multicard.machine.shares import MachineShare, MachineShares
from multicard.measure.memory import SHARED_MEMORY
from multicard.measure.timing import clock_s, in_hours, pause
from multicard.messages import Message, say
from multicard.ranks.failures import Failure
from multicard.records import ownership, run_folder
from multicard.records.run_folder import RecordedRun
from multicard.run import outcome
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.job import (
    STARTS_JOBS,
    CellJob,
    LocalJob,
    jobs_folder,
    make_jobs,
    submission,
    terminal_blocked,
)

POLL_S = 0.2
SAY_EVERY_S = 60.0  # lines about how far a sweep is
NO_LIMIT_MIN = 60 * 24 * 365

IN_A_ROW = 3  # failures of one cause that end a sweep
EVERYWHERE = ("disk", "tracker", "record")  # kinds of failure that are no cell's own
# codes of refusals for a folder that cannot be written to
UNWRITABLE = ("folder.unwritable", "job.log-unwritable")
OTHER_CODE = "job.other-code"  # code of the refusal of a job whose code was changed
# code of the failure of a process that ended without a record: it was killed
NO_RECORD = "cell.no-record"


@dataclass
class Running:
    """The process of a cell."""

    cell: Cell
    job: Any  # submitit's
    share: MachineShare

    @property
    def pid(self) -> int:
        return int(self.job.job_id)

    def has_ended(self) -> bool:
        return self.job.done()


class Executor:
    """The processes of cells, and what is left of the machine.

    Args:
        sweep: the folder that holds those of the cells.
        kill_signal: sent to the processes when this command is gone; None: they go on.
        reports: print a line for each cell that has ended.

    Attributes:
        running: those that have not been collected.
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
        """Start a process of the cell on its share."""
        # a failed try's record is not to be taken for the new one
        if run_folder.finished(cell.folder) is None:
            (cell.folder / "result.json").unlink(missing_ok=True)
        gpus = None if share.gpus is None else ",".join(share.gpus)
        with submission() as umask:
            options = {"umask": umask, "gpus": gpus, "cpus": share.cpus, "leased": share.names}
            (job,) = make_jobs([cell], LocalJob, **options, ends_with=self.ends_with)
            self.submit_process(cell, job, share)
        return self.running[-1]

    def submit_process(self, cell: Cell, job: CellJob, share: MachineShare) -> None:
        """Start the job's process and add it to those that run. An interruption waits meanwhile.

        The terminal's signals are blocked until the job itself unblocks them: submitit's own
        process between would answer Ctrl-C with a traceback, and kill the job a second later,
        whether its end is recorded or not.
        """
        with terminal_blocked():
            self.running.append(Running(cell, self._submitit.submit(job), share))

    def collect_ended(self) -> list[Cell]:
        """Take the records of processes that have ended, and give back what they computed on."""
        ended = [process for process in self.running if process.has_ended()]
        for process in ended:
            self.collect(process)
            self.machine.give_back(process.share)
        return [process.cell for process in ended]

    def collect(self, process: Running, interrupted: bool = False) -> RecordedRun:
        """Take the record of a process that has ended, if `interrupted` by this command."""
        cell = process.cell
        self.running.remove(process)
        cell.result = run_folder.read(cell.folder)
        if cell.result is None:
            log = self.folder / f"{process.job.job_id}_0_log.err"
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

    def interrupt(self) -> None:
        """Have what runs record its interruption and end, and take the records.

        A second signal would disturb the writing of a record; the terminal may have sent one too. A
        job that has just been submitted appears later than its cell.
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
    """End what runs, and say why, where a signal or an error leaves the block."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # the disk may be full, or the terminal gone
            if isinstance(error, KeyboardInterrupt):
                why = f"interrupted by {str(error) or 'SIGINT'}"
            else:
                why = f"{type(error).__name__}: {error}"
            say(Message("sweep.ending", f"{why}: ending what runs", reason=why), error=True)
        executor.interrupt()
        raise


class Pace:
    """Estimates when a sweep ends, from its cells that have ended so far; what it says may stand in
    the bar of the cell that runs.
    """

    def __init__(self, total: int, has_bar: bool = False) -> None:
        self.total = total
        self.ended = 0
        self.has_bar = has_bar
        self.started_s = self.ended_s = self.said_s = clock_s()

    def left_s(self) -> float | None:
        """Seconds until all cells have ended; None before the first has."""
        if not self.ended:
            return None
        cells_s = (self.ended_s - self.started_s) / self.ended * (self.total - self.ended)
        return max(cells_s - (clock_s() - self.ended_s), 0.0)

    def say_progress(self, ended: Sequence[Cell]) -> None:
        """Count cells that ended, and say now and then how many have and when the rest will, where
        some are left.
        Refused cells are left out: they take no time.
        """
        measured = sum(
            cell.result is not None and cell.result.status != "refused" for cell in ended
        )
        self.ended += measured
        self.total -= len(ended) - measured
        if not measured:
            return
        self.ended_s = clock_s()
        left_s = self.left_s()
        if left_s and not self.has_bar and self.ended_s - self.said_s >= SAY_EVERY_S:
            self.said_s = self.ended_s
            elapsed = in_hours(self.ended_s - self.started_s)
            message = Message(
                "sweep.pace",
                f"{self.ended} of {count(self.total, 'cell')} ended in {elapsed}; about"
                f" {in_hours(left_s)} left",
                ended=self.ended,
                cells=self.total,
                left_s=left_s,
            )
            say(f"  {message}")


class SameFailureError(Exception):
    """Cells in a row have failed for one cause, which the message says."""

    def __str__(self) -> str:
        return self.args[0]


class Streak:
    """The cells that have ended last, as long as they failed for one cause that the next ones have
    too: the disk is full, the data is gone. What a cell's own settings may cause does not count:
    running out of memory, of its host's too, or of open files, too few rows for a step, diverging,
    an exception of the model.
    """

    def __init__(self) -> None:
        self.cause = ""
        self.cells = list[Cell]()

    def add(self, ended: Cell) -> None:
        cause = cause_of(ended)
        self.cells = [*(self.cells if cause == self.cause else []), ended] if cause else []
        self.cause = cause

    def ends(self, left: Sequence[Cell]) -> bool:
        """True where there are cells left that would fail likewise."""
        return len(self.cells) >= IN_A_ROW and bool(left) and would_fail_too(left, *self.cells)

    def error(self) -> SameFailureError:
        result = self.cells[-1].result
        assert result is not None and result.record.cause is not None
        cause = result.record.cause
        message = Message(
            "sweep.same-failure",
            f"{len(self.cells)} cells in a row failed for one cause: {cause.message}",
            cells=len(self.cells),
            cause=cause.code,
            key=cause.key,
            reason=cause.message,
        )
        return SameFailureError(message)


def would_fail_too(left: Sequence[Cell], *failed: Cell) -> bool:
    """True where cells would fail for the cause that others have failed for: where data is gone,
    those that read it.
    """
    cause = cause_of(failed[0])
    return bool(cause) and (
        not cause.startswith("data") or {*map(_data, left)} <= {*map(_data, failed)}
    )


def cause_of(cell: Cell) -> str:
    """The cause that all failures of a kind share; empty where a cell did not fail, or may have
    failed for its own settings.
    """
    cause = cell.result and cell.result.record.cause
    if cause is None:
        return ""
    is_shared_memory = cause.code == "disk.full" and cause.facts.get("path", "").startswith(
        str(SHARED_MEMORY)
    )
    if cause.kind in EVERYWHERE and not is_shared_memory:
        return cause.kind
    if cause.kind != "refused":
        return ""
    if cause.code in UNWRITABLE:
        return "disk"
    if cause.code == OTHER_CODE:
        return "code"
    # a refusal without a code begins with its key
    key = cause.key or re.split("[=:]", cause.message)[0]
    return f"data, {key}" if key in schema.keys(Role.input) else ""


def left_no_record(cause: Failure) -> bool:
    """True where a cell's process ended without a record: it was killed."""
    return cause.code == NO_RECORD


def _data(cell: Cell) -> tuple[str, ...]:
    """Values of the keys that say which data the cell reads."""
    return tuple(
        str(OmegaConf.select(cell.cfg, key)) for key in ("dataset.name", *schema.keys(Role.input))
    )


def run_all(sweep: Sweep, streak: Streak | None = None) -> None:
    """Measure the cells that are left, as many at a time as fit, in the sweep's order where that
    leaves nothing idle; `streak` is of cells that have ended before.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once the running cells have ended.
        SameFailureError: the cells that are left would fail as those before.
    """
    for cell in sweep.left:
        try:
            require_nodes(cell.config, 1)
        except ValueError as error:
            sweep.refuse(cell, str(error))
    sweep.record_refused()
    waiting = sweep.left
    if not waiting:
        return
    sweep.say_start()
    most = len(waiting)
    executor = Executor(waiting[0].folder.parent)
    pace = Pace(most)
    streak, stopped = streak or Streak(), None
    with ending_on_error(executor):
        while waiting or executor.running:
            for cell in [*waiting]:
                full = len(executor.running) >= (cell.config.max_jobs or most)
                share = None if full else executor.machine.take(cell.config)
                if share is not None:
                    waiting.remove(cell)
                    executor.start(cell, share)
                    where = (
                        count(len(share.cpus), "core")
                        if share.gpus is None
                        else f"GPUs {','.join(share.gpus)}"
                    )
                    message = Message("cell.started", f"started on {where}", where=where)
                    say(f"{cell.title}{message}")
            pause(POLL_S)
            ended = executor.collect_ended()
            for cell in ended:
                streak.add(cell)
            if any(cell.result and cell.result.status == "interrupted" for cell in ended):
                raise KeyboardInterrupt  # Ctrl-C can reach the cells and not this process
            pace.say_progress(ended)
            if streak.ends(waiting):
                stopped = streak.error()
                waiting = []
    if stopped is not None:
        raise stopped
