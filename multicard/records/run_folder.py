"""The run folder: which files it has, and how they are read and written. A file is replaced as a
whole, so that readers see all of it or none.

| file | content |
|---|---|
| config.yaml | the resolved configuration |
| environment.json | versions, devices, and the flags that took effect |
| logs/rRR.log | what rank RR printed |
| ranks/rRR.json | the counts of rank RR so far, rewritten every epoch; removed at the end |
| steps/rRR_eEEE.parquet | epoch EEE of rank RR, a row per step; merged at the end |
| blocks/rRR.jsonl | a cell of a race: the blocks of steps that rank RR trained between two pauses |
| steps.parquet | the steps of all ranks and epochs |
| gpu/ | samples of the GPUs, by attempt and node; merged into gpu.parquet at the end |
| gpu.parquet | the samples of all GPUs of the run |
| profile/ | traces of `profile=kineto` or `nsys` |
| inputs/ | tuning: the rows as read, held-out rows apart, and the embedded tokenizer |
| held_out.parquet | tuning: the loss of each held-out row in the last evaluation |
| torchtune.yaml | tuning: the same run for `tune run` |
| tune_run/ | tuning: output of `tune run` with torchtune.yaml |
| segments.json | one entry per attempt; at the end, result.json has them as `segments` |
| checkpoint/ | the state from which a requeued job resumes; removed once the run has ended |
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
from multicard.records.schema import SCHEMA_VERSION, AnyRecord
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import Attempt
from multicard.records.schema_steps import STEPS

RESULT = "result.json"
ENVIRONMENT = "environment.json"
STATUSES = ("ok", "oom", "diverged", "failed", "timeout", "preempted", "interrupted", "refused")
# Running out of memory and diverging count as measurements: they would happen again.
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
LONGEST = 120  # A folder's name shows the changed axes in at most this many characters.
REFUSED = "0" * 8  # Stands for the identity of a configuration that is too broken to have one.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}")  # The name under which `replacing` writes first.
# A sweep with a run of such a status exits with 1.
BAD = ("failed", "interrupted", "timeout", "refused")


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` once it is complete.

    Readers of `path` see all of the new content or none of it, even after a power cut. If `path` is
    a link, the link is replaced, not followed. Nobody can guess the temporary file's name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    temporary_name = f".{path.name}.{secrets.token_hex(8)}"
    try:
        descriptor = private.no_link(
            temporary_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder
        )
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary_name, dir_fd=folder)
        if isinstance(error, OSError) and error.filename in (None, temporary_name):
            error.filename = str(path)
        raise
    finally:
        os.close(folder)


def cache(part: str) -> Path:
    """Return the folder in which later commands find answers of one kind again.

    The answers are JSON. Nothing that is read from this folder is executed.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multicard" / part


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    with replacing(path, mode) as file:
        file.write(as_text(text).encode())  # The name of a folder may be invalid UTF-8.


def write_json(path: Path, value: Any) -> None:
    """Write a value, or a struct, as JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(readable(builtins(value)), indent=1, allow_nan=False) + "\n"


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file. Anything else, such as a pipe, raises an OSError."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file, or no regular one", str(path))
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None if it is absent or truncated."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass
class RecordedRun:
    """A run that has a record: its folder and the record.

    tracker_error: why W&B does not have the run. None if it has it, or was not asked to.
    stopped: a signal arrived after the record was written, so the surrounding sweep ends too.
    """

    folder: Path
    record: AnyRecord
    tracker_error: str | None = None
    stopped: bool = False

    @property
    def status(self) -> str:
        return self.record.status


def content_of(record: AnyRecord) -> dict[str, Any]:
    """Return the content of result.json. If the run was not measured, it has only the keys that all
    records have.
    """
    content = json.loads(json_text(record))
    return content if record.identity is not None else {key: content[key] for key in ALWAYS}


def write_result(run: RecordedRun) -> None:
    """Check a run's record against the schema and write it as result.json."""
    _write_checked(run.folder / RESULT, content_of(run.record), AnyRecord)


def write_environment(folder: Path, environment: Environment) -> None:
    """Check an environment against the schema and write it as environment.json."""
    _write_checked(folder / ENVIRONMENT, environment, Environment)


def _write_checked(path: Path, value: Any, kind: Any) -> None:
    text = json_text(value)
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        _report(f"{path}: not of the record's schema: {error}")
    write_text(path, text)


def _report(mismatch: str) -> None:
    """Report that a file violates the schema, which is a bug of this program.

    The file is written nonetheless: hours of measuring matter more than a wrong type. If
    MULTICARD_STRICT is set, as in the tests, the mismatch is raised instead.
    """
    if os.environ.get("MULTICARD_STRICT"):
        raise TypeError(mismatch)
    message = Message(
        "record.not-of-schema",
        f"{mismatch}; please report this bug of multicard",
        mismatch=mismatch,
    )
    print(message, file=sys.stderr)


def read_environment(folder: Path) -> Environment:
    """Return the environment of a run; an empty one if the file is absent or broken."""
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
    """Write the steps of one rank and epoch, one row per step.

    Args:
        columns: arrays of shape (steps,): the columns of the schema after epoch, rank and step.
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
    """Return all steps of a run as one Arrow table, ordered by epoch, rank and step; None if there
    are none.

    The table combines steps that are merged and steps that are not merged yet, because a killed
    process may have left both. If an epoch of a rank is in both, the unmerged file counts: a later
    start trained it again.
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
    """Merge steps/ into steps.parquet, remove the merged files, and return the table."""
    import pyarrow.parquet as pq

    table = read_steps(folder)
    if any(folder.glob(STEP_PARTS)):
        with replacing(folder / steps.STEPS) as file:
            pq.write_table(table, file)
    remove_files(folder / "steps", Path(STEP_PARTS).name)
    return table


