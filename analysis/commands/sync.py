"""`sync`: bring every record that W&B does not have yet to W&B, and a run for each sweep, with its table and report.

It works from the records alone, also of runs that were measured with tracker.mode=disabled, and can be repeated: a
record goes to the same run each time, and what W&B has is not sent again. A `.wandb.json` in each folder says what that
is. Project and entity are those of the runs' own tracker.project and tracker.entity unless they are given. Where a
record has none, as a refused run's, they are those of most runs of its sweep.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.commands import list_runs
from analysis.runs import load
from analysis.runs.load import Run
from multicard.config.base import TrackerConfig, TrackerMode
from multicard.config.job import count
from multicard.machine import network
from multicard.measure.timing import pause
from multicard.records import run_folder
from multicard.records.figures import FIGURES
from multicard.records.schema import AnyRecord
from multicard.records.text_table import clean
from multicard.tracking import run_record, upload
from multicard.tracking.wandb_run import NotLoggedInError, Table, Target, server

TRIES = 3
WAIT_S = 5.0  # before the second try; twice as long before the third
FINISH_S = 600.0  # within which one run is uploaded
Place = tuple[str | None, str | None]  # project and entity
Send = Callable[[], None]
WriteReport = Callable[[Path, Path], object]  # of the runs in a folder, to a file


@dataclass(frozen=True)
class Outcome:
    """The number of uploads, the number that W&B had before, and why it lacks the others, by their folder."""

    sent: int
    had: int
    failed: Mapping[Path, str]

    def lines(self) -> list[str]:
        lines = [f"not uploaded: {clean(str(folder))}: {clean(why)}" for folder, why in self.failed.items()]
        lines.append(f"uploaded {self.sent}" + (f"; W&B had {self.had} already" if self.had else ""))
        if self.failed:
            failed = count(len(self.failed), "upload")
            lines.append(f"{failed} failed {TRIES} times: the same command tries them again")
        return lines


def sync(runs: Sequence[Run], place: Place, write_report: WriteReport) -> Outcome:
    """Upload what W&B does not have, runs first, then their sweeps; what fails is tried again after all others.

    Args:
        place: for all runs; None for their own.

    Raises:
        ValueError: W&B cannot be reached, or has no key of the user's.
    """
    from rich.console import Console
    from rich.progress import track

    url = server()
    if (why := network.problem(url)) is not None:
        raise ValueError(f"cannot reach {url} ({why}); see that there is network, and WANDB_BASE_URL")
    uploads = list(_uploads(runs, place, write_report))
    left = {folder: send for folder, send in uploads if send is not None}
    total, failed = len(left), dict[Path, str]()
    for number in range(TRIES):
        pause(WAIT_S * number if left else 0.0)
        bar = {"console": Console(stderr=True), "transient": True, "disable": not sys.stderr.isatty()}
        tried = {folder: _problem(url, send) for folder, send in track(left.items(), "uploading", len(left), **bar)}
        failed = {folder: why for folder, why in tried.items() if why is not None}
        left = {folder: left[folder] for folder in failed}
    return Outcome(total - len(failed), len(uploads) - total, failed)


def _problem(url: str, send: Send) -> str | None:
    if (why := network.problem(url)) is not None:  # W&B itself would wait for minutes
        return f"cannot reach {url} ({why})"
    try:
        send()
    except NotLoggedInError as error:
        raise ValueError(f"W&B: {error}; log in first: wandb login") from error
    except (RuntimeError, OSError, ValueError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


def _uploads(runs: Sequence[Run], place: Place, write_report: WriteReport) -> Iterator[tuple[Path, Send | None]]:
    """The folder of each run, and of each sweep of several, with what uploads it; None where W&B has it."""
    for folder, group in groupby(sorted(runs, key=lambda run: run.folder), lambda run: run.folder.parent):
        own = list(group)
        records = _records(own)
        places = [found for record in records.values() if (found := _place(record)) is not None]
        ((common, _),) = Counter(places).most_common(1) or [((TrackerConfig().project, None), 0)]
        for run, record in records.items():
            target = _target(place, _place(record) or common)
            yield run, None if upload.has_record(run, target) else partial(upload.record, run, target)
        if len(own) > 1:
            every = [run for run in load.read([folder], probes=True).runs if run.folder.parent == folder]
            records, target = _records(every), _target(place, common)  # of the whole sweep
            sent = upload.has_sweep(folder, records, target)
            yield folder, None if sent else partial(_send_sweep, folder, every, records, target, write_report)


def _send_sweep(
    folder: Path, runs: Sequence[Run], records: upload.Records, target: Target, write_report: WriteReport
) -> None:
    with TemporaryDirectory(prefix="multicard-report-") as own:
        page = None
        if any(not run_folder.is_probe(records[run.folder], run.folder) for run in runs):
            page = Path(own) / "report.html"
            write_report(folder, page)
        upload.sweep(folder, records, table(runs, records), page, target)


def _records(runs: Sequence[Run]) -> upload.Records:
    return {run.folder: run.record() for run in runs}


def _place(record: AnyRecord) -> Place | None:
    """Project and entity that a record names; None where it has no configuration."""
    tracker = record.config.get("tracker")
    return (tracker.get("project") or TrackerConfig().project, tracker.get("entity")) if tracker else None


def _target(place: Place, own: Place) -> Target:
    project, entity = place[0] or own[0] or "", place[1] or own[1]
    return Target(TrackerMode.online, project, entity, FINISH_S)


def table(runs: Sequence[Run], records: upload.Records) -> Table:
    """A sweep's table: what tells its runs apart, how they ended and all figures they have."""
    apart = [
        name
        for kind in dict.fromkeys(run["kind"] for run in runs)
        for name in list_runs.differing([run for run in runs if run["kind"] == kind])
    ]
    names = dict.fromkeys([*apart, "status", "cause", *FIGURES])
    known = [name for name in names if any(run[name] is not None for run in runs)]
    rows = []
    for run in runs:
        own = run_record.short_name(run.folder.name), run_record.run_id(records[run.folder])
        rows.append([*own, *(run[name] for name in known)])
    return Table(["run", "id", *known], rows)
