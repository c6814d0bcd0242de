"""The workspace and the report of a project, as W&B takes them: a section for each question about any runs."""

import json
from collections.abc import Sequence
from typing import Any

import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr
from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2 import internal
from wandb_workspaces.reports.v2.interface import PanelTypes as Panel

from analysis.dashboard import panels
from analysis.dashboard.panels import bars, measure, of_gpus, of_machine, over_epochs, over_steps, parallel, points
from multicard.measure.timing import PHASES as PHASES_OF_A_STEP
from multicard.records import figures, run_folder
from multicard.records.figures import FIGURES, Figure
from multicard.tracking import keys

NAME = "multicard"
WORKSPACE, REPORT = "project-view", "runs"  # W&B's types of views
FASTEST, SCALING, LEARNING = "Which is fastest", "Scaling and efficiency", "Learning"
MEMORY, ENERGY, PHASES, SYSTEM = "Memory and bytes", "Energy", "Where the time goes", "System"
OPEN = (FASTEST, SCALING)
PARTS_OF_TIME = ("startup_s", "train_s", "evaluate_s", "compile_s")
TRAINING = ("precision", "strategy", "loader", "layout", "pin_memory", "batch_size", "gpus")
TUNING = ("method", "template", "precision", "pin_memory", "batch_size", "gpus")
PINNED = ["summary:status", "config:gpus.value", "config:precision.value", "summary:total_s", "summary:cause.message"]
UNSHOWN = (*(status for status in run_folder.STATUSES if status != "ok"), "probe")  # tags of runs that are no results
FILTER = f"Tags() not in [{', '.join(map(repr, UNSHOWN))}]"  # a run that still trains has none
ABOUT = """The runs of this project that ended ok or still train, without probes.

Parallel efficiency, intervals and verdicts compare runs with each other, which a panel cannot:
`python -m analysis report` has them, and the papers' figures beside yours."""
View = dict[str, Any]  # type, name (W&B's id, by which a later upload finds it), displayName, description and spec


def build(entity: str, project: str, project_id: str | int | None = None) -> list[View]:
    """The workspace and the report of a project.

    Args:
        entity: empty for the account's own, of which only an upload knows.
        project_id: of W&B's server, for run sets; without it they are of the project that the report is in.
    """
    runs = ws.RunsetSettings(
        filters=FILTER, order=[expr.Ordering(expr.Summary("total_s"), ascending=True)], pinned_columns=PINNED
    )
    layout = ws.SectionLayoutSettings(columns=3, rows=2)
    shown = [
        ws.Section(name=name, panels=panels.identified(name, own), is_open=name in OPEN, layout_settings=layout)
        for name, own in sections().items()
    ]
    settings = ws.WorkspaceSettings(max_runs=panels.MOST_RUNS)
    workspace = ws.Workspace(
        entity=entity, project=project, name=NAME, sections=shown, settings=settings, runset_settings=runs
    )
    spec = _as_sent(workspace._to_model())
    spec["section"]["runSets"][0]["id"] = panels.identifier("run set")  # W&B's library draws one for each process
    title = f"{NAME}: what was measured"
    report = wr.Report(entity=entity, project=project, title=title, blocks=_blocks(), width="fluid")
    model = report._to_model()
    if project_id is not None:
        found = internal.Project(entity_name=entity, name=project, id=project_id)
        for block in model.spec.blocks:
            for grid in (block, *(getattr(block, "collapsed_children", None) or ())):
                if isinstance(grid, internal.PanelGrid):
                    grid.metadata.run_sets[0].project = found
    return [
        _view(WORKSPACE, f"nw-{panels.identifier(NAME)}-v", NAME, spec),
        _view(REPORT, panels.identifier(f"{NAME}/report"), title, _as_sent(model)),
    ]


