"""Loss and accuracy over the epochs of runs: colour for what the experiment is about, dashes for the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from analysis.figures import captions, drawn_rows
from analysis.figures.drawn_rows import MEASURED, Row
from analysis.figures.panel_layout import Layout, Plot, around, field
from analysis.figures.vega import Figure, Spec
from analysis.papers.experiments import Panel
from analysis.runs import grouping
from analysis.runs.grouping import Cell
from analysis.runs.load import Run

MEASURES = ("train_loss", "test_accuracy")  # keys of a record's epochs
WIDTH, HEIGHT = 340, 240
DOTTED = 25  # epochs that are shown as points too


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure | None:
    """Training loss and test accuracy by epoch; `paper` has no curves."""
    del paper
    swept = [column for column in panel.experiment.swept if len(panel.values(column)) > 1]
    swept.sort(key=lambda column: column != panel.experiment.view.subject)
    colour, other = [*swept, None, None][:2]
    told = Layout("epoch", colour, other)
    rows, charts, shown = [], [], {}
    for measure in MEASURES:
        found = by_epoch(panel.cells, measure)
        if not found:
            continue
        rows += found
        plot = Plot(panel, told, measure, found, faceted=False)
        shown[measure] = found, plot.reach
        charts.append(chart(plot))
    if not rows:
        return None
    notes = [*drawn_rows.bars(shown, panel.experiment.kind), *gaps(panel.runs), *unended(panel.cells)]
    return around(panel, name, {"hconcat": charts}, rows, told.by, notes, WIDTH * len(charts))


def by_epoch(found: Mapping[Cell, Sequence[Run]], measure: str) -> list[Row]:
    """A row for each cell and epoch, from 1, over the cell's runs that ended ok."""
    rows = []
    for cell, runs in found.items():
        where = {key: captions.value(value) for key, value in cell}
        values: dict[int, list[float]] = {}
        for run in runs:
            for epoch in run.record().get("epochs") or () if run["status"] == "ok" else ():
                if epoch.get(measure) is not None:
                    values.setdefault(epoch["epoch"] + 1, []).append(epoch[measure])
        for epoch, known in sorted(values.items()):
            rows.append(
                {"measure": measure, **where, "epoch": epoch, **drawn_rows.mean(known), "status": "ok", "of": MEASURED}
            )
    return rows


def gaps(runs: Sequence[Run]) -> list[str]:
    """A line where a loss was no number, which a curve leaves out."""
    epochs = [epoch for run in runs if run["status"] == "ok" for epoch in run.record().get("epochs") or ()]
    lost = sum(epoch.get("train_loss", 0.0) is None for epoch in epochs)
    return [f"The loss of {lost} of {len(epochs)} epochs was no finite number: not shown"] if lost else []


def unended(found: Mapping[Cell, Sequence[Run]]) -> list[str]:
    """A line about the runs that did not end ok."""
    told = [
        f"{grouping.label(cell, [key for key, _ in cell])} ({captions.value(status)}{f' x{n}' if n > 1 else ''})"
        for cell, runs in found.items()
        for status, n in drawn_rows.ended(runs)
    ]
    return [f"Not shown, for they did not end: {'; '.join(told)}"] if told else []


def chart(plot: Plot) -> Spec:
    epochs = [row["epoch"] for row in plot.rows]
    scale = alt.Scale(domain=[min(epochs) - 0.3, max(epochs) + 0.3], nice=False, zero=False)
    ticks = alt.Axis(format="d", tickMinStep=1, grid=False)
    x = alt.X("epoch", type="quantitative", title="epoch", scale=scale, axis=ticks)
    ok = alt.Chart().encode(x=x, y=plot.y())
    series, detail = plot.colour(), plot.detail()
    layers = []
    if any(row["low"] is not None for row in plot.rows):
        band = ok.transform_filter("isValid(datum.low)").mark_area(opacity=0.15, clip=True)
        layers.append(band.encode(y="shown_low:Q", y2="shown_high:Q", **series, **detail))
    layers.append(ok.mark_line(strokeWidth=1.6, clip=True).encode(**series, **plot.dash(), **detail))
    size = 35 if max(epochs) - min(epochs) < DOTTED else 8
    dots = ok.mark_point(filled=True, size=size, opacity=1, clip=True)
    layers.append(dots.encode(**series, **plot.shape(), **detail, tooltip=tooltips(plot)))
    return plot.layered(layers, WIDTH, HEIGHT)


def tooltips(plot: Plot) -> list[alt.Tooltip]:
    told = [alt.Tooltip(field(name), type="nominal", title=plot.title(name)) for name in plot.layout.by[1:]]
    return [alt.Tooltip("epoch:Q"), *told, alt.Tooltip("shown:Q", title="mean", format=".4~g"), alt.Tooltip("n:Q")]
