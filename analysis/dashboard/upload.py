"""Brings a workspace to W&B's server: the same again, where it is there already."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import wandb
from wandb.sdk.lib import wbauth
from wandb_workspaces._graphql import execute_graphql, get_app_url
from wandb_workspaces.reports.v2 import gql

from analysis.dashboard.views import View
from multicard.machine import network

ELSE = "--dry-run FILE writes the dashboard without W&B"
FIND_VIEW = """
query FindView($entityName: String, $projectName: String, $type: String, $viewName: String) {
  project(name: $projectName, entityName: $entityName) {
    allViews(viewType: $type, viewName: $viewName) { edges { node { id name } } }
  }
}
"""


def send(view: View, entity: str | None, project: str) -> str:
    """Make or replace a workspace of a user or team (None: the account's default); return a line with its address.

    Raises:
        ValueError: no server, no login, no such project that the account may see, or the server refuses the workspace.
    """
    api = _logged_in()
    with _as_value_error():
        owner = entity or api.default_entity
    if owner is None:
        raise ValueError("the account has no default user or team; name one with --entity")
    place = {"entityName": owner, "projectName": project}
    found = _ask(api, FIND_VIEW, **place, type=view["type"], viewName=view["name"])["project"]
    if found is None:
        raise ValueError(
            f"no project {owner}/{project} that this account can see: check --entity and --project; the first run "
            "that is uploaded makes it (tracker.mode=online)"
        )
    nodes = [edge["node"] for edge in found["allViews"]["edges"]]
    known = [{"id": node["id"]} for node in nodes if node["name"] == view["name"]][:1]
    _ask(api, gql.upsert_view, **place, **view | {"spec": json.dumps(view["spec"])}, **(known[0] if known else {}))
    address = f"{get_app_url(api).rstrip('/')}/{quote(owner)}/{quote(project)}"
    return f"{'replaced' if known else 'made'} {address}?nw={view['name'].removeprefix('nw-').removesuffix('-v')}"


def _logged_in() -> wandb.Api:
    url = wandb.setup().settings.base_url
    if (why := network.problem(url)) is not None:
        raise ValueError(f"cannot reach {url} ({why}); {ELSE}")
    with _as_value_error():
        login = wbauth.authenticate_session(host=url, source="dashboard", prompt=False, update_session=False)
    if login is None:
        raise ValueError(f"no login at {url}: `wandb login` makes one; {ELSE}")
    with _as_value_error():
        return wandb.Api()


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
