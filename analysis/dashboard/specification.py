"""A dashboard as plain data: what W&B's server is sent, and what --dry-run writes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wandb_workspaces.reports.v2 import internal

from analysis import experiments
from analysis.dashboard import panels, reports, workspace

WORKSPACE, REPORT = "project-view", "runs"  # W&B's types of views
WHOLE, WORKSPACE_NAME = "all", "workspace"  # names of parts, beside those of experiments


@dataclass(frozen=True)
class View:
    """A workspace or a report of a project.

    type: WORKSPACE or REPORT. name: W&B's id of it, by which a later upload finds it. title: as W&B shows it.
    spec: as W&B's server takes it.
    """

    type: str
    name: str
    title: str
    description: str
    spec: dict[str, Any]

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "name": self.name,
            "displayName": self.title,
            "description": self.description,
            "spec": self.spec,
        }


def require(name: str) -> None:
    """Raise a ValueError unless a dashboard has a part of that name."""
    if name not in (parts := [WHOLE, WORKSPACE_NAME, *experiments.names()]):
        raise ValueError(f"no dashboard {name}; there are {', '.join(parts)}")


def build(name: str, entity: str, project: str, project_id: str | int | None = None) -> list[View]:
    """The views of a dashboard, the workspace first.

    Args:
        name: WHOLE, `workspace` or an experiment.
        entity, project: where its runs are; empty entity for the account's own, of which only an upload knows.
        project_id: of W&B's server, for run sets; without it they are of the project that the report is in.

    Raises:
        ValueError: no such part.
    """
    require(name)
    parts = {WORKSPACE_NAME: _workspace, **dict.fromkeys(experiments.names(), _report)}
    found = internal.Project(entity_name=entity, name=project, id=project_id) if project_id is not None else None
    return [view(part, entity, project, found) for part, view in parts.items() if name in (WHOLE, part)]


def _workspace(_: str, entity: str, project: str, __: internal.Project | None) -> View:
    model = workspace.build(entity, project)._to_model()
    spec = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    spec["section"]["runSets"][0]["id"] = panels.identifier("run set")  # W&B's library draws one for each process
    return View(WORKSPACE, f"nw-{panels.identifier(workspace.NAME)}-v", workspace.NAME, "", spec)


def _report(name: str, entity: str, project: str, found: internal.Project | None) -> View:
    report = reports.build(entity, project, experiments.load(name))
    model = report._to_model()
    for run_set in _run_sets(model.spec.blocks):
        run_set.project = found
    spec = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    identifier = panels.identifier(f"{workspace.NAME}/{name}")
    return View(REPORT, identifier, report.title, report.description, spec)


def _run_sets(blocks: Sequence[Any]) -> Iterator[internal.Runset]:
    for block in blocks:
        if isinstance(block, internal.PanelGrid):
            yield from block.metadata.run_sets
        elif isinstance(block, internal.Heading):
            yield from _run_sets(block.collapsed_children or [])


def counts(views: Sequence[View]) -> str:
    """What is in a dashboard, in words."""
    sections = [section for view in views if view.type == WORKSPACE for section in sections_of(view)]
    panels_there = sum(len(section["panels"]) for section in sections)
    written = sum(view.type == REPORT for view in views)
    parts = [f"a workspace of {len(sections)} sections and {panels_there} panels"] if sections else []
    parts += [f"{written} report{'s' * (written != 1)}"] if written else []
    return ", ".join(parts)


def sections_of(view: View) -> list[dict[str, Any]]:
    """The sections of a workspace, as W&B's server takes them."""
    return view.spec["section"]["panelBankConfig"]["sections"]
