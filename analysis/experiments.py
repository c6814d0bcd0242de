"""Load the papers' tables and figures from `conf/experiment/`, and find the runs that fill them.

A run of any name counts for an experiment: it need not have been started by `experiment=table2`.
The runs of a panel agree in everything except the seed and what the experiment sweeps. Another
image size, scale, machine or commit makes another panel, never a second figure in a cell.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

import msgspec

from multicard.config import CONF, schema
from multicard.config.keys import flat
from multicard.config.roles import Role
from multicard.messages import Message, Refusal, typed
from multicard.papers import printed
from multicard.records.comparable import DATA

from .runs import grouping, profile_metrics
from .runs.columns import KINDS
from .runs.grouping import Cell
from .runs.load import Run
from .stats.between_runs import RepeatedRuns

FOLDER = CONF / "experiment"
# The value of the runs' column for each option of `profile`. No record names the option itself.
TRACING = {"none": False, "whole": True}

# A table or figure by its number, and the ones that an experiment's title names.
NUMBERED = re.compile(r"(?:table|tab|figure|fig)?[. _-]*(\d+)", re.IGNORECASE)
PRINTED_AS = re.compile(r"(Table|Figs?\.) (\d+)(?: (?:to|and) (\d+))?")
EFFICIENCY = "efficiency"  # The speed-up over one GPU / GPUs.


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a table or figure is laid out: `hydra.experiment.view` of an experiment's file.

    subject: the swept column that it is about. A panel has several values of it.
    x: the swept column along the horizontal axis. Each combination of the others is a series.
    measures: the columns (of `python -m analysis list --csv`) to show, the main one first, and
        EFFICIENCY. It is empty for `calls` and `shares`, which show metrics of profiles. `curves`
        show epochs.
    base: the value of `subject` that the others are compared with. It is a dictionary by column if
        there are base values in several columns.
    saved: show which share of the base's time a cell saves, instead of its speed-up.
    timelines: also draw the GPUs over the time of each run of the fullest panel.
    form: `lines`, `bars` or `curves` over epochs; `calls` (metrics of profiles in seconds and in
        percent of the profiled time) or `shares` (only in percent); `copies` (bytes of each kind of
        copy in runs with a profile, besides bars of the measures).
    metrics: the metrics of profiles that the paper's figure shows. By default they are the ones in
        the papers' other figures.
    """

    subject: str
    x: str
    measures: tuple[str, ...] = ()
    form: Literal["lines", "bars", "curves", "calls", "shares", "copies"] = "lines"
    base: Any = None
    saved: bool = False
    timelines: bool = False
    metrics: tuple[str, ...] = ()

    @property
    def shown_metrics(self) -> tuple[str, ...]:
        return self.metrics or (
            profile_metrics.STACKED if self.form == "shares" else profile_metrics.PAPERS
        )

    @property
    def of_profiles(self) -> bool:
        return self.form in ("calls", "shares")

    @property
    def base_values(self) -> dict[str, Any]:
        if self.base is None:
            return {}
        if isinstance(self.base, dict):
            return self.base
        return {self.subject: self.base}


