"""Figures of what each setting gains and costs: scaling, steps and losses."""

from collections.abc import Sequence

from analysis import rerun_commands
from analysis.figures.setting_charts import efficiency, losses, phases
from analysis.report.blocks import Block, Heading, Paragraph, Plot, Section
from analysis.runs.details import DetailedRun

MOST_PLOTS = 2  # of a subsection
MOST_COMMANDS = 20  # that a figure names


def section(runs: Sequence[DetailedRun]) -> Section:
    commands = rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    blocks: list[Block] = []
    charts = {"Scaling": efficiency(runs), "A step": phases(runs), "Learning": losses(runs)}
    for title, drawn in charts.items():
        plots = [Plot(figure, commands) for figure in drawn[:MOST_PLOTS]]
        blocks += [Heading(title), *plots] if plots else []
        if len(drawn) > MOST_PLOTS:
            rest = f"{len(drawn) - MOST_PLOTS} more, of other settings or data sets: python -m analysis figure"
            blocks.append(Paragraph(f"{rest} {drawn[MOST_PLOTS].name.partition('-')[0]}", quiet=True))
    question = "What does each setting gain, where does its time go, and what does it take?"
    return Section("settings", "Efficiency", question, blocks)
