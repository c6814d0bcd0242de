"""Brings a dashboard to W&B's server: the same views again, where they are there already."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import wandb
from wandb.sdk.lib import wbauth
from wandb_workspaces._graphql import execute_graphql, get_app_url
from wandb_workspaces.reports.v2 import gql

from analysis.dashboard.views import WORKSPACE, View
from multicard.machine import network

ELSE = "--dry-run FILE writes the dashboard without W&B"
FIND_VIEW = """
query FindView($entityName: String, $projectName: String, $type: String, $viewName: String) {
  project(name: $projectName, entityName: $entityName) {
    allViews(viewType: $type, viewName: $viewName) { edges { node { id name } } }
  }
}
"""


class Destination(NamedTuple):
    """A project of W&B's server, by the server's own number too, and the login by which it is reached."""

    api: wandb.Api
    entity: str
    project: str
    project_id: str | int


def connect(entity: str | None, project: str) -> Destination:
    """Log in, and see that the project is there.

    Args:
        entity: a user or team; None for the account's default.

    Raises:
        ValueError: no server, no login, or no such project that the account may see.
    """
    url = wandb.setup().settings.base_url
    if (why := network.problem(url)) is not None:
        raise ValueError(f"cannot reach {url} ({why}); {ELSE}")
    with _as_value_error():
        login = wbauth.authenticate_session(host=url, source="dashboard", prompt=False, update_session=False)
    if login is None:
        raise ValueError(f"no login at {url}: `wandb login` makes one; {ELSE}")
    with _as_value_error():
        api = wandb.Api()
        owner = entity or api.default_entity
    if owner is None:
        raise ValueError("the account has no default user or team; name one with --entity")
    found = _ask(api, gql.projectInternalId, entityName=owner, projectName=project)["project"]
    if found is None:
        raise ValueError(
            f"no project {owner}/{project} that this account can see: check --entity and --project; the first run "
            "that is uploaded makes it (tracker.mode=online)"
        )
    return Destination(api, owner, project, found["internalId"])


def send(to: Destination, views: Sequence[View]) -> Iterator[str]:
    """Make or replace each view; yield a line with its address as soon as it is there.

    Raises:
        ValueError: the server refuses one; those before it are there.
    """
    place = {"entityName": to.entity, "projectName": to.project}
    for view in views:
        found = _ask(to.api, FIND_VIEW, **place, type=view["type"], viewName=view["name"])["project"] or {}
        nodes = [edge["node"] for edge in found.get("allViews", {}).get("edges", [])]
        known = [{"id": node["id"]} for node in nodes if node["name"] == view["name"]][:1]
        content = view | {"spec": json.dumps(view["spec"])}
        answer = _ask(to.api, gql.upsert_view, **place, **content, **(known[0] if known else {}))
        yield f"{'replaced' if known else 'made'} {_address(to, view, answer['upsertView']['view']['id'])}"


def _address(to: Destination, view: View, identifier: str) -> str:
    project = f"{get_app_url(to.api).rstrip('/')}/{quote(to.entity)}/{quote(to.project)}"
    if view["type"] == WORKSPACE:
        return f"{project}?nw={view['name'].removeprefix('nw-').removesuffix('-v')}"
    words = re.sub(r"[^0-9A-Za-z]+", "-", view["displayName"]).strip("-")
    return f"{project}/reports/{words}--{identifier}"


def _ask(api: wandb.Api, query: str, **variables: str) -> dict[str, Any]:
    with _as_value_error():
        return execute_graphql(api, query, variables)


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Turn any of W&B's errors into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        raise ValueError(f"W&B failed ({type(error).__name__}: {first}); {ELSE}") from error
