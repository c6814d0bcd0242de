"""Finished runs of a machine: their records, and the figures of them that tell of other runs."""

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

ROOT = "multirun"  # a folder of this name holds sweeps that teach one another
PUBLISHED = "published"  # within it, records of other machines
MOST_RUNS = 2000  # the newest, that are read
FINISHED = ("ok", "oom", "diverged")
DECODER = msgspec.json.Decoder(AnyRecord)
UNKNOWN_ERROR = 0.05  # relative standard error of a mean without a known spread
DRIFTING_ERROR = 0.25  # of a probe that drifted, or had too few steps to know its error
NORMAL_95 = 1.96  # half of a 95 % interval in standard errors


@dataclass(frozen=True)
class PastRun:
    """A finished run, probes included."""

    record: AnyRecord

    @cached_property
    def setting(self) -> dict[str, str]:
        return setting(self.record.config)

    @cached_property
    def axes(self) -> tuple[tuple[str, str], ...]:
        """The part of the setting on which a step depends, sorted."""
        return tuple(sorted(observations.axes(self.setting).items()))

    def has_steps_of(self, axes: Mapping[str, str]) -> bool:
        """True where its steps are those of a setting;
        keys that came after the run do not count.
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
        """True for a cell of a race. Its steps alone are comparable: it evaluates one batch at
        most, loads ahead while it pauses, and starts beside others.
        """
        return self.record.probe is not None and self.record.probe.ended_by == "race"

    @property
    def ranks(self) -> int:
        return _count(self.record.axes.get("gpus")) * _count(self.record.axes.get("nodes"))

    @cached_property
    def marks(self) -> str:
        """The signs of what limits its figures; such runs count where none without tells."""
        return limits.brief_signs(self.record)

    @cached_property
    def left_out(self) -> str | None:
        """The reason for which the run tells nothing about time; None where it does,
        even in a marked estimate.
        """
        record = self.record
        if record.status != "ok":
            return {"oom": "ran out of memory"}.get(record.status, record.status)
        untold = limits.forbidding(limits.of(record), Forbids.prediction, Forbids.verdict)
        if untold:
            return untold[0].says
        if self.step_s is None or (_positive(record.total_s) is None and not self.is_probe):
            return "no times"
        return None

    @cached_property
    def step_s(self) -> float | None:
        """The mean step, by the definition of today;
        older records of several ranks have another.
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
        """Relative standard error of `step_s`, by the steps of the run."""
        probe = self.record.probe
        steps = self.record.steps
        if probe is not None:
            return DRIFTING_ERROR if probe.half_width is None else abs(probe.half_width) / NORMAL_95
        if steps is None or not steps.std or not steps.mean or not steps.count:
            return UNKNOWN_ERROR
        return min(abs(steps.std / steps.mean) / math.sqrt(steps.count), 1.0)

    @property
    def peak_bytes(self) -> int | None:
        """The peak of torch's allocator in the rank that held most; None of CPU ranks,
        whose figure is another.
        """
        peak = self.record.peak_memory_bytes
        return peak.max or None if peak is not None and peak.kind == "cuda_allocated" else None

    @cached_property
    def cores(self) -> str:
        in_job = self.record.job is not None or self.record.config.get("exclusive") is False
        return cores_in_words(self.record.cores, _count(self.record.axes.get("gpus")), in_job)

    def is_of(self, hardware: str | None, cores: str | None) -> bool:
        """True for a run on this hardware, with as many cores where these count."""
        return self.hardware == hardware is not None and (cores is None or self.cores == cores)

    @cached_property
    def observation(self) -> StepObservation:
        """The run's mean step, where `left_out` is None."""
        commit = commit_of({"commit": self.record.commit, "changes": self.record.changes})
        step_s = self.step_s or math.nan
        basis = Basis.probed if self.is_probe else Basis.measured
        told = self.setting, step_s, self.step_error, str(self.hardware), basis, commit, self.marks
        return StepObservation(*told, limits.busy_share(self.record))


def history_folders(folder: Path) -> list[Path]:
    """The sweeps whose records count for a run in `folder`: all in a root named `multirun`,
    else its own sweep.
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


def read(folders: Sequence[Path]) -> list[PastRun]:
    """The newest MOST_RUNS finished runs in these sweeps' folders, the newest last;
    unreadable records are left out.
    """
    files = nlargest(MOST_RUNS, chain.from_iterable(map(_results, folders)))
    return [run for file in reversed(files) if (run := _run(*file)) is not None]


def setting(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of `comparable.measured_settings` ("group.key" to JSON text), several times as
    fast. Keys that came after the run have the value by which it behaved.
    """
    beside = schema.beside()
    measured = flat({key: value for key, value in config.items() if key not in beside})
    for key, came_after in schema.since().items():
        for before, value in came_after:
            came = flat({key: value}) if value else {key: value}  # a group came with its keys
            if before in measured and not came.keys() & measured.keys():
                measured |= came
    return {key: msgspec.json.encode(value).decode() for key, value in measured.items()}


def commit_of(git: Mapping[str, Any] | None) -> str | None:
    """The commit, with the digits of what was changed beside it; None where there is none."""
    commit = (git or {}).get("commit")
    changes = (git or {}).get("changes")
    return f"{commit}+{changes}" if commit and changes else commit


def _results(folder: Path) -> Iterator[tuple[int, str, int]]:
    """Time of writing, path and inode of each record of a sweep;
    hidden folders hold discarded ones.
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
    """The run of a record, read once for each state of its file; None where it did not finish,
    cannot be read, or is of a newer version.
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
