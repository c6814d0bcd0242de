"""The run folder: what is in it, and how it is written so that a file is either whole or absent.

| file | what |
|---|---|
| config.yaml | the resolved configuration |
| environment.json | versions, devices, flags that took effect |
| logs/rRR.log | what rank RR printed |
| ranks/rRR.json | rank RR's counts so far, rewritten every epoch; gone at the end |
| steps/rRR_eEEE.parquet | rank RR's epoch EEE, a row per step; merged at the end |
| blocks/rRR.jsonl | a cell of a race: the blocks of steps that rank RR trained between two pauses |
| steps.parquet | the steps of all ranks and epochs |
| gpu/ | samples of the GPUs, by attempt and node; merged to gpu.parquet at the end |
| gpu.parquet | the samples of all GPUs of the run |
| profile/ | traces of `profile=kineto` or `nsys` |
| inputs/ | tuning: the rows as read, those held out apart, and the embedded tokenizer |
| held_out.parquet | tuning: the loss of each held-out row in the last evaluation |
| torchtune.yaml | tuning: the same run for `tune run` |
| tune_run/ | tuning: what `tune run` with torchtune.yaml writes |
| segments.json | one entry per attempt; result.json holds it at the end as `segments` |
| checkpoint/ | what a requeued job goes on from; gone once the run has ended |
| result.json | status, axes and summary; written last |
"""

import errno
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import msgspec
import numpy as np
from msgspec import Struct

from multicard.config import schema
from multicard.machine import private
from multicard.messages import Message, Refusal
from multicard.records import steps
from multicard.records.json_values import as_text, builtins, readable
from multicard.records.schema import SCHEMA_VERSION, STEPS, AnyRecord
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import Attempt

RESULT = "result.json"
ENVIRONMENT = "environment.json"
STATUSES = ("ok", "oom", "diverged", "failed", "timeout", "preempted", "interrupted", "refused")
# out of memory and divergence are measurements: they would happen again
DONE = ("ok", "oom", "diverged")
ALWAYS = (
    "schema_version",
    "kind",
    "name",
    "job",
    "status",
    "cause",
    "started_at",
    "axes",
    "repetition",
)
SEGMENTS = "segments.json"
STEP_PARTS = "steps/r*_e*.parquet"
LONGEST = 120  # characters of the changed axes that a folder's name shows
REFUSED = "0" * 8  # in place of the identity of a configuration that is too wrong to have one
PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}")  # what `replacing` writes first
# a sweep that holds one of these exits with 1
BAD = ("failed", "interrupted", "timeout", "refused")


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write what `path` is to be: whoever reads `path` sees all of it or none, after a
    power cut too. A link in its place is replaced, not followed, and nobody can guess the name of
    what is written first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    partial = f".{path.name}.{secrets.token_hex(8)}"
    try:
        new = private.no_link(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder)
        with os.fdopen(new, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=folder)
        if isinstance(error, OSError) and error.filename in (None, partial):
            error.filename = str(path)
        raise
    finally:
        os.close(folder)


def cache(part: str) -> Path:
    """The folder of a kind of answers that later commands reuse,
    as JSON: nothing that is read from it is run.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multicard" / part


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    with replacing(path, mode) as file:
        file.write(as_text(text).encode())  # a name of a folder need not be text


def write_json(path: Path, value: Any) -> None:
    """Write a value, or a struct, as JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(readable(builtins(value)), indent=1, allow_nan=False) + "\n"


