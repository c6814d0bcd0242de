"""Put the papers' printed figures beside runs of the same setting.

`multicard/papers/settings.yaml` has the papers' settings. A run has the setting of a printed figure
if it agrees in every key that the papers print for the table or figure, and in the figure's cell.
If the papers do not print a key, the experiment's choice counts. Machines and versions never agree,
so each comparison names them (`versions`).
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

# The columns over whose values a figure is printed, by the figure's note.
SHARED_COLUMNS = {"two_and_four_gpus": frozenset({"gpus"})}
# The package of each name in the papers, if the two differ.
PACKAGE_NAMES = {"CUDA": "nvidia-cuda-runtime", "DALI": "nvidia-dali-cuda130"}


@dataclass(frozen=True)
class Difference:
    """A column in which runs differ from the papers, or from the experiment's own choice."""

    column: str
    values: tuple[Any, ...]
    wanted: Any
    is_printed: bool
    why: str

    @property
    def text(self) -> Message:
        values = " or ".join(map(grouping.typed, self.values))
        wanted = grouping.typed(self.wanted)
        wanted_text = f"{'papers' if self.is_printed else 'experiment'}: {wanted}"
        reason = f"; {self.why}" if self.why else ""
        return Message(
            "paper.unlike",
            f"{self.column}={values} ({wanted_text}{reason})",
            column=self.column,
            values=values,
            wanted=wanted,
            printed=self.is_printed,
            has_reason=bool(self.why),
        )


def differences(panel: Panel) -> list[Difference]:
    """Return the differences of a panel's runs from the papers' setting.

    If there are none, printed figures may stand beside the runs.
    """
    paper_settings = panel.experiment.papers
    differences_found = []
    for column, wanted in paper_settings.all.items():
        # Records that are older than a key were made with the chosen value.
        value_if_absent = None if column in paper_settings.printed else wanted
        values = {run.columns.get(column, value_if_absent) for run in panel.runs}
        instead = paper_settings.instead.get(column)
        if column in panel.experiment.swept or isinstance(wanted, list) or values == {wanted}:
            continue
        if column in paper_settings.kept and column.partition(".")[0] in {
            difference.column for difference in differences_found
        }:
            continue  # Another option of the group has other keys.
        if instead is None or values != {instead.value}:
            differences_found.append(
                Difference(
                    column,
                    tuple(sorted(values, key=str)),
                    wanted,
                    column in paper_settings.printed,
                    "",
                )
            )
        elif not instead.comparable:
            differences_found.append(
                Difference(
                    column, (instead.value,), wanted, column in paper_settings.printed, instead.why
                )
            )
    return differences_found


def comparable_figures(panel: Panel, measure: str) -> dict[Cell, PrintedFigure]:
    """Return the printed figure of each cell, measured or not, that has the same setting."""
    if measure.startswith(printed.METRIC):
        return _comparable_metrics(panel, measure)
    figures = [] if differences(panel) else printed.figures(panel.experiment.name, measure)
    return {
        cell: figure
        for cell in (*panel.cells, *panel.missing)
        if (figure := printed.at(figures, dict(cell)))
    }


def _comparable_metrics(panel: Panel, measure: str) -> dict[Cell, PrintedFigure]:
    """Return the printed seconds of a metric by cell.

    There are none unless the runs were profiled from their start, as in the papers. A figure that
    is printed for several numbers of GPUs, or as their range, counts for each of them.
    """
    if differences(panel) or not profile_metrics.from_start(panel.runs):
        return {}
    by_cell = {}
    for figure in printed.figures(panel.experiment.name, measure):
        shared_columns = SHARED_COLUMNS.get(figure.note, frozenset())
        for cell in panel.cells:
            values = dict(cell)
            agrees = figure.cell.items() <= values.items()
            if agrees and values.keys() - figure.cell.keys() <= shared_columns:
                by_cell[cell] = figure
    return by_cell


