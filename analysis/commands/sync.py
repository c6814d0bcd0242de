"""`sync`: upload every record that W&B does not have yet.

It needs only the records, so it also uploads runs that were measured with tracker.mode=disabled. It
can be repeated: a record always goes to the same W&B run, and what W&B has is not sent again. A
`.wandb.json` in each run folder says what W&B has.

Unless they are given, project and entity are the run's own tracker.project and tracker.entity. A
record without them, as the record of a refused run, goes where most runs of its sweep go.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from multicard.config.base import TrackerConfig, TrackerMode
from multicard.config.job import count
from multicard.machine import network
from multicard.measure.timing import pause
from multicard.messages import Message, Refusal
from multicard.records.schema import AnyRecord
from multicard.records.text_table import clean
from multicard.tracking import upload
from multicard.tracking.wandb_run import NotLoggedInError, WandbTarget, server

from ..runs.grouping import grouped
from ..runs.load import Run

TRIES = 3
WAIT_S = 5.0  # The wait before the second try. It is twice as long before the third.
FINISH_S = 600.0  # The time limit for the upload of one run.
Place = tuple[str | None, str | None]  # Project and entity.


def sync(runs: Sequence[Run], place: Place) -> tuple[list[str], int]:
    """Upload the records that W&B does not have, and try failed uploads again after all others.

    Return lines about the uploads, and the exit code: 1 if an upload failed, else 0.

    Args:
        runs: the runs whose records are uploaded.
        place: project and entity for all runs. None stands for the run's own.

    Raises:
        ValueError: W&B cannot be reached, or the user is not logged in.
    """
    from rich.console import Console
    from rich.progress import track

    url = server()
    if (problem := network.problem(url)) is not None:
        text = f"cannot reach {url} ({problem}); check the network and WANDB_BASE_URL"
        raise Refusal("sync.no-server", text, url=url, why=problem)
    targets = dict(_targets(runs, place))
    pending = {
        folder: target
        for folder, target in targets.items()
        if not upload.has_record(folder, target)
    }
    total = len(pending)
    failed = dict[Path, str]()
    for number in range(TRIES):
        pause(WAIT_S * number if pending else 0.0)
        bar = {
            "console": Console(stderr=True),
            "transient": True,
            "disable": not sys.stderr.isatty(),
        }
        problems = {
            folder: _upload(url, folder, target)
            for folder, target in track(pending.items(), "uploading", len(pending), **bar)
        }
        failed = {folder: problem for folder, problem in problems.items() if problem is not None}
        pending = {folder: pending[folder] for folder in failed}
    already_there = len(targets) - total
    lines = []
    for folder, problem in failed.items():
        text = f"not uploaded: {clean(str(folder))}: {clean(problem)}"
        lines.append(Message("sync.not-uploaded", text, folder=str(folder), why=problem))
    uploaded = total - len(failed)
    text = f"uploaded {uploaded}" + (f"; W&B had {already_there} already" if already_there else "")
    lines.append(Message("sync.uploaded", text, n=uploaded, had=already_there))
    if failed:
        text = (
            f"{count(len(failed), 'upload')} failed {TRIES} times: the same command tries them"
            " again"
        )
        lines.append(Message("sync.failed", text, n=len(failed), tries=TRIES))
    return lines, int(bool(failed))


def _upload(url: str, folder: Path, target: WandbTarget) -> str | None:
    """Upload the record of a folder; return why that failed, or None if it succeeded."""
    # Without this test, W&B itself would wait for minutes.
    if (why := network.problem(url)) is not None:
        return Message("sync.lost-server", f"cannot reach {url} ({why})", url=url, why=why)
    try:
        upload.record(folder, target)
    except NotLoggedInError as error:
        raise Refusal(
            "sync.no-login", f"W&B: {error}; log in first: `wandb login`", error=str(error)
        ) from error
    except (RuntimeError, OSError, ValueError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


def _targets(runs: Sequence[Run], place: Place) -> Iterator[tuple[Path, WandbTarget]]:
    """Yield each run folder with the W&B run that its record goes to."""
    for sweep in grouped(runs, lambda run: run.folder.parent).values():
        place_by_folder = {run.folder: _place(run.record()) for run in sweep}
        most_frequent: Place = (TrackerConfig().project, None)
        for known_place, _ in Counter(filter(None, place_by_folder.values())).most_common(1):
            most_frequent = known_place
        for folder, own_place in place_by_folder.items():
            project, entity = own_place or most_frequent
            yield (
                folder,
                WandbTarget(
                    TrackerMode.online, place[0] or project or "", place[1] or entity, FINISH_S
                ),
            )


def _place(record: AnyRecord) -> Place | None:
    """Return the project and entity that a record names, or None if it has no configuration."""
    tracker = record.config.get("tracker")
    return (
        (tracker.get("project") or TrackerConfig().project, tracker.get("entity"))
        if tracker
        else None
    )
