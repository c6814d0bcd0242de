"""`dashboard`: the runs of a project in W&B as a saved workspace and a report.

Both have the same sections, made of the figures of `multicard.records.figures` over the keys that runs log
(`multicard.tracking.keys`). Another call replaces them, and what was changed there by hand.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.runs.load import Run
from multicard.config.base import TrackerConfig
from multicard.records.run_folder import write_json


def command(runs: Sequence[Run]) -> str:
    """The command for a dashboard of the project in W&B that the first of these runs has."""
    project = next((run["tracker.project"] for run in runs if run["tracker.project"]), TrackerConfig().project)
    return f"python -m analysis dashboard --project {shlex.quote(project)}"


def make(entity: str | None, project: str, dry_run: Path | None) -> Iterator[str]:
    """Make a dashboard, or write it to a file without asking W&B; yield what became of it in lines.

    Args:
        entity: a user or team of W&B; None for the account's default.
        dry_run: the file for its specification, as JSON.

    Raises:
        ValueError: no server, login or project.
    """
    from analysis.dashboard import upload, views

    if dry_run is None:
        to = upload.connect(entity, project)
        yield from upload.send(to, views.build(to.entity, project, to.project_id))
        return
    built = views.build(entity or "", project)
    write_json(dry_run, {"entity": entity, "project": project, "views": built})
    yield f"{dry_run}: a workspace of {len(views.sections())} sections, and a report of the same"
