"""Power, memory and utilisation of each GPU over the time of a run, from NVML's samples (`gpu.parquet`), with its
epochs and evaluations marked: the papers' Figs. 7 and 8 of 2505.22905, as far as samples of a second show them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.figures.chart_data import Row
from analysis.figures.setting_groups import SETTING, SettingGroup, around, groups
from analysis.figures.vega import DASHES, Figure, Spec, cycled, layered, numbered, only
from analysis.runs.load import Run

FILE = "gpu.parquet"
NEEDS = "samples of GPUs (gpu.parquet), which NVML gives of NVIDIA's; CPU ranks have none"
MOST_RUNS = 4  # in a figure, a row of charts each
MOST_POINTS = 400  # of a line: a point is the mean of several samples then
WIDTH, HEIGHT = 225, 110  # points, of one chart
UTILISATION, POWER, MEMORY = "utilisation", "power_w", "memory_bytes"
MEASURES = {UTILISATION: ("utilisation (%)", 100.0), POWER: ("power (W)", 1.0), MEMORY: ("memory (GB)", 1e-9)}


@dataclass(frozen=True)
class Span:
    """An epoch with its evaluation, on the clock of its samples; `trained_s` is where the evaluation begins,
    None where it is not known."""

    start_s: float
    trained_s: float | None
    end_s: float


def timelines(runs: Sequence[Run], name: str = "timelines") -> list[Figure]:
    """A row of charts for the first sampled run of each setting; none where no run has samples."""
    sampled = [run for run in runs if run["status"] == "ok" and (run.folder / FILE).is_file()]
    figures = []
    for group in groups(sampled, MOST_RUNS):
        by_setting = [(setting.label, list(_rows(setting.runs[0], setting.label))) for setting in group.settings]
        rows = [row for _, of_setting in by_setting for row in of_setting]
        if not rows:
            continue
        axes = _Axes.of(rows)
        charts = [_setting(group, label, of_setting, axes) for label, of_setting in by_setting if of_setting]
        title = "GPUs over time: utilisation, power and memory"
        shaded = "; shaded: evaluations" if any(row["of"] == "evaluation" for row in rows) else ""
        notes = [
            f"From samples of a second; 0: the first of them; dotted: starts and ends of epochs{shaded}",
            "Memory: in use on the GPU, whoever holds it; utilisation: share of NVML's period with a kernel at work",
        ]
        several = max(len(setting.runs) for setting in group.settings)
        notes += ["Of repeated runs the first"] if several > 1 else []
        figures.append(around(numbered(name, len(figures)), {"vconcat": charts}, rows, title, group, notes))
    return figures


@dataclass(frozen=True)
class _Axes:
    """What all charts of a figure share: their GPUs, and the end of the time axis."""

    gpus: list[str]
    end_s: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Axes":
        samples = [row for row in rows if row["of"] == "sample"]
        return cls(sorted({row["gpu"] for row in samples}), max(row.get("end_s", row["time_s"]) for row in rows))


def _setting(group: SettingGroup, label: str, rows: Sequence[Row], axes: _Axes) -> Spec:
    """The charts of one run, beside each other."""
    measures = [measure for measure in MEASURES if any(row["measure"] == measure for row in rows)]
    charts = [_chart(label, measure, axes) for measure in measures]
    title = {"text": label if len(group.settings) > 1 else "", "anchor": "start", "style": "heading", "offset": 4}
    return {"hconcat": charts, "title": title}


def _chart(label: str, measure: str, axes: _Axes) -> Spec:
    title, factor = MEASURES[measure]
    span = alt.Scale(domain=[0, axes.end_s], nice=False)
    x = alt.X("time_s:Q", title="time (s)", axis=alt.Axis(tickCount=6, grid=False), scale=span)
    limits = alt.Scale(domain=[0, 100]) if measure == UTILISATION else alt.Scale(zero=True)
    y = alt.Y("shown:Q", title=title, scale=limits, axis=alt.Axis(tickCount=4))
    legend = alt.Legend(title=None) if len(axes.gpus) > 1 else None
    colour = alt.Color("gpu:N", scale=alt.Scale(domain=axes.gpus), legend=legend)
    dash = alt.StrokeDash("gpu:N", scale=cycled(axes.gpus, [list(dash) for dash in DASHES]), legend=legend)
    tooltip = [alt.Tooltip("gpu:N"), alt.Tooltip("time_s:Q"), alt.Tooltip("shown:Q", title=title, format=".4~g")]
    spans = alt.Chart().transform_filter("datum.of == 'evaluation'").mark_rect(opacity=0.16, style="ideal")
    starts = alt.Chart().transform_filter("datum.of == 'epoch'").mark_rule(style="ideal", strokeDash=[1, 3])
    line = alt.Chart().transform_filter("datum.of == 'sample'").mark_line(strokeWidth=1.2)
    layers = [
        spans.encode(x=x, x2="end_s:Q"),
        starts.encode(x=x),
        line.encode(x=x, y=y, color=colour, strokeDash=dash, tooltip=tooltip),
    ]
    own = {"filter": f"datum.of != 'sample' || datum.measure == '{measure}'"}
    transform = [only(SETTING, label), own, {"calculate": f"datum.mean * {factor}", "as": "shown"}]
    return layered(layers, transform, WIDTH, HEIGHT)


def _rows(run: Run, label: str) -> Iterator[Row]:
    """A row for each point of each GPU and measure, and for each start of an epoch and evaluation."""
    gpu = run.record().get("gpu") or {}
    part = (gpu.get("parts") or [{}])[-1]  # of the last start; each has a clock of its own
    table = _samples(run, part.get("start"))
    if table is None:
        return
    spans = list(_spans(run, part))
    origin_s = min([float(np.min(table["time_s"], initial=np.inf)), *(span.start_s for span in spans)])
    names = {device["uuid"]: _name(device, gpu["devices"]) for device in gpu.get("devices", ())}
    for uuid in dict.fromkeys(table["gpu"].tolist()):
        own = table["gpu"] == uuid
        for measure in MEASURES:
            for time_s, value in _points(table["time_s"][own], table[measure][own]) if measure in table else ():
                at = {SETTING: label, "gpu": names.get(uuid, uuid), "measure": measure, "of": "sample"}
                yield at | {"time_s": time_s - origin_s, "mean": value}
    for span in spans:
        for time_s in (span.start_s, span.end_s):
            yield {SETTING: label, "measure": "", "of": "epoch", "time_s": time_s - origin_s}
        if span.trained_s is not None:
            ends = {"time_s": span.trained_s - origin_s, "end_s": span.end_s - origin_s}
            yield {SETTING: label, "measure": "", "of": "evaluation", **ends}


def _samples(run: Run, start: int | None) -> dict[str, np.ndarray] | None:
    """The columns of one start's samples; None where they cannot be read."""
    try:
        table = pq.read_table(run.folder / FILE)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException):
        return None
    if not {"gpu", "start", "time_s"} <= columns.keys():
        return None
    own = columns["start"] == start if start is not None else np.ones(table.num_rows, bool)
    return {name: column[own] for name, column in columns.items()}


