"""Finished runs of a machine: their records, and the figures that help to predict other runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import nlargest
from itertools import chain
from os import scandir
from pathlib import Path
from typing import Any

import msgspec

from multicard.config import schema
from multicard.config.keys import flat
from multicard.estimate import observations
from multicard.estimate.observations import Basis, StepObservation
from multicard.estimate.target import cores_in_words
from multicard.machine.gpu_models import product
from multicard.measure import formulas
from multicard.records import limits, run_folder
from multicard.records.limits import Forbids
from multicard.records.schema import SCHEMA_VERSION, AnyRecord

ROOT = "multirun"  # Sweeps in a folder of this name learn from one another.
PUBLISHED = "published"  # A folder within it, with records of other machines.
MOST_RUNS = 2000  # Only the newest runs are read.
FINISHED = ("ok", "oom", "diverged")
DECODER = msgspec.json.Decoder(AnyRecord)
UNKNOWN_ERROR = 0.05  # Relative standard error of a mean without a known spread.
# The same for a probe that drifted, or that had too few steps to know its error.
DRIFTING_ERROR = 0.25
NORMAL_95 = 1.96  # Half of a 95 % interval in standard errors.


@dataclass(frozen=True)
class PastRun:
    """A finished run or probe."""

    record: AnyRecord

    @cached_property
    def setting(self) -> dict[str, str]:
        return setting(self.record.config)

    @cached_property
    def axes(self) -> tuple[tuple[str, str], ...]:
        """The part of the setting that affects a step's time, sorted."""
        return tuple(sorted(observations.axes(self.setting).items()))

    def has_steps_of(self, axes: Mapping[str, str]) -> bool:
        """True if the run's steps are those of a setting.

        Keys that were introduced after the run do not count.
        """
        return not observations.differences(dict(self.axes), axes)

    @cached_property
    def hardware(self) -> str | None:
        return product(self.record.hardware)

    @property
    def is_probe(self) -> bool:
        return self.record.probe is not None

    @property
    def is_raced(self) -> bool:
        """True for a cell of a race. Only its steps are comparable.

        It evaluates at most one batch, loads ahead while it pauses, and starts next to others.
        """
        return self.record.probe is not None and self.record.probe.ended_by == "race"

    @property
    def ranks(self) -> int:
        return _count(self.record.axes.get("gpus")) * _count(self.record.axes.get("nodes"))

    @cached_property
    def marks(self) -> str:
        """The signs of what limits its figures. Marked runs count only if no unmarked run helps."""
        return limits.brief_signs(self.record)

    @cached_property
    def left_out(self) -> str | None:
        """Why the times are unusable, or None if they serve, at least for a marked estimate."""
        record = self.record
        if record.status != "ok":
            return {"oom": "ran out of memory"}.get(record.status, record.status)
        obstacles = limits.forbidding(limits.of(record), Forbids.prediction, Forbids.verdict)
        if obstacles:
            return obstacles[0].says
        if self.step_s is None or (_positive(record.total_s) is None and not self.is_probe):
            return "no times"
        return None

    @cached_property
    def step_s(self) -> float | None:
        """The mean step by the current definition, or None.

        Older records of several ranks use another definition.
        """
        if self.record.probe is not None:
            return _positive(self.record.probe.step_s)
        steps = self.record.steps
        is_defined = steps is not None and (
            steps.definition == formulas.STEP_DEFINITION or self.ranks == 1
        )
        return _positive(steps.mean) if steps is not None and is_defined else None

    @property
    def step_error(self) -> float:
        """Relative standard error of `step_s`, by the steps within the run."""
        probe = self.record.probe
        steps = self.record.steps
        if probe is not None:
            return DRIFTING_ERROR if probe.half_width is None else abs(probe.half_width) / NORMAL_95
        if steps is None or not steps.std or not steps.mean or not steps.count:
            return UNKNOWN_ERROR
        return min(abs(steps.std / steps.mean) / math.sqrt(steps.count), 1.0)

    @property
    def peak_bytes(self) -> int | None:
        """The largest peak of torch's allocator over the ranks.

        None for CPU ranks: their figure has another meaning.
        """
        peak = self.record.peak_memory_bytes
        return peak.max or None if peak is not None and peak.kind == "cuda_allocated" else None

    @cached_property
    def cores(self) -> str:
        in_job = self.record.job is not None or self.record.config.get("exclusive") is False
        return cores_in_words(self.record.cores, _count(self.record.axes.get("gpus")), in_job)

    def is_of(self, hardware: str | None, cores: str | None) -> bool:
        """True for a run on this hardware, with the same cores unless `cores` is None."""
        return self.hardware == hardware is not None and (cores is None or self.cores == cores)

    @cached_property
    def observation(self) -> StepObservation:
        """The run's mean step. Only valid if `left_out` is None."""
        commit = commit_of({"commit": self.record.commit, "changes": self.record.changes})
        step_s = self.step_s or math.nan
        basis = Basis.probed if self.is_probe else Basis.measured
        values = self.setting, step_s, self.step_error, str(self.hardware), basis, commit
        return StepObservation(*values, self.marks, limits.busy_share(self.record))


