"""`dashboard`: the runs of a project in W&B as a saved workspace,
the same again where it is there already.

Its sections have bars of all figures (`multicard.records.figures`) and figures against each other.
W&B itself adds a panel for every key over steps, epochs and seconds.
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

MOST_RUNS = 100  # in a panel
NAME = "multicard"
FASTEST = "Which is fastest"
SCALING = "Scaling and efficiency"
LEARNING = "Learning"
MEMORY = "Memory and bytes"
ENERGY = "Energy"
PHASES = "Where the time goes"
OPEN = (FASTEST, SCALING)
PARTS_OF_TIME = ("startup_s", "train_s", "evaluate_s", "compile_s")
PINNED = [
    "summary:status",
    "config:gpus.value",
    "config:precision.value",
    "summary:total_s",
    "summary:cause.message",
]
# tags of runs that are no results
UNSHOWN = (*(status for status in run_folder.STATUSES if status != "ok"), "probe")
FILTER = f"Tags() not in [{', '.join(map(repr, UNSHOWN))}]"  # a run that still trains has none
# type, name (W&B's id, by which a later upload finds it), displayName, description and spec
View = dict[str, Any]
ELSE = Message("dashboard.without", "`--dry-run FILE` writes the dashboard without W&B")
FIND_VIEW = """
query FindView($entityName: String, $projectName: String, $type: String, $viewName: String) {
  project(name: $projectName, entityName: $entityName) {
    allViews(viewType: $type, viewName: $viewName) { edges { node { id name } } }
  }
}
"""


def make(entity: str | None, project: str, dry_run: Path | None) -> str:
    """Make a workspace, or write its specification to the file `dry_run` without asking W&B;
    return a line about it.

    Args:
        entity: a user or team of W&B; None for the account's default.

    Raises:
        ValueError: no server, login or project.
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
    """The keys of a figure in a run's summary, which kinds may call otherwise;
    raises ValueError without any.
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


def _title(column: str) -> str:
    """A figure in words with the unit in which W&B shows it: "Peak memory (bytes)"."""
    words = FIGURES[column].title
    unit = FIGURES[column].unit.name
    return words[:1].upper() + words[1:] + (f" ({unit})" if unit else "")


def bars(title: str, metrics: Sequence[str], by: str | None = None) -> wr.BarPlot:
    """A bar for each run; with `by`, a key of the configuration,
    the mean of the runs of each value and their range.
    """
    grouped = (
        {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
        if by
        else {}
    )
    most = {"max_runs_to_show": MOST_RUNS, "max_bars_to_show": MOST_RUNS}
    return wr.BarPlot(title=title, metrics=list(metrics), **most, **grouped)


def measure(column: str, by: str | None = None) -> wr.BarPlot:
    return bars(_title(column) + (f" by {by}" if by else ""), summary_keys(column), by)


def points(y: str, x: str, kind: str) -> wr.ScatterPlot:
    """A figure of a kind of run against another, or against GPUs:
    ideal scaling is straight on logarithmic axes.
    """
    (y_key,) = summary_keys(y, [kind])
    scales = x == "gpus" or None
    words = "GPUs" if scales else _title(x)[:1].lower() + _title(x)[1:]
    x_axis = wr.Config(x) if scales else wr.SummaryMetric(*summary_keys(x, [kind]))
    both = f"{_title(y)} against {words}"
    return wr.ScatterPlot(
        title=both, x=x_axis, y=wr.SummaryMetric(y_key), log_x=scales, log_y=scales
    )


def _identified(place: str, panels: Sequence[Panel]) -> list[Panel]:
    """The panels with ids that their `place` says,
    so that the same dashboard has the same specification.
    """
    for number, panel in enumerate(panels):
        panel._id = _identifier(f"{place}/{number}")  # pyright: ignore[reportAttributeAccessIssue] - no UnknownPanel
    return list(panels)


def _identifier(name: str) -> str:
    """11 digits that W&B takes as an id, the same for the same name."""
    return hashlib.sha256(name.encode()).hexdigest()[:11]


def workspace() -> View:
    runs = ws.RunsetSettings(
        filters=FILTER,
        order=[expr.Ordering(expr.Summary("total_s"), ascending=True)],
        pinned_columns=PINNED,
    )
    layout = ws.SectionLayoutSettings(columns=3, rows=2)
    shown = [
        ws.Section(
            name=name, panels=_identified(name, own), is_open=name in OPEN, layout_settings=layout
        )
        for name, own in sections().items()
    ]
    made = ws.Workspace(
        entity="",
        project="",
        name=NAME,
        sections=shown,
        settings=ws.WorkspaceSettings(max_runs=MOST_RUNS),
        runset_settings=runs,
        auto_generate_panels=True,
    )
    spec = json.loads(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))
    # W&B's library draws one for each process
    spec["section"]["runSets"][0]["id"] = _identifier("run set")
    about = "made by python -m analysis dashboard"
    name = f"nw-{_identifier(NAME)}-v"
    return {
        "type": "project-view",
        "name": name,
        "displayName": NAME,
        "description": about,
        "spec": spec,
    }


def section_of(figure: Figure) -> str | None:
    """The section with the bars of a figure; None for counts, by which nothing is judged, and for
    what W&B does not
    have: it is derived of a whole record.
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
    """The panels of each section: bars of every figure in the section that suits it,
    and figures against each other.
    """
    own = {
        section: [
            measure(name) for name, figure in FIGURES.items() if section_of(figure) == section
        ]
        for section in (FASTEST, LEARNING, MEMORY, ENERGY, PHASES)
    }
    against = [
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
        FASTEST: [*own[FASTEST], *against, importance],
        SCALING: scaling,
        **{section: own[section] for section in (LEARNING, MEMORY)},
        ENERGY: [*own[ENERGY], points("energy_joules", "total_s", "vision")],
        PHASES: [bars("Parts of a step, mean (s)", phases), *own[PHASES]],
    }


