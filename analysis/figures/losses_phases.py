"""Figures of any runs: the loss over epochs or steps, and where a step's time went."""

import math
from collections.abc import Callable, Iterator, Sequence

import altair as alt
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.figures import captions, chart_data
from analysis.figures.chart_data import MEASURED, Row
from analysis.figures.curves import epoch_values, loss_gaps
from analysis.figures.setting_groups import (
    HEIGHT,
    MOST_SERIES,
    SETTING,
    WIDTH,
    Setting,
    SettingGroup,
    around,
    groups,
    series,
)
from analysis.figures.vega import Figure, Spec, calculated, layered, numbered, only
from analysis.formatting import counted
from analysis.runs.load import Run
from multicard.measure import timing
from multicard.records.steps import STEPS

MOST_BARS = 30  # settings in a figure with bars
WINDOWS = 50  # of the steps of a tuning run: a point is the mean loss of one
MOST_TICKS = 8  # along an axis of epochs or steps
LEAST_ROOM = 0.005  # above and below accuracies
REST = "rest of the step"
PHASES = (*timing.PHASES, REST)
REST_NOTES = {
    "vision": "Rest of the step: what the slowest rank took more than the mean, and what lies between phases",
    "llm": "Rest of the step: torchtune's recipes compute in it; apart from it they tell the wait for a batch alone",
}


def losses(runs: Sequence[Run]) -> list[Figure]:
    """Training loss and test accuracy by epoch; of tuning runs the loss by step, in windows."""
    figures = []
    for group in groups(runs, MOST_SERIES, shows=_has_curve):
        if group.kind == "llm":
            x, title = "step", "Training loss by step"
            rows = list(_curve_rows(group, "train_loss", x, lambda run, _: _window_losses(run)))
        else:
            x, title = "epoch", "Training loss and test accuracy by epoch"
            rows = [*_curve_rows(group, "train_loss", x, epoch_values)]
            rows += _curve_rows(group, "test_accuracy", x, epoch_values)
        if not rows:
            continue
        most = max(row["n"] for row in rows)
        notes = [f"Means of up to {most} runs (seeds)" if most > 1 else "Single runs", *loss_gaps(group.runs)]
        if x == "step":
            notes.append(f"Each point is the mean of a {WINDOWS}th of the steps")
        if group.left_out:
            notes.append(f"Not in it: {counted(group.left_out, 'setting')} of a single {x}, which makes no curve")
        charts = [_lines(group, rows, measure, x) for measure in dict.fromkeys(row["measure"] for row in rows)]
        figures.append(around(numbered("losses", len(figures)), {"hconcat": charts}, rows, title, group, notes))
    return figures


def _has_curve(runs: Sequence[Run]) -> bool:
    """Whether several epochs were asked for, or a tuning run has several steps."""
    return any((run["steps" if run["kind"] == "llm" else "epochs"] or 0) > 1 for run in runs)


def _curve_rows(
    group: SettingGroup, measure: str, x: str, values_of: Callable[[Run, str], list[tuple[int, float]]]
) -> Iterator[Row]:
    """A row for each setting and x, the mean over its runs; none of a setting with a single x."""
    for setting in group.settings:
        by_x: dict[int, list[float]] = {}
        for run in setting.runs:
            for at, value in values_of(run, measure):
                by_x.setdefault(at, []).append(value)
        for at, values in sorted(by_x.items()) if len(by_x) > 1 else ():
            yield {"measure": measure, SETTING: setting.label, x: at, **chart_data.mean(values), "of": MEASURED}


