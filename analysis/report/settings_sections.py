"""What each swept setting gains alone, and on what that depends; figures of what settings gain and cost."""

from collections.abc import Sequence

from analysis import rerun_commands
from analysis.commands.best import Ranking
from analysis.figures.effect_charts import UNREPEATED, what_matters
from analysis.figures.setting_charts import efficiency, losses, phases
from analysis.figures.vega import numbered
from analysis.report.blocks import Block, Fold, Heading, Paragraph, PlainTable, Plot, Section
from analysis.runs.details import DetailedRun
from analysis.runs.grouping import ACCURACY

MOST_EFFECTS = 4  # plots: time and accuracy of two workloads
MOST_PLOTS = 2  # of a subsection
MOST_COMMANDS = 20  # that a figure names
NO_GAIN = "Accuracy: no setting changes it by more than these runs tell from chance."


def of_effects(rankings: Sequence[Ranking]) -> Section:
    """A chart of each workload's time, and one of its accuracy where something changes that; all gains as a table."""
    blocks: list[Block] = []
    found = what_matters(rankings)
    for index, one in enumerate(found[:MOST_EFFECTS]):
        if one.measure == ACCURACY and not any(effects[0].gain.is_told for effects in one.by_axis):
            blocks.append(Paragraph(NO_GAIN, quiet=True))
            continue
        rows = [[one.change(each), one.gain(each), str(each.blocks)] for own in one.by_axis for each in own]
        table = PlainTable("", ["changed", "gain", "pairs of settings"], rows, wraps=True)
        depends = [Paragraph(f"It depends: {sentence}.") for sentence in one.interactions]
        depends += [Paragraph(f"{UNREPEATED}.")] * (not one.is_repeated)
        blocks += [Plot(one.figure(numbered("effects", index))), *depends, Fold("Every value as a table", [table])]
    if len(found) > MOST_EFFECTS:
        blocks.append(Paragraph("More, of other workloads: python -m analysis figure effects", quiet=True))
    return Section("matters", "What matters", "What does each setting gain alone, everything else equal?", blocks)


def of_efficiency(runs: Sequence[DetailedRun]) -> Section:
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
