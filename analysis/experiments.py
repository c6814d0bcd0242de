"""The papers' tables and figures as `conf/experiment/` has them, and the runs that fill one.

A run of any name counts for an experiment: it need not have been started by `experiment=table2`.
Runs that agree in all but what the experiment sweeps, and in all but the seed, form a panel.
Another image size, scale, machine or commit is another panel, never a second figure in a cell.
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
# by option of `profile`, which no record names, the column of runs
TRACING = {"none": False, "whole": True}

# a table or figure by its number, and those that an experiment's title names
NUMBERED = re.compile(r"(?:table|tab|figure|fig)?[. _-]*(\d+)", re.IGNORECASE)
PRINTED_AS = re.compile(r"(Table|Figs?\.) (\d+)(?: (?:to|and) (\d+))?")
EFFICIENCY = "efficiency"  # the speed-up over one GPU / GPUs


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a table or figure is laid out: `hydra.experiment.view` of an experiment's file.

    subject: the swept column that it is about; a panel has several values of it.
    x: the swept column along the horizontal axis; each combination of the others is a series.
    measures: the columns (of `python -m analysis list --csv`) to show, the main one first, and
    EFFICIENCY. None for
        `calls` and `shares`, which show the metrics of profiles; `curves` shows epochs.
    base: the value of `subject` that the others are compared with; by column, where it has a value
    in several.
    saved: the share of the base's time that a cell saves is shown instead of its speed-up.
    timelines: the GPUs over the time of each run of the fullest panel are drawn too.
    form: `lines`, `bars`, `curves` over epochs, `calls` (metrics of profiles in seconds and in
    percent of the profiled
        time) or `shares` (the same in percent alone),
        `copies` (bytes of each kind of copy, of runs with a profile, beside bars of the measures).
    metrics: of profiles, that the paper's figure shows;
    by default those of the papers' other figures.
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
        return (
            self.base
            if isinstance(self.base, dict)
            else {}
            if self.base is None
            else {self.subject: self.base}
        )


@dataclass(frozen=True)
class Experiment:
    """A file of conf/experiment.

    title: its first comment: which table or figure, and the question it answers.
    swept: column to the paper's values, in their order; a group under its own name (`precision`).
    chosen: group to the option that it sets for all cells.
    fixed: column to the value that it sets for all cells.
    excluded: swept columns and values of cells that cannot be.
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
        """True if it measures a cell of its axes."""
        return not any(entry.items() <= dict(cell).items() for entry in self.excluded)

    def prints(self, cell: Mapping[str, Any]) -> bool:
        """True if the papers have a cell, or cells like this part of one."""
        inside = all(
            value in self.swept[column] for column, value in cell.items() if column in self.swept
        )
        return inside and not any(entry.items() <= cell.items() for entry in self.papers.beyond)

    def follows(self, column: str, axis: str) -> bool:
        """True if a column has one value for each of an axis, as the template of a data set."""
        pairs = [
            [self.has(((axis, value), (column, own))) for own in self.swept[column]]
            for value in self.swept[axis]
        ]
        return all(sum(there) == 1 for there in pairs)

    def order(self, cell: Cell) -> list[tuple[int, float, str]]:
        """The sort key of a cell: numbers by their size, all else in the paper's order."""
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
    """Runs of one machine, commit and setting, by what the experiment sweeps.

    cells: swept columns and values to the runs there, of any status; seeds repeat a cell.
    missing: cells of the paper's grid without a run.
    repeated: of all runs at hand.
    apart: what tells it from the other panels of the experiment, as it would be typed;
    empty for a single panel.
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

    def values(self, column: str) -> list[Any]:
        """The measured values of a swept column, the paper's values in their order first."""
        measured = {dict(cell)[column] for cell in self.cells}
        known = self.experiment.swept[column]
        return [
            *(value for value in known if value in measured),
            *sorted(measured - {*known}, key=str),
        ]