def read_bytes(path: Path) -> bytes:
    """The content of a file; of what is none, as a pipe that nobody writes to, an OSError."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file, or no regular one", str(path))
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None where it is absent or not whole."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass
class RecordedRun:
    """A run that has a record: its folder and what is in it.

    tracker_error: why W&B does not have it; None where it has, or was not asked to.
    stopped: a signal came after its record was there: what it belongs to ends, too.
    """

    folder: Path
    record: AnyRecord
    tracker_error: str | None = None
    stopped: bool = False

    @property
    def status(self) -> str:
        return self.record.status


def content_of(record: AnyRecord) -> dict[str, Any]:
    """The content of result.json: of a run that was not measured,
    the keys that all records have.
    """
    content = json.loads(json_text(record))
    return content if record.identity is not None else {key: content[key] for key in ALWAYS}


def write_result(run: RecordedRun) -> None:
    """Write result.json, checked by the schema."""
    _write_checked(run.folder / RESULT, content_of(run.record), AnyRecord)


def write_environment(folder: Path, environment: Environment) -> None:
    """Write environment.json, checked in the same way."""
    _write_checked(folder / ENVIRONMENT, environment, Environment)


def _write_checked(path: Path, value: Any, kind: Any) -> None:
    text = json_text(value)
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        _report(f"{path}: not of the record's schema: {error}")
    write_text(path, text)


def _report(mismatch: str) -> None:
    """Report a file that is not of the schema, an error of this program.

    It is written all the same: hours of measuring are worth more than a wrong type. With
    MULTICARD_STRICT set, as in the tests, the mismatch is raised instead.
    """
    if os.environ.get("MULTICARD_STRICT"):
        raise TypeError(mismatch)
    message = Message(
        "record.not-of-schema",
        f"{mismatch}; please report this error of multicard",
        mismatch=mismatch,
    )
    print(message, file=sys.stderr)


def read_environment(folder: Path) -> Environment:
    """The environment of a run; empty where it is absent or broken."""
    try:
        return msgspec.json.decode(read_bytes(folder / ENVIRONMENT), type=Environment)
    except (OSError, ValueError, RecursionError):
        return Environment()


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as file:
        pq.write_table(pa.table(columns), file)


def write_steps(folder: Path, rank: int, epoch: int, columns: dict[str, np.ndarray]) -> None:
    """Write one rank's epoch, one row per step.

    Args:
        columns: (steps,) each, as the schema has them after epoch, rank and step.
    """
    count = len(columns["step_s"])
    index = {"epoch": np.full(count, epoch, np.int32), "rank": np.full(count, rank, np.int32)}
    columns = {**index, "step": np.arange(count, dtype=np.int32), **columns}
    path = steps_file(folder, rank, epoch)
    kinds = {name: values.dtype.kind for name, values in columns.items()}
    letters = {int: "i", float: "f"}
    if kinds not in [
        {name: letters[hint] for name, hint in get_type_hints(kind).items()}
        for kind in STEPS.values()
    ]:
        _report(f"{path}: not the columns of steps.parquet: {kinds}")
    write_parquet(path, columns)


def steps_file(folder: Path, rank: int, epoch: int) -> Path:
    return folder / "steps" / f"r{rank:02d}_e{epoch:03d}.parquet"


def read_steps(folder: Path) -> Any:
    """All steps of a run as one Arrow table ordered by epoch, rank and step;
    None where there is none.

    Those merged before and those not merged yet are one table: a start that was cut off may have
    left both. Of an epoch of a rank that is in both, the part counts,
    which a later start trained again.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    merged = folder / steps.STEPS
    tables = [pq.ParquetFile(path).read() for path in sorted(folder.glob(STEP_PARTS))]
    if merged.exists():
        table = pq.ParquetFile(merged).read()
        keys = ["epoch", "rank"]
        newer = pa.concat_tables(part.select(keys) for part in tables) if tables else None
        tables.append(table if newer is None else table.join(newer, keys, join_type="left anti"))
    if not tables:
        return None
    return pa.concat_tables(tables).sort_by(
        [(key, "ascending") for key in ("epoch", "rank", "step")]
    )


def merge_steps(folder: Path) -> Any:
    """Merge steps/ into steps.parquet, remove what was merged, and return the table."""
    import pyarrow.parquet as pq

    table = read_steps(folder)
    if any(folder.glob(STEP_PARTS)):
        with replacing(folder / steps.STEPS) as file:
            pq.write_table(table, file)
    remove_files(folder / "steps", Path(STEP_PARTS).name)
    return table


def remove_files(folder: Path, pattern: str) -> None:
    """Remove the files of `folder` that match, and the folder where nothing else is left in it."""
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
    remove_empty(folder)


def remove_partial(folder: Path) -> None:
    """Remove the files that a killed process was writing (see `replacing`).
    Nobody may be writing now.
    """
    for path in (*folder.glob(".*"), *folder.glob("*/.*")):
        if PARTIAL.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove `folder` if nothing is in it."""
    try:
        folder.rmdir()
    except OSError:
        return


def read_segments(folder: Path) -> list[Attempt]:
    """The starts of the run, in order; one that left no `end` was cut off."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(
            (read_json(folder / SEGMENTS) or {}).get("segments", []), list[Attempt]
        )
    return []


def write_segments(folder: Path, segments: list[Attempt]) -> None:
    write_json(folder / SEGMENTS, {"segments": builtins(segments)})