@dataclass(frozen=True)
class Experiment:
    """A file of conf/experiment.

    title: its first comment: the table or figure, and the question that it answers.
    swept: the paper's values of each column, in their order. A group has its own name
        (`precision`).
    chosen: the option that it sets for all cells, by group.
    fixed: the value that it sets for all cells, by column.
    excluded: values of swept columns whose cells are impossible.
    """

    name: str
    title: str
    kind: str
    swept: dict[str, tuple[Any, ...]]
    chosen: dict[str, str]
    view: View
    excluded: tuple[dict[str, Any], ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)

    def has(self, cell: Cell) -> bool:
        """Return True if the experiment measures this cell of its axes."""
        return not any(entry.items() <= dict(cell).items() for entry in self.excluded)

    def prints(self, cell: Mapping[str, Any]) -> bool:
        """Return True if the papers print a figure for this cell, or for cells that it is part of.

        The cell may lack swept columns.
        """
        is_in_grid = all(
            value in self.swept[column] for column, value in cell.items() if column in self.swept
        )
        return is_in_grid and not any(entry.items() <= cell.items() for entry in self.papers.beyond)

    def follows(self, column: str, axis: str) -> bool:
        """Return True if a column has one value for each value of an axis.

        For example, each data set has one template.
        """
        is_measured = [
            [
                self.has(((axis, value), (column, value_of_column)))
                for value_of_column in self.swept[column]
            ]
            for value in self.swept[axis]
        ]
        return all(sum(measured_values) == 1 for measured_values in is_measured)

    def order(self, cell: Cell) -> list[tuple[int, float, str]]:
        """Return the sort key of a cell: numbers by size, other values in the paper's order."""
        keys = []
        for column, value in cell:
            values = self.swept[column]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            index = values.index(value) if value in values and not is_number else len(values)
            keys.append((index, float(value) if is_number else 0.0, str(value)))
        return keys

    @property
    def command(self) -> str:
        return f"{typed(KINDS[self.kind].entry)} experiment={self.name} name={self.name}"

    @property
    def papers(self) -> printed.Settings:
        return printed.settings(self.kind, self.name)


@dataclass(frozen=True)
class Panel:
    """The runs of one machine, commit and setting, by what the experiment sweeps.

    cells: the runs, of any status, by swept columns and values. Seeds repeat a cell.
    missing: the cells of the paper's grid without a run.
    repeated: how runs differ, learnt from all runs that were read.
    apart: what distinguishes it from the other panels of the experiment, as it would be typed. It
        is empty for a single panel.
    """

    experiment: Experiment
    setting: Cell
    cells: dict[Cell, list[Run]]
    missing: list[Cell]
    repeated: RepeatedRuns
    apart: str = ""

    @property
    def command(self) -> str:
        command = self.experiment.command
        return f"{command} scale=smoke" if ("scale", "smoke") in self.setting else command

    @property
    def runs(self) -> list[Run]:
        return list(chain.from_iterable(self.cells.values()))

    @property
    def is_of_experiment(self) -> bool:
        """True if the runs have the experiment's options, such as its data set, or its name."""
        name = self.experiment.name
        setting = dict(self.setting)
        options = self.experiment.chosen.items()
        has_options = all(setting.get(group, option) == option for group, option in options)
        return has_options or any(
            name in (run["name"], run.folder.parent.name) for run in self.runs
        )

    def values(self, column: str) -> list[Any]:
        """Return the measured values of a swept column; the paper's come first, in their order."""
        measured = {dict(cell)[column] for cell in self.cells}
        printed_values = self.experiment.swept[column]
        return [
            *(value for value in printed_values if value in measured),
            *sorted(measured - {*printed_values}, key=str),
        ]


def names() -> list[str]:
    """Return all experiments that have a view.

    Experiments on training come first. Tables come before figures, each by number.
    """

    def place(name: str) -> tuple[int, bool, int, bool, str]:
        experiment = load_experiment(name)
        match = re.search(r"(Table|Figs?\.) (\d+)", experiment.title)
        figure, number = (match[1] != "Table", int(match[2])) if match else (True, 1000)
        return [*KINDS].index(experiment.kind), figure, number, experiment.view.of_profiles, name

    return sorted(
        (path.stem for path in FOLDER.glob("*.yaml") if "view:" in path.read_text()), key=place
    )


def not_by_number(text: str) -> str:
    """Return an experiment's name.

    Raises:
        ArgumentTypeError: it is the number of a table or figure, such as `fig16`.
    """
    number = NUMBERED.fullmatch(text)
    if number is None or (FOLDER / f"{text}.yaml").is_file():
        return text
    kinds = {"t": ("table",), "f": ("figure",)}.get(text[:1].lower(), ("table", "figure"))
    commands = []
    for name in names():
        title = load_experiment(name).title.partition(":")[0]
        for match in PRINTED_AS.finditer(title if title.startswith(("Table", "Fig")) else ""):
            kind = "table" if match[1] == "Table" else "figure"
            first_number = int(match[2])
            if kind in kinds and first_number <= int(number[1]) <= int(match[3] or first_number):
                commands.append(f"{typed('-m analysis')} {kind} {name}")
    commands = [*dict.fromkeys(commands)]
    if not commands:
        return text  # `load` refuses it and lists the names.
    use = ", or ".join(f"`{command}`" for command in commands)
    raise argparse.ArgumentTypeError(
        Message(
            "analysis.by-number",
            f"{text}: experiments are chosen by name, not by number; use {use}",
            near=commands,
        )
    )


