"""Loss and accuracy over the epochs of runs: colour for what the experiment is about, dashes for the rest."""

from collections.abc import Sequence

import altair as alt

from analysis.experiments import Panel
from analysis.figures import chart_data
from analysis.figures.chart_data import MEASURED, Row
from analysis.figures.chart_layout import Layout
from analysis.figures.panel_layout import PanelChart, draw_measures
from analysis.figures.vega import Figure, Spec, escaped
from analysis.runs import grouping
from analysis.runs.load import Run
from multicard.config.job import count

MEASURES = ("train_loss", "test_accuracy")  # keys of a record's epochs
WIDTH, HEIGHT = 340, 240  # points
SMALL_FROM = 25  # epochs, from which their points are smaller


def draw(panel: Panel, name: str) -> Figure | None:
    """Training loss and test accuracy by epoch; the papers print none."""

    def notes(_: list[Row]) -> list[str]:
        return [*loss_gaps(panel.runs), *unended_note(panel)]

    layout = Layout.of(panel, x="epoch")
    return draw_measures(panel, name, layout, lambda measure: _rows(panel, measure), _spec, notes, WIDTH, MEASURES)


def _rows(panel: Panel, measure: str) -> list[Row]:
    """A row for each cell of several epochs and each of these, from 1, over the cell's runs that ended ok."""
    rows = []
    for cell, runs in panel.cells.items():
        place = {"measure": measure, **{key: grouping.typed(value) for key, value in cell}}
        by_epoch: dict[int, list[float]] = {}
        for run in runs:
            for epoch, value in epoch_values(run, measure) if run["status"] == "ok" else ():
                by_epoch.setdefault(epoch, []).append(value)
        for epoch, values in sorted(by_epoch.items()) if len(by_epoch) > 1 else ():  # one makes no curve
            rows.append(place | {"epoch": epoch, **chart_data.mean(values), "status": "ok", "of": MEASURED})
    return rows


def epoch_values(run: Run, measure: str) -> list[tuple[int, float]]:
    """Each epoch, from 1, that has the measure, with its value."""
    epochs = run.record().get("epochs") or ()
    known = [(epoch.get("epoch"), epoch.get(measure)) for epoch in epochs]
    return [(number + 1, value) for number, value in known if number is not None and value is not None]


def loss_gaps(runs: Sequence[Run]) -> list[str]:
    """A line where a loss was not finite, which leaves a gap in a curve."""
    epochs = [epoch for run in runs if run["status"] == "ok" for epoch in run.record().get("epochs") or ()]
    gaps = sum(epoch.get("train_loss", 0.0) is None for epoch in epochs)
    return [f"The loss of {gaps} of {count(len(epochs), 'epoch')} was no finite number: not shown"] if gaps else []


def unended_note(panel: Panel) -> list[str]:
    """A line about the runs that did not end ok, where they have no cross."""
    cells = [
        f"{grouping.label(cell, [key for key, _ in cell])} ({grouping.typed(status)}{f' x{n}' if n > 1 else ''})"
        for cell, runs in panel.cells.items()
        for status, n in chart_data.unended(runs)
    ]
    return [f"Not shown, for they did not end: {'; '.join(cells)}"] if cells else []


def _spec(chart: PanelChart) -> Spec:
    epochs = [row["epoch"] for row in chart.rows]
    scale = alt.Scale(domain=[min(epochs) - 0.3, max(epochs) + 0.3], nice=False, zero=False)
    ticks = alt.Axis(format="d", tickMinStep=1, grid=False)
    x = alt.X("epoch", type="quantitative", title="epoch", scale=scale, axis=ticks)
    base = alt.Chart().encode(x=x, y=chart.y())
    series, detail = chart.colour(), chart.detail()
    columns = [alt.Tooltip(escaped(name), type="nominal", title=chart.title(name)) for name in chart.layout.by[1:]]
    mean = alt.Tooltip("shown:Q", title="mean", format=".4~g")
    layers = []
    if any(row["low"] is not None for row in chart.rows):
        band = base.transform_filter("isValid(datum.low)").mark_area(opacity=0.15, clip=True)
        layers.append(band.encode(y="shown_low:Q", y2="shown_high:Q", **series, **detail))
    layers.append(base.mark_line(strokeWidth=1.6, clip=True).encode(**series, **chart.dash(), **detail))
    size = 35 if max(epochs) - min(epochs) < SMALL_FROM else 8
    points = base.mark_point(filled=True, size=size, opacity=1, clip=True)
    tooltip = [alt.Tooltip("epoch:Q"), *columns, mean, alt.Tooltip("n:Q")]
    layers.append(points.encode(**series, **chart.shape(), **detail, tooltip=tooltip))
    return chart.spec(layers, WIDTH, HEIGHT)
