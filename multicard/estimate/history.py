"""What the finished runs of a machine tell of others: their records, and which of their figures count."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from heapq import nlargest
from os import scandir
from pathlib import Path
from typing import Any

import msgspec

from multicard.config.base import LATER, NOT_IDENTITY
from multicard.config.keys import flat
from multicard.estimate import gpus
from multicard.estimate.time import observations
from multicard.estimate.time.observations import StepObservation
from multicard.measure import formulas
from multicard.records import comparable, run_folder
from multicard.records.schema import SCHEMA_VERSION, AnyRecord

ROOT = "multirun"  # a folder of this name holds sweeps, which teach one another
PUBLISHED = "published"  # within it, records of other machines
MOST_RUNS = 2000  # the newest, that are read
MOST_S, MOST_BYTES = 1e9, 1e15  # above which a figure is none
FINISHED = ("ok", "oom", "diverged")
DECODER = msgspec.json.Decoder(AnyRecord)
# Each key of LATER, with a key of its group that was there before it
LATER_KEYS = {
    "custom_sharded_layers": "recipe",
    "model.pointwise": "model.width",
    "dataset.revision": "dataset.source",
    "profile.window": "profile.steps",
    "profile.budget_bytes": "profile.steps",
}
# Marks of runs that say nothing about time; other marked runs count where no unmarked one tells
LEFT_OUT = {comparable.PROFILED: "profiled", comparable.CROWD: "more ranks than cores"}
UNKNOWN_ERROR = 0.05  # relative standard error of a mean of which no spread is known
DRIFTING_ERROR = 0.25  # of a probe that drifted, or had too few steps to know its error: nothing says where it ends
NORMAL_95 = 1.96  # half of a 95 % interval in standard errors


@dataclass(frozen=True)
class PastRun:
    """A finished run of which the record could be read, probes included. folder: where it lies."""

    record: AnyRecord
    folder: Path | None = None

    @cached_property
    def setting(self) -> dict[str, str]:
        return setting(self.record.config)

    @cached_property
    def axes(self) -> tuple[tuple[str, str], ...]:
        """The part of the setting on which a step depends, sorted."""
        return tuple(sorted(observations.axes(self.setting).items()))

    def has_steps_of(self, axes: Mapping[str, str]) -> bool:
        """Whether its steps are those of a setting; keys that came after the run say nothing."""
        return not observations.differences(dict(self.axes), axes)

    @cached_property
    def hardware(self) -> str | None:
        return product(self.record.hardware)

    @property
    def is_probe(self) -> bool:
        return self.record.probe is not None

    @property
    def is_raced(self) -> bool:
        """Whether it is a cell of a race, of which the steps alone are as of any run: it evaluates a batch at most,
        loads ahead while it pauses, and starts beside others."""
        return self.record.probe is not None and self.record.probe.ended_by == "race"

    @property
    def ranks(self) -> int:
        return _count(self.record.axes.get("gpus")) * _count(self.record.axes.get("nodes"))

    @cached_property
    def marks(self) -> str:
        """The marks of the run in tables (`comparable.marks`)."""
        return comparable.marks(self.record)

    @cached_property
    def left_out(self) -> str | None:
        """Why the run says nothing about time; None where it does, be it in a marked estimate."""
        record = self.record
        if record.status != "ok":
            return {"oom": "ran out of memory"}.get(record.status, record.status)
        for mark, reason in LEFT_OUT.items():
            if mark in self.marks:
                return reason
        if record.oversubscribed:
            return "shared a GPU"
        if self.step_s is None or (not _is_figure(record.total_s, MOST_S) and not self.is_probe):
            return "no times"
        return None

    @cached_property
    def step_s(self) -> float | None:
        """The mean step, by the definition of today; older records of several ranks have another."""
        if self.record.probe is not None:
            return _positive(self.record.probe.step_s)
        steps = self.record.steps
        is_defined = steps is not None and (steps.definition == formulas.STEP_DEFINITION or self.ranks == 1)
        return _positive(steps.mean) if steps is not None and is_defined else None

    @property
    def step_error(self) -> float:
        """Relative standard error of `step_s`, by the steps of the run."""
        probe, steps = self.record.probe, self.record.steps
        if probe is not None:
            return DRIFTING_ERROR if probe.half_width is None else abs(probe.half_width) / NORMAL_95
        if steps is None or not steps.std or not steps.mean or not steps.count:
            return UNKNOWN_ERROR
        return min(abs(steps.std / steps.mean) / math.sqrt(steps.count), 1.0)

    @property
    def peak_bytes(self) -> int | None:
        """Of torch's allocator, of the rank that held most; None of CPU ranks, whose figure is another."""
        peak = self.record.peak_memory_bytes
        counted = peak is not None and peak.kind == "cuda_allocated" and _is_figure(peak.max, MOST_BYTES)
        return peak.max if counted and peak is not None else None

    @cached_property
    def cores(self) -> str:
        in_job = self.record.job is not None or self.record.config.get("exclusive") is False
        return cores_in_words(self.record.cores, _count(self.record.axes.get("gpus")), in_job)

    @cached_property
    def torch(self) -> tuple[int, int] | None:
        """The version of torch, (major, minor), by the `environment.json` beside the record; None where none says."""
        written = None if self.folder is None else run_folder.read_json(self.folder / run_folder.ENVIRONMENT)
        with suppress(ValueError, TypeError, KeyError, AttributeError):  # of a record that is not as it should be
            major, minor = (written or {})["packages"]["torch"].split(".")[:2]
            return int(major), int(minor)
        return None

    def is_of(self, hardware: str | None, cores: str | None) -> bool:
        """Whether the run was on this hardware, with as many cores where these count."""
        return self.hardware == hardware is not None and (cores is None or self.cores == cores)

    def observation(self, hardware: str | None, cores: str | None) -> StepObservation:
        """What the run says of a step, where `left_out` is None; that of another machine has its cores in its name."""
        own = f"{self.hardware}, {self.cores}"
        machine = str(hardware) if self.is_of(hardware, cores) else own
        commit = commit_of({"commit": self.record.commit, "changes": self.record.changes})
        step_s, error = self.step_s or math.nan, self.step_error
        return StepObservation(self.setting, step_s, error, self.is_probe, machine, commit, marks=self.marks)


