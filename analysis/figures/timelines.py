"""GPUs over time: what they did while runs trained.

Power, memory and utilisation are from NVML's samples (`gpu.parquet`), with the epochs and
evaluations of the run
marked: the papers' Figs. 7 and 8 of 2505.22905, as far as samples of a second show them.
"""

from collections.abc import Iterator, Sequence

import altair as alt
import numpy as np

from multicard.messages import Message

from ..runs import details
from ..runs.load import Run
from . import captions
from .chart_data import Row
from .charts import SERIES, SMALL_HEIGHT, SMALL_WIDTH, by_series, facets, heading, y_axis
from .setting_charts import groups
from .vega import Chart, numbered

NEEDS = Message(
    "figure.needs-samples",
    "samples of GPUs (gpu.parquet), which NVML gives of NVIDIA's; CPU ranks have none",
)
MEASURES_NOTE = Message(
    "figure.samples-measures",
    "Memory: in use on the GPU, by any process; utilisation: share of NVML's period in which a"
    " kernel ran",
)
MOST_RUNS = 4  # in a figure, a row of charts each
MOST_POINTS = 400  # of a line
MEASURES = {  # heading, factor, and the least upper end of the axis
    "utilisation": ("utilisation (%)", 100.0, 100.0),
    "power_w": ("power (W)", 1.0, 0.0),
    "memory_bytes": ("memory (GB)", 1e-9, 0.0),
}


def timelines(runs: Sequence[Run], name: str = "timelines") -> list[Chart]:
    """A row of charts for the first sampled run of each setting; none where no run has samples."""
    sampled = [
        run for run in runs if run["status"] == "ok" and (run.folder / details.SAMPLES).is_file()
    ]
    figures = []
    for group in groups(sampled, MOST_RUNS):
        rows = []
        for label, own in group.settings.items():
            rows.extend(_rows(own[0], label))
        if not rows:
            continue
        if len(group.settings) > 1:
            rows = [row | {"chart": heading(row["chart"], row[SERIES])} for row in rows]
        gpus = sorted(
            {row["gpu"] for row in rows if row["of"] == "sample"},
            key=lambda name: (len(name), name),
        )
        end_s = max(float(row.get("end_s", row["time_s"])) for row in rows)
        measures = {row["measure"] for row in rows}
        chart = facets(_layers(gpus, end_s), rows, len(measures), SMALL_WIDTH, SMALL_HEIGHT)
        signs = [
            Message(
                "figure.samples",
                "From samples of a second; 0: the first; dotted: starts and ends of epochs",
            )
        ]
        if any(row["of"] == "evaluation" for row in rows):
            signs.append(Message("figure.evaluations-shaded", "shaded: evaluations"))
        notes = ["; ".join(signs), MEASURES_NOTE]
        if any(len(own) > 1 for own in group.settings.values()):
            notes.append(Message("figure.first-of-repeated", "The first of repeated runs is shown"))
        known = [title for measure, (title, *_) in MEASURES.items() if measure in measures]
        title = f"GPUs over time: {captions.listed([title.partition(' (')[0] for title in known])}"
        figures.append(group.figure(numbered(name, len(figures)), chart, rows, title, notes))
    return figures


def _layers(gpus: Sequence[str], end_s: float) -> list[alt.Chart]:
    span = alt.Scale(domain=[0, end_s], nice=False)
    x = alt.X("time_s:Q", title="time (s)", axis=alt.Axis(tickCount=6, grid=False), scale=span)
    tooltip = [alt.Tooltip("gpu:N"), alt.Tooltip("time_s:Q"), alt.Tooltip("shown:Q", format=".4~g")]
    spans = (
        alt.Chart()
        .transform_filter("datum.of == 'evaluation'")
        .mark_rect(opacity=0.16, style="ideal")
    )
    starts = (
        alt.Chart()
        .transform_filter("datum.of == 'epoch'")
        .mark_rule(style="ideal", strokeDash=[1, 3])
    )
    line = alt.Chart().transform_filter("datum.of == 'sample'").mark_line(strokeWidth=1.2)
    told = by_series(gpus, "color", "strokeDash", field="gpu")
    return [
        spans.encode(x=x, x2="end_s:Q"),
        starts.encode(x=x),
        line.encode(x=x, y=y_axis(tickCount=4), tooltip=tooltip, **told),
    ]


def _rows(run: Run, label: str) -> Iterator[Row]:
    """A row for each point of each GPU and measure,
    and in each chart for each start of an epoch and evaluation.
    """
    timeline = details.timeline(run)
    if timeline is None:
        return
    samples = timeline.samples
    for measure, (title, factor, top) in MEASURES.items():
        if measure not in samples:
            continue
        limits = {
            "least": 0.0,
            "most": max(
                top, float(np.nan_to_num(samples[measure].astype(float)).max(initial=0.0)) * factor
            ),
        }
        common = {SERIES: label, "measure": measure, "chart": title}
        for gpu in dict.fromkeys(samples["gpu"].tolist()):
            own = samples["gpu"] == gpu
            for time_s, value in _points(samples["time_s"][own], samples[measure][own]):
                shown = {"time_s": time_s, "mean": value, "shown": value * factor}
                yield common | limits | {"gpu": gpu, "of": "sample"} | shown
        for start_s, end_s, trained_s in timeline.spans:
            for time_s in (start_s, end_s):
                yield common | {"of": "epoch", "time_s": time_s}
            if trained_s is not None:
                yield common | {"of": "evaluation", "time_s": trained_s, "end_s": end_s}


def _points(times_s: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
    """The known samples; of many, every second, third or so."""
    values = values.astype(float)
    known = np.flatnonzero(np.isfinite(values))  # a reading of the energy alone is a row too
    shown = known[:: max(1, -(-len(known) // MOST_POINTS))]
    return list(zip(times_s[shown].tolist(), values[shown].tolist(), strict=True))
