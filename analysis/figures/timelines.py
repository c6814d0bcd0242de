"""Draw what the GPUs did over time while runs trained.

Power, memory and utilisation come from NVML's samples (`gpu.parquet`). The epochs and evaluations
of the run are marked. Figs. 7 and 8 of 2505.22905 show the same, as far as a sample per second can.
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
from .setting_groups import groups
from .vega import Chart, numbered

NEEDS = Message(
    "figure.needs-samples",
    "samples of GPUs (gpu.parquet), which NVML takes of NVIDIA's GPUs; CPU ranks have none",
)
MEASURES_NOTE = Message(
    "figure.samples-measures",
    "Memory: in use on the GPU, by any process; utilisation: the share of NVML's period in which a"
    " kernel ran",
)
MAX_RUNS = 4  # The most runs of a figure. Each has a row of charts.
MAX_POINTS = 400  # The most points of a line.
MEASURES = {  # The heading, the factor to its unit, and the least upper end of the axis.
    "utilisation": ("utilisation (%)", 100.0, 100.0),
    "power_w": ("power (W)", 1.0, 0.0),
    "memory_bytes": ("memory (GB)", 1e-9, 0.0),
}


def timelines(runs: Sequence[Run], name: str = "timelines") -> list[Chart]:
    """Draw a row of charts for the first sampled run of each setting.

    The list is empty if no run has samples.
    """
    sampled_runs = [
        run for run in runs if run["status"] == "ok" and (run.folder / details.SAMPLES).is_file()
    ]
    figures = []
    for group in groups(sampled_runs, MAX_RUNS):
        rows = []
        for label, setting_runs in group.settings.items():
            rows.extend(_timeline_rows(setting_runs[0], label))
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
        chart = facets(
            _timeline_layers(gpus, end_s), rows, len(measures), SMALL_WIDTH, SMALL_HEIGHT
        )
        notes_on_samples = [
            Message(
                "figure.samples",
                "One sample per second; time 0 is the first; dotted: starts and ends of epochs",
            )
        ]
        if any(row["of"] == "evaluation" for row in rows):
            notes_on_samples.append(Message("figure.evaluations-shaded", "shaded: evaluations"))
        notes = ["; ".join(notes_on_samples), MEASURES_NOTE]
        if any(len(setting_runs) > 1 for setting_runs in group.settings.values()):
            notes.append(Message("figure.first-of-repeated", "The first of repeated runs is shown"))
        names_shown = [
            heading_line.partition(" (")[0]
            for measure, (heading_line, *_) in MEASURES.items()
            if measure in measures
        ]
        title = f"GPUs over time: {captions.listed(names_shown)}"
        figures.append(group.figure(numbered(name, len(figures)), chart, rows, title, notes))
    return figures


def _timeline_layers(gpus: Sequence[str], end_s: float) -> list[alt.Chart]:
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
    gpu_encoding = by_series(gpus, "color", "strokeDash", field="gpu")
    return [
        spans.encode(x=x, x2="end_s:Q"),
        starts.encode(x=x),
        line.encode(x=x, y=y_axis(tickCount=4), tooltip=tooltip, **gpu_encoding),
    ]


def _timeline_rows(run: Run, label: str) -> Iterator[Row]:
    """Yield a row for each point of each GPU and measure.

    Each chart also has rows for the starts and ends of epochs, and for evaluations.
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
        chart_fields = {SERIES: label, "measure": measure, "chart": title}
        for gpu in dict.fromkeys(samples["gpu"].tolist()):
            is_of_gpu = samples["gpu"] == gpu
            for time_s, value in _thinned_points(
                samples["time_s"][is_of_gpu], samples[measure][is_of_gpu]
            ):
                shown = {"time_s": time_s, "mean": value, "shown": value * factor}
                yield chart_fields | limits | {"gpu": gpu, "of": "sample"} | shown
        for start_s, end_s, trained_s in timeline.spans:
            for time_s in (start_s, end_s):
                yield chart_fields | {"of": "epoch", "time_s": time_s}
            if trained_s is not None:
                yield chart_fields | {"of": "evaluation", "time_s": trained_s, "end_s": end_s}


def _thinned_points(times_s: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
    """Return the known samples, thinned to about MAX_POINTS of them."""
    values = values.astype(float)
    known_indices = np.flatnonzero(
        np.isfinite(values)
    )  # A row may hold only a reading of the energy.
    shown_indices = known_indices[:: max(1, -(-len(known_indices) // MAX_POINTS))]
    return list(zip(times_s[shown_indices].tolist(), values[shown_indices].tolist(), strict=True))