def notes(panel: Panel, shown: Sequence[PrintedFigure]) -> list[Message]:
    """Return the lines below a panel's table.

    They name the sources of the figures `shown`, what else is printed, what differs from print,
    misprints, machines and versions. If printed figures cannot stand beside the runs, they say why.
    There are no lines for runs that were shrunk, which have a mark.
    """
    if any(run["smoke"] for run in panel.runs):
        return []
    name = panel.experiment.name
    setting_differences = differences(panel)
    printed_figures = printed.figures(name)
    lines = []
    if shown:
        lines.append(sources(shown))
    if shown or not setting_differences:
        lines.append(versions(panel))
    if setting_differences and printed_figures:
        reasons = [difference.text for difference in setting_differences]
        other = "other " if shown else ""
        text = f"the papers' {other}figures are of another setting: {', '.join(reasons)}"
        lines.append(Message("paper.other-setting", text, reasons=reasons))
    elif not setting_differences:
        lines += [*_choices(panel), *_other_printed_figures(name, shown), *_footnotes(name)]
    return lines


def sources(figures: Sequence[PrintedFigure]) -> Message:
    """Name the tables, figures and sections of the papers that print some figures."""
    source_names = list(dict.fromkeys(figure.source for figure in figures))
    return Message("paper.sources", f"paper: {', '.join(source_names)}", sources=source_names)


def _choices(panel: Panel) -> list[Message]:
    """Say what the experiment chose because it is not printed, and what differs from print."""
    lines = []
    settings = panel.experiment.papers
    chosen_values = {
        column: value for column, value in settings.chosen.items() if not isinstance(value, list)
    }
    words = " ".join(f"{column}={grouping.typed(value)}" for column, value in chosen_values.items())
    if words:
        lines.append(Message("paper.chosen", f"not printed, chosen here: {words}", words=words))
    for column, instead in settings.instead.items():
        if column not in panel.experiment.swept and {run[column] for run in panel.runs} == {
            instead.value
        }:
            value = grouping.typed(instead.value)
            text = f"not as printed: {column}={value}: {instead.why}"
            lines.append(Message("paper.instead", text, column=column, value=value))
    return lines


def _other_printed_figures(experiment: str, shown: Sequence[PrintedFigure]) -> list[Message]:
    """Return lines about figures of an experiment that its table does not show."""
    lines = []
    for other_figures in printed.elsewhere(experiment, shown):
        facts = {"source": other_figures.source, "figures": other_figures.by_measure}
        if other_figures.secondhand:
            lines.append(
                Message(
                    "paper.secondhand",
                    f"not the paper, but {other_figures.source}: {other_figures.text}",
                    **facts,
                )
            )
        else:
            lines.append(
                Message(
                    "paper.figures", f"paper: {other_figures.source}: {other_figures.text}", **facts
                )
            )
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
    """Name the versions and the hardware of the papers and of the runs."""
    content = printed.papers()
    package_names = ["torch", KINDS[panel.experiment.kind].package, "CUDA"]
    if any(run["loader"] == "dali" for run in panel.runs):
        package_names.insert(-1, "DALI")
    paper_versions = ", ".join(f"{name} {content.versions[name]}" for name in package_names)
    packages = [runs[0].environment().packages for runs in panel.cells.values()]

    def installed(name: str) -> str:
        """Return the versions of a package in the runs; "?" if none was recorded."""
        versions = {
            packages_of_run.get(PACKAGE_NAMES.get(name, name)) for packages_of_run in packages
        } - {None}
        return f"{name} {' or '.join(sorted(map(str, versions))) or '?'}"

    machines = " or ".join(dict.fromkeys(clean(str(run["hardware"])) for run in panel.runs))
    own_versions = list(map(installed, package_names))
    text = (
        f"papers: {paper_versions}; {content.hardware}. Here: {', '.join(own_versions)}; {machines}"
    )
    return Message(
        "paper.versions", text, papers=paper_versions, here=own_versions, machines=machines
    )
