"""Printed figures of the papers beside runs of the same setting,
by `multicard/papers/settings.yaml`.

A run has a printed figure's setting where it agrees in every key that the papers print for the
table or figure, in what the experiment chose where they print nothing, and in the figure's cell.
Machine and versions never agree; they are named beside each comparison (`versions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multicard.messages import Message
from multicard.papers import printed
from multicard.papers.printed import PrintedFigure
from multicard.records.text_table import clean

from .experiments import Panel
from .runs import grouping, profile_metrics
from .runs.columns import KINDS
from .runs.grouping import Cell

# by a figure's note, columns over whose values it is printed
ALIKE = {"two_and_four_gpus": frozenset({"gpus"})}
# where they are called otherwise
PACKAGES = {"CUDA": "nvidia-cuda-runtime", "DALI": "nvidia-dali-cuda130"}


@dataclass(frozen=True)
class Difference:
    """A column in which runs are not as the papers': their values,
    and the papers' (or the experiment's own choice).
    """

    column: str
    values: tuple[Any, ...]
    wanted: Any
    is_printed: bool
    why: str

    @property
    def text(self) -> Message:
        values = " or ".join(map(grouping.typed, self.values))
        wanted = grouping.typed(self.wanted)
        theirs = f"{'papers' if self.is_printed else 'experiment'}: {wanted}"
        why = f"; {self.why}" if self.why else ""
        return Message(
            "paper.unlike",
            f"{self.column}={values} ({theirs}{why})",
            column=self.column,
            values=values,
            wanted=wanted,
            printed=self.is_printed,
            has_reason=bool(self.why),
        )


def differences(panel: Panel) -> list[Difference]:
    """Differences of a panel's runs from the papers' setting;
    empty where printed figures may stand beside them.
    """
    known = panel.experiment.papers
    apart = []
    for column, wanted in known.all.items():
        # what is chosen was so before records had the key
        absent = None if column in known.printed else wanted
        values = {run.columns.get(column, absent) for run in panel.runs}
        instead = known.instead.get(column)
        if column in panel.experiment.swept or isinstance(wanted, list) or values == {wanted}:
            continue
        if column in known.kept and column.partition(".")[0] in {one.column for one in apart}:
            continue  # another option has keys of its own
        if instead is None or values != {instead.value}:
            apart.append(
                Difference(
                    column, tuple(sorted(values, key=str)), wanted, column in known.printed, ""
                )
            )
        elif not instead.comparable:
            apart.append(
                Difference(column, (instead.value,), wanted, column in known.printed, instead.why)
            )
    return apart


def beside(panel: Panel, measure: str) -> dict[Cell, PrintedFigure]:
    """The printed figure of each cell, measured or not, that has the same setting."""
    if measure.startswith(printed.METRIC):
        return _metrics_beside(panel, measure)
    figures = [] if differences(panel) else printed.figures(panel.experiment.name, measure)
    return {
        cell: at
        for cell in (*panel.cells, *panel.missing)
        if (at := printed.at(figures, dict(cell)))
    }


def _metrics_beside(panel: Panel, measure: str) -> dict[Cell, PrintedFigure]:
    """The printed seconds of a metric, where the runs were profiled from their start,
    as the papers' were.

    What is printed for several numbers of GPUs alike, or as their range, is that of each.
    """
    if differences(panel) or not profile_metrics.from_start(panel.runs):
        return {}
    by_cell = {}
    for figure in printed.figures(panel.experiment.name, measure):
        alike = ALIKE.get(figure.note, frozenset())
        for cell in panel.cells:
            own = dict(cell)
            is_within = figure.cell.items() <= own.items()
            if is_within and own.keys() - figure.cell.keys() <= alike:
                by_cell[cell] = figure
    return by_cell


def notes(panel: Panel, shown: Sequence[PrintedFigure]) -> list[Message]:
    """Lines below a panel's table: where the figures `shown` are from, what else is printed, what
    is not as printed, misprints, machines and versions; or what keeps printed figures from standing
    beside these.

    None for what was shrunk, which is marked.
    """
    if any(run["smoke"] for run in panel.runs):
        return []
    name = panel.experiment.name
    apart = differences(panel)
    known = printed.figures(name)
    lines = []
    if shown:
        lines.append(sources(shown))
    if shown or not apart:
        lines.append(versions(panel))
    if apart and known:
        reasons = [difference.text for difference in apart]
        other = "other " if shown else ""
        said = f"the papers' {other}figures are of another setting: {', '.join(reasons)}"
        lines.append(Message("paper.other-setting", said, reasons=reasons))
    elif not apart:
        lines += [*_choices(panel), *_elsewhere(name, shown), *_footnotes(name)]
    return lines


def sources(figures: Sequence[PrintedFigure]) -> Message:
    """The tables, figures and sections of the papers that print some figures."""
    named = list(dict.fromkeys(figure.source for figure in figures))
    return Message("paper.sources", f"paper: {', '.join(named)}", sources=named)


def _choices(panel: Panel) -> list[Message]:
    """What the experiment chose where the papers print nothing,
    and what it has otherwise than they print.
    """
    lines = []
    settings = panel.experiment.papers
    chosen = {
        column: value for column, value in settings.chosen.items() if not isinstance(value, list)
    }
    words = " ".join(f"{column}={grouping.typed(value)}" for column, value in chosen.items())
    if words:
        lines.append(Message("paper.chosen", f"not printed, chosen here: {words}", words=words))
    for column, instead in settings.instead.items():
        if column not in panel.experiment.swept and {run[column] for run in panel.runs} == {
            instead.value
        }:
            value = grouping.typed(instead.value)
            said = f"not as printed: {column}={value}: {instead.why}"
            lines.append(Message("paper.instead", said, column=column, value=value))
    return lines


def _elsewhere(experiment: str, shown: Sequence[PrintedFigure]) -> list[Message]:
    """Figures of an experiment that its table does not show."""
    lines = []
    for one in printed.elsewhere(experiment, shown):
        about = {"source": one.source, "figures": one.by_measure}
        if one.secondhand:
            lines.append(
                Message("paper.secondhand", f"not the paper, but {one.source}: {one.text}", **about)
            )
        else:
            lines.append(Message("paper.figures", f"paper: {one.source}: {one.text}", **about))
    return lines


def _footnotes(experiment: str) -> list[Message]:
    lines = []
    for note in printed.footnotes(experiment):
        if note.is_misprint:
            lines.append(Message("paper.misprint", f"misprint: {note.says}", note=note.code))
        else:
            lines.append(Message("paper.note", note.says, note=note.code))
    return lines


def versions(panel: Panel) -> Message:
    """The versions and the hardware of the papers, beside those of the runs."""
    content = printed.papers()
    names = ["torch", KINDS[panel.experiment.kind].package, "CUDA"]
    if any(run["loader"] == "dali" for run in panel.runs):
        names.insert(-1, "DALI")
    theirs = ", ".join(f"{name} {content.versions[name]}" for name in names)
    packages = [runs[0].environment().packages for runs in panel.cells.values()]

    def installed(name: str) -> str:
        """The versions of a package here; "?" where none was recorded."""
        versions = {own.get(PACKAGES.get(name, name)) for own in packages} - {None}
        return f"{name} {' or '.join(sorted(map(str, versions))) or '?'}"

    machines = " or ".join(dict.fromkeys(clean(str(run["hardware"])) for run in panel.runs))
    ours = list(map(installed, names))
    said = f"papers: {theirs}; {content.hardware}. Here: {', '.join(ours)}; {machines}"
    return Message("paper.versions", said, papers=theirs, here=ours, machines=machines)