def _points(times_s: np.ndarray, values: np.ndarray) -> Iterator[tuple[float, float]]:
    """The known samples, or the means of several one after the other where there are many."""
    values = values.astype(float)
    known = np.isfinite(values)  # a reading of the energy alone is a row too
    size = max(1, -(-int(known.sum()) // MOST_POINTS))
    for first in range(0, int(known.sum()), size):
        piece = slice(first, first + size)
        yield float(times_s[known][piece].mean()), float(values[known][piece].mean())


def _spans(run: Run, part: dict[str, Any]) -> Iterator[Span]:
    """The epochs of a start, on its samples' clock."""
    if part.get("covers") != "training":
        return
    spans, epochs = part.get("spans_s") or [], run.record().get("epochs") or []
    for (start_s, end_s), epoch in zip(spans, epochs[-len(spans) :], strict=False):
        train_s = epoch.get("train_s")
        has_evaluation = train_s is not None and epoch.get("evaluate_s") is not None
        yield Span(start_s, start_s + train_s if has_evaluation else None, end_s)


def _name(device: dict[str, Any], devices: Sequence[dict[str, Any]]) -> str:
    index = device.get("index")
    name = f"GPU {device['uuid'] if index is None else index}"
    several = len({other.get("host") for other in devices}) > 1
    return f"{device.get('host')}: {name}" if several else name