def _window_losses(run: Run) -> list[tuple[int, float]]:
    """The last step of each window of a run's steps and its mean loss on rank 0; none without steps.parquet."""
    try:
        table = pq.read_table(run.folder / STEPS, columns=["epoch", "rank", "step", "loss"])
    except (OSError, pa.ArrowException, KeyError):
        return []
    table = table.sort_by([(key, "ascending") for key in ("epoch", "step")])
    ranks, losses = (table[name].to_pylist() for name in ("rank", "loss"))
    finite = [
        loss for rank, loss in zip(ranks, losses, strict=True) if rank == 0 and loss is not None and math.isfinite(loss)
    ]
    size = max(1, -(-len(finite) // WINDOWS))
    windows = [(start, finite[start : start + size]) for start in range(0, len(finite), size)]
    return [(start + len(window), sum(window) / len(window)) for start, window in windows]


def _lines(group: SettingGroup, rows: Sequence[Row], measure: str, x: str) -> Spec:
    own = [row for row in rows if row["measure"] == measure]
    least, most = min(row["mean"] for row in own), max(row["mean"] for row in own)
    unit = captions.unit(measure, most)
    title = "training loss" if x == "step" else captions.axis(measure, group.kind, unit)
    places = sorted({row[x] for row in own})
    ticks = alt.Axis(format="d", values=places[:: -(-len(places) // MOST_TICKS)], grid=False)
    bounds = 0.0, 1.05 * most or 1.0
    if measure == "test_accuracy":
        room = max(0.1 * (most - least), LEAST_ROOM)
        bounds = max(0.0, least - room), min(1.0, most + room)
    limits = alt.Scale(domain=[bound / unit.divisor for bound in bounds], nice=False, zero=False)
    base = alt.Chart().encode(
        x=alt.X(f"{x}:Q", title=x, axis=ticks, scale=alt.Scale(zero=False, nice=False)),
        y=alt.Y("shown:Q", title=title, axis=alt.Axis(format=unit.format, tickCount=6), scale=limits),
        tooltip=[alt.Tooltip(f"{SETTING}:N"), alt.Tooltip(f"{x}:Q"), alt.Tooltip("shown:Q", title=title)],
    )
    layers = series(base, [setting.label for setting in group.settings])
    transform = [only("measure", measure), *calculated(shown=f"datum.mean / {unit.divisor}")]
    return layered(layers, transform, WIDTH, HEIGHT)


def phases(runs: Sequence[Run]) -> list[Figure]:
    """Where a step's time went, a stack for each setting; tuning runs know only how long they waited for a batch."""
    figures = []
    for group in groups(runs, MOST_BARS):
        rows = [row for setting in group.settings for row in _phase_rows(setting)]
        if not rows:
            continue
        labels = list(dict.fromkeys(row[SETTING] for row in rows))
        known = [phase for phase in PHASES if any(row["phase"] == phase for row in rows)]
        longest_s = max(sum(row["mean"] for row in rows if row[SETTING] == label) for label in labels)
        unit = captions.unit("step_s", longest_s)
        ticks = alt.Axis(format=unit.format, tickCount=7)
        tooltip = [alt.Tooltip(f"{SETTING}:N"), alt.Tooltip("phase:N"), alt.Tooltip("shown:Q", format=".4~g")]
        bars = alt.Chart().mark_bar(style="part")
        bars = bars.encode(
            x=alt.X("shown:Q", stack="zero", title=f"mean step ({unit.name})", axis=ticks),
            y=alt.Y(f"{SETTING}:N", sort=labels, title=None, axis=alt.Axis(labelLimit=420)),
            color=alt.Color("phase:N", scale=alt.Scale(domain=known), title="phase"),
            order=alt.Order("order:Q"),
            tooltip=tooltip,
        )
        chart = layered([bars], calculated(shown=f"datum.mean / {unit.divisor}"), 420, 24 * len(labels))
        notes = ["Means over the measured steps and ranks", REST_NOTES[group.kind]]
        name = numbered("phases", len(figures))
        figures.append(around(name, chart, rows, "Where a step's time went", group, notes))
    return figures


def _phase_rows(setting: Setting) -> Iterator[Row]:
    known = [phases for run in setting.runs if (phases := _phases_s(run))]
    for order, phase in enumerate(PHASES):
        values = [phases[phase] for phases in known if phase in phases]
        if values:
            mean = sum(values) / len(values)
            yield {SETTING: setting.label, "phase": phase, "order": order, "mean": mean, "n": len(values)}


def _phases_s(run: Run) -> dict[str, float]:
    """Mean seconds of a step by phase, with the rest of the mean step; empty where the record has no phase."""
    record = run.record()
    recorded = record.get("phases_s") or {"data": record.get("data_s")}
    phases = {phase: seconds for phase, seconds in recorded.items() if seconds is not None}
    rest = (run["step_s"] or 0.0) - sum(phases.values())
    return phases | ({REST: rest} if phases and rest > 0 else {})
