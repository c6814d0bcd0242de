"""Draw a quick chart for notebooks: a figure of each run against a setting."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from multicard.messages import Refusal
from multicard.records import figures

from ..commands import list_runs
from ..runs.load import Run
from ..runs.sql import column_names, known

PREFERRED_X = "gpus"
POINT_AREA = 60  # In square pixels.


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
    given_columns = [known(name, names, "x, color") for name in (x, color) if name is not None]
    unused_columns = [name for name in varying if name not in given_columns]
    if x is None:
        x = unused_columns.pop(0) if unused_columns else "name"
    if color is None and unused_columns:
        color = unused_columns.pop(0)
    shape = unused_columns[0] if unused_columns else None

    columns = dict.fromkeys(name for name in (y, x, color, *varying) if name is not None)
    frame = pd.DataFrame([{name: run[name] for name in columns} for run in drawn_runs])
    figure = figures.FIGURES.get(y)
    encoding = {
        "x": alt.X(f"{x}:O", title=x, axis=alt.Axis(labelAngle=0)),
        "y": alt.Y(f"{y}:Q", title=f"{figure.title} ({y})" if figure else y),
        "tooltip": [alt.Tooltip(name) for name in columns],
    }
    if color is not None:
        encoding["color"] = alt.Color(f"{color}:N", title=color)
    if shape is not None:
        encoding["shape"] = alt.Shape(f"{shape}:N", title=shape)
    return alt.Chart(frame).mark_point(filled=True, size=POINT_AREA).encode(**encoding)