def cell_name(digits: str, overrides: list[str], repetition: int, probe: bool = False) -> str:
    """The folder of a cell: the changed axes and its identity, `gpus=2,precision=fp16-1a2b3c4d`.

    A repetition has its number, and a probe says that it is one: `gpus=2-1a2b3c4d-r2`,
    `gpus=2-1a2b3c4d-probe`.
    """
    hidden = {*schema.beside(), "batch_size_asked"}
    changed = (
        o for o in overrides if re.split(r"[=./@]", o.lstrip("+~"), maxsplit=1)[0] not in hidden
    )
    keys = sorted(re.sub(r"^[\w+/]*\.", "", o) for o in changed)  # the key without its group
    text = re.sub(r"=[._]+", "=", re.sub(r"[^\w.,=+-]", "_", ",".join(keys)))[:LONGEST] or "default"
    return (
        f"{text}-{digits}"
        + (f"-r{repetition}" if repetition > 1 else "")
        + ("-probe" if probe else "")
    )


def settings_of(name: str) -> list[str]:
    """The changed axes in the name of a cell's folder, then "rep 2" and "probe" where they apply;
    see `cell_name`.
    """
    found = re.fullmatch(r"(.*)-\w{8}(?:-r(\d+))?(-probe)?", name)
    if found is None:
        return [name]
    axes = re.split(r",(?=[\w+.-]+=)", found[1])  # a list of values has commas too
    if found[2]:
        axes.append(f"rep {found[2]}")
    if found[3]:
        axes.append("probe")
    return axes


def find_cell(sweep: Path, name: str) -> Path:
    """The folder of a cell in `sweep`: the one in which the same configuration was measured,
    else a new one.
    """
    ending = re.search(r"-(\w{8})(-r\d+)?(-probe)?$", name)
    known = () if ending is None or ending[1] == REFUSED else sorted(sweep.glob(f"*{ending[0]}"))
    return next((folder for folder in known if folder.is_dir()), sweep / name)


def forget_refused(sweep: Path) -> None:
    """Remove the records of what earlier commands of a sweep refused: the next one says what it
    refuses. A job that was refused after it had begun has left more than a record, and keeps it.
    """
    for path in sweep.glob(f"*/{RESULT}"):
        if (read_json(path) or {}).get("status") == "refused" and not path.parent.is_symlink():
            with suppress(OSError):  # of another user
                if [*path.parent.iterdir()] == [path]:
                    path.unlink()
                    path.parent.rmdir()


def is_probe(record: AnyRecord, folder: Path) -> bool:
    """True of a probe, however it ended: of one that was refused its folder says it alone."""
    return record.is_probe if record.config else folder.name.endswith("-probe")


def finished(folder: Path) -> RecordedRun | None:
    """The run in a folder, if it is one that need not be measured
    again: the steps that its record counts are there.
    """
    run = read(folder)
    return run if run is not None and run.status in DONE and _has_steps(run) else None


def _has_steps(run: RecordedRun) -> bool:
    """True where no steps were measured, or their file has its end, which is written last."""
    try:
        with (run.folder / steps.STEPS).open("rb") as file:
            file.seek(-4, os.SEEK_END)
            return file.read() == b"PAR1"
    except OSError as error:
        measured = run.record.steps is not None and bool(run.record.steps.count)
        return isinstance(error, FileNotFoundError) and not measured


def read(folder: Path) -> RecordedRun | None:
    """The run in a folder; None before it has left a record, or where that is broken."""
    try:
        record = decode(read_bytes(folder / RESULT))
    except (OSError, ValueError):
        return None
    steps.redefine(folder, record)
    return RecordedRun(folder, record)


def decode(content: bytes) -> AnyRecord:
    """The record in the bytes of a result.json. A ValueError says what is wrong with it; of a newer
    schema its version alone, as all else may then differ too.
    """
    try:
        if (version := msgspec.json.decode(content, type=_Version).schema_version) > SCHEMA_VERSION:
            raise Refusal(
                "record.newer",
                f"schema_version {version} is newer than this program's {SCHEMA_VERSION}: update"
                " multicard",
                version=version,
                known=SCHEMA_VERSION,
            )
        record = msgspec.json.decode(content, type=AnyRecord)
        msgspec.convert({"axes": record.axes, "config": record.config}, _Counted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("record.broken", f"{RESULT} is broken ({error})", reason=str(error)) from None
    return record


class _Version(Struct):
    schema_version: int


class _Counts(Struct):
    """The numbers among axes and configuration that this program calculates with, and so checks."""

    gpus: int | None = None
    nodes: int | None = None
    seed: int | None = None
    warmup_steps: int | None = None
    skip_steps: int | None = None


class _Counted(Struct):
    axes: _Counts
    config: _Counts
