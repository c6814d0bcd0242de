"""Figures of what each setting gains and costs: scaling, steps and losses, and the profiles."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import rerun_commands
from analysis.commands import list_runs
from analysis.figures.setting_charts import efficiency, losses, phases
from analysis.report.blocks import Block, Column, Grid, Heading, Paragraph, Plot, Section
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.load import Run
from multicard.records import figures

MOST_PROFILE_ROWS = 5000
MOST_PLOTS = 2  # of a subsection
MOST_COMMANDS = 20  # that a figure names
PROFILES_ABOUT = (
    "Summed over ranks, a step; share: of the profiled time. Kernels are in the records: python -m "
    "multicard.observe.profiles FOLDER/profile."
)


def section(runs: Sequence[DetailedRun]) -> Section:
    """The figures of each subsection, then the profiles."""
    commands, metrics = rerun_commands.of_sweeps(runs)[:MOST_COMMANDS], profiles(runs)
    blocks: list[Block] = []
    charts = {"Scaling": efficiency(runs), "A step": phases(runs), "Learning": losses(runs)}
    for title, drawn in charts.items():
        plots = [Plot(figure, commands) for figure in drawn[:MOST_PLOTS]]
        blocks += [Heading(title), *plots] if plots else []
        if len(drawn) > MOST_PLOTS:
            rest = f"{len(drawn) - MOST_PLOTS} more, of other settings or data sets: python -m analysis figure"
            blocks.append(Paragraph(f"{rest} {drawn[MOST_PLOTS].name.partition('-')[0]}", quiet=True))
    blocks += [Heading("Profiles"), metrics] if metrics is not None else []
    question = "What does each setting gain, where does its time go, and what does it take?"
    return Section("settings", "Efficiency", question, blocks)


def profiles(runs: Sequence[DetailedRun]) -> Grid | None:
    """The metrics of profiled runs, summed over their ranks; None where none was profiled."""
    rows = [(run, row) for run in runs if run["status"] == "ok" for row in run.profile_rows]
    if not rows:
        return None
    shown = rows[:MOST_PROFILE_ROWS]

    def by_step(name: str, factor: float = 1.0) -> list[float | None]:
        return [_ratio(row.get(name), factor, run.profile_steps) for run, row in shown]

    sizes = by_step("bytes")
    columns = [
        Column.of("setting", _labels([run for run, _ in shown]), code=True),
        *(Column.of(name, [row.get(name) for _, row in shown]) for name in ("group", "metric")),
        Column.of("calls", by_step("calls"), "calls a step", "{:,.4g}"),
        Column.of("step_ms", by_step("total_s", 1e3), "ms a step", "{:,.4g}"),
        Column.of("share", [_ratio(row.get("share")) for _, row in shown], form="{:.2%}"),
        replace(Column.of("bytes", sizes, "bytes a step"), texts=[figures.text("_bytes", size) for size in sizes]),
        Column.of("marks", [run["marks"] for run, _ in shown]),
    ]
    first = [f"The first {MOST_PROFILE_ROWS:,} of {len(rows):,} rows."] if len(rows) > MOST_PROFILE_ROWS else []
    columns = [column for column in columns if not column.is_empty]
    return Grid("profiles", "metrics of the profiles", columns, notes=[PROFILES_ABOUT, *first])


def _ratio(value: Any, factor: float = 1.0, count: int | None = 1) -> float | None:
    return factor * value / (count or 1) if isinstance(value, int | float) else None


def _labels(runs: Sequence[Run]) -> list[str]:
    """Each run by the keys that tell it from the others of its kind."""
    labels: dict[Path, str] = {}
    for kind in dict.fromkeys(run["kind"] for run in runs):
        own = [run for run in runs if run["kind"] == kind]
        keys = grouping.telling([run.columns for run in own], [*list_runs.differing(own), *grouping.ORIGIN, "hosts"])
        for run in own:
            cell = tuple((key.removesuffix(".name"), run[key]) for key in keys)
            labels[run.folder] = grouping.label(cell, dict(cell)) or grouping.kind(kind)
    return [labels[run.folder] for run in runs]
