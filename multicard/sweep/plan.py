"""The cells of a sweep: composes them and finds those measured before, those refused, and those left to measure."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from multicard.config.base import RunConfig, Scale
from multicard.config.job import count
from multicard.config.prediction import starts_nothing
from multicard.machine import environment, private
from multicard.measure.timing import clock_s, in_hours
from multicard.records import identity, run_folder
from multicard.run import outcome, prepare
from multicard.run.session import SESSION, say
from multicard.sweep.job import CellJob

# How a job's process is started: `job_process` sees that the job is this user's own
STARTS_JOBS = shlex.join([sys.executable, "-u", str(Path(__file__).with_name("job_process.py"))])
SUBMITTED = ".submitit"  # folder of the sweep: submitit's own files, and which cells each array of jobs holds
NAMED_CELLS = 10  # so many cells at most are listed one by one


@dataclass
class Cell:
    """A cell of a sweep.

    Args:
        number: in the sweep, from 1; `label` is that in words ("[2/6] ").
        composed: Hydra's configuration with its own part; `cfg` is the run's part, resolved.
        config: `cfg` as dataclasses; None where `problem` says why it is refused.
        unfit: why a race leaves it out, which is no mistake of the command.
        result: the record, once there is one.
        overrides: of the cell, and of others that measure the same, by their number.
    """

    number: int
    label: str
    composed: DictConfig
    cfg: DictConfig
    folder: Path
    config: RunConfig | None = None
    problem: str = ""
    unfit: str = ""
    result: dict[str, Any] | None = None
    overrides: dict[int, list[str]] = field(default_factory=dict)


def plan(
    context: HydraContext, sweep_config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[Cell]:
    """Compose every cell, once, and find its folder.

    Args:
        sweep_config: the sweep's own configuration.
        job_overrides: the overrides of each cell.
        first: Hydra's number of the first of these cells, from 0.
    """
    assert SESSION.workload is not None
    cells, total = dict[tuple[Path, str], Cell](), len(job_overrides)
    alike = list[str]()
    shrunk = {f"{key}={value}" for key, value in sweep_config.hydra.experiment.smoke.items()}
    unnamed = shrunk if sweep_config.scale == Scale.smoke else set()  # not part of a folder's name
    for number, overrides in enumerate(job_overrides, 1):
        composed = context.config_loader.load_sweep_config(sweep_config, list(overrides))
        cfg = identity.task_of(composed)
        run_config, problem = None, ""
        try:
            run_config = prepare.typed(SESSION.workload, cfg)
        except ValueError as error:
            problem = str(error)
        digits = identity.REFUSED if run_config is None else run_config.identity()
        words = [word for word in overrides if word not in unnamed]
        name = identity.name(digits, words, cfg.repetition, cfg.probe.enabled)
        folder = identity.find(Path(str(composed.hydra.sweep.dir)), name)
        label = f"[{number}/{total}] "
        setting = (folder.parent, name if run_config is None else f"{digits}-r{cfg.repetition}-{cfg.probe.enabled}")
        if setting in cells:
            alike.append(f"{label}measures the same as [{cells[setting].number}/{total}]: left out")
            cells[setting].overrides[number] = list(overrides)
            continue
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = first + number - 1
            composed.hydra.sweep.subdir = folder.name
        cells[setting] = Cell(number, label, composed, cfg, folder, run_config, problem)
        cells[setting].overrides[number] = list(overrides)
    several = f"{len(alike)} of {total} cells measure the same as others: left out"
    for line in alike if len(alike) <= NAMED_CELLS else [several]:
        say(line)
    return [*cells.values()]


def settle(cells: list[Cell]) -> list[Cell]:
    """Take the records of cells measured before; refuse cells that can never work, or were measured on other data than
    lies there now. Returns the rest."""
    assert SESSION.workload is not None
    fingerprints: dict[str, Any] = {}
    for cell in cells:
        SESSION.label = cell.label
        record = None if cell.cfg.rerun else run_folder.finished(cell.folder)
        if record is not None and cell.config is not None:
            cell.problem = prepare.changed_data(SESSION.workload, cell.config, record, fingerprints) or ""
        if record is not None and not cell.problem:
            if not cell.cfg.predict.enabled:  # whose table shows it
                say(f"{cell.label}measured before ({record['status']}): {cell.folder}")
            outcome.release_finished(cell.folder)
            cell.result = record | {"folder": str(cell.folder)}
        elif cell.problem and not starts_nothing(cell.cfg):  # a dry run reports problems itself (dry_run.py)
            refuse(cell)
    return [cell for cell in cells if cell.result is None and not cell.problem]


def refuse(cell: Cell) -> None:
    """Record a cell's problem; that does not replace a measurement."""
    assert SESSION.workload is not None
    SESSION.label = cell.label
    cell.result = outcome.refuse(outcome.begin(SESSION.workload, cell.cfg, cell.folder), cell.problem)