@dataclass(frozen=True)
class History:
    """Finished runs, the newest last; unread: records that could not be read."""

    runs: Sequence[PastRun] = ()
    unread: int = 0

    _observations: dict[Any, list[StepObservation]] = field(default_factory=dict, repr=False, compare=False)

    def timed(self, kind: str, marked: bool = False) -> list[PastRun]:
        """The runs of a workload that say something about time: those without marks, or those with marks too."""
        runs = [run for run in self.runs if run.record.kind == kind and run.left_out is None]
        return runs if marked else [run for run in runs if not run.marks]

    def observations(self, kind: str, hardware: str | None, cores: str | None) -> list[StepObservation]:
        """What those say of steps, as seen from a machine."""
        key = kind, hardware, cores
        if key not in self._observations:
            self._observations[key] = [run.observation(hardware, cores) for run in self.timed(kind, marked=True)]
        return self._observations[key]


def history_folders(folder: Path) -> list[Path]:
    """The sweeps whose records count for a run in `folder`: all of a root named `multirun`, else its own sweep."""
    root = folder.parent.parent
    if root.name != ROOT:
        return [folder.parent]
    with suppress(OSError):
        sweeps = [path for path in root.iterdir() if not path.name.startswith(".") and path.name != PUBLISHED]
        return sorted(path for path in sweeps if path.is_dir())
    return []


def read(folders: Sequence[Path]) -> History:
    """The finished runs in these sweeps' folders, the newest MOST_RUNS; what cannot be read is left out."""
    files = nlargest(MOST_RUNS, (file for folder in folders for file in _results(folder)))
    runs, unread = list[PastRun](), 0
    for modified_ns, path, inode in reversed(files):
        try:
            run = _run(path, modified_ns, inode)
        except (OSError, ValueError, RecursionError):
            unread += 1
            continue
        if run is not None:
            runs.append(run)
    return History(runs, unread)


def setting(config: Mapping[str, Any]) -> dict[str, str]:
    """As `comparable.measured_settings`, several times as fast: "group.key" to JSON text. Keys that came after the run
    have the value of what it did."""
    measured = flat({key: value for key, value in config.items() if key not in NOT_IDENTITY})
    for key, before in LATER_KEYS.items():
        if before in measured and key not in measured:
            group, _, name = key.rpartition(".")
            measured[key] = LATER[group][name]
    return {key: msgspec.json.encode(value).decode() for key, value in measured.items()}


def cores_in_words(number: int | None, ranks: int, in_job: bool) -> str:
    """The cores that a run has, by which machines of CPU ranks are told apart.

    Args:
        ranks: on a node.
        in_job: whether the run has cores of its own, a number for each rank, and not all of the machine.
    """
    return f"{number / ranks:g} cores a rank" if in_job and number else f"{number} cores"


def product(hardware: str | None) -> str | None:
    """One name for all names of a GPU; others as they are."""
    known = None if hardware is None else gpus.of_product(hardware)
    return hardware if known is None else known.name


def commit_of(git: Mapping[str, Any] | None) -> str | None:
    """The commit, with the digits of what was changed beside it; None where there is none."""
    commit, changes = (git or {}).get("commit"), (git or {}).get("changes")
    return f"{commit}+{changes}" if commit and changes else commit


def _results(folder: Path) -> Iterator[tuple[int, str, int]]:
    """When each record of a sweep was written, its path, and its inode; hidden folders hold what was put aside."""
    with suppress(OSError), scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                path = Path(entry.path, run_folder.RESULT)
                with suppress(OSError):
                    status = path.stat()
                    yield status.st_mtime_ns, str(path), status.st_ino


@lru_cache(maxsize=2 * MOST_RUNS)
def _run(path: str, modified_ns: int, inode: int) -> PastRun | None:
    """The run of a record, read once for each state of its file; None where it did not finish.

    Raises:
        OSError, ValueError, RecursionError: it cannot be read.
    """
    del modified_ns, inode
    record = DECODER.decode(Path(path).read_bytes())
    if record.schema_version > SCHEMA_VERSION:
        raise ValueError("written by a newer version")
    return PastRun(record, Path(path).parent) if record.status in FINISHED else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _is_figure(value: float | None, most: float) -> bool:
    return value is not None and 0 < value < most


def _positive(seconds: float | None) -> float | None:
    return seconds if _is_figure(seconds, MOST_S) else None
