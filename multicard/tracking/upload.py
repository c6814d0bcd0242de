"""Uploads of records and of whole sweeps, and the note of what W&B has: `.wandb.json` in each folder."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from heapq import merge
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from multicard.measure.timing import timestamp
from multicard.records import run_folder, validate
from multicard.records.schema import AnyRecord
from multicard.tracking import history, keys, run_record
from multicard.tracking.run_record import About
from multicard.tracking.timeline import Moment, Timeline
from multicard.tracking.wandb_run import Table, Target, WandbRun, server

NOTE = ".wandb.json"
Records = Mapping[Path, AnyRecord]  # by run folder


def record(folder: Path, target: Target, name: str | None = None) -> None:
    """Upload the record of a run folder, and note it. Where an earlier try left a part, the rest follows.

    Args:
        name: of the run in W&B, where it is known.

    Raises:
        RuntimeError: if W&B fails.
        OSError: a file cannot be read.
    """
    content, result = _read(folder)
    about = run_record.about(folder, result, name)
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as own:
        run = WandbRun.open(about, target, Path(own))
        finish(run, folder, result, run_folder.read_steps(folder))
    note(folder, about.id, target, digest(content), run.url)


def _read(folder: Path) -> tuple[bytes, AnyRecord]:
    """result.json, and the record in it."""
    content = (folder / run_folder.RESULT).read_bytes()
    try:
        return content, validate.decode(content)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def finish(run: WandbRun, folder: Path, result: AnyRecord, steps: Any) -> None:
    """Write all of a record that W&B does not have yet, and end the run.

    Args:
        steps: of all ranks (an Arrow table); None where there are none.
    """
    timeline, rows = Timeline.of(result), history.rows(result, steps)
    told = run.attempts_before
    unsent_at = timeline.attempts[told].started_at if told < len(timeline.attempts) else math.inf
    samples = ((at, -1, values) for at, values in history.samples(folder, result.gpu, timeline) if at >= unsent_at)
    events = ((row.moment.at, number, row.values) for number, row in enumerate(rows))
    for at, number, values in merge(events, samples, key=lambda event: event[0]):
        if number >= 0:
            run.row(number, values, rows[number].moment)
        else:
            run.sample(at, values)
    if profiled := run_record.profile_rows(result):
        run.media(len(rows), keys.PROFILE_TABLE, Table(run_record.PROFILE_COLUMNS, profiled), timeline.end)
    if (data := run_record.dataset(result)) is not None:
        name, files, facts = data
        run.artifact(name, run_record.DATASET, files, facts, used=True)
    facts = {name: getattr(result, name) for name in ("kind", "name", "status", "identity", "commit")}
    name = f"{run_record.RECORD}-{run_record.run_id(result)}"
    run.artifact(name, run_record.RECORD, run_record.record_files(folder, result), facts)
    last = {key: value for row in rows for key, value in row.values.items()}
    run.finish(last | run_record.summary(result), timeline.end, run_record.exit_code(result))


@dataclass(frozen=True)
class Sweep:
    """A sweep as it is now: records of its runs, its table, and the HTML file about it; None if it has only probes."""

    folder: Path
    records: Records
    table: Table
    report: Path | None


def sweep(sweep: Sweep, target: Target) -> None:
    """Upload the run of a whole sweep, and note it; one that W&B has is brought up to date.

    Raises:
        RuntimeError: if W&B fails.
        OSError: a file cannot be read or written.
    """
    records = list(sweep.records.values())
    clocks = list(map(Timeline.of, records))
    started_at, ended_at = min(clock.started_at for clock in clocks), max(clock.end.at for clock in clocks)
    end = Moment(ended_at, ended_at - started_at)
    about = About(
        sweep_id(sweep.folder, sweep.records, target),
        f"{sweep.folder.name}: all runs",
        sweep.folder.name,
        keys.SWEEP,
        tuple(dict.fromkeys(tag for record in records for tag in run_record.user_tags(record))),
        {"runs": len(records), **_common([record.axes for record in records])},
        started_at,
    )
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as own:
        run = WandbRun.open(about, target, Path(own))
        run.media(run.next_row, keys.SWEEP_TABLE, sweep.table, end)
        if sweep.report is not None:
            run.media(run.next_row, keys.SWEEP_REPORT, sweep.report, end)
        counts = Counter(record.status for record in records)
        counted = {f"runs.{status}": counts[status] for status in (*run_folder.STATUSES, *counts)}
        run.finish({"runs": len(records), **counted}, end, 0)
    note(sweep.folder, about.id, target, sweep_digest(sweep.records), run.url)


def sweep_id(folder: Path, records: Records, target: Target) -> str:
    """The id of a sweep's run: of its latest upload to the same place, as cells may have been measured again since;
    without one, from its first run."""
    uploaded = [upload["run"] for upload in _uploads(folder, _place(target))]
    for run in reversed(uploaded):
        if run.startswith(f"{keys.SWEEP}-"):
            return run
    _, first = min((Timeline.of(record).started_at, run_record.run_id(record)) for record in records.values())
    return f"{keys.SWEEP}-{sha256(first.encode()).hexdigest()[:12]}"


def _common(axes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The axes of all runs; None where they differ, as W&B keeps what an earlier upload said of one without a name."""
    names = dict.fromkeys(name for own in axes for name in own)
    values = {name: [own.get(name) for own in axes] for name in names}
    return {name: every[0] if all(value == every[0] for value in every) else None for name, every in values.items()}


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def sweep_digest(records: Records) -> str:
    return digest(msgspec.json.encode({folder.name: record for folder, record in records.items()}, order="sorted"))


def has_record(folder: Path, target: Target) -> bool:
    """True if W&B has the record of a run folder as it is now."""
    content, result = _read(folder)
    return _has(folder, run_record.run_id(result), target, digest(content))


def has_sweep(folder: Path, records: Records, target: Target) -> bool:
    """True if W&B has the run of a whole sweep as it is now."""
    return _has(folder, sweep_id(folder, records, target), target, sweep_digest(records))


def _has(folder: Path, run_id: str, target: Target, content: str) -> bool:
    return bool(_uploads(folder, _place(target) | {"run": run_id, "content": content}))


def note(folder: Path, run_id: str, target: Target, content: str, url: str | None) -> None:
    """Note an upload; another of the same run in the same place is replaced.

    Args:
        content: digest of what the run was made of.
    """
    key = _place(target) | {"run": run_id}
    others = [upload for upload in _uploads(folder, {}) if not key.items() <= upload.items()]
    upload = key | {"content": content, "url": url, "uploaded_at": timestamp()}
    run_folder.write_json(folder / NOTE, {"uploads": [*others, upload]})


def _place(target: Target) -> dict[str, Any]:
    return {"server": server(), "entity": target.entity, "project": target.project}


def _uploads(folder: Path, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The noted uploads of a folder that have these values."""
    uploads = (run_folder.read_json(folder / NOTE) or {}).get("uploads", [])
    return [upload for upload in uploads if key.items() <= upload.items()]