@cache
def load_experiment(name: str) -> Experiment:
    """Load the experiment of a name.

    Raises:
        ValueError: there is no such experiment, or its file has no view.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise Refusal(
            "analysis.no-experiment",
            f"no experiment {name}; there are {', '.join(names())}",
            name=name,
            known=names(),
        )
    texts = _texts(path)
    contents = [msgspec.yaml.decode(text) for text in texts]
    settings = contents[-1]["hydra"].get("experiment", {})
    if "view" not in settings:
        raise Refusal(
            "analysis.no-view",
            f"{path} has no hydra.experiment.view, which says what its table shows",
            key="hydra.experiment.view",
            file=str(path),
        )
    title = next(
        line[2:]
        for line in texts[-1].splitlines()
        if line.startswith("# ") and "@package" not in line
    )
    axes = contents[-1]["hydra"]["sweeper"]["params"]
    # YAML gives the values their types: 2 is a number.
    params = {key: tuple(msgspec.yaml.decode(f"[{values}]")) for key, values in axes.items()}
    if "profile" in params:
        params = {
            grouping.TRACED: tuple(TRACING[option] for option in params.pop("profile")),
            **params,
        }
    swept = {key: values for key, values in params.items() if len(values) > 1}
    groups = []
    for content in contents:
        groups.extend(entry for entry in content["defaults"] if isinstance(entry, dict))
    options = {}
    for entry in groups:
        for key, option in entry.items():
            options[key.removeprefix("override /")] = option
    chosen = {group: option for group, option in options.items() if group not in swept}
    kind = next(name for name, kind in KINDS.items() if kind.entry == settings["entry"])
    excluded = tuple(settings.get("exclude", ()))
    view = msgspec.convert(settings["view"], View)
    values = chain.from_iterable(flat(content).items() for content in contents)
    fixed = {
        key: value for key, value in values if key.partition(".")[0] not in ("defaults", "hydra")
    }
    return Experiment(name, title, kind, swept, chosen, view, excluded, fixed)


def _texts(path: Path) -> list[str]:
    """Return the texts of the files in `shared/` that an experiment takes over, and its own text.

    Its own text is the last one.
    """
    text = path.read_text()
    shared_names = [
        entry for entry in msgspec.yaml.decode(text).get("defaults", ()) if isinstance(entry, str)
    ]
    shared_texts = []
    for entry in shared_names:
        shared_texts.extend(_texts(path.parent / f"{entry}.yaml"))
    return [*shared_texts, text]


def panels(
    experiment: Experiment,
    runs: Sequence[Run],
    mix: bool = False,
    repeated: RepeatedRuns | None = None,
    named: bool = False,
) -> list[Panel]:
    """Return the runs that fill an experiment, in panels.

    Panels with the most cells come first. Among equals, the one most like the experiment is first.

    Args:
        repeated: how `runs` differ, to share it between several experiments.
        named: the user asks for this experiment. If no panel compares anything yet, panels with a
            cell of its grid are returned.
    """
    repeated = repeated or RepeatedRuns(runs)
    own_runs = [run for run in runs if _belongs(run, experiment)]
    if not own_runs:
        return []
    settings = grouping.settings(own_runs)
    columns = {key: grouping.meant(key, settings) for key in experiment.swept}
    swept = {grouping.RECIPE}.union(*columns.values())
    swept |= {grouping.PROFILER} if grouping.TRACED in experiment.swept else set()
    data_columns = [DATA] if DATA in settings and grouping.have_data(experiment.swept) else []
    keys = [name for name in settings if name not in {*swept, *data_columns}]
    groups = grouping.group(own_runs, [*keys, *([] if mix else grouping.ORIGIN)])
    if not mix:
        groups = grouping.split(groups, list(experiment.swept), data_columns)
    for option, names in columns.items():
        keys_of_others = set[str]().union(*(columns[key] for key in columns if key != option))
        own_keys = [
            name for name in names if name.startswith(f"{option}.") and name not in keys_of_others
        ]
        groups = grouping.split_options(groups, option, own_keys)
    candidates = [_panel(experiment, setting, runs, repeated) for setting, runs in groups.items()]
    compared_panels = [
        panel for panel in candidates if len(panel.values(experiment.view.subject)) > 1
    ]
    if named and not compared_panels:
        compared_panels = [
            panel
            for panel in candidates
            if any(_is_of_grid(cell, experiment) for cell in panel.cells)
        ]
    fixed = experiment.fixed.items()
    compared_panels.sort(
        key=lambda panel: (-len(panel.cells), -sum(setting in fixed for setting in panel.setting))
    )
    order = sorted(
        grouping.keys_of(groups),
        key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key),
    )
    distinguishing_keys = grouping.telling(
        [dict(panel.setting) for panel in compared_panels], order
    )
    return [
        replace(panel, apart=grouping.label(panel.setting, distinguishing_keys))
        for panel in compared_panels
    ]


def fullest(candidates: Sequence[Panel]) -> tuple[list[Panel], list[Panel]]:
    """Return the panels to show by default, and the rest.

    If the first panel is complete, all complete panels are shown. Otherwise, panels with at least
    half of its cells are shown. Other sweeps may share a few cells with an experiment, and would
    bury its own panels.
    """
    first_panel = candidates[0]

    def is_shown(panel: Panel) -> bool:
        if first_panel.missing:
            return 2 * len(panel.cells) >= len(first_panel.cells)
        return not panel.missing

    shown_panels = [panel for panel in candidates if is_shown(panel)]
    other_panels = [panel for panel in candidates if not is_shown(panel)]
    return shown_panels, other_panels


def _belongs(run: Run, experiment: Experiment) -> bool:
    if run["kind"] != experiment.kind or run["status"] == "refused":
        return False
    # Nested columns may be absent: a data set may lack a key.
    if any(run[column] is None for column in experiment.swept if "." not in column):
        return False
    if grouping.TRACED in experiment.swept:
        if run[grouping.PROFILER] != (grouping.AROUND if run[grouping.TRACED] else "none"):
            # The papers used another profiler, or this one is attached but records nothing.
            return False
    elif (
        run[grouping.TRACED]
        if not experiment.view.of_profiles
        else run[grouping.PROFILER] in (None, "none")
    ):
        return False  # Tracing adds to the times of a training.
    if (
        grouping.ranks(run) == 1
        and run["method.single_device"]
        and run[grouping.RECIPE] == run["method.distributed"]
    ):
        return False  # With recipe=distributed: a cell of one GPU uses the recipe for one.
    # Another data set, or the device of scale=smoke, may differ. The titles of the panels then say
    # so.
    defining_options = {
        group: option
        for group, option in experiment.chosen.items()
        if Role.defining in schema.of(group)
    }
    return all(run[group] == option for group, option in defining_options.items())


def _panel(
    experiment: Experiment, setting: Cell, runs: Sequence[Run], repeated: RepeatedRuns
) -> Panel:
    cells = grouping.group(runs, list(experiment.swept))
    ordered = {cell: cells[cell] for cell in sorted(cells, key=experiment.order)}
    return Panel(experiment, setting, ordered, _missing(experiment, ordered), repeated)


def _is_of_grid(cell: Cell, experiment: Experiment) -> bool:
    return all(value in experiment.swept[key] for key, value in cell)


def _missing(experiment: Experiment, cells: dict[Cell, list[Run]]) -> list[Cell]:
    """Return the cells of the paper's grid without a run.

    If none of a column's values was measured, its measured values take their place.
    """
    columns = []
    for key, values in experiment.swept.items():
        measured = {dict(cell)[key] for cell in cells}  # With scale=smoke, image sizes differ.
        columns.append([(key, value) for value in (values if measured & {*values} else measured)])
    return [cell for cell in product(*columns) if cell not in cells and experiment.has(cell)]
