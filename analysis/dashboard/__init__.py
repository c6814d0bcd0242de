"""`dashboard`: the runs of a project in W&B as a saved workspace, and a report for each experiment of the papers.

Both are made of what the project's own tables and figures show (`analysis.runs.columns`, the views of
`conf/experiment`), over the keys that runs log (`multicard.tracking.keys`). NAME makes a part: `workspace` or an
experiment. Another call replaces what the first has made, with whatever was changed there by hand.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.runs.load import Run
from multicard.config.base import TrackerConfig
from multicard.records.run_folder import write_json, write_text


def command(runs: Sequence[Run]) -> str:
    """What makes the dashboard of the project that these runs name for W&B, the most frequent of several."""
    projects = Counter(run["tracker.project"] for run in runs if run["tracker.project"])
    ((project, _),) = projects.most_common(1) or [(TrackerConfig().project, 0)]
    return f"python -m analysis dashboard --project {shlex.quote(project)}"


def make(name: str, entity: str | None, project: str, dry_run: Path | None, drawing: Path | None) -> Iterator[str]:
    """Make a dashboard, or write it to files without asking W&B; yield what became of it in lines.

    Args:
        name: all, workspace or an experiment.
        entity: a user or team of W&B; None for the account's default.
        dry_run: the file for its specification, as JSON. drawing: the file for its picture, as SVG.

    Raises:
        ValueError: no such part, server, login or project.
    """
    from analysis.dashboard import draw, specification

    if dry_run is None and drawing is None:
        from analysis.dashboard import upload

        specification.require(name)
        to = upload.connect(entity, project)
        yield from upload.send(to, specification.build(name, to.entity, project, to.project_id))
        return
    views = specification.build(name, entity or "", project)
    if dry_run is not None:
        write_json(dry_run, {"entity": entity, "project": project, "views": [view.as_json for view in views]})
        yield f"{dry_run}: {specification.counts(views)}"
    if drawing is not None:
        write_text(drawing, draw.picture(views))
        yield f"{drawing}: {specification.counts(views)}"
