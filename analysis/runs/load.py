"""Find and read the runs below some folders.

A record that is broken, cut off or written by a newer version is named and left out. It never hides
the other runs.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from multicard.config.job import count
from multicard.messages import Message, Refusal, typed
from multicard.records import limits, run_folder, steps
from multicard.records.output import Skipped
from multicard.records.run_folder import RESULT
from multicard.records.schema import AnyRecord
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import Limit, Prediction

from .columns import columns

UNFINISHED = Message(
    "runs.unfinished", "no result.json: it is still being measured, or was cut off"
)


@dataclass(frozen=True)
class Run:
    """A run: its folder, and its record as flat columns (`analysis.runs.columns`).

    prediction: what was predicted for the run. It is not a column, because tables show only what
        was measured.
    limits: what must not be concluded from the run (`multicard.records.limits`).
    """

    folder: Path
    columns: dict[str, Any] = field(repr=False)
    prediction: Prediction | None = field(default=None, repr=False)
    limits: tuple[Limit, ...] = ()

    def __getitem__(self, column: str) -> Any:
        """Return the value of a column, or None if the run has no such column."""
        return self.columns.get(column)

    def record(self) -> AnyRecord:
        """Read the record again.

        Only columns stay in memory, because there may be 10,000 runs.

        Raises:
            ValueError: the record is broken now.
        """
        return run_folder.decode(run_folder.read_bytes(self.folder / RESULT))

    def measured_s(self) -> np.ndarray:
        """Return the seconds of each step (n,) after the warm-up (`records.steps`).

        Raises:
            ValueError: the run has no file of steps.
        """
        return steps.measured_s(self.folder, self.record())

    def environment(self) -> Environment:
        """Read environment.json; the result is empty if it is absent, cut off or invalid."""
        return run_folder.read_environment(self.folder)


@dataclass(frozen=True)
class FoundRuns:
    runs: list[Run]
    skipped: list[Skipped]


def read_runs(
    folders: Sequence[Path], probes: bool = False, price: float | None = None
) -> FoundRuns:
    """Read all runs below `folders`, in the order of their paths.

    A run that is below two of the folders counts once. A copy of a run's folder does not count,
    because it is not a repetition. Probes are not results, so they are left out by default.

    Args:
        probes: read probes too.
        price: the price of a GPU for an hour, instead of the prices in the records.

    Raises:
        ValueError: a folder does not exist, there is no run, or no run can be read.
    """
    runs: list[Run] = []
    skipped: list[Skipped] = []
    originals: dict[bytes, Path] = {}
    probe_count = 0
    for path, has_record in run_folders(folders):
        run = _read(path, probes, price, originals) if has_record else Skipped(path, UNFINISHED)
        if run is None:
            probe_count += 1
        else:
            runs.append(run) if isinstance(run, Run) else skipped.append(run)
    places = ", ".join(map(str, folders))
    if probe_count and not runs and not skipped:
        raise Refusal(
            "runs.only-probes",
            f"no run under {places}, but {count(probe_count, 'probe')}: measure with `probe=false`",
            key="probe",
            folders=places,
            probes=probe_count,
        )
    if not runs and not skipped:
        raise Refusal(
            "runs.none",
            f"no run under {places}: a run leaves its record in {folders[0]}/NAME/CELL/{RESULT}",
            folders=places,
        )
    if not runs:
        first_skipped = skipped[0]
        others = len(skipped) - 1
        others_note = f" (and {others} more)" if others else ""
        raise Refusal(
            "runs.unreadable",
            f"no run under {places} can be read: {first_skipped.folder}:"
            f" {first_skipped.why}{others_note}",
            folders=places,
            folder=str(first_skipped.folder),
            why=first_skipped.why,
            more=others,
        )
    return FoundRuns(runs, skipped)


def run_folders(folders: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each run folder, and if its record was written.

    Hidden folders are left out, such as a measurement that was put aside.
    """
    folders = list(folders)
    seen_folders: set[str] = set()
    for folder in folders:
        if not folder.is_dir():
            raise _no_folder(folder)
        for parent, subfolders, files in os.walk(folder):
            if RESULT not in files and "config.yaml" not in files:
                subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
                continue
            subfolders.clear()  # A run folder contains no other run.
            real_path = os.path.realpath(parent) if len(folders) > 1 else parent
            if real_path not in seen_folders:
                seen_folders.add(real_path)
                yield Path(parent), RESULT in files


def _read(
    folder: Path, probes: bool, price: float | None, originals: dict[bytes, Path]
) -> Run | Skipped | None:
    """Read the run in a folder; the result is None for a probe that is not wanted.

    Args:
        originals: the folders of the runs read before, by the hash of their records.
    """
    try:
        content = run_folder.read_bytes(folder / RESULT)
        record = run_folder.decode(content)
    except OSError as error:
        why = f"{RESULT} cannot be read ({error.strerror})"
        return Skipped(folder, Message("runs.closed-record", why, error=error.strerror))
    except ValueError as error:
        return Skipped(folder, str(error))
    if not probes and run_folder.is_probe(record, folder):
        return None
    original = originals.setdefault(sha256(content).digest(), folder)
    # Two measurements never have equal records, because their times differ.
    if record.total_s is not None and original != folder:
        why = f"a copy of {original}, which counts once"
        return Skipped(folder, Message("runs.copy", why, original=str(original)))
    steps.redefine(folder, record)
    record.config |= {} if price is None else {"price": {"gpu_hour": price}}
    return Run(folder, columns(folder, record), record.prediction, tuple(limits.of(record)))


def _first_sweep() -> str:
    return f"{typed('train_vision.py')} -m name=first gpus=1,2"


def _no_folder(folder: Path) -> Refusal:
    if folder == Path("multirun"):
        return Refusal(
            "runs.none-yet",
            f"{folder} is not a folder: nothing was measured in this folder yet;"
            f" `{_first_sweep()}` measures a first sweep",
            folder=str(folder),
        )
    sweep_names = sorted(path.name for path in Path("multirun").glob("*/"))
    listed = f" ({', '.join(sweep_names)})" if sweep_names else ""
    return Refusal(
        "runs.no-folder",
        f"{folder} is not a folder; runs are in multirun/ of the folder where they were"
        f" started{listed}",
        folder=str(folder),
        there=sweep_names,
    )