def names() -> list[str]:
    """All experiments that have a view: those of training first, tables before figures,
    by their numbers.
    """

    def place(name: str) -> tuple[int, bool, int, bool, str]:
        experiment = load(name)
        match = re.search(r"(Table|Figs?\.) (\d+)", experiment.title)
        figure, number = (match[1] != "Table", int(match[2])) if match else (True, 1000)
        return [*KINDS].index(experiment.kind), figure, number, experiment.view.of_profiles, name

    return sorted(
        (path.stem for path in FOLDER.glob("*.yaml") if "view:" in path.read_text()), key=place
    )


def not_by_number(text: str) -> str:
    """The name of an experiment; refused where it is the number of a table or figure, `fig16`."""
    number = NUMBERED.fullmatch(text)
    if number is None or (FOLDER / f"{text}.yaml").is_file():
        return text
    kinds = {"t": ("table",), "f": ("figure",)}.get(text[:1].lower(), ("table", "figure"))
    commands = []
    for name in names():
        title = load(name).title.partition(":")[0]
        for found in PRINTED_AS.finditer(title if title.startswith(("Table", "Fig")) else ""):
            kind = "table" if found[1] == "Table" else "figure"
            first = int(found[2])
            if kind in kinds and first <= int(number[1]) <= int(found[3] or first):
                commands.append(f"{typed('-m analysis')} {kind} {name}")
    commands = [*dict.fromkeys(commands)]
    if not commands:
        return text  # `load` says which there are
    use = ", or ".join(f"`{command}`" for command in commands)
    raise argparse.ArgumentTypeError(
        Message("analysis.by-number", f"{text}: is by its name here; use {use}", near=commands)
    )