def history_folders(folder: Path) -> list[Path]:
    """Return the sweeps whose records count for a run in `folder`.

    In a root named `multirun` these are all its sweeps, elsewhere only the run's sweep.
    """
    root = folder.parent.parent
    if root.name != ROOT:
        return [folder.parent]
    with suppress(OSError):
        sweeps = [
            path
            for path in root.iterdir()
            if not path.name.startswith(".") and path.name != PUBLISHED
        ]
        return sorted(path for path in sweeps if path.is_dir())
    return []


def read_runs(folders: Sequence[Path]) -> list[PastRun]:
    """Return the newest MOST_RUNS finished runs of some sweeps, the newest last.

    Unreadable records are skipped.
    """
    files = nlargest(MOST_RUNS, chain.from_iterable(map(_result_files, folders)))
    return [run for file in reversed(files) if (run := _run(*file)) is not None]


def setting(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of `comparable.measured_settings` ("group.key" to JSON text), but faster.

    Keys that were introduced after the run get the value by which the run behaved.
    """
    unmeasured_groups = schema.beside()
    settings = flat({key: value for key, value in config.items() if key not in unmeasured_groups})
    for key, later_values in schema.since().items():
        for before, value in later_values:
            # A group was introduced together with its keys.
            later_settings = flat({key: value}) if value else {key: value}
            if before in settings and not later_settings.keys() & settings.keys():
                settings |= later_settings
    return {key: msgspec.json.encode(value).decode() for key, value in settings.items()}


def commit_of(git: Mapping[str, Any] | None) -> str | None:
    """Return the commit, with a digest of uncommitted changes, or None if there is no commit."""
    commit = (git or {}).get("commit")
    changes = (git or {}).get("changes")
    return f"{commit}+{changes}" if commit and changes else commit


def _result_files(folder: Path) -> Iterator[tuple[int, str, int]]:
    """Yield time of writing, path and inode of each record of a sweep.

    Hidden folders hold discarded records.
    """
    with suppress(OSError), scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                path = Path(entry.path, run_folder.RESULT)
                with suppress(OSError):
                    status = path.stat()
                    yield status.st_mtime_ns, str(path), status.st_ino


@lru_cache(maxsize=2 * MOST_RUNS)
def _run(modified_ns: int, path: str, inode: int) -> PastRun | None:
    """Return the run of a record, or None if it is unfinished, unreadable or of a newer version.

    The cache reads a file once for each of its states: `modified_ns` and `inode` are its keys.
    """
    del modified_ns, inode
    with suppress(OSError, ValueError, RecursionError):
        record = DECODER.decode(run_folder.read_bytes(Path(path)))
        if record.schema_version <= SCHEMA_VERSION and record.status in FINISHED:
            return PastRun(record)
    return None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _positive(seconds: float | None) -> float | None:
    return seconds if seconds is not None and seconds > 0 else None
