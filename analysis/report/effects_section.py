"""What each swept setting gains alone, and on what that depends."""

from collections.abc import Sequence

from analysis.commands.best import Ranking
from analysis.figures.effect_charts import UNREPEATED, what_matters
from analysis.figures.vega import numbered
from analysis.report.blocks import Block, Fold, Paragraph, PlainTable, Plot, Section
from analysis.runs.grouping import ACCURACY

MOST_PLOTS = 4  # time and accuracy of two workloads
NO_GAIN = "Accuracy: no setting changes it by more than these runs tell from chance."


def section(rankings: Sequence[Ranking]) -> Section:
    """A chart of each workload's time, and one of its accuracy where something changes that; all gains as a table."""
    blocks: list[Block] = []
    found = what_matters(rankings)
    for index, one in enumerate(found[:MOST_PLOTS]):
        if one.measure == ACCURACY and not any(effects[0].gain.is_told for effects in one.by_axis):
            blocks.append(Paragraph(NO_GAIN, quiet=True))
            continue
        rows = [[one.change(each), one.gain(each), str(each.blocks)] for own in one.by_axis for each in own]
        table = PlainTable("", ["changed", "gain", "pairs of settings"], rows, wraps=True)
        depends = [Paragraph(f"It depends: {sentence}.") for sentence in one.interactions]
        depends += [Paragraph(f"{UNREPEATED}.")] * (not one.is_repeated)
        blocks += [Plot(one.figure(numbered("effects", index))), *depends, Fold("Every value as a table", [table])]
    if len(found) > MOST_PLOTS:
        blocks.append(Paragraph("More, of other workloads: python -m analysis figure effects", quiet=True))
    return Section("matters", "What matters", "What does each setting gain alone, everything else equal?", blocks)
