"""The papers' tables and figures as `conf/experiment/` has them, and the runs that can fill one.

A run counts for an experiment whatever its name: what it swept need not have been called `experiment=table2`. Runs that
are alike in all but what the experiment sweeps (and the seed) stand together, as a panel; another image size, scale,
machine or commit is another panel, never a second figure in a cell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from analysis.runs import grouping
from analysis.runs.grouping import Cell
from analysis.runs.load import Run

FOLDER = Path(__file__).parents[2] / "conf" / "experiment"
ENTRIES = {"vision": "train_vision.py", "llm": "tune_llm.py"}
# Groups that say which experiment it is, where it sets them and does not sweep them; the rest may be otherwise
# (another data set, scale=smoke's device), which the panels' headings then say
DEFINING = ("strategy", "loader", "layout", "method")


@dataclass(frozen=True)
class View:
    """How a table or figure is laid out.

    subject: the swept column that it is about: a panel has several values of it.
    x: the swept column along the figure's horizontal axis; each combination of the others is a series.
    measures: the columns (`analysis.columns`) it shows, the main one first; for `calls` none: it shows the metrics of
        the records' profiles, for `curves` the record's epochs.
    base: the value of `subject` that the others are compared with; None where there is no such.
    form: how it is drawn: `lines`, `bars`, `curves` (over epochs) or `calls` (metrics of the profile).
    """

    subject: str
    x: str
    measures: tuple[str, ...]
    form: str = "lines"
    base: Any = None


VIEWS = {
    "table2": View("precision", "gpus", ("total_s", "test_accuracy"), base="fp64"),
    "table3": View("pin_memory", "gpus", ("total_s",), base=False),
    "strategies": View("strategy", "gpus", ("total_s", "trained_images_per_s")),
    "image_size": View("dataset.image_size", "dataset.image_size", ("total_s",)),
    "vision_metrics": View("pin_memory", "gpus", (), "calls"),
    "loss_curves": View("precision", "precision", ("test_accuracy", "total_s"), "curves"),
    "loaders": View("loader", "gpus", ("total_s", "trained_images_per_s"), base="torch"),
    "layout": View("layout", "gpus", ("total_s", "trained_images_per_s"), base="nchw"),
    "datasets": View("template", "gpus", ("step_s",)),
    "table5": View("pin_memory", "gpus", ("total_s", "step_s"), base=False),
    "llm_metrics": View("pin_memory", "gpus", (), "calls"),
    "templates": View("method", "template", ("step_s",), "bars", base="lora"),
    "template_scaling": View("method", "gpus", ("step_s",), base="lora"),
    "llm_api_share": View("method", "method", (), "calls"),
    "peak_memory": View("method", "gpus", ("peak_memory_bytes",), "bars", base="lora"),
    "transfer_volume": View("method", "gpus", ("h2d_bytes", "received_bytes"), "bars", base="lora"),
}


@dataclass(frozen=True)
class Experiment:
    """A file of conf/experiment.

    title: its first comment: which table or figure, and what it asks.
    swept: column to the values that the papers had, in their order; a group under its own name (`precision`).
    chosen: group to the option it sets for all cells.
    """

    name: str
    title: str
    kind: str
    swept: dict[str, tuple[Any, ...]]
    chosen: dict[str, str]
    view: View

    @property
    def command(self) -> str:
        """What measures all of it."""
        return f"python {ENTRIES[self.kind]} experiment={self.name} name={self.name}"

    @property
    def series(self) -> list[str]:
        """The swept columns beside the view's x."""
        return [column for column in self.swept if column != self.view.x]


@dataclass(frozen=True)
class Panel:
    """Runs of one machine, commit and setting, by what the experiment sweeps.

    cells: swept columns and values to the runs there, all of them whatever their status; seeds repeat a cell.
    missing: cells of the papers' grid that no run has.
    apart: what tells it from the other panels of the same experiment, as a person would type it; empty for one alone.
    """

    experiment: Experiment
    setting: Cell
    cells: dict[Cell, list[Run]]
    missing: list[Cell]
    apart: str = ""

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.cells.values() for run in runs]

    def values(self, column: str) -> list[Any]:
        """What it has of a swept column, the papers' values in their order first."""
        there = {dict(cell)[column] for cell in self.cells}
        asked = self.experiment.swept[column]
        return [*(value for value in asked if value in there), *sorted(there - {*asked}, key=str)]

    def at(self, **wanted: Any) -> list[Run]:
        """The runs that ended ok in the cells with these values; a dot of a column's name is two underscores."""
        asked = {name.replace("__", "."): value for name, value in wanted.items()}
        fits = [cell for cell in self.cells if all(dict(cell)[name] == value for name, value in asked.items())]
        return [run for cell in fits for run in self.cells[cell] if run["status"] == "ok"]


