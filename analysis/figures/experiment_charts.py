"""Figures of an experiment's measures: lines over a swept number, bars in groups, and curves over epochs.

Colour and shape are for what the experiment is about, dashes or a chart of its own for the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from analysis.experiments import EFFICIENCY, Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import EXCLUDED, IDEAL, Row
from analysis.figures.charts import HEIGHT, MOST_ACROSS, NO_CELL, WIDTH, bar_layers, drawn, facets, line_layers
from analysis.figures.layout import Layout
from analysis.figures.vega import Figure, escaped
from analysis.runs import details, grouping
from analysis.runs.load import Run
from multicard.config.job import count

FACET_WIDTH = 220  # points, of a chart of lines among several of one measure
BAR, LEAST_WIDTH, MOST_WIDTH = 24, 180, 1000  # points: a bar's width, and of all charts beside each other
CURVES = ("train_loss", "test_accuracy")  # keys of a record's epochs
EFFICIENCY_NOTE = "Parallel efficiency: the time on one GPU / (GPUs x the time), a ratio of means"


def lines(panel: Panel, name: str) -> Figure | None:
    """A chart for each measure of the view, with the ideal beside times and rates."""
    layout, view = Layout.of(panel), panel.experiment.view

    def rows_of(measure: str) -> list[Row]:
        if measure == EFFICIENCY:
            return chart_data.efficiency(panel, view.measures[0])
        rows = chart_data.measured(panel, measure)
        return [*rows, *chart_data.ideal(panel, measure, rows), *chart_data.paper(panel, measure)]

    def layers(rows: list[Row]) -> list[Any]:
        last = max(panel.values(layout.x)) if captions.is_numeric(panel.values(layout.x)) else None
        return line_layers(rows, layout.x_axis(rows), layout.series(), last)

    def notes(rows: list[Row]) -> list[str]:
        means = [EFFICIENCY_NOTE] if EFFICIENCY in view.measures else []
        return [*_ideal_notes(panel, rows), *means, *crosses_note(rows)]

    return _by_measure(layout, name, view.measures, rows_of, layers, notes, FACET_WIDTH if layout.faceted else WIDTH)


def _ideal_notes(panel: Panel, rows: Sequence[Row]) -> list[str]:
    measures = {row["measure"] for row in rows if row["of"] == IDEAL}
    ranks = captions.column("gpus", panel.runs)
    notes = []
    if measures - {"step_s"}:
        in_rows = " in rows" if panel.experiment.kind == "llm" else ""
        notes.append(f"Thin grey: the ideal, n {ranks} n times as fast as one{in_rows}")
    if "step_s" in measures:
        notes.append(f"Thin grey: the ideal, an iteration of n {ranks} (with n times the rows) as long as that of one")
    return notes


def bars(panel: Panel, name: str) -> Figure | None:
    """Groups of bars along x for each measure of the view; narrower where many charts stand beside each other."""
    layout, view = Layout.of(panel, most_dashes=0), panel.experiment.view
    colours = len(layout.values(layout.colour)) if layout.colour is not None else 1
    width = min(len(panel.values(layout.x)) * (colours + 1) * BAR, MOST_WIDTH // min(MOST_ACROSS, layout.parts))

    def rows_of(measure: str) -> list[Row]:
        rows = [*chart_data.measured(panel, measure), *chart_data.paper(panel, measure)]
        return [*rows, *chart_data.excluded(panel, measure)] if rows else []

    def layers(rows: list[Row]) -> list[Any]:
        for row in rows:  # a bar of no height would look like a missing one
            row["label"] = "0" if row.get("mean") == 0 else row["label"]
        order = captions.ordered(panel.values(layout.x))
        x = alt.X(
            escaped(layout.x), type="ordinal", sort=order, title=layout.title(layout.x), axis=alt.Axis(labelAngle=0)
        )
        return bar_layers(rows, x, layout.series(alt.XOffset))

    def notes(rows: list[Row]) -> list[str]:
        cells = [grouping.label(tuple(entry.items()), entry) for entry in panel.experiment.excluded]
        holes = [f"{NO_CELL}: cannot be, and is not in the grid: {'; '.join(cells)}"]
        return [*holes * any(row["of"] == EXCLUDED for row in rows), *crosses_note(rows)]

    return _by_measure(layout, name, view.measures, rows_of, layers, notes, max(LEAST_WIDTH, width), at_foot=True)


def curves(panel: Panel, name: str) -> Figure | None:
    """Training loss and test accuracy by epoch; the papers print none."""
    layout = Layout.of(panel, x="epoch", most_dashes=len(panel.cells))

    def layers(rows: list[Row]) -> list[Any]:
        return line_layers(rows, layout.x_axis(rows), layout.series(), band=True)

    def notes(_: list[Row]) -> list[str]:
        return [*loss_gaps(panel.runs), *unended_note(panel)]

    return _by_measure(layout, name, CURVES, lambda measure: chart_data.by_epoch(panel, measure), layers, notes, WIDTH)


def _by_measure(
    layout: Layout,
    name: str,
    measures: Sequence[str],
    rows_of: Callable[[str], list[Row]],
    layers_of: Callable[[list[Row]], list[Any]],
    notes_of: Callable[[list[Row]], list[str]],
    width: int,
    at_foot: bool = False,
) -> Figure | None:
    """A figure with charts for each measure that was measured; None without any row.

    Args:
        rows_of: the rows of a measure.
        layers_of: the layers over all rows.
        notes_of: further lines below the figure.
        width: of one chart, in points.
        at_foot: as of `charts.drawn`.
    """
    rows, notes, kind = [], [], layout.panel.experiment.kind
    for measure in measures:
        own = layout.joined(rows_of(measure))
        if rows and not any(row["status"] == "ok" and "mean" in row for row in own):
            notes.append(f"No run has {captions.measure(measure, kind)}")
        else:
            rows += own
    if not rows:
        return None
    rows = drawn(rows, kind, layout.x, layout.part, layout.series_words, at_foot)
    columns = min(MOST_ACROSS, layout.parts) if layout.faceted else len(measures)
    chart = facets(layers_of(rows), rows, columns, width, HEIGHT)
    notes = [*chart_data.means_notes(rows, kind), *notes, *notes_of(rows)]
    return layout.figure(name, chart, rows, notes, columns * width)


def crosses_note(rows: Sequence[Row]) -> list[str]:
    """A line about the runs that did not end ok."""
    statuses = list(dict.fromkeys(grouping.typed(row["status"]) for row in rows if row["status"] != "ok"))
    return [f"Crosses: runs that did not end ({', '.join(statuses)}); no mean has them in it"] if statuses else []


def loss_gaps(runs: Sequence[Run]) -> list[str]:
    """A line where a loss was not finite, which leaves a gap in a curve."""
    counts = [details.lost_losses(run) for run in runs if run["status"] == "ok"]
    gaps, epochs = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return [f"The loss of {gaps} of {count(epochs, 'epoch')} was no finite number: not shown"] if gaps else []


def unended_note(panel: Panel) -> list[str]:
    """A line about the runs that did not end ok, where they have no cross."""
    cells = [
        f"{grouping.label(cell, [key for key, _ in cell])} ({grouping.typed(status)}{f' x{n}' if n > 1 else ''})"
        for cell, runs in panel.cells.items()
        for status, n in chart_data.unended(runs)
    ]
    return [f"Not shown, for they did not end: {'; '.join(cells)}"] if cells else []
