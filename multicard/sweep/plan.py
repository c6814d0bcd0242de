"""A sweep as its launchers see it: which cells it has, which are measured already, which are to be refused."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from multicard.config.base import RunConfig, Scale
from multicard.controller import run
from multicard.controller.session import SESSION, say
from multicard.machine import environment
from multicard.records import identity, run_folder
from multicard.sweep.job import Cell

SUBMITTED = ".submitit"  # in the sweep's folder: what submitit keeps, and what we know of the jobs


@dataclass
class Planned:
    """One cell. `composed` is Hydra's configuration, its own part included; `cfg` is the run's, resolved.

    `result` is the record, once there is one; `config` is None for what is to be refused.
    """

    number: int
    composed: DictConfig
    cfg: DictConfig
    folder: Path
    config: RunConfig | None = None
    problem: str = ""
    result: dict[str, Any] | None = None


def plan(
    context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[Planned]:
    """Compose every cell, once, and find its folder.

    Args:
        config: the sweep's; job_overrides: of each cell; first: the number of the first.
    """
    planned, numbers = list[Planned](), dict[Path, int]()
    shrunk = {f"{key}={value}" for key, value in (config.hydra.sweeper.smoke or {}).items()}
    unsaid = shrunk if config.scale == Scale.smoke else set()  # in the name of a folder
    for index, overrides in enumerate(job_overrides):
        composed = context.config_loader.load_sweep_config(config, list(overrides))
        sweep = Path(str(composed.hydra.sweep.dir))
        task = identity.task_of(composed)
        run_config, problem = _typed(task)
        digits = identity.REFUSED if run_config is None else run_config.identity()
        folder = identity.find(sweep, identity.name(digits, [word for word in overrides if word not in unsaid]))
        same = numbers.setdefault(folder, index + 1)
        if same != index + 1:
            say(f"[{index + 1}/{len(job_overrides)}] measures the same as [{same}/{len(job_overrides)}]: left out")
            continue
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = first + index
            composed.hydra.sweep.subdir = folder.name
        planned.append(Planned(index + 1, composed, task, folder, run_config, problem))
    return planned


def _typed(task: DictConfig) -> tuple[RunConfig | None, str]:
    try:
        return run.typed(task), ""
    except ValueError as error:
        return None, str(error)


def settle(planned: list[Planned]) -> list[Planned]:
    """Take the records of what is measured already and refuse what can never work. Returns what is left."""
    assert SESSION.workload is not None
    for cell in planned:
        SESSION.label = label(cell, planned)
        done = None if cell.cfg.rerun else run_folder.finished(cell.folder)
        if done is not None:
            say(f"{SESSION.label}measured before ({done['status']}): {cell.folder}")
            cell.result = done | {"folder": str(cell.folder)}
            continue
        if cell.problem and not cell.cfg.dry_run:
            cell.result = run.refuse(SESSION.workload, cell.cfg, cell.folder, cell.problem)
    return [cell for cell in planned if cell.result is None and not cell.problem]


def label(cell: Planned, planned: list[Planned]) -> str:
    return f"[{cell.number}/{max(planned[-1].number, len(planned))}] "


def read(cell: Planned) -> dict[str, Any] | None:
    """The record that a job has left, if it has."""
    found = run_folder.read_json(cell.folder / "result.json")
    return None if found is None else found | {"folder": str(cell.folder)}


def job_cells(planned: list[Planned], make: Callable[..., Cell], **options: Any) -> list[Cell]:
    """The cells as jobs, on the code of now, which they import from here wherever they are started."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    if root not in (path or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *([path] if path else [])])
    assert SESSION.workload is not None
    code = environment.git(Path(__file__).parent)
    jobs = []
    for cell in planned:
        variables = {key: str(value) for key, value in cell.composed.hydra.job.env_set.items()}
        folder = cell.folder.absolute()
        jobs.append(make(SESSION.workload, cell.cfg, folder, code, variables, **options))
    return jobs


def leave_nothing(planned: list[Planned]) -> None:
    """Remove what Hydra wrote for a sweep of which nothing was, or will be, measured."""
    folder = planned[0].folder.parent
    run_folder.remove_empty(folder / SUBMITTED)
    if {path.name for path in folder.iterdir()} <= {"multirun.yaml"}:
        (folder / "multirun.yaml").unlink(missing_ok=True)
        folder.rmdir()


def finish(planned: list[Planned]) -> None:
    """Hand the records to the session, in the sweep's order."""
    SESSION.label = label(planned[-1], planned)
    SESSION.records += [cell.result for cell in planned if cell.result is not None]
