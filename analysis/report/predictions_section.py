"""Predicted against measured: what each run was expected to take, and what it took."""

from collections.abc import Sequence

from analysis.commands import predictions
from analysis.figures.predictions import predicted
from analysis.report.blocks import Block, Fold, Paragraph, PlainTable, Plot, Section
from analysis.report.overview_section import sentences
from analysis.runs.load import Run
from analysis.runs.predicted import compare

COMMAND = "As text, CSV and JSON: python -m analysis predictions."


def section(runs: Sequence[Run]) -> Section:
    """The figure, and the tables folded away; empty where no run has a prediction."""
    compared = compare(runs)
    blocks: list[Block] = [Plot.of(figure, []) for figure in predicted(runs)]
    notes = [sentences([line]) for line in predictions.notes(compared)]
    if compared.figures:
        rows = [row.texts for row in predictions.accuracies(compared)]
        about = [*(sentences([line]) for line in predictions.NOTES), *notes, COMMAND]
        poorest = list(map(predictions.worst_texts, predictions.worst(compared)))
        tables = [
            PlainTable("Errors and coverage", predictions.ERROR_HEADINGS, rows, about),
            PlainTable("The poorest predictions", predictions.WORST_HEADINGS, poorest),
        ]
        blocks.append(Fold("Errors, coverage and the poorest predictions", tables))
    elif compared.any:
        blocks.append(Paragraph(" ".join(notes), quiet=True))
    verdicts = predictions.verdict_rows(compared)
    if verdicts:
        title = "Memory: what was predicted, and how the runs ended"
        blocks.append(PlainTable(title, predictions.VERDICT_HEADINGS, verdicts))
    question = "What was each run expected to take before it started, and what did it take?"
    return Section("predictions", "Predicted against measured", question, blocks)
