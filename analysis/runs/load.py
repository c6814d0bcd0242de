"""The runs under some folders: which there are, and which could not be read.

A record that is broken, cut off or written by a newer version is named and left out;
one of them never hides the rest.
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
    """One run: its folder, and its record as flat columns
    (`analysis.columns` says which there are).

    prediction: what was predicted for it, which is no column: it stands in no table of what was
    measured.
    limits: what forbids to say something of it (`multicard.records.limits`).
    """

    folder: Path
    columns: dict[str, Any] = field(repr=False)
    prediction: Prediction | None = field(default=None, repr=False)
    limits: tuple[Limit, ...] = ()

    def __getitem__(self, column: str) -> Any:
        """The value of a column; None where the run has none."""
        return self.columns.get(column)

    def record(self) -> AnyRecord:
        """The record, read again: 10,000 runs are held as columns alone.
        Raises ValueError where it is broken now.
        """
        return run_folder.decode(run_folder.read_bytes(self.folder / RESULT))

    def measured_s(self) -> np.ndarray:
        """Seconds of each step (n,) after the warm-up (`records.steps`);
        raises ValueError without a file of them.
        """
        return steps.measured_s(self.folder, self.record())

    def environment(self) -> Environment:
        """environment.json; empty where it is absent, cut off or not of the schema."""
        return run_folder.read_environment(self.folder)


@dataclass(frozen=True)
class FoundRuns:
    runs: list[Run]
    skipped: list[Skipped]


def read(folders: Sequence[Path], probes: bool = False, price: float | None = None) -> FoundRuns:
    """All runs below `folders`, in the order of their paths; a run below two of them counts once,
    and so does one whose
    folder was copied: it repeats nothing. Probes are no results, and stand in no table and no
    figure unless they are asked for.

    Args:
        price: of a GPU for an hour, in place of the runs' own.

    Raises:
        ValueError: a folder that does not exist, no run at all, or none that could be read.
    """
    runs: list[Run] = []
    skipped: list[Skipped] = []
    originals: dict[bytes, Path] = {}
    left_out = 0
    for path, written in run_folders(folders):
        run = _read(path, probes, price, originals) if written else Skipped(path, UNFINISHED)
        if run is None:
            left_out += 1
        else:
            runs.append(run) if isinstance(run, Run) else skipped.append(run)
    where = ", ".join(map(str, folders))
    if left_out and not runs and not skipped:
        raise Refusal(
            "runs.only-probes",
            f"no run under {where}, but {count(left_out, 'probe')}: measure with `probe=false`",
            key="probe",
            folders=where,
            probes=left_out,
        )
    if not runs and not skipped:
        raise Refusal(
            "runs.none",
            f"no run under {where}: a run leaves its record in {folders[0]}/NAME/CELL/{RESULT}",
            folders=where,
        )
    if not runs:
        first = skipped[0]
        more = len(skipped) - 1
        rest = f" (and {more} more)" if more else ""
        raise Refusal(
            "runs.unreadable",
            f"no run under {where} can be read: {first.folder}: {first.why}{rest}",
            folders=where,
            folder=str(first.folder),
            why=first.why,
            more=more,
        )
    return FoundRuns(runs, skipped)


def run_folders(folders: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each run folder, and whether its record was written; not what is hidden,
    as a measurement put aside is.
    """
    folders = list(folders)
    seen: set[str] = set()
    for folder in folders:
        if not folder.is_dir():
            raise _no_folder(folder)
        for parent, inner, files in os.walk(folder):
            if RESULT not in files and "config.yaml" not in files:
                inner[:] = sorted(name for name in inner if not name.startswith("."))
                continue
            inner.clear()  # a run holds no other
            real = os.path.realpath(parent) if len(folders) > 1 else parent
            if real not in seen:
                seen.add(real)
                yield Path(parent), RESULT in files


def _read(
    folder: Path, probes: bool, price: float | None, originals: dict[bytes, Path]
) -> Run | Skipped | None:
    """The run in a folder; None where it is a probe, unless they are wanted. `originals`: the
    folders of runs that were read before, by the hash of their records.
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
    # two measurements differ in their times at least
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
            f" `{_first_sweep()}` does",
            folder=str(folder),
        )
    there = sorted(path.name for path in Path("multirun").glob("*/"))
    named = f" ({', '.join(there)})" if there else ""
    return Refusal(
        "runs.no-folder",
        f"{folder} is not a folder; runs are in multirun/ of the folder where they were"
        f" started{named}",
        folder=str(folder),
        there=there,
    )