def remove_files(folder: Path, pattern: str) -> None:
    """Remove the files of `folder` that match `pattern`, and the folder if it is then empty."""
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
    remove_empty(folder)


def remove_partial(folder: Path) -> None:
    """Remove the temporary files that a killed process left (see `replacing`). No process may be
    writing to the folder.
    """
    for path in (*folder.glob(".*"), *folder.glob("*/.*")):
        if PARTIAL.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove `folder` if it is empty."""
    try:
        folder.rmdir()
    except OSError:
        return


def read_segments(folder: Path) -> list[Attempt]:
    """Return the attempts at the run in order. One without an `end` was killed."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(
            (read_json(folder / SEGMENTS) or {}).get("segments", []), list[Attempt]
        )
    return []


def write_segments(folder: Path, segments: list[Attempt]) -> None:
    write_json(folder / SEGMENTS, {"segments": builtins(segments)})


def cell_name(digits: str, overrides: list[str], repetition: int, probe: bool = False) -> str:
    """Return the name of a cell's folder: the changed axes and the identity, as in
    `gpus=2,precision=fp16-1a2b3c4d`.

    A repetition has its number at the end, and a probe the word, as in `gpus=2-1a2b3c4d-r2` and
    `gpus=2-1a2b3c4d-probe`.
    """
    hidden = {*schema.beside(), "batch_size_asked"}
    changed = (
        o for o in overrides if re.split(r"[=./@]", o.lstrip("+~"), maxsplit=1)[0] not in hidden
    )
    keys = sorted(re.sub(r"^[\w+/]*\.", "", o) for o in changed)  # Drop the group of each key.
    text = re.sub(r"=[._]+", "=", re.sub(r"[^\w.,=+-]", "_", ",".join(keys)))[:LONGEST] or "default"
    return (
        f"{text}-{digits}"
        + (f"-r{repetition}" if repetition > 1 else "")
        + ("-probe" if probe else "")
    )


def settings_of(name: str) -> list[str]:
    """Return the changed axes in the name of a cell's folder (`cell_name`), followed by "rep 2" for
    a second repetition and "probe" for a probe.
    """
    match = re.fullmatch(r"(.*)-\w{8}(?:-r(\d+))?(-probe)?", name)
    if match is None:
        return [name]
    axes = re.split(r",(?=[\w+.-]+=)", match[1])  # A list value contains commas, too.
    if match[2]:
        axes.append(f"rep {match[2]}")
    if match[3]:
        axes.append("probe")
    return axes


def find_cell(sweep: Path, name: str) -> Path:
    """Return the folder of a cell in `sweep`: the one in which the same configuration was measured
    before, or else a new one.
    """
    ending = re.search(r"-(\w{8})(-r\d+)?(-probe)?$", name)
    same_cells = (
        () if ending is None or ending[1] == REFUSED else sorted(sweep.glob(f"*{ending[0]}"))
    )
    return next((folder for folder in same_cells if folder.is_dir()), sweep / name)


def forget_refused(sweep: Path) -> None:
    """Remove the records of cells that earlier commands of a sweep refused: the next command
    reports its own refusals.

    A job that was refused after it had begun has left more files, and keeps them.
    """
    for path in sweep.glob(f"*/{RESULT}"):
        if (read_json(path) or {}).get("status") == "refused" and not path.parent.is_symlink():
            with suppress(OSError):  # The folder may belong to another user.
                if [*path.parent.iterdir()] == [path]:
                    path.unlink()
                    path.parent.rmdir()


def is_probe(record: AnyRecord, folder: Path) -> bool:
    """True for a probe, however it ended. If it was refused, only its folder's name shows it."""
    return record.is_probe if record.config else folder.name.endswith("-probe")


def finished(folder: Path) -> RecordedRun | None:
    """Return the run in a folder if it need not be measured
    again: the steps that its record counts are there.
    """
    run = read_run(folder)
    return run if run is not None and run.status in DONE and _has_steps(run) else None


def _has_steps(run: RecordedRun) -> bool:
    """True if no steps were measured, or if their file is complete up to its last bytes."""
    try:
        with (run.folder / steps.STEPS).open("rb") as file:
            file.seek(-4, os.SEEK_END)
            return file.read() == b"PAR1"
    except OSError as error:
        measured = run.record.steps is not None and bool(run.record.steps.count)
        return isinstance(error, FileNotFoundError) and not measured


def read_run(folder: Path) -> RecordedRun | None:
    """Return the run in a folder; None if there is no record yet, or if it is broken."""
    try:
        record = decode(read_bytes(folder / RESULT))
    except (OSError, ValueError):
        return None
    steps.redefine(folder, record)
    return RecordedRun(folder, record)


def decode(content: bytes) -> AnyRecord:
    """Decode the bytes of a result.json.

    Raises:
        ValueError: the record is broken, or of a newer schema. For a newer schema, nothing but the
            version is checked, because everything else may differ.
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
    """Numbers in the axes and the configuration that this program calculates with."""

    gpus: int | None = None
    nodes: int | None = None
    seed: int | None = None
    warmup_steps: int | None = None
    skip_steps: int | None = None


class _Counted(Struct):
    axes: _Counts
    config: _Counts
