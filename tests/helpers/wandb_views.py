"""What a dashboard's workspace reads, from its specification, and which runs log it."""

from typing import Any

from analysis.dashboard.views import MOST_GPUS, SYSTEM_PREFIX, View
from multicard.measure.timing import PHASES
from multicard.records.figures import FIGURES
from multicard.tracking import keys
from tests.helpers import records

Key = tuple[str, str]  # section (history, summary, config, run or table) and name
KINDS = keys.ALL
ALL = (*KINDS, keys.SWEEP)
OF_RUNS = ("jobType", "tags", "displayName", "createdAt")  # what W&B itself knows of every run
AXES = {kind: records.axes(kind, records.configuration(kind)) for kind in KINDS}
CONFIG = {axis: tuple(kind for kind, own in AXES.items() if axis in own) for own in AXES.values() for axis in own}
SUMMARY = {
    **dict.fromkeys(("status", "cause.kind", "cause.message", "diagnosis.bound"), KINDS),
    **{
        key: tuple(kind for kind in KINDS if key in figure.keys_of(kind))
        for figure in FIGURES.values()
        for kind in KINDS
        for key in figure.keys_of(kind)
    },
    **{f"phases_s.{phase}": (keys.VISION,) for phase in PHASES},
    "data_s": (keys.LLM, keys.SCRIPT),
}
X_OF_TIME = "_absolute_runtime"
GPUS = {f"{SYSTEM_PREFIX}gpu.{index}.{metric}" for index in range(MOST_GPUS) for metric, _ in keys.GPU_SAMPLES.values()}
SAMPLES = {*GPUS, *(SYSTEM_PREFIX + name for name in keys.MACHINE_SAMPLES.values())}


def sections(view: View) -> list[dict[str, Any]]:
    return view["spec"]["section"]["panelBankConfig"]["sections"]


def panels(view: View) -> list[dict[str, Any]]:
    return [panel for section in sections(view) for panel in section["panels"]]


def read_by_panel(panel: dict[str, Any]) -> set[Key]:
    """The keys that a panel reads; a kind of panel that this does not know raises KeyError."""
    config = panel["config"]
    match panel["viewType"]:
        case "Run History Line Plot":
            return {("history", name) for name in (config["xAxis"], *config["metrics"])}
        case "Bar Chart":
            grouped = {("config", _stored(config["groupBy"]))} if "groupBy" in config else set()
            return {("summary", name) for name in config["metrics"]} | grouped
        case "Scatter Plot":
            return {_accessed(config[axis]) for axis in ("xAxis", "yAxis", "zAxis") if axis in config}
        case "Parameter Importance":
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
    if name in (keys.STEP, keys.EPOCH, X_OF_TIME) or name in SAMPLES:
        return KINDS
    known = {
        "run": dict.fromkeys(OF_RUNS, ALL),
        "table": {keys.PROFILE_TABLE: KINDS, keys.SWEEP_TABLE: (keys.SWEEP,)},
        "config": CONFIG,
        "history": keys.BY_STEP | keys.BY_EPOCH,
        "summary": SUMMARY,
    }
    return known[section].get(name, ())