class Pace:
    """Estimates when a sweep ends, from its cells that have ended so far."""

    def __init__(self, total: int) -> None:
        self.total, self.ended, self.started_s = total, 0, clock_s()

    def left_s(self) -> float | None:
        """Seconds until all cells have ended; None before the first has."""
        elapsed_s = clock_s() - self.started_s
        return elapsed_s / self.ended * (self.total - self.ended) if self.ended else None

    def say_progress(self, ended: Sequence[Cell]) -> None:
        """Count cells that ended, and say how many have and when the rest will, where some are left. A refused cell
        takes no time, and so tells none."""
        measured = sum(cell.result is not None and cell.result["status"] != "refused" for cell in ended)
        self.ended += measured
        self.total -= len(ended) - measured
        left_s = self.left_s()
        if measured and left_s:
            elapsed = in_hours(clock_s() - self.started_s)
            say(f"  {self.ended} of {count(self.total, 'cell')} ended in {elapsed}; about {in_hours(left_s)} left")


def say_left(cells: list[Cell], ended: str = "interrupted") -> None:
    """Say which cells a sweep has left that ended early, and the command that measures them.

    Args:
        ended: how, in words.
    """
    left = [cell for cell in cells if cell.result is None or cell.result["status"] == "interrupted"]
    say(f"{ended}: {len(left)} of {len(cells)} cells are left:", error=True)
    for cell in left[:NAMED_CELLS]:
        say(f"  {cell.label}{cell.folder.name}", error=True)
    if len(left) > NAMED_CELLS:
        say(f"  and {len(left) - NAMED_CELLS} more", error=True)
    say(f"To resume: {resume_command(cells)}", error=True)
    SESSION.abandoned = True


def resume_command(cells: list[Cell]) -> str:
    """The command line of this sweep, with the name of its folder where it has none."""
    words = list(sys.orig_argv)
    if not any(word.startswith(("name=", "hydra.sweep.dir=")) for word in words):
        words.append(f"name={cells[0].folder.parent.name}")
    return shlex.join(words)


def read_record(cell: Cell) -> dict[str, Any] | None:
    """The record that a cell's job has left; None before it has."""
    record = run_folder.read_json(cell.folder / "result.json")
    return None if record is None else record | {"folder": str(cell.folder)}


def make_jobs(cells: list[Cell], job_class: Callable[..., CellJob], **options: Any) -> list[CellJob]:
    """The cells as jobs, which know the state of the code at this moment."""
    code, jobs = environment.git(private.ROOT), []
    for cell in cells:
        variables = {key: str(value) for key, value in cell.composed.hydra.job.env_set.items()}
        jobs.append(job_class(SESSION.workload, cell.cfg, cell.folder.absolute(), code, variables, **options))
    return jobs


@contextmanager
def submission() -> Iterator[int]:
    """Within it jobs are submitted. Gives the umask of the command."""
    with private.imports(), private.umask() as before:
        yield before


def jobs_folder(cells: list[Cell]) -> Path:
    """The folder of the sweep in which its jobs find what they run. It is closed to other users."""
    remedy = "choose another folder for the sweep (name, hydra.sweep.dir)"
    return private.folder(cells[0].folder.parent / SUBMITTED, remedy)


def finish(cells: list[Cell]) -> None:
    """Hand the records to the session, in the sweep's order."""
    SESSION.label = cells[-1].label
    SESSION.records += [cell.result for cell in cells if cell.result is not None]
