"""The workspace: what a person asks of any runs, a section for each question."""

from collections.abc import Callable, Sequence

import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr
from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2.interface import PanelTypes as Panel

from analysis import experiments
from analysis.dashboard import lookup, panels
from analysis.experiments import EFFICIENCY
from multicard.records import run_folder
from multicard.records.figures import FIGURES
from multicard.tracking import keys

NAME = "multicard"
FASTEST, SCALING, LEARNING = "Which is fastest", "Scaling and efficiency", "Learning"
MEMORY, ENERGY, PHASES, SYSTEM = "Memory and bytes", "Energy", "Where the time goes", "System"
COUNTS = ("steps", "tokens", "samples_trained", "test_samples", "parameters")  # columns that nothing is judged by
PARTS_OF_TIME = ("startup_s", "train_s", "evaluate_s", "compile_s")
MOST_GPUS = 8  # of a node in the panels of the system
AXES = {
    "vision": ("precision", "strategy", "loader", "layout", "pin_memory", "batch_size", "gpus"),
    "llm": ("method", "template", "precision", "pin_memory", "batch_size", "gpus"),
}
PINNED = ("summary:status", "config:gpus.value", "config:precision.value", "summary:total_s", "summary:cause.message")
PROBE = "probe"  # tag of runs that are no results
UNFINISHED = tuple(status for status in run_folder.STATUSES if status != "ok")


def build(entity: str, project: str) -> ws.Workspace:
    """The saved view of a project, without the runs that ended otherwise than ok, and without probes.

    Both have tags that say so; a run that still trains has none.
    """
    tags = ", ".join(f"'{tag}'" for tag in (*UNFINISHED, PROBE))
    runs = ws.RunsetSettings(
        filters=f"Tags() not in [{tags}]",
        order=[expr.Ordering(expr.Summary("total_s"), ascending=True)],
        pinned_columns=list(PINNED),
    )
    settings = ws.WorkspaceSettings(max_runs=panels.MOST_RUNS)
    return ws.Workspace(
        entity=entity, project=project, name=NAME, sections=sections(), settings=settings, runset_settings=runs
    )


def sections() -> list[ws.Section]:
    return [
        ws.Section(
            name=name,
            panels=panels.identified(name, build_panels()),
            is_open=name in (FASTEST, SCALING),
            layout_settings=ws.SectionLayoutSettings(columns=3, rows=2),
        )
        for name, build_panels in SECTIONS.items()
    ]


def section_of(column: str) -> str | None:
    """The section with the bars of a figure, by its name; None for counts."""
    if column in COUNTS:
        return None
    if column.endswith("_bytes"):
        return MEMORY
    if "joules" in column:
        return ENERGY
    if "accuracy" in column or "loss" in column:
        return LEARNING
    if column in PARTS_OF_TIME or (column.startswith("step_") and column != "step_s"):
        return PHASES
    return FASTEST


def columns(section: str) -> list[str]:
    """The figures of all runs, and those that an experiment shows, that belong to a section."""
    shown = (measure for name in experiments.names() for measure in experiments.load(name).view.measures)
    return [
        column for column in dict.fromkeys((*FIGURES, *shown)) if column != EFFICIENCY and section_of(column) == section
    ]


def _fastest() -> Sequence[Panel]:
    vision, llm = lookup.summary_keys("step_s", ["vision"]), lookup.summary_keys("step_s", ["llm"])
    (total,) = lookup.summary_keys("total_s")
    return [
        *map(panels.measure, columns(FASTEST)),
        panels.against("test_accuracy", "total_s", "vision"),
        panels.against("peak_memory_bytes", "total_s", "vision"),
        panels.parallel("Settings of training, step and time (s)", AXES["vision"], [*vision, total]),
        panels.parallel("Settings of tuning, iteration and time (s)", AXES["llm"], [*llm, total]),
        wr.ParameterImportancePlot(with_respect_to=total),
        panels.table(keys.SWEEP_TABLE),
    ]