def names() -> list[str]:
    """All experiments, those of training first."""
    return list(VIEWS)


def load(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: there is none, with those that there are.
    """
    if name not in VIEWS:
        raise ValueError(f"no experiment {name}; there are {', '.join(VIEWS)}")
    text = (FOLDER / f"{name}.yaml").read_text()
    content: Any = OmegaConf.to_container(OmegaConf.create(text))
    comments = [line[2:] for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
    chosen = {}
    for override in content["defaults"]:
        ((key, option),) = override.items()
        chosen[key.removeprefix("override /")] = option
    params = {key: tuple(_values(text)) for key, text in content["hydra"]["sweeper"]["params"].items()}
    swept = {key: values for key, values in params.items() if len(values) > 1}
    kind = "llm" if "model" in chosen else "vision"
    return Experiment(name, comments[0], kind, swept, chosen, VIEWS[name])


def _values(text: Any) -> Iterator[Any]:
    for word in str(text).split(","):
        yield OmegaConf.from_dotlist([f"value={word}"]).value


def panels(experiment: Experiment, runs: Sequence[Run], mix: bool = False) -> list[Panel]:
    """The runs that can fill an experiment, apart by all else that was measured; those with most cells first.

    Args:
        mix: let runs of several commits and machines stand in one panel.
    """
    meant = [run for run in runs if _belongs(run, experiment)]
    if not meant:
        return []
    known = grouping.settings(meant)
    swept = {name for key in experiment.swept for name in grouping.meant(key, known)}
    groups = {key for key in experiment.swept if "." not in key}  # another option of a group has keys of its own
    kept = [
        name for name in known if name not in swept and name != grouping.RECIPE and name.partition(".")[0] not in groups
    ]
    if not mix:
        kept += grouping.ORIGIN
    found = [_panel(experiment, setting, group) for setting, group in grouping.group(meant, kept).items()]
    telling = [panel for panel in found if len(panel.values(experiment.view.subject)) > 1]
    telling.sort(key=lambda panel: -len(panel.cells))
    order = sorted(kept, key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key))
    told = grouping.telling([dict(panel.setting) for panel in telling], order)
    return [replace(panel, apart=grouping.label(panel.setting, told)) for panel in telling]


def fullest(found: Sequence[Panel]) -> tuple[list[Panel], list[Panel]]:
    """The panels to show unasked, and the rest: where one is complete, those that are not; else those with less than
    half of its cells.

    What other sweeps have in common with an experiment fills a few of its cells, and would bury its own.
    """
    first = found[0]
    shown = [one for one in found if (not one.missing if not first.missing else 2 * len(one.cells) >= len(first.cells))]
    return shown, [one for one in found if one not in shown]


def _belongs(run: Run, experiment: Experiment) -> bool:
    """Whether a run is of this experiment's kind, has what it sweeps, and the options that make it what it is."""
    if run["kind"] != experiment.kind or run["status"] == "refused":
        return False
    if any(run[column] is None for column in experiment.swept):
        return False
    if experiment.view.form == "calls" and run["profile.name"] in (None, "none"):
        return False
    chosen = {group: option for group, option in experiment.chosen.items() if group in DEFINING}
    return all(run[group] == option for group, option in chosen.items())


def _panel(experiment: Experiment, setting: Cell, runs: Sequence[Run]) -> Panel:
    found = grouping.group(runs, list(experiment.swept))
    ordered = sorted(found, key=lambda cell: [_rank(experiment, key, value) for key, value in cell])
    return Panel(experiment, setting, {cell: found[cell] for cell in ordered}, _missing(experiment, found))


def _rank(experiment: Experiment, key: str, value: Any) -> tuple[int, str]:
    asked = experiment.swept[key]
    return (asked.index(value), "") if value in asked else (len(asked), str(value))


def _missing(experiment: Experiment, found: dict[Cell, list[Run]]) -> list[Cell]:
    grid: list[Cell] = [()]
    for key, values in experiment.swept.items():
        there = {dict(cell)[key] for cell in found}
        asked = values if there & {*values} else there  # scale=smoke has other image sizes: nothing is missing there
        grid = [(*cell, (key, value)) for cell in grid for value in asked]
    return [cell for cell in grid if cell not in found]
