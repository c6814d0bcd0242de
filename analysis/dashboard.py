"""`dashboard`: show the runs of a W&B project in a saved workspace, which later calls replace.

The sections of the workspace have bars of all figures (`multicard.records.figures`), and plots of
figures against each other. W&B itself adds a panel for every key over steps, epochs and seconds.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import wandb
import wandb_workspaces.workspaces as ws
from wandb.sdk.lib import wbauth
from wandb_workspaces import expr
from wandb_workspaces._graphql import execute_graphql, get_app_url
from wandb_workspaces.reports.v2 import gql
from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2.interface import PanelTypes as Panel

from multicard.machine import network
from multicard.measure import timing
from multicard.messages import Message, Refusal
from multicard.records import figures, run_folder
from multicard.records.figures import ALL, FIGURES, LLM, VISION, Figure

MAX_RUNS = 100  # The most runs that a panel shows.
NAME = "multicard"
FASTEST = "Which is fastest"
SCALING = "Scaling and efficiency"
LEARNING = "Learning"
MEMORY = "Memory and bytes"
ENERGY = "Energy"
PHASES = "Where the time goes"
OPEN_SECTIONS = (FASTEST, SCALING)
PARTS_OF_TIME = ("startup_s", "train_s", "evaluate_s", "compile_s")
PINNED_COLUMNS = [
    "summary:status",
    "config:gpus.value",
    "config:precision.value",
    "summary:total_s",
    "summary:cause.message",
]
# The tags of runs that have no result.
HIDDEN_TAGS = (*(status for status in run_folder.STATUSES if status != "ok"), "probe")
FILTER = (
    f"Tags() not in [{', '.join(map(repr, HIDDEN_TAGS))}]"  # A run that still trains has no tag.
)
# A view has type, name, displayName, description and spec. Its name is W&B's id, by which a later
# upload finds it.
View = dict[str, Any]
WITHOUT_WANDB = Message("dashboard.without", "`--dry-run FILE` writes the dashboard without W&B")
FIND_VIEW_QUERY = """
query FindView($entityName: String, $projectName: String, $type: String, $viewName: String) {
  project(name: $projectName, entityName: $entityName) {
    allViews(viewType: $type, viewName: $viewName) { edges { node { id name } } }
  }
}
"""


def make(entity: str | None, project: str, dry_run: Path | None) -> str:
    """Make a workspace and return a line about it.

    Args:
        entity: a user or team of W&B; None for the account's default.
        dry_run: a file to write the workspace's specification to, without asking W&B.

    Raises:
        ValueError: there is no server, login or project.
    """
    view = workspace()
    if dry_run is None:
        return send(view, entity, project)
    run_folder.write_json(dry_run, {"entity": entity, "project": project, "workspace": view})
    number = len(sections())
    return Message(
        "dashboard.written",
        f"{dry_run}: a workspace of {number} sections",
        file=str(dry_run),
        n=number,
    )


def summary_keys(column: str, kinds: Sequence[str] = ALL) -> list[str]:
    """Return the keys of a figure in a run's summary, which may differ by kind.

    Raises:
        ValueError: W&B has no such figure.
    """
    figure = FIGURES.get(column)
    keys = list[str]()
    if figure is not None:
        for kind in kinds:
            keys.extend(figure.summary_keys_of(kind))
    if not keys:
        runs = " or ".join(kinds)
        raise Refusal(
            "dashboard.no-figure",
            f"{column}: W&B has no such figure of {runs} runs (multicard/records/figures.py)",
            column=column,
            kinds=[*kinds],
        )
    return list(dict.fromkeys(keys))


def _figure_title(column: str) -> str:
    """Return a figure's title with the unit in which W&B shows it: "Peak memory (bytes)"."""
    words = FIGURES[column].title
    unit = FIGURES[column].unit.name
    return words[:1].upper() + words[1:] + (f" ({unit})" if unit else "")


