"""The W&B run of a whole sweep: its table and its report."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multicard.records import run_folder
from multicard.tracking import identity, keys, uploaded
from multicard.tracking.timeline import Moment, Timeline
from multicard.tracking.wandb_run import Target, WandbRun


@dataclass(frozen=True)
class Sweep:
    """A sweep as it is now.

    records: of its runs, by their folder.
    columns, rows: of its table.
    report: the HTML file about it; None where it has probes alone, of which there is no report.
    """

    folder: Path
    records: Mapping[Path, Mapping[str, Any]]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    report: Path | None


def run_id(folder: Path, records: Mapping[Path, Mapping[str, Any]], target: Target) -> str:
    """That of its earlier upload to the same place, if there was one, as its cells may have been measured again since;
    else that of its first run, as one of a sweep."""
    before = uploaded.latest_run(folder, target, f"{keys.SWEEP}-")
    if before is not None:
        return before
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
        run_id(sweep.folder, sweep.records, target),
        f"{sweep.folder.name}: all runs",
        sweep.folder.name,
        keys.SWEEP,
        tuple(dict.fromkeys(tag for record in records for tag in identity.user_tags(record))),
        {"runs": len(records), **_common_axes([record.get("axes") or {} for record in records])},
        started_at,
    )
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as own:
        run = WandbRun.open(about, target, Path(own))
        run.table(run.next_row, keys.SWEEP_TABLE, sweep.columns, sweep.rows, end)
        if sweep.report is not None:
            run.page(run.next_row, keys.SWEEP_REPORT, sweep.report, end)
        counts = Counter(record["status"] for record in records)
        counted = {f"runs.{status}": counts[status] for status in (*run_folder.STATUSES, *counts)}
        run.finish({"runs": len(records), **counted}, end, 0)
    uploaded.note(sweep.folder, about.id, target, digest(sweep.records), run.url)


def _common_axes(axes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The axes of the runs with the value that all have in common; None where they differ, as W&B keeps what an earlier
    upload said of an axis that is not named."""
    first = axes[0]
    names = dict.fromkeys(name for of_run in axes for name in of_run)
    return {
        name: first.get(name) if all(of_run.get(name) == first.get(name) for of_run in axes) else None for name in names
    }