def _blocks() -> list[Any]:
    """The report: each section's panels below its heading, folded away as in the workspace."""
    blocks: list[Any] = [wr.MarkdownBlock(text=ABOUT)]
    for name, own in sections().items():
        runs = wr.Runset(name="runs", filters=FILTER)
        runs._id = panels.identifier(f"report/{name}")
        grid = wr.PanelGrid(runsets=[runs], panels=panels.identified(f"report/{name}", own))
        blocks += [wr.H2(text=name), grid] if name in OPEN else [wr.H2(text=name, collapsed_blocks=[grid])]
    return blocks


def _as_sent(model: Any) -> dict[str, Any]:
    return json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))


def _view(kind: str, name: str, title: str, spec: dict[str, Any]) -> View:
    about = "made by python -m analysis dashboard"
    return {"type": kind, "name": name, "displayName": title, "description": about, "spec": spec}


def section_of(figure: Figure) -> str | None:
    """The section with the bars of a figure; None for counts, by which nothing is judged."""
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
    """The panels of each section, with bars of every figure in the section that suits it."""
    own = {
        section: [measure(name) for name, figure in FIGURES.items() if section_of(figure) == section]
        for section in (FASTEST, LEARNING, MEMORY, ENERGY, PHASES)
    }
    phases = [*(f"phases_s.{phase}" for phase in PHASES_OF_A_STEP), "data_s"]
    return {
        FASTEST: [
            *own[FASTEST],
            points("test_accuracy", "total_s", "vision"),
            points("peak_memory_bytes", "total_s", "vision"),
            parallel("Settings of training, step and time (s)", TRAINING, ["step_s", "total_s"], "vision"),
            parallel("Settings of tuning, iteration and time (s)", TUNING, ["step_s", "total_s"], "llm"),
            wr.ParameterImportancePlot(with_respect_to=panels.summary_keys("total_s")[0]),
            wr.WeavePanelSummaryTable(table_name=keys.SWEEP_TABLE, layout=wr.Layout(w=24, h=12)),
        ],
        SCALING: [
            *(points(column, "gpus", "vision") for column in ("total_s", "trained_images_per_s", "step_s")),
            *(points(column, "gpus", "llm") for column in ("tokens_per_s", "step_s")),
            *(measure(column, "gpus") for column in ("total_s", "joules_per_image", "joules_per_token", "mfu")),
            measure("received_bytes", "gpus"),
        ],
        LEARNING: [
            over_steps("Training loss by step", "loss", smooth=True),
            over_steps("Learning rate", "lr"),
            over_epochs("Training loss and test loss by epoch", "train_loss", "test_loss"),
            over_epochs("Test accuracy by epoch (share)", "test_accuracy"),
            over_steps("DPO: rewards", "reward_chosen", "reward_rejected", "reward_margin", smooth=True),
            over_steps("DPO: pairs in the right order (share)", "reward_accuracy", smooth=True),
            *own[LEARNING],
        ],
        MEMORY: [*own[MEMORY], of_gpus("GPU memory in use (bytes)", "memory_bytes")],
        ENERGY: [
            *own[ENERGY],
            points("energy_joules", "total_s", "vision"),
            of_gpus("GPU power (W)", "power_w"),
        ],
        PHASES: [
            bars("Parts of a step, mean (s)", phases),
            over_steps("Step (s)", "step_s"),
            over_steps("Waiting for the batch (s)", "data_wait_s"),
            over_steps("Images a second", "images_per_s", smooth=True),
            over_steps("Tokens a second", "tokens_per_s", smooth=True),
            over_epochs("Training of an epoch (s)", "train_s"),
            over_epochs("First batch, and from the evaluation before to it (s)", "first_batch_s", "gap_s"),
            *own[PHASES],
        ],
        SYSTEM: [
            of_gpus("GPU utilisation (%)", "utilisation"),
            of_gpus("GPU temperature (°C)", "temperature_c"),
            of_gpus("Clock of the multiprocessors (MHz)", "sm_clock_mhz"),
            of_gpus("Clock of the GPU's memory (MHz)", "memory_clock_mhz"),
            of_machine("CPU (%)", "cpu"),
            of_machine("Memory of the machine (%)", "memory"),
        ],
    }