def _scaling() -> Sequence[Panel]:
    """Rates and times against GPUs; on two logarithmic axes ideal scaling is a straight line."""
    scaled = [("total_s", "vision"), ("trained_images_per_s", "vision"), ("tokens_per_s", "llm"), ("step_s", "vision")]
    scatter = [panels.over_gpus(column, kind) for column, kind in [*scaled, ("step_s", "llm")]]
    by_gpus = [
        panels.measure(column, by="gpus") for column in ("total_s", "joules_per_image", "joules_per_token", "mfu")
    ]
    return [*scatter, *by_gpus, panels.measure("received_bytes", by="gpus")]


def _learning() -> Sequence[Panel]:
    return [
        panels.over_steps("Training loss by step", ["loss"], smooth=True),
        panels.over_steps("Learning rate", ["lr"]),
        panels.over_epochs("Training loss and test loss by epoch", ["train_loss", "test_loss"]),
        panels.over_epochs("Test accuracy by epoch (share)", ["test_accuracy"]),
        panels.over_steps("DPO: rewards", ["reward_chosen", "reward_rejected", "reward_margin"], smooth=True),
        panels.over_steps("DPO: pairs in the right order (share)", ["reward_accuracy"], smooth=True),
        *map(panels.measure, columns(LEARNING)),
    ]


def _memory() -> Sequence[Panel]:
    used = panels.over_time("GPU memory in use (bytes)", lookup.of_gpus("memory_bytes", MOST_GPUS))
    return [*map(panels.measure, columns(MEMORY)), used]


def _energy() -> Sequence[Panel]:
    return [
        *map(panels.measure, columns(ENERGY)),
        panels.against("energy_joules", "total_s", "vision"),
        panels.over_time("GPU power (W)", lookup.of_gpus("power_w", MOST_GPUS)),
    ]


def _phases() -> Sequence[Panel]:
    names = columns(PHASES)
    of_steps = [key for column in names if column not in PARTS_OF_TIME for key in lookup.summary_keys(column)]
    phases = [key for key in lookup.SUMMARY if key.startswith("phases_s.") or key == "data_s"]
    return [
        panels.bars("Parts of a step, mean (s)", phases),
        panels.bars("Steps: median, 95th percentile and standard deviation (s)", of_steps),
        panels.over_steps("Step (s)", ["step_s"]),
        panels.over_steps("Waiting for the batch (s)", ["data_wait_s"]),
        panels.over_steps("Images a second", ["images_per_s"], smooth=True),
        panels.over_steps("Tokens a second", ["tokens_per_s"], smooth=True),
        panels.over_epochs("Training of an epoch (s)", ["train_s"]),
        panels.over_epochs("First batch, and from the evaluation before to it (s)", ["first_batch_s", "gap_s"]),
        *map(panels.measure, [column for column in names if column in PARTS_OF_TIME]),
    ]


def _system() -> Sequence[Panel]:
    of_gpus = {
        "GPU utilisation (%)": "utilisation",
        "GPU temperature (°C)": "temperature_c",
        "Clock of the multiprocessors (MHz)": "sm_clock_mhz",
        "Clock of the GPU's memory (MHz)": "memory_clock_mhz",
    }
    return [
        *(panels.over_time(title, lookup.of_gpus(name, MOST_GPUS)) for title, name in of_gpus.items()),
        panels.over_time("CPU (%)", lookup.of_machine("cpu")),
        panels.over_time("Memory of the machine (%)", lookup.of_machine("memory")),
    ]


SECTIONS: dict[str, Callable[[], Sequence[Panel]]] = {
    FASTEST: _fastest,
    SCALING: _scaling,
    LEARNING: _learning,
    MEMORY: _memory,
    ENERGY: _energy,
    PHASES: _phases,
    SYSTEM: _system,
}
