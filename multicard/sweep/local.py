"""Runs the cells of a sweep beside each other on this machine: each in a process, on GPUs or cores of its own."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from multicard.config.base import RunConfig
from multicard.config.job import Device, count
from multicard.config.placement import require_nodes
from multicard.controller import outcome
from multicard.controller.session import SESSION, say
from multicard.machine import devices
from multicard.measure.timing import pause
from multicard.ranks.failures import Failure
from multicard.records import run_folder
from multicard.sweep.job import CellJob, LocalJob, terminal_blocked
from multicard.sweep.plan import STARTS_JOBS, Cell, Pace, jobs_folder, make_jobs, read_record, submission

POLL_S = 0.2
NO_LIMIT_MIN = 60 * 24 * 365


@dataclass
class Pool:
    """GPUs, as CUDA_VISIBLE_DEVICES names them, and cores that no cell uses."""

    gpus: list[str]
    cpus: list[int]


@dataclass(frozen=True)
class MachineShare:
    """The part of the machine that a cell has to itself. `gpus` is None on CPU ranks."""

    gpus: tuple[str, ...] | None
    cpus: tuple[int, ...]


def machine() -> Pool:
    """All GPUs and cores that this process may use."""
    return Pool(devices.named_gpus(), sorted(os.sched_getaffinity(0)))


def allocate(config: RunConfig, free: Pool, whole: Pool) -> MachineShare | None:
    """Take a cell's share from `free`; None where it does not fit.

    CPU ranks take `cpus_per_gpu` cores each; a GPU comes with its part of the machine's cores. A cell that wants more
    than there is gets all of it once nothing else runs: whether it can run so is for its own checks to say.
    """
    on_gpus = whole.gpus and config.device is not Device.cpu
    cores_each = len(whole.cpus) // len(whole.gpus) if on_gpus else config.cpus_per_gpu
    gpus = min(config.gpus, len(whole.gpus)) if on_gpus else 0
    cpus = min(config.gpus * max(cores_each, 1), len(whole.cpus))
    if config.exclusive is not False:
        gpus, cpus = len(whole.gpus) if on_gpus else 0, len(whole.cpus)
    if gpus > len(free.gpus) or cpus > len(free.cpus):
        return None
    share = MachineShare(tuple(free.gpus[:gpus]) if on_gpus else None, tuple(free.cpus[:cpus]))
    del free.gpus[:gpus], free.cpus[:cpus]
    return share


def give_back(share: MachineShare, free: Pool) -> None:
    free.gpus[:0] = share.gpus or ()
    free.cpus[:0] = share.cpus


@dataclass
class Running:
    cell: Cell
    job: Any  # submitit's
    share: MachineShare


def run_all(left: list[Cell]) -> None:
    """Measure the cells, as many at a time as fit, in the sweep's order where that leaves nothing idle.

    Raises:
        KeyboardInterrupt: on Ctrl-C, once the running cells have ended.
    """
    import submitit

    waiting, running = _of_one_node(left), list[Running]()
    if not waiting:
        return
    folder = jobs_folder(left)
    executor = submitit.AutoExecutor(folder, cluster="local", local_python=STARTS_JOBS)
    executor.update_parameters(timeout_min=NO_LIMIT_MIN)
    whole, free, pace = machine(), machine(), Pace(len(waiting))
    try:
        while waiting or running:
            for cell in list(waiting):
                assert cell.config is not None
                share = allocate(cell.config, free, whole)
                if share is None:
                    continue
                waiting.remove(cell)
                gpus = None if share.gpus is None else ",".join(share.gpus)
                if run_folder.finished(cell.folder) is None:  # a failed try's record is not to be taken for the new one
                    (cell.folder / "result.json").unlink(missing_ok=True)
                with submission() as umask:
                    (job,) = make_jobs([cell], LocalJob, umask=umask, gpus=gpus, cpus=share.cpus)
                    start_job(executor, job, cell, share, running)
                where = count(len(share.cpus), "core") if gpus is None else f"GPUs {gpus}"
                say(f"{cell.label}started on {where}: {cell.folder}")
            pause(POLL_S)
            ended = [process for process in running if process.job.done()]
            for process in ended:
                running.remove(process)
                give_back(process.share, free)
                _collect(process, folder)
            if any(process.cell.result and process.cell.result["status"] == "interrupted" for process in ended):
                raise KeyboardInterrupt  # a terminal's signal may reach the cells alone: Python can drop the command's
            pace.say_progress([process.cell for process in ended])
    except KeyboardInterrupt as interrupted:
        say(f"interrupted by {str(interrupted) or 'SIGINT'}: ending what runs", error=True)
        signalled: set[int] = set()
        while not all(process.job.done() for process in running):
            for process in running:
                _interrupt(process, signalled)
            pause(POLL_S)
        for process in running:
            _collect(process, folder, interrupted=True)
        raise


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


def _collect(process: Running, folder: Path, interrupted: bool = False) -> None:
    """Take the record of a cell whose process has ended."""
    assert SESSION.workload is not None
    cell = process.cell
    cell.result = read_record(cell)
    if cell.result is None:
        log = folder / f"{process.job.job_id}_0_log.err"
        failure = Failure("exit", f"the process of {cell.folder.name} ended without a record", log=str(log))
        if interrupted:
            failure = Failure("interrupt", "interrupted by SIGINT before it began")
        cell.result = outcome.fail(outcome.begin(SESSION.workload, cell.cfg, cell.folder), failure)
        run_folder.release(cell.folder)
    say(f"{cell.label}{cell.folder.name}: {outcome.line(cell.result).strip()}")