def send(view: View, entity: str | None, project: str) -> str:
    """Make or replace a workspace of a user or team (None: the account's default);
    return a line with its address.

    Raises:
        ValueError: no server, no login, no such project that the account may see,
            or the server refuses the workspace.
    """
    url = wandb.setup().settings.base_url
    if (why := network.problem(url)) is not None:
        raise Refusal(
            "dashboard.no-server",
            f"cannot reach {url} ({why}); {ELSE}",
            url=url,
            why=why,
            remedy=ELSE,
        )
    try:
        return _sent(url, view, entity, project)
    except ValueError:
        raise
    except Exception as error:  # W&B raises many kinds
        first, *_ = str(error).splitlines() or [""]
        said = f"W&B failed ({type(error).__name__}: {first}); {ELSE}"
        raise Refusal("dashboard.failed", said, error=first, remedy=ELSE) from error


def _sent(url: str, view: View, entity: str | None, project: str) -> str:
    if (
        wbauth.authenticate_session(
            host=url, source="dashboard", prompt=False, update_session=False
        )
        is None
    ):
        said = f"no login at {url}: `wandb login` makes one; {ELSE}"
        raise Refusal("dashboard.no-login", said, url=url, remedy=ELSE)
    api = wandb.Api()
    owner = entity or api.default_entity
    if owner is None:
        raise Refusal(
            "dashboard.no-entity",
            "the account has no default user or team; name one with `--entity NAME`",
            key="--entity",
        )
    place = {"entityName": owner, "projectName": project}
    sought = place | {"type": view["type"], "viewName": view["name"]}
    found = execute_graphql(api, FIND_VIEW, sought)["project"]
    if found is None:
        raise Refusal(
            "dashboard.no-project",
            f"this account can see no project {owner}/{project}: check --entity and --project; the"
            " first run that is uploaded makes it (`tracker.mode=online`)",
            key="--project",
            project=f"{owner}/{project}",
        )
    nodes = [edge["node"] for edge in found["allViews"]["edges"]]
    known = next(({"id": node["id"]} for node in nodes if node["name"] == view["name"]), {})
    execute_graphql(api, gql.upsert_view, place | view | {"spec": json.dumps(view["spec"])} | known)
    address = f"{get_app_url(api).rstrip('/')}/{quote(owner)}/{quote(project)}"
    address += f"?nw={view['name'].removeprefix('nw-').removesuffix('-v')}"
    if known:
        return Message("dashboard.replaced", f"replaced {address}", address=address)
    return Message("dashboard.made", f"made {address}", address=address)
