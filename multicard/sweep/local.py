"""Runs the cells of a sweep beside each other on this machine: each in a process, on GPUs or cores of its own, which no
other command takes meanwhile."""

import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from multicard.config.job import count
from multicard.config.placement import require_nodes
from multicard.measure.timing import pause
from multicard.ranks.failures import Failure
from multicard.records import run_folder
from multicard.run import outcome
from multicard.run.session import SESSION, say
from multicard.sweep.job import CellJob, LocalJob, terminal_blocked
from multicard.sweep.plan import STARTS_JOBS, Cell, Pace, jobs_folder, make_jobs, read_record, submission
from multicard.sweep.shares import Machine, MachineShare
from multicard.sweep.streak import Streak

POLL_S = 0.2
NO_LIMIT_MIN = 60 * 24 * 365
NO_RECORD = "ended without a record"  # of a process: it was killed


@dataclass
class Running:
    cell: Cell
    job: Any  # submitit's
    share: MachineShare


def run_all(left: list[Cell], streak: Streak | None = None) -> None:
    """Measure the cells, as many at a time as fit, in the sweep's order where that leaves nothing idle.

    Args:
        streak: of cells that have ended before; None where there are none.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once the running cells have ended.
        SameFailureError: the cells that are left would fail as those before.
    """
    import submitit

    waiting, running = _of_one_node(left), list[Running]()
    if not waiting:
        return
    folder = jobs_folder(left)
    executor = submitit.AutoExecutor(folder, cluster="local", local_python=STARTS_JOBS)
    executor.update_parameters(timeout_min=NO_LIMIT_MIN)
    on, pace, streak, stopped = Machine(), Pace(len(waiting)), streak or Streak(), None
    try:
        while waiting or running:
            for cell in list(waiting):
                assert cell.config is not None
                full = len(running) >= (cell.config.max_jobs or len(left))
                share = None if full else on.take(cell.config)
                if share is not None:
                    waiting.remove(cell)
                    _start(executor, cell, share, running)
            pause(POLL_S)
            ended = [process for process in running if process.job.done()]
            for process in ended:
                running.remove(process)
                on.give_back(process.share)
                collect(process, folder)
                streak.add(process.cell)
            if any(process.cell.result and process.cell.result["status"] == "interrupted" for process in ended):
                raise KeyboardInterrupt  # a terminal's signal may reach the cells alone: Python can drop the command's
            pace.say_progress([process.cell for process in ended])
            if streak.ends(waiting):
                stopped, waiting = streak.error(), []
                on.wait_no_more()
    except KeyboardInterrupt as interrupted:
        on.wait_no_more()
        say(f"interrupted by {str(interrupted) or 'SIGINT'}: ending what runs", error=True)
        interrupt(running, folder)
        raise
    if stopped is not None:
        raise stopped


def interrupt(running: list[Running], folder: Path) -> None:
    """End what runs, and take the records."""
    signalled: set[int] = set()
    while not all(process.job.done() for process in running):
        for process in running:
            _interrupt(process, signalled)
        pause(POLL_S)
    for process in running:
        collect(process, folder, interrupted=True)


def _of_one_node(cells: list[Cell]) -> list[Cell]:
    """Refuse the cells that want several nodes, before a process is started for them. Returns the others."""
    assert SESSION.workload is not None
    for cell in cells:
        assert cell.config is not None
        try:
            require_nodes(cell.config, 1)
        except ValueError as error:
            SESSION.label = cell.label
            cell.result = outcome.refuse(outcome.begin(SESSION.workload, cell.cfg, cell.folder), str(error))
    return [cell for cell in cells if cell.result is None]


def _start(executor: Any, cell: Cell, share: MachineShare, running: list[Running]) -> None:
    if run_folder.finished(cell.folder) is None:  # a failed try's record is not to be taken for the new one
        (cell.folder / "result.json").unlink(missing_ok=True)
    gpus = None if share.gpus is None else ",".join(share.gpus)
    with submission() as umask:
        (job,) = make_jobs([cell], LocalJob, umask=umask, gpus=gpus, cpus=share.cpus, leased=share.names)
        start_job(executor, job, cell, share, running)
    where = count(len(share.cpus), "core") if gpus is None else f"GPUs {gpus}"
    say(f"{cell.label}started on {where}: {cell.folder}")


def start_job(executor: Any, job: CellJob, cell: Cell, share: MachineShare, running: list[Running]) -> None:
    """Start the job's process and add it to those that run; an interruption waits meanwhile.

    The terminal's signals are blocked until the job itself unblocks them: submitit's own process between would answer
    Ctrl-C with a traceback, and kill the job a second later, whether its end is recorded or not.
    """
    with terminal_blocked():
        running.append(Running(cell, executor.submit(job), share))


def _interrupt(process: Running, signalled: set[int]) -> None:
    """Have the job record its interruption and end. The terminal may have sent it the same signal.

    Args:
        signalled: processes that were told before; a second signal would disturb the writing of the record. A job that
            has just been submitted appears later than its cell.
    """
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(int(process.job.job_id)).children():
            if child.pid not in signalled:
                signalled.add(child.pid)
                child.send_signal(signal.SIGINT)


def collect(process: Running, folder: Path, interrupted: bool = False) -> None:
    """Take the record of a cell whose process has ended."""
    assert SESSION.workload is not None
    cell = process.cell
    cell.result = read_record(cell)
    if cell.result is None:
        log = folder / f"{process.job.job_id}_0_log.err"
        failure = Failure("exit", f"the process of {cell.folder.name} {NO_RECORD}", log=str(log))
        if interrupted:
            failure = Failure("interrupt", "interrupted by SIGINT before it began")
        cell.result = outcome.fail(outcome.begin(SESSION.workload, cell.cfg, cell.folder), failure)
        run_folder.release(cell.folder)
    say(f"{cell.label}{cell.folder.name}: {outcome.line(cell.result).strip()}")
