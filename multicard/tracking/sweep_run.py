"""The W&B run of a whole sweep: its table and its report."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multicard.tracking import identity, keys, uploaded
from multicard.tracking.timeline import Moment, Timeline
from multicard.tracking.wandb_run import Target, WandbRun


@dataclass(frozen=True)
class Sweep:
    """A sweep as it is now.

    records: of its runs, by their folder.
    columns, rows: of its table.
    report: the HTML file about it.
    """

    folder: Path
    records: Mapping[Path, Mapping[str, Any]]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    report: Path


def run_id(records: Mapping[Path, Mapping[str, Any]]) -> str:
    """The same for a sweep that has grown: that of its first run, as one of a sweep."""
    first = min(records.values(), key=lambda record: (Timeline.of(record).started_at, identity.run_id(record)))
    return f"{keys.SWEEP}-{sha256(identity.run_id(first).encode()).hexdigest()[:12]}"


def digest(records: Mapping[Path, Mapping[str, Any]]) -> str:
    """Of all that the sweep holds: another as soon as a run of it is."""
    told = {folder.name: record for folder, record in records.items()}
    return uploaded.digest(json.dumps(told, sort_keys=True).encode())


def upload(sweep: Sweep, target: Target) -> None:
    """Upload the run of a sweep, and note that it was; one that W&B has is brought up to date.

    Raises:
        RuntimeError: if W&B fails.
        OSError: a file cannot be read or written.
    """
    clocks = [Timeline.of(record) for record in sweep.records.values()]
    started_at = min(clock.started_at for clock in clocks)
    ended_at = max(clock.end.at for clock in clocks)
    end = Moment(ended_at, ended_at - started_at)
    records = list(sweep.records.values())
    about = identity.About(
        run_id(sweep.records),
        f"{sweep.folder.name}: all runs",
        sweep.folder.name,
        keys.SWEEP,
        tuple(dict.fromkeys(tag for record in records for tag in identity.user_tags(record))),
        {"runs": len(records), **_shared([record.get("axes") or {} for record in records])},
        started_at,
    )
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as own:
        run = WandbRun.open(about, target, Path(own))
        run.table(run.next_row, keys.SWEEP_TABLE, sweep.columns, sweep.rows, end)
        run.page(run.next_row, keys.SWEEP_REPORT, sweep.report, end)
        counts = Counter(record["status"] for record in records)
        run.finish({"runs": len(records), **{f"runs.{status}": count for status, count in counts.items()}}, end, 0)
    uploaded.note(sweep.folder, about.id, target, digest(sweep.records), run.url)


def _shared(axes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The axes that all runs have in common."""
    first, *others = axes
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