@cache
def load(name: str) -> Experiment:
    """The experiment of that name; raises ValueError where there is none,
    or its file has no view.
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
    own = contents[-1]["hydra"].get("experiment", {})
    if "view" not in own:
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
    # typed: 2 is a number
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
    kind = next(name for name, kind in KINDS.items() if kind.entry == own["entry"])
    excluded = tuple(own.get("exclude", ()))
    view = msgspec.convert(own["view"], View)
    values = chain.from_iterable(flat(content).items() for content in contents)
    fixed = {
        key: value for key, value in values if key.partition(".")[0] not in ("defaults", "hydra")
    }
    return Experiment(name, title, kind, swept, chosen, view, excluded, fixed)


def _texts(path: Path) -> list[str]:
    """The text of an experiment's file, after those of the
    files in `shared/` that it takes over.
    """
    text = path.read_text()
    shared = [
        entry for entry in msgspec.yaml.decode(text).get("defaults", ()) if isinstance(entry, str)
    ]
    parts = []
    for entry in shared:
        parts.extend(_texts(path.parent / f"{entry}.yaml"))
    return [*parts, text]


def panels(
    experiment: Experiment,
    runs: Sequence[Run],
    mix: bool = False,
    repeated: RepeatedRuns | None = None,
    named: bool = False,
) -> list[Panel]:
    """The runs that fill an experiment, in panels; those with the most cells first,
    of these the most alike to it.

    Args:
        repeated: how `runs` differ, where that is used for several experiments.
        named: the user asks for this experiment: where no panel compares anything yet, those with a
            cell of its grid are shown.
    """
    repeated = repeated or RepeatedRuns(runs)
    own = [run for run in runs if _belongs(run, experiment)]
    if not own:
        return []
    settings = grouping.settings(own)
    columns = {key: grouping.meant(key, settings) for key in experiment.swept}
    swept = {grouping.RECIPE}.union(*columns.values())
    swept |= {grouping.PROFILER} if grouping.TRACED in experiment.swept else set()
    mixed = [DATA] if DATA in settings and grouping.have_data(experiment.swept) else []
    keys = [name for name in settings if name not in {*swept, *mixed}]
    groups = grouping.group(own, [*keys, *([] if mix else grouping.ORIGIN)])
    if not mix:
        groups = grouping.split(groups, list(experiment.swept), mixed)
    for option, names in columns.items():
        others = set[str]().union(*(columns[key] for key in columns if key != option))
        own_keys = [name for name in names if name.startswith(f"{option}.") and name not in others]
        groups = grouping.split_options(groups, option, own_keys)
    candidates = [_panel(experiment, setting, runs, repeated) for setting, runs in groups.items()]
    several = [panel for panel in candidates if len(panel.values(experiment.view.subject)) > 1]
    if named and not several:
        several = [
            panel
            for panel in candidates
            if any(_is_of_grid(cell, experiment) for cell in panel.cells)
        ]
    fixed = experiment.fixed.items()
    several.sort(
        key=lambda panel: (-len(panel.cells), -sum(setting in fixed for setting in panel.setting))
    )
    order = sorted(
        grouping.keys_of(groups),
        key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key),
    )
    telling = grouping.telling([dict(panel.setting) for panel in several], order)
    return [replace(panel, apart=grouping.label(panel.setting, telling)) for panel in several]


def fullest(candidates: Sequence[Panel]) -> tuple[list[Panel], list[Panel]]:
    """The panels to show by default, and the rest.

    Where the first is complete, the complete ones; else those with at least half of its cells.
    Other sweeps share a few cells with an experiment, and would bury its own panels.
    """
    first = candidates[0]

    def full(panel: Panel) -> bool:
        return 2 * len(panel.cells) >= len(first.cells) if first.missing else not panel.missing

    return [panel for panel in candidates if full(panel)], [
        panel for panel in candidates if not full(panel)
    ]


def _belongs(run: Run, experiment: Experiment) -> bool:
    if run["kind"] != experiment.kind or run["status"] == "refused":
        return False
    # a data set may lack a key
    if any(run[column] is None for column in experiment.swept if "." not in column):
        return False
    if grouping.TRACED in experiment.swept:
        if run[grouping.PROFILER] != (grouping.AROUND if run[grouping.TRACED] else "none"):
            # another profiler than the papers', or one that is attached and records nothing
            return False
    elif (
        run[grouping.TRACED]
        if not experiment.view.of_profiles
        else run[grouping.PROFILER] in (None, "none")
    ):
        return False  # the times of a training that was traced are not those of the training alone
    if (
        grouping.ranks(run) == 1
        and run["method.single_device"]
        and run[grouping.RECIPE] == run["method.distributed"]
    ):
        return False  # recipe=distributed: a cell of one GPU is of the recipe for one
    # Another data set, or the device of scale=smoke, may differ,
    # which the titles of the panels then say
    defining = {
        group: option
        for group, option in experiment.chosen.items()
        if Role.defining in schema.of(group)
    }
    return all(run[group] == option for group, option in defining.items())


def _panel(
    experiment: Experiment, setting: Cell, runs: Sequence[Run], repeated: RepeatedRuns
) -> Panel:
    cells = grouping.group(runs, list(experiment.swept))
    ordered = {cell: cells[cell] for cell in sorted(cells, key=experiment.order)}
    return Panel(experiment, setting, ordered, _missing(experiment, ordered), repeated)


def _is_of_grid(cell: Cell, experiment: Experiment) -> bool:
    return all(value in experiment.swept[key] for key, value in cell)


def _missing(experiment: Experiment, cells: dict[Cell, list[Run]]) -> list[Cell]:
    """The cells of the paper's grid without a run; along a column without any of its values,
    of the measured ones.
    """
    columns = []
    for key, values in experiment.swept.items():
        measured = {dict(cell)[key] for cell in cells}  # scale=smoke has other image sizes
        columns.append([(key, value) for value in (values if measured & {*values} else measured)])
    return [cell for cell in product(*columns) if cell not in cells and experiment.has(cell)]
