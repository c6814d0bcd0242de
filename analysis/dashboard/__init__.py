"""`dashboard`: the runs of a project in W&B as a saved workspace.

Its sections are made of the figures of `multicard.records.figures` over the keys that runs log
(`multicard.tracking.keys`). Another call replaces it, and what was changed there by hand.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from analysis.runs.load import Run
from multicard.config.base import TrackerConfig
from multicard.messages import typed
from multicard.records.run_folder import write_json


def command(runs: Sequence[Run]) -> str:
    """The command for a dashboard of the project in W&B that the first of these runs has."""
    project = next((run["tracker.project"] for run in runs if run["tracker.project"]), TrackerConfig().project)
    return f"{typed('-m analysis')} dashboard --project {shlex.quote(project)}"


def make(entity: str | None, project: str, dry_run: Path | None) -> str:
    """Make a workspace, or write its specification to the file `dry_run` without asking W&B; return a line about it.

    Args:
        entity: a user or team of W&B; None for the account's default.

    Raises:
        ValueError: no server, login or project.
    """
    from analysis.dashboard import views

    workspace = views.workspace()
    if dry_run is None:
        return views.send(workspace, entity, project)
    write_json(dry_run, {"entity": entity, "project": project, "workspace": workspace})
    return f"{dry_run}: a workspace of {len(views.sections())} sections"