def bars(title: str, metrics: Sequence[str], by: str | None = None) -> wr.BarPlot:
    """Return a bar for each run.

    With `by`, a key of the configuration, each value of it has a bar with the mean and the range.
    """
    grouping = (
        {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
        if by
        else {}
    )
    maxima = {"max_runs_to_show": MAX_RUNS, "max_bars_to_show": MAX_RUNS}
    return wr.BarPlot(title=title, metrics=list(metrics), **maxima, **grouping)


def measure(column: str, by: str | None = None) -> wr.BarPlot:
    return bars(_figure_title(column) + (f" by {by}" if by else ""), summary_keys(column), by)


def points(y: str, x: str, kind: str) -> wr.ScatterPlot:
    """Plot a figure of a kind of run against another figure, or against GPUs.

    Axes against GPUs are logarithmic, so that ideal scaling is a straight line.
    """
    (y_key,) = summary_keys(y, [kind])
    scales = x == "gpus" or None
    words = "GPUs" if scales else _figure_title(x)[:1].lower() + _figure_title(x)[1:]
    x_axis = wr.Config(x) if scales else wr.SummaryMetric(*summary_keys(x, [kind]))
    title = f"{_figure_title(y)} against {words}"
    return wr.ScatterPlot(
        title=title, x=x_axis, y=wr.SummaryMetric(y_key), log_x=scales, log_y=scales
    )


def _with_ids(place: str, panels: Sequence[Panel]) -> list[Panel]:
    """Give the panels ids that depend only on `place`.

    The same dashboard then has the same specification.
    """
    for number, panel in enumerate(panels):
        panel._id = _id_of(f"{place}/{number}")  # pyright: ignore[reportAttributeAccessIssue] - no UnknownPanel
    return list(panels)


def _id_of(name: str) -> str:
    """Return 11 digits that W&B takes as an id and that depend only on the name."""
    return hashlib.sha256(name.encode()).hexdigest()[:11]


def workspace() -> View:
    runs = ws.RunsetSettings(
        filters=FILTER,
        order=[expr.Ordering(expr.Summary("total_s"), ascending=True)],
        pinned_columns=PINNED_COLUMNS,
    )
    layout = ws.SectionLayoutSettings(columns=3, rows=2)
    sections_shown = [
        ws.Section(
            name=name,
            panels=_with_ids(name, panels),
            is_open=name in OPEN_SECTIONS,
            layout_settings=layout,
        )
        for name, panels in sections().items()
    ]
    new_workspace = ws.Workspace(
        entity="",
        project="",
        name=NAME,
        sections=sections_shown,
        settings=ws.WorkspaceSettings(max_runs=MAX_RUNS),
        runset_settings=runs,
        auto_generate_panels=True,
    )
    spec = json.loads(
        new_workspace._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    )
    # W&B's library draws a random id in each process.
    spec["section"]["runSets"][0]["id"] = _id_of("run set")
    description = "made by python -m analysis dashboard"
    name = f"nw-{_id_of(NAME)}-v"
    return {
        "type": "project-view",
        "name": name,
        "displayName": NAME,
        "description": description,
        "spec": spec,
    }


def section_of(figure: Figure) -> str | None:
    """Return the section with the bars of a figure, or None if it has none.

    Counts have none, because they do not judge a run. Figures that are derived from a whole record
    have none, because W&B lacks them.
    """
    if figure.keys == {}:
        return None
    if figure.unit is figures.BYTES:
        return MEMORY
    if "joules" in figure.name:
        return ENERGY
    if "accuracy" in figure.name or "loss" in figure.name:
        return LEARNING
    if figure.name in PARTS_OF_TIME or figure.title.startswith("step,"):
        return PHASES
    return FASTEST if figure.better else None


def sections() -> dict[str, Sequence[Panel]]:
    """Return the panels of each section: bars of its figures, and figures against each other."""
    bars_by_section = {
        section: [
            measure(name) for name, figure in FIGURES.items() if section_of(figure) == section
        ]
        for section in (FASTEST, LEARNING, MEMORY, ENERGY, PHASES)
    }
    trade_offs = [
        *(points(figures.LEARNING[kind][0], "total_s", kind) for kind in (VISION, LLM)),
        points("peak_memory_bytes", "total_s", VISION),
    ]
    scaling = [
        *(
            points(column, "gpus", "vision")
            for column in ("total_s", "trained_images_per_s", "step_s")
        ),
        *(points(column, "gpus", "llm") for column in ("tokens_per_s", "step_s")),
        *(
            measure(column, "gpus")
            for column in ("total_s", "joules_per_image", "joules_per_token", "mfu")
        ),
        measure("received_bytes", "gpus"),
    ]
    phases = [*(f"phases_s.{phase}" for phase in timing.PHASES), "data_s"]
    importance = wr.ParameterImportancePlot(with_respect_to=summary_keys("total_s")[0])
    return {
        FASTEST: [*bars_by_section[FASTEST], *trade_offs, importance],
        SCALING: scaling,
        **{section: bars_by_section[section] for section in (LEARNING, MEMORY)},
        ENERGY: [*bars_by_section[ENERGY], points("energy_joules", "total_s", "vision")],
        PHASES: [bars("Parts of a step, mean (s)", phases), *bars_by_section[PHASES]],
    }


def send(view: View, entity: str | None, project: str) -> str:
    """Make or replace a workspace of a user or team, and return a line with its address.

    Args:
        entity: the user or team; None for the account's default.

    Raises:
        ValueError: there is no server or login, the account cannot see the project, or the server
            refuses the workspace.
    """
    url = wandb.setup().settings.base_url
    if (problem := network.problem(url)) is not None:
        raise Refusal(
            "dashboard.no-server",
            f"cannot reach {url} ({problem}); {WITHOUT_WANDB}",
            url=url,
            why=problem,
            remedy=WITHOUT_WANDB,
        )
    try:
        return _send_to(url, view, entity, project)
    except ValueError:
        raise
    except Exception as error:  # W&B raises many kinds of errors.
        first_line, *_ = str(error).splitlines() or [""]
        text = f"W&B failed ({type(error).__name__}: {first_line}); {WITHOUT_WANDB}"
        raise Refusal("dashboard.failed", text, error=first_line, remedy=WITHOUT_WANDB) from error


def _send_to(url: str, view: View, entity: str | None, project: str) -> str:
    if (
        wbauth.authenticate_session(
            host=url, source="dashboard", prompt=False, update_session=False
        )
        is None
    ):
        text = f"no login at {url}: `wandb login` creates one; {WITHOUT_WANDB}"
        raise Refusal("dashboard.no-login", text, url=url, remedy=WITHOUT_WANDB)
    api = wandb.Api()
    owner = entity or api.default_entity
    if owner is None:
        raise Refusal(
            "dashboard.no-entity",
            "the account has no default user or team; name one with `--entity NAME`",
            key="--entity",
        )
    place = {"entityName": owner, "projectName": project}
    query = place | {"type": view["type"], "viewName": view["name"]}
    project_found = execute_graphql(api, FIND_VIEW_QUERY, query)["project"]
    if project_found is None:
        raise Refusal(
            "dashboard.no-project",
            f"this account can see no project {owner}/{project}: check --entity and --project; the"
            " first uploaded run creates it (`tracker.mode=online`)",
            key="--project",
            project=f"{owner}/{project}",
        )
    nodes = [edge["node"] for edge in project_found["allViews"]["edges"]]
    known_id = next(({"id": node["id"]} for node in nodes if node["name"] == view["name"]), {})
    execute_graphql(
        api, gql.upsert_view, place | view | {"spec": json.dumps(view["spec"])} | known_id
    )
    address = f"{get_app_url(api).rstrip('/')}/{quote(owner)}/{quote(project)}"
    address += f"?nw={view['name'].removeprefix('nw-').removesuffix('-v')}"
    if known_id:
        return Message("dashboard.replaced", f"replaced {address}", address=address)
    return Message("dashboard.made", f"made {address}", address=address)
