"""Figures of any runs: what the loss did, where a step's time went.

Runs of one setting, commit and machine stand together; a figure has as many settings as can be told apart in it, and
more are figures of their own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.figures import captions, drawn_rows
from analysis.figures.curves import gaps
from analysis.figures.drawn_rows import MEASURED, Row
from analysis.figures.vega import DASHES, SHAPES, Figure, Spec, calculated, figure, layered, only
from analysis.papers.experiments import ORIGIN
from analysis.runs import grouping
from analysis.runs.load import STEPS, Run
from multicard.records.text_table import clean

SERIES, BARS = 8, 30  # settings in a figure with lines, and with bars
WIDTH, HEIGHT = 360, 240
WINDOWS = 50  # of the steps of a tuning run: the loss of each is shown
PHASES = (
    "data",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "rest of the step",
)  # `multicard.measure`'s, and what is left
REST = {
    "vision": "Rest of the step: what the slowest rank took more than the mean, and what lies between phases",
    "llm": "Rest of the step: torchtune's recipes compute in it; apart from it they tell the wait for a batch alone",
}
COUNTED = alt.Axis(format="d", tickMinStep=1, tickCount=8, grid=False)
SETTING = "setting"


@dataclass(frozen=True)
class Setting:
    """Runs of one setting that ended ok, and what tells it from the others of its figure, as it is typed."""

    label: str
    runs: list[Run]


@dataclass(frozen=True)
class Group:
    """The settings of a figure, the columns that tell them apart, and how many of their runs did not end ok."""

    settings: list[Setting]
    by: list[str]
    unended: int

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]


def groups(runs: Sequence[Run], most: int, without: Sequence[str] = ()) -> Iterator[Group]:
    """The settings among runs, by kind and then `most` at a time.

    Args:
        without: columns that do not make another setting, beside the seed.
    """
    for kind in dict.fromkeys(run["kind"] for run in runs):
        mine = [run for run in runs if run["kind"] == kind and run["status"] != "refused"]
        keys = [name for name in grouping.settings(mine) if name not in (*without, grouping.RECIPE)]
        found = list(grouping.group(mine, [*keys, *ORIGIN]).items())
        for start in range(0, len(found), most):
            yield _group(found[start : start + most], [*keys, *ORIGIN])


def _group(found: Sequence[tuple[grouping.Cell, list[Run]]], keys: Sequence[str]) -> Group:
    by = grouping.apart([dict(cell) for cell, _ in found], keys)
    short = [tuple((key, _short(key, value)) for key, value in cell) for cell, _ in found]
    labels = [clean(grouping.label(cell, by)) or "all" for cell in short]
    done = [[run for run in runs if run["status"] == "ok"] for _, runs in found]
    settings = [Setting(label, runs) for label, runs in zip(labels, done, strict=True) if runs]
    return Group(settings, by, sum(len(runs) for _, runs in found) - sum(map(len, done)))


def _short(key: str, value: Any) -> Any:
    return value[: grouping.COMMIT] if key == "commit" and value else value


def named(name: str, drawn: int) -> str:
    """The name of the next figure after so many of that name."""
    return f"{name}-{drawn + 1}" if drawn else name


def around(name: str, chart: Spec, rows: list[Row], title: str, group: Group, notes: Sequence[str]) -> Figure:
    above = [captions.same(group.runs, group.by)]
    common, legend = captions.of_marks(group.runs)
    signs = "".join(dict.fromkeys(common + "".join(run["marks"] for run in group.runs)))
    lost = [f"{group.unended} runs that did not end are not in it"] if group.unended else []
    return figure(name, chart, rows, title, above, [*notes, *lost, *legend], signs, 2 * WIDTH)


def losses(runs: Sequence[Run]) -> list[Figure]:
    """Training loss and test accuracy by epoch; of tuning runs the loss by step, in windows."""
    drawn = []
    for group in groups(runs, SERIES):
        llm = group.settings and group.settings[0].runs[0]["kind"] == "llm"
        measures = {"train_loss": _windows} if llm else dict.fromkeys(("train_loss", "test_accuracy"), _epochs)
        rows = [row for measure, values in measures.items() for row in _curve(group, measure, values)]
        if not rows:
            continue
        x = "step" if llm else "epoch"
        charts = [_lines(group, rows, measure, x) for measure in dict.fromkeys(row["measure"] for row in rows)]
        several = max(row["n"] for row in rows)
        notes = [f"Means of up to {several} runs (seeds)" if several > 1 else "Single runs", *gaps(group.runs)]
        if llm:
            notes.append(f"Each point is the mean of a {WINDOWS}th of the steps")
        title = "Training loss by step" if llm else "Training loss and test accuracy by epoch"
        drawn.append(around(named("losses", len(drawn)), {"hconcat": charts}, rows, title, group, notes))
    return drawn


def _curve(group: Group, measure: str, values: Any) -> Iterator[Row]:
    for setting in group.settings:
        found: dict[int, list[float]] = {}
        for run in setting.runs:
            for at, value in values(run, measure):
                found.setdefault(at, []).append(value)
        for at, known in sorted(found.items()):
            x = "step" if values is _windows else "epoch"
            yield {"measure": measure, SETTING: setting.label, x: at, **drawn_rows.mean(known), "of": MEASURED}


def _epochs(run: Run, measure: str) -> Iterator[tuple[int, float]]:
    for epoch in run.record().get("epochs") or ():
        if epoch.get(measure) is not None:
            yield epoch["epoch"] + 1, epoch[measure]


def _windows(run: Run, measure: str) -> Iterator[tuple[int, float]]:
    """The last step and the mean loss of each window of a run's steps, in their order; none where there is no file."""
    del measure
    try:
        table = pq.read_table(run.folder / STEPS, columns=["epoch", "rank", "step", "loss"])
    except (OSError, pa.ArrowException, KeyError):
        return
    table = table.sort_by([(key, "ascending") for key in ("epoch", "step")])
    rank, loss = (table[name].to_pylist() for name in ("rank", "loss"))
    pairs = zip(rank, loss, strict=True)
    known = [value for of, value in pairs if of == 0 and value is not None and math.isfinite(value)]
    window = max(1, -(-len(known) // WINDOWS))
    for start in range(0, len(known), window):
        part = known[start : start + window]
        yield start + len(part), sum(part) / len(part)


def _lines(group: Group, rows: Sequence[Row], measure: str, x: str) -> Spec:
    mine = [row for row in rows if row["measure"] == measure]
    unit = captions.unit(measure, max(row["mean"] for row in mine))
    title = "training loss" if x == "step" else captions.axis(measure, group.runs[0]["kind"], unit)
    base = alt.Chart().encode(
        x=alt.X(
            f"{x}:Q",
            title=x,
            axis=alt.Axis(format="d", tickMinStep=1, tickCount=8, grid=False),
            scale=alt.Scale(zero=False),
        ),
        y=alt.Y("shown:Q", title=title, axis=alt.Axis(format=unit.format)).scale(zero=measure == "train_loss"),
        tooltip=[alt.Tooltip(f"{SETTING}:N"), alt.Tooltip(f"{x}:Q"), alt.Tooltip("shown:Q", title=title)],
    )
    layers = series(base, [setting.label for setting in group.settings])
    transform = [only("measure", measure), *calculated(shown=f"datum.mean / {unit.divisor}")]
    return layered(layers, transform, WIDTH, HEIGHT)


def series(base: Any, labels: Sequence[str]) -> list[Any]:
    """A line with points for each setting, told apart by colour, dash and shape."""
    legend = alt.Legend(title=None, symbolOpacity=1)
    dashes = alt.StrokeDash(f"{SETTING}:N", scale=_cycled(labels, [list(dash) for dash in DASHES]), legend=legend)
    colour = alt.Color(f"{SETTING}:N", scale=alt.Scale(domain=list(labels)), legend=legend)
    shape = alt.Shape(f"{SETTING}:N", scale=_cycled(labels, SHAPES), legend=legend)
    line = base.mark_line(strokeWidth=1.6).encode(color=colour, strokeDash=dashes)
    return [line, base.mark_point(filled=True, size=28, opacity=1).encode(color=colour, shape=shape)]


def _cycled(labels: Sequence[str], values: Sequence[Any]) -> alt.Scale:
    return alt.Scale(domain=list(labels), range=[values[index % len(values)] for index in range(len(labels))])


def phases(runs: Sequence[Run]) -> list[Figure]:
    """Where a step's time went, a stack for each setting; of tuning runs the wait for a batch is known alone."""
    drawn = []
    for group in groups(runs, BARS):
        rows = [row for setting in group.settings for row in _phases(setting)]
        if not rows:
            continue
        labels = list(dict.fromkeys(row[SETTING] for row in rows))
        there = [phase for phase in PHASES if any(row["phase"] == phase for row in rows)]
        totals = {label: sum(row["mean"] for row in rows if row[SETTING] == label) for label in labels}
        unit = captions.unit("step_s", max(totals.values()))
        bars = (
            alt.Chart()
            .mark_bar(style="part")
            .encode(
                x=alt.X(
                    "shown:Q",
                    stack="zero",
                    title=f"mean step ({unit.name})",
                    axis=alt.Axis(format=unit.format, tickCount=7),
                ),
                y=alt.Y(f"{SETTING}:N", sort=labels, title=None, axis=alt.Axis(labelLimit=420)),
                color=alt.Color("phase:N", scale=alt.Scale(domain=there), title="phase"),
                order=alt.Order("order:Q"),
                tooltip=[alt.Tooltip(f"{SETTING}:N"), alt.Tooltip("phase:N"), alt.Tooltip("shown:Q", format=".4~g")],
            )
        )
        transform = calculated(shown=f"datum.mean / {unit.divisor}")
        chart = layered([bars], transform, 420, 24 * len(labels))
        notes = ["Means over the measured steps and ranks", REST[group.runs[0]["kind"]]]
        drawn.append(around(named("phases", len(drawn)), chart, rows, "Where a step's time went", group, notes))
    return drawn


def _phases(setting: Setting) -> Iterator[Row]:
    known = [found for run in setting.runs if (found := phases_s(run))]
    for order, phase in enumerate(PHASES):
        values = [found[phase] for found in known if phase in found]
        if values:
            mean = sum(values) / len(values)
            yield {SETTING: setting.label, "phase": phase, "order": order, "mean": mean, "n": len(values)}


def phases_s(run: Run) -> dict[str, float]:
    """Seconds a step by phase, with what of the mean step is in none of them; empty where the record has neither."""
    record = run.record()
    known = record.get("phases_s") or ({"data": record["data_s"]} if record.get("data_s") is not None else {})
    found = {phase: seconds for phase, seconds in known.items() if seconds is not None}
    rest = (run["step_s"] or 0.0) - sum(found.values())
    return found | ({PHASES[-1]: rest} if found and rest > 0 else {})
