"""`sync`: bring every record that W&B does not have yet to W&B.

It works from the records alone, also of runs that were measured with tracker.mode=disabled, and can
be repeated: a record goes to the same run each time, and what W&B has is not sent again. A
`.wandb.json` in each folder says what that is. Project and entity are those of the runs' own
tracker.project and tracker.entity unless they are given. Where a record has none,
as a refused run's, they are those of most runs of its sweep.
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
WAIT_S = 5.0  # before the second try; twice as long before the third
FINISH_S = 600.0  # within which one run is uploaded
Place = tuple[str | None, str | None]  # project and entity


def sync(runs: Sequence[Run], place: Place) -> tuple[list[str], int]:
    """Upload what W&B does not have; what fails is tried again after all others. Returns lines
    about it, and 1 where an upload failed, else 0.

    Args:
        place: for all runs; None for their own.

    Raises:
        ValueError: W&B cannot be reached, or has no key of the user's.
    """
    from rich.console import Console
    from rich.progress import track

    url = server()
    if (why := network.problem(url)) is not None:
        said = f"cannot reach {url} ({why}); check the network and WANDB_BASE_URL"
        raise Refusal("sync.no-server", said, url=url, why=why)
    targets = dict(_targets(runs, place))
    left = {
        folder: target
        for folder, target in targets.items()
        if not upload.has_record(folder, target)
    }
    total = len(left)
    failed = dict[Path, str]()
    for number in range(TRIES):
        pause(WAIT_S * number if left else 0.0)
        bar = {
            "console": Console(stderr=True),
            "transient": True,
            "disable": not sys.stderr.isatty(),
        }
        tried = {
            folder: _problem(url, folder, to)
            for folder, to in track(left.items(), "uploading", len(left), **bar)
        }
        failed = {folder: why for folder, why in tried.items() if why is not None}
        left = {folder: left[folder] for folder in failed}
    had = len(targets) - total
    lines = []
    for folder, why in failed.items():
        said = f"not uploaded: {clean(str(folder))}: {clean(why)}"
        lines.append(Message("sync.not-uploaded", said, folder=str(folder), why=why))
    uploaded = total - len(failed)
    said = f"uploaded {uploaded}" + (f"; W&B had {had} already" if had else "")
    lines.append(Message("sync.uploaded", said, n=uploaded, had=had))
    if failed:
        said = (
            f"{count(len(failed), 'upload')} failed {TRIES} times: the same command tries them"
            " again"
        )
        lines.append(Message("sync.failed", said, n=len(failed), tries=TRIES))
    return lines, int(bool(failed))


def _problem(url: str, folder: Path, target: WandbTarget) -> str | None:
    """Why the record of a folder could not be uploaded; None where it was."""
    if (why := network.problem(url)) is not None:  # W&B itself would wait for minutes
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
    """Where the record of each run folder goes."""
    for sweep in grouped(runs, lambda run: run.folder.parent).values():
        own = {run.folder: _place(run.record()) for run in sweep}
        ((common, _),) = Counter(filter(None, own.values())).most_common(1) or [
            ((TrackerConfig().project, None), 0)
        ]
        for folder, (project, entity) in (
            (folder, known or common) for folder, known in own.items()
        ):
            yield (
                folder,
                WandbTarget(
                    TrackerMode.online, place[0] or project or "", place[1] or entity, FINISH_S
                ),
            )


def _place(record: AnyRecord) -> Place | None:
    """Project and entity that a record names; None where it has no configuration."""
    tracker = record.config.get("tracker")
    return (
        (tracker.get("project") or TrackerConfig().project, tracker.get("entity"))
        if tracker
        else None
    )
