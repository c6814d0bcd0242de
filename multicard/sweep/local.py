"""Packs the cells of a sweep onto this machine: each in a process of its own, on GPUs or cores that no other has."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.job import Device
from multicard.controller import run
from multicard.controller.session import SESSION, say
from multicard.machine import environment
from multicard.measure.timing import pause
from multicard.ranks.failures import Failure
from multicard.records import run_folder
from multicard.sweep import plan
from multicard.sweep.job import LocalJob
from multicard.sweep.plan import SUBMITTED, Planned

LOOK_S = 0.2
NO_LIMIT_MIN = 60 * 24 * 365


@dataclass
class Free:
    """What no cell uses now: GPUs, as CUDA_VISIBLE_DEVICES names them, and cores."""

    gpus: list[str]
    cpus: list[int]


@dataclass(frozen=True)
class Taken:
    """A cell's share of the machine. `gpus` is None on CPU ranks."""

    gpus: tuple[str, ...] | None
    cpus: tuple[int, ...]


def take(config: RunConfig, free: Free, whole: Free) -> Taken | None:
    """A share for this cell, off what is free; None where it does not fit beside what runs.

    CPU ranks take `cpus_per_gpu` cores each; GPUs leave the cores of the machine to be divided as they are. A cell
    that wants all, or more than there is, waits until nothing else runs: whether it can run is its own to say.
    """
    on_gpus = whole.gpus and config.device is not Device.cpu
    share = len(whole.cpus) // len(whole.gpus) if on_gpus else config.cpus_per_gpu
    gpus = min(config.gpus, len(whole.gpus)) if on_gpus else 0
    cpus = min(config.gpus * max(share, 1), len(whole.cpus))
    if config.exclusive is not False:
        gpus, cpus = len(whole.gpus) if on_gpus else 0, len(whole.cpus)
    if gpus > len(free.gpus) or cpus > len(free.cpus):
        return None
    taken = Taken(tuple(free.gpus[:gpus]) if on_gpus else None, tuple(free.cpus[:cpus]))
    del free.gpus[:gpus], free.cpus[:cpus]
    return taken


def give_back(taken: Taken, free: Free) -> None:
    free.gpus[:0] = taken.gpus or ()
    free.cpus[:0] = taken.cpus


def machine() -> Free:
    return Free(environment.visible_gpus(), sorted(os.sched_getaffinity(0)))


def room() -> str:
    """What there is to share, in words."""
    whole = machine()
    return f"{len(whole.gpus)} GPUs and {len(whole.cpus)} cores"


@dataclass
class Running:
    cell: Planned
    job: Any  # submitit's
    taken: Taken


def run_all(planned: list[Planned], left: list[Planned]) -> None:
    """Measure all cells, as many at a time as fit, in the sweep's order where that leaves nothing idle."""
    import submitit

    folder = left[0].folder.parent / SUBMITTED
    folder.mkdir(parents=True, exist_ok=True)
    executor = submitit.AutoExecutor(folder, cluster="local")
    executor.update_parameters(timeout_min=NO_LIMIT_MIN)
    whole, free = machine(), machine()
    waiting, running = list(left), list[Running]()
    try:
        while waiting or running:
            for cell in list(waiting):
                assert cell.config is not None
                taken = take(cell.config, free, whole)
                if taken is None:
                    continue
                waiting.remove(cell)
                gpus = None if taken.gpus is None else ",".join(taken.gpus)
                (job,) = plan.job_cells([cell], LocalJob, gpus=gpus, cpus=taken.cpus)
                _forget(cell)
                running.append(Running(cell, executor.submit(job), taken))
                on = f"cores {len(taken.cpus)}" if gpus is None else f"GPUs {gpus}"
                say(f"{plan.label(cell, planned)}started on {on}: {cell.folder}")
            pause(LOOK_S)
            for one in [one for one in running if one.job.done()]:
                running.remove(one)
                give_back(one.taken, free)
                _collect(one, planned, folder)
    except KeyboardInterrupt:
        say("interrupted by SIGINT: ending what runs", error=True)
        for one in running:
            one.job.cancel()
        for one in running:
            one.job.wait()
            _collect(one, planned, folder)
        SESSION.abandoned = True


def _forget(cell: Planned) -> None:
    """Take away the record of an earlier try that failed, so that it is not taken for the new one's."""
    if run_folder.finished(cell.folder) is None:
        (cell.folder / "result.json").unlink(missing_ok=True)


def _collect(one: Running, planned: list[Planned], folder: Path) -> None:
    assert SESSION.workload is not None
    cell = one.cell
    cell.result = plan.read(cell)
    if cell.result is None:
        log = folder / f"{one.job.job_id}_0_log.err"
        failure = Failure("exit", f"the process of {cell.folder.name} ended without a record", log=str(log))
        cell.result = run.fail(SESSION.workload, cell.cfg, cell.folder, "failed", failure)
        run_folder.release(cell.folder)
    say(f"{plan.label(cell, planned)}{cell.folder.name}: {run.outcome(cell.result).strip()}")
