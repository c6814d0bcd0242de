"""What the report says: the one place where runs, tables, figures and verdicts come together as its sections."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from analysis.papers import experiments
from analysis.papers.experiments import Experiment, Panel
from analysis.report import gaps_section, overview_section, rerun_commands, run_details, runs_grid, settings_section
from analysis.report.blocks import Claim, Fold, Grid, Heading, Part, Plot, Report, Section, Table, Words
from analysis.report.run_details import Read, mapping
from analysis.runs.load import Found, Run
from multicard.measure.timing import timestamp

IN_SIGHT, MOST_FIGURES = 2, 10  # of a kind, of all runs
MOST_COMMANDS = 20  # that a figure of all runs names


class Drawn(Protocol):
    """A figure: Vega-Lite and the rows that it shows."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def spec(self) -> dict[str, Any]: ...
    @property
    def rows(self) -> list[dict[str, Any]]: ...
    @property
    def marks(self) -> str: ...
    @property
    def caption(self) -> str: ...


class Tabled(Protocol):
    """A table of text."""

    @property
    def title(self) -> str: ...
    @property
    def headings(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...
    @property
    def notes(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Judged:
    """The claims, and how many of them hold, in sentences."""

    claims: Sequence[Claim]
    summary: Sequence[str]


@dataclass(frozen=True)
class Sources:
    """Who makes what the report shows beside its own tables.

    tables, charts: of an experiment and the panels that runs fill. overall: figures of all runs by the subsection that
    they belong to (`scaling`, `phases`, `curves`, `profiles`, `volumes`, `energy`). theme: Vega's configuration, of
    `light` and `dark`.
    """

    tables: Callable[[Experiment, list[Panel]], Sequence[Tabled]]
    charts: Callable[[Experiment, list[Panel]], Sequence[Drawn]]
    overall: Callable[[Sequence[Run]], Mapping[str, Sequence[Drawn]]]
    judge: Callable[[Sequence[Run], bool], Judged]
    theme: Callable[[str], Mapping[str, Any]]


def sources() -> Sources:
    """Those of this program."""
    from analysis.report import wiring  # it draws: a second of imports

    return Sources(
        tables=wiring.tables_of,
        charts=wiring.charts_of,
        overall=wiring.overall,
        judge=lambda runs, mix: Judged(*wiring.judged(runs, mix)),
        theme=wiring.theme,
    )


def report(found: Found, title: str, mix: bool, sources: Sources) -> Report:
    """The whole report of some runs.

    Args:
        mix: let runs of several commits and machines stand in one cell, panel and ranking.
    """
    read = run_details.read(found.runs)
    filled = [(one, experiments.panels(one, found.runs, mix)) for one in map(experiments.load, experiments.names())]
    judged = sources.judge(found.runs, mix)
    made = [
        overview_section.answers(read, mix, judged.summary),
        overview_section.machines(read),
        Section(
            "runs",
            "All runs",
            "What was measured? Each row opens what it was, what it cost and the command that measures it again.",
            [runs_grid.grid(read)],
        ),
        _settings(read, mix, sources),
        _papers(filled, sources),
        _claims(judged),
        gaps_section.section(read, found.skipped, filled),
    ]
    return Report(
        title,
        timestamp(),
        summary(found),
        overview_section.warnings(found.runs),
        overview_section.signs(found.runs),
        [section for section in made if section.parts],
        {name: sources.theme(name) for name in ("light", "dark")},
    )


def summary(found: Found) -> str:
    """How many runs, and of when."""
    runs = found.runs
    good = sum(run["status"] == "ok" for run in runs)
    told = [f"{len(runs):,} run{'s' * (len(runs) != 1)}"]
    told += [f"{len(runs) - good:,} of them did not end ok"] * (good < len(runs))
    days = sorted({run["started_at"][:10] for run in runs if run["started_at"]})
    told += [f"measured {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")] if days else []
    return ", ".join(told)


def _settings(read: Sequence[Read], mix: bool, sources: Sources) -> Section:
    """What a setting gains and costs: each subsection its figures, then its table."""
    found = settings_section.settings(read, mix)
    runs = [one.run for one in read]
    figures, typed = sources.overall(runs), rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    made: list[tuple[str, str, Grid | None]] = [
        ("scaling", "Scaling", settings_section.scaling(found)),
        ("phases", "A step", settings_section.phases(found)),
        ("curves", "Learning", None),
        ("profiles", "Profiles", settings_section.profiles(read)),
        ("volumes", "Memory and bytes", settings_section.volumes(found)),
        ("energy", "Energy", settings_section.energy(found)),
    ]
    parts: list[Part] = []
    for name, title, grid in made:
        plots = _folded([_plot(drawn.name, drawn, typed) for drawn in figures.get(name, ())])
        if plots or grid is not None:
            parts += [Heading(title, "" if grid is None else grid.title), *plots]
            parts += [replace(grid, title="")] if grid is not None else []
    if parts and settings_section.energy(found) is None:
        parts += [Heading("Energy"), Words("Not measured: it needs GPUs whose NVML gives power or energy.", "quiet")]
    question = "What does each setting gain, where does its time go, and what does it take?"
    return Section("settings", "Efficiency", question, parts)


def _folded(plots: Sequence[Plot]) -> list[Part]:
    """The first figures in sight, more folded away, and how many more there are, which would be too much of a page."""
    told: list[Part] = [*plots[:IN_SIGHT]]
    folded, rest = plots[IN_SIGHT:MOST_FIGURES], len(plots) - MOST_FIGURES
    if folded:
        told.append(Fold(f"{len(folded)} more, of other settings", folded))
    if rest > 0:
        told.append(Words(f"{rest} more are left out; python -m analysis figure draws them as files.", "quiet"))
    return told


def _papers(filled: Sequence[tuple[Experiment, list[Panel]]], sources: Sources) -> Section:
    parts: list[Part] = []
    for experiment, panels in filled:
        if not panels:
            continue
        shown = [_panel(experiment, panel, index, sources) for index, panel in enumerate(panels)]
        if not any(shown):
            continue
        parts += [Heading(experiment.name, experiment.title), *shown[0]]
        others = [part for inner in shown[1:] for part in inner]
        if others:
            count = len(shown) - 1
            told = "another setting, machine or commit" if count == 1 else "other settings, machines or commits"
            parts.append(Fold(f"{count} more: {told}" if count > 1 else f"Also measured in {told}", others))
    question = "Do the papers' tables and figures look alike here?"
    return Section("papers", "Beside the papers", question, parts)


def _panel(experiment: Experiment, panel: Panel, index: int, sources: Sources) -> list[Part]:
    """The figure and the table of one of an experiment's panels."""
    typed = rerun_commands.of_sweeps(panel.runs) or [experiment.command]
    name = f"{experiment.name}_{index + 1}" if index else experiment.name
    plots = [
        _plot(_numbered(name, number), one, typed) for number, one in enumerate(sources.charts(experiment, [panel]))
    ]
    tables = [Table(one.title, one.headings, one.rows, one.notes, typed) for one in sources.tables(experiment, [panel])]
    return [*plots, *tables]


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number + 1}" if number else name


def _claims(judged: Judged) -> Section:
    """Those that were measured, and folded away the rest."""
    told: list[Part] = [Words(overview_section.sentences(judged.summary), "quiet")] if judged.summary else []
    told += [claim for claim in judged.claims if claim.figures]
    rest = [claim for claim in judged.claims if not claim.figures]
    if rest:
        told.append(Fold(f"{len(rest)} claims that no run here tests", rest))
    return Section("claims", "Claims", "Which of the papers' findings hold on this machine?", told)


def _plot(name: str, drawn: Drawn, typed: Sequence[str]) -> Plot:
    """A figure for the page, whose title and notes are text of the page, not of the drawing."""
    spec = {key: value for key, value in drawn.spec.items() if key not in ("title", "description")}
    if spec.get("data") == {"values": drawn.rows}:
        del spec["data"]  # the page has the rows for the download
    charts = [
        {key: value for key, value in chart.items() if key != "title" or mapping(value).get("style") != "notes"}
        for chart in spec.get("vconcat", ())
    ]
    spec |= {"vconcat": charts} if charts else {}
    caption = drawn.caption.removeprefix(f"{drawn.title.rstrip('.')}. ")
    return Plot(name, drawn.title, spec, drawn.rows, drawn.marks, caption, typed)
