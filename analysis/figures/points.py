"""Draw a quick chart for notebooks: a figure of each run against a setting."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from multicard.messages import Refusal
from multicard.records import figures

from ..commands import list_runs
from ..runs import grouping
from ..runs.load import Run
from ..runs.sql import column_names, known
from .charts import HEIGHT, WIDTH
from .vega import escaped

PREFERRED_X = "gpus"
POINT_AREA = 60  # In square pixels.
# In pixels, at least: letters of an axis, and space between its labels.
LETTER_WIDTH = 6
LABEL_GAP = 12
SLANTED = -40  # The angle of labels that do not fit beside each other.


def chart(
    runs: Sequence[Run], y: str = "total_s", x: str | None = None, color: str | None = None
) -> alt.Chart:
    """Draw a point for each run that ended ok and has the figure `y`.

    Args:
        y: the column of a figure.
        x: the column of a setting. By default, it is `gpus` if `gpus` varies, otherwise the first
            setting that varies.
        color: the column of another setting. By default, it is the next one that varies. One more
            setting that varies is drawn as the shape of the points.

    Raises:
        Refusal: the runs do not have one of the columns, or no run has a value to draw.
    """
    names = column_names(runs)
    y = known(y, names, "y")
    drawn_runs = [run for run in runs if run["status"] == "ok" and run[y] is not None]
    if not drawn_runs:
        raise Refusal(
            "figure.nothing-to-plot", f"y={y}: no run that ended ok has it", key="y", value=y
        )

    varying = [
        name
        for name in list_runs.differing(drawn_runs)
        if len({run[name] for run in drawn_runs}) > 1
    ]
    varying.sort(key=lambda name: name != PREFERRED_X)
    x, color = (name if name is None else known(name, names, "x, color") for name in (x, color))
    unused_columns = [name for name in varying if name not in (x, color)]
    if x is None:
        x = unused_columns.pop(0) if unused_columns else "name"
    if color is None and unused_columns:
        color = unused_columns.pop(0)
    shape = unused_columns[0] if unused_columns else None

    columns = dict.fromkeys(name for name in (y, x, color, *varying) if name is not None)
    frame = pd.DataFrame([{name: run[name] for name in columns} for run in drawn_runs])
    figure = figures.FIGURES.get(y)
    title = f"{figure.title} ({y})" if figure else y
    angle = _label_angle([run[x] for run in drawn_runs])
    encoding = {
        "x": alt.X(field=escaped(x), type="ordinal", title=x, axis=alt.Axis(labelAngle=angle)),
        "y": alt.Y(field=escaped(y), type="quantitative", title=title),
        "tooltip": [
            alt.Tooltip(field=escaped(name), type="nominal", title=name) for name in columns
        ],
    }
    if color is not None:
        encoding["color"] = alt.Color(field=escaped(color), type="nominal", title=color)
    if shape is not None:
        encoding["shape"] = alt.Shape(field=escaped(shape), type="nominal", title=shape)
    points = alt.Chart(frame).mark_point(filled=True, size=POINT_AREA).encode(**encoding)
    return points.properties(width=WIDTH, height=HEIGHT)


def _label_angle(values: Sequence[Any]) -> int:
    """Return the angle at which the labels of an axis stand clear of each other."""
    labels = {grouping.typed(value) for value in values}
    widest = LETTER_WIDTH * max(map(len, labels)) + LABEL_GAP
    return 0 if widest * len(labels) <= WIDTH else SLANTED
