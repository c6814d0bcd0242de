"""What the views of a dashboard read, from their specification, and whether runs log it."""

from collections.abc import Iterable, Iterator
from typing import Any

import wandb_workspaces.workspaces as ws
from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2 import internal as reports
from wandb_workspaces.workspaces import internal as workspaces

from analysis.dashboard import lookup
from analysis.dashboard.specification import WORKSPACE
from analysis.dashboard.workspace import MOST_GPUS
from multicard.config.keys import flat
from multicard.tracking import keys

Key = tuple[str, str]  # section (history, summary, config, run or table) and name
ALL = (*keys.BOTH, keys.SWEEP)
OF_RUNS = ("jobType", "tags", "displayName", "createdAt")  # what W&B itself knows of every run
X_OF_TIME = "_absolute_runtime"
GPUS = {f"gpu.{index}.{metric}" for index in range(MOST_GPUS) for metric, _ in keys.GPU_SAMPLES.values()}
SYSTEM = {*GPUS, *keys.MACHINE_SAMPLES.values()}


def load(view: dict[str, Any]) -> ws.Workspace | wr.Report:
    """A view of `--dry-run` through wandb-workspaces' own reader."""
    if view["type"] == WORKSPACE:
        spec = workspaces.WorkspaceViewspec.model_validate(view["spec"])
        names = {"display_name": view["displayName"], "name": view["name"]}
        return ws.Workspace._from_model(workspaces.View(entity="e", project="p", id="", spec=spec, **names))
    spec = reports.Spec.model_validate(view["spec"])
    names = {"display_name": view["displayName"], "name": view["name"], "description": view["description"]}
    project = reports.Project(name="p", entity_name="e")
    return wr.Report._from_model(reports.ReportViewspec(project=project, spec=spec, **names))


def panels(view: dict[str, Any]) -> list[dict[str, Any]]:
    if view["type"] == WORKSPACE:
        return [panel for section in sections(view) for panel in section["panels"]]
    return [panel for grid in grids(view) for panel in grid["panelBankSectionConfig"]["panels"]]


def sections(view: dict[str, Any]) -> list[dict[str, Any]]:
    return view["spec"]["section"]["panelBankConfig"]["sections"]


def grids(view: dict[str, Any]) -> list[dict[str, Any]]:
    """The panel grids of a report, with those below a folded heading."""

    def below(blocks: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for block in blocks:
            if block["type"] == "panel-grid":
                yield block["metadata"]
            yield from below(block.get("collapsedChildren") or [])

    return list(below(view["spec"]["blocks"]))


def run_sets(view: dict[str, Any]) -> list[dict[str, Any]]:
    own = [view["spec"]["section"]] if view["type"] == WORKSPACE else grids(view)
    return [run_set for part in own for run_set in part["runSets"]]


def read_by_panel(panel: dict[str, Any]) -> set[Key]:
    """The keys that a panel reads.

    Raises:
        KeyError: a kind of panel of which this knows nothing.
    """
    config = panel["config"]
    if panel["viewType"] == "Run History Line Plot":
        return {("history", name) for name in (config["xAxis"], *config["metrics"])}
    if panel["viewType"] == "Bar Chart":
        grouped = {("config", _stored(config["groupBy"]))} if "groupBy" in config else set()
        return {("summary", name) for name in config["metrics"]} | grouped
    if panel["viewType"] == "Scatter Plot":
        return {_accessed(config[axis]) for axis in ("xAxis", "yAxis", "zAxis") if axis in config}
    if panel["viewType"] == "Parallel Coordinates Plot":
        return {_accessed(column["accessor"]) for column in config["columns"]}
    if panel["viewType"] == "Parameter Importance":
        return {("summary", config["targetKey"])}
    return {("table", config["panel2Config"]["exp"]["fromOp"]["inputs"]["key"]["val"])}


def read_by_run_set(run_set: dict[str, Any]) -> set[Key]:
    """The keys that filter, sort and group a run set, and those of its columns."""
    found = [item["key"] for item in run_set["filters"]["filters"]]
    found += [key["key"] for key in run_set["sort"]["keys"]] + run_set["grouping"]
    columns = {_accessed(name) for name in run_set["runFeed"]["columnPinned"]}
    return columns | {(key["section"], _stored(key["name"])) for key in found}


def _accessed(accessor: str) -> Key:
    """A key such as "config:precision.value"."""
    section, _, name = accessor.partition(":")
    return section, _stored(name) if section == "config" else name


def _stored(name: str) -> str:
    """A key without the "value" that W&B stores it below."""
    return ".".join(part for part in name.split(".") if part != "value")


def kinds(key: Key) -> tuple[str, ...]:
    """The kinds of run that log a key; empty for none."""
    section, name = key
    if section == "run":
        return ALL if name in OF_RUNS else ()
    if section == "table":
        return {keys.PROFILE_TABLE: keys.BOTH, keys.SWEEP_TABLE: (keys.SWEEP,)}.get(name, ())
    if section == "config":
        return ALL if name.startswith(f"{keys.CONFIGURATION}.") else keys.AXES.get(name, ())
    if name in (keys.STEP, keys.EPOCH, X_OF_TIME):
        return keys.BOTH
    if name.startswith(lookup.SYSTEM):
        return keys.BOTH if name.removeprefix(lookup.SYSTEM) in SYSTEM else ()
    tables = lookup.SUMMARY if section == "summary" else keys.BY_STEP | keys.BY_EPOCH
    return tables[name].kinds if name in tables else ()


def reads(views: Iterable[dict[str, Any]], kind: str) -> set[Key]:
    """All keys that these views read of runs of a kind."""
    parts = [(panels(view), run_sets(view)) for view in views]
    found = {key for shown, _ in parts for panel in shown for key in read_by_panel(panel)}
    found |= {key for _, chosen in parts for run_set in chosen for key in read_by_run_set(run_set)}
    return {key for key in found if kind in kinds(key)}


def logged(content: dict[str, Any]) -> set[Key]:
    """What a run logged, from its offline file (`wandb_file.read`)."""
    history = {name for row in content["history"] for name in row}
    system = {lookup.SYSTEM + name for _, row in content["system"] for name in row}
    config = {*flat(content["config"]), *content["config"]}
    tables = {name for name, value in content["summary"].items() if isinstance(value, dict)}
    of_run = {("run", name) for name in OF_RUNS} | {("history", X_OF_TIME)}
    return (
        {("history", name) for name in history | system}
        | {("config", name) for name in config}
        | {("summary", name) for name in content["summary"]}
        | {("table", name) for name in tables}
        | of_run
    )
