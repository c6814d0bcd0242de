"""`sync`: bring every record that W&B does not have yet to W&B, and a run for each sweep, with its table and report.

It works from the records alone, also of runs that were measured with tracker.mode=disabled, and can be repeated: a
record goes to the same run each time, and what W&B has is not sent again. A `.wandb.json` in each folder says what that
is. Project and entity are those of the runs' own tracker.project and tracker.entity unless they are given. Where a
record has none, as a refused run's, they are those of most runs of its sweep.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analysis.commands import list_runs
from analysis.runs import load
from analysis.runs.load import Run
from multicard.config.base import TrackerConfig, TrackerMode
from multicard.config.job import count
from multicard.machine import network
from multicard.measure.timing import pause
from multicard.records import probes, run_folder
from multicard.records.figures import FIGURES
from multicard.records.text_table import clean
from multicard.tracking import identity, sweep_run, upload, uploaded
from multicard.tracking.wandb_run import NotLoggedInError, Target, server

TRIES = 3
WAIT_S = 5.0  # before the second try; twice as long before the third
FINISH_S = 600.0  # within which one run is uploaded
Show = Callable[[str, int, int], None]  # what is uploaded now, how many of how many are
WriteReport = Callable[[Path, Path], object]  # of the runs in a folder, to a file


@dataclass(frozen=True)
class Upload:
    """Something that W&B does not have yet."""

    folder: Path
    send: Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """What became of the uploads: how many W&B has now, and why it lacks the others, by their folder."""

    sent: int
    had: int
    failed: Mapping[Path, str]

    def lines(self) -> list[str]:
        """What happened, for a person."""
        left = [f"not uploaded: {clean(str(folder))}: {clean(why)}" for folder, why in self.failed.items()]
        had = f"; W&B had {self.had} already" if self.had else ""
        again = (
            [f"{count(len(left), 'upload')} failed {TRIES} times: the same command tries them again"] if left else []
        )
        return [*left, f"uploaded {self.sent}{had}", *again]


def sync(
    runs: Sequence[Run], project: str | None, entity: str | None, write_report: WriteReport, show: Show
) -> Outcome:
    """Upload what W&B does not have, runs first, then their sweeps; what fails is tried again after all others.

    Args:
        project, entity: for all runs; None for their own.

    Raises:
        ValueError: W&B cannot be reached, or has no key of the user's.
    """
    url = server()
    if (why := _unreachable(url)) is not None:
        raise ValueError(f"{why}; see that there is network, and WANDB_BASE_URL")
    pending, had = [], 0
    for ready, waiting in _uploads(runs, project, entity, write_report):
        had += ready
        pending += [] if waiting is None else [waiting]
    failed: dict[Path, str] = {}
    total, left = len(pending), pending
    for tried in range(TRIES):
        pause(WAIT_S * tried)
        failed, again = {}, []
        for number, waiting in enumerate(left):
            show(waiting.folder.name, total - len(left) + number - len(again), total)
            why = _unreachable(url) or _problem(waiting)  # W&B itself would wait for minutes
            if why is not None:
                failed[waiting.folder] = why
                again.append(waiting)
        left = again
        if not left:
            break
    show("", total - len(left), total)
    return Outcome(total - len(failed), had, failed)


def _unreachable(url: str) -> str | None:
    why = network.problem(url)
    return None if why is None else f"cannot reach {url} ({why})"


def _problem(upload: Upload) -> str | None:
    """Send it; why it could not be sent, in a line."""
    try:
        upload.send()
    except NotLoggedInError as error:
        raise ValueError(f"W&B: {error}; log in first: wandb login") from error
    except (RuntimeError, OSError, ValueError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


def _uploads(
    runs: Sequence[Run], project: str | None, entity: str | None, write_report: WriteReport
) -> Iterator[tuple[bool, Upload | None]]:
    """For each run, and each sweep of which there are several: whether W&B has it, else its upload."""
    in_order = sorted(runs, key=lambda run: (run.folder.parent, run.folder))
    for sweep, group in groupby(in_order, lambda run: run.folder.parent):
        own = list(group)
        records = _records(own)
        common = _common_place(records.values())
        names = identity.short_names(run.folder.name for run in own)
        for folder, record in records.items():
            target = _target(_place(record) or common, project, entity)
            had = upload.is_uploaded(folder, target)
            yield had, None if had else Upload(folder, _run_sender(folder, target, names[folder.name]))
        if len(own) > 1:
            every = _all_of(sweep, own)
            records, target = _records(every), _target(common, project, entity)
            name = sweep_run.run_id(sweep, records, target)
            had = uploaded.is_uploaded(sweep, name, target, sweep_run.digest(records))
            yield had, None if had else Upload(sweep, _sweep_sender(sweep, every, records, target, write_report))


def _records(runs: Sequence[Run]) -> dict[Path, dict[str, Any]]:
    return {run.folder: run_folder.read_json(run.folder / run_folder.RESULT) or {} for run in runs}


def _all_of(sweep: Path, runs: Sequence[Run]) -> Sequence[Run]:
    """All runs of a sweep of which `runs` were asked for: its table and report are of the whole."""
    if sum(1 for _ in sweep.glob(f"[!.]*/{run_folder.RESULT}")) == len(runs):
        return runs
    return [run for run in load.read([sweep], probes=True).runs if run.folder.parent == sweep]


def _place(record: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Project and entity that a record names; None where it has no configuration."""
    tracker = (record.get("config") or {}).get("tracker")
    return (tracker.get("project") or TrackerConfig().project, tracker.get("entity")) if tracker else None


def _common_place(records: Iterable[Mapping[str, Any]]) -> tuple[str, str | None]:
    """That of most records."""
    places = Counter(place for record in records if (place := _place(record)) is not None)
    ((place, _),) = places.most_common(1) or [((TrackerConfig().project, None), 0)]
    return place


def _target(place: tuple[str, str | None], project: str | None, entity: str | None) -> Target:
    return Target(TrackerMode.online, project or place[0], entity or place[1], FINISH_S)


def _run_sender(folder: Path, target: Target, name: str) -> Callable[[], None]:
    return lambda: upload.record(folder, target, name)


def _sweep_sender(
    folder: Path, runs: Sequence[Run], records: Mapping[Path, Mapping[str, Any]], target: Target, report: WriteReport
) -> Callable[[], None]:
    def send() -> None:
        columns, rows = table(runs, records)
        with TemporaryDirectory(prefix="multicard-report-") as own:
            page = None
            if any(not probes.is_probe(records[run.folder].get("config") or {}, run.folder) for run in runs):
                page = Path(own) / "report.html"
                report(folder, page)
            sweep_run.upload(sweep_run.Sweep(folder, records, columns, rows, page), target)

    return send


def table(runs: Sequence[Run], records: Mapping[Path, Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """The columns and rows of a sweep's table: what tells its runs apart, how they ended and all figures they have.

    Args:
        records: of the runs, by their folder.
    """
    apart = [
        name
        for kind in dict.fromkeys(run["kind"] for run in runs)
        for name in list_runs.differing([run for run in runs if run["kind"] == kind])
    ]
    names = list(dict.fromkeys([*apart, "status", "cause", *FIGURES]))
    known = [name for name in names if any(run[name] is not None for run in runs)]
    cells = identity.short_names(run.folder.name for run in runs)
    rows = [
        [
            cells[run.folder.name],
            identity.run_id(records[run.folder]),
            *(run[name] for name in known),
        ]
        for run in runs
    ]
    return ["run", "id", *known], rows
