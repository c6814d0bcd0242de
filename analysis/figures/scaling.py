"""What more GPUs are worth, and what one has to pay for time: figures of any runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from analysis import formatting
from analysis.figures import captions
from analysis.figures.drawn_rows import Row
from analysis.figures.losses_phases import HEIGHT, SERIES, SETTING, WIDTH, Group, Setting, around, groups, named, series
from analysis.figures.vega import SHAPES, Figure, Spec, calculated, layered, only
from analysis.runs import grouping, same_work
from analysis.runs.load import Run
from analysis.stats.trade_off import front, shares_differ
from multicard.measure import formulas
from multicard.records.table import in_bytes

RANKS = "ranks"
LISTED = 6  # settings of the front that are named below the chart


def efficiency(runs: Sequence[Run]) -> list[Figure]:
    """Speed against one GPU, and that by GPU, for each setting that was measured on one and on several.

    Of training by `total_s`, of tuning by tokens/s (with `max_steps` more GPUs take more rows), as in the entries' own
    tables.
    """
    drawn = []
    for group in groups(runs, SERIES, without=("gpus", "nodes")):
        rows = [row for setting in group.settings for row in _speeds(setting)]
        if not rows:
            continue
        labels = [setting.label for setting in group.settings if any(row[SETTING] == setting.label for row in rows)]
        of = "CPU ranks" if all(run["cpu_ranks"] for run in group.runs) else "GPUs"
        charts = [
            _against_one(rows, labels, "speedup", f"speed-up over one of the {of}", of),
            _against_one(rows, labels, "efficiency", "parallel efficiency (%)", of),
        ]
        without = len(group.settings) - len(labels)
        notes = ["Ratios of means; thin grey: the ideal"]
        notes += [f"{without} settings were not measured on one and on several"] if without else []
        title = f"What more {of} are worth"
        drawn.append(around(named("efficiency", len(drawn)), {"hconcat": charts}, rows, title, group, notes))
    return drawn


def _speeds(setting: Setting) -> list[Row]:
    found: dict[int, list[Run]] = {}
    for run in setting.runs:
        found.setdefault((run["gpus"] or 1) * (run["nodes"] or 1), []).append(run)
    times_s = {ranks: time_s for ranks, at in sorted(found.items()) if (time_s := _time_s(at)) is not None}
    if 1 not in times_s or len(times_s) < 2:
        return []
    return [
        {
            SETTING: setting.label,
            RANKS: ranks,
            "speedup": formulas.speedup(times_s[1], time_s),
            "efficiency": formulas.parallel_efficiency(times_s[1], time_s, ranks),
            "n": len(found[ranks]),
        }
        for ranks, time_s in times_s.items()
    ]


def _time_s(runs: Sequence[Run]) -> float | None:
    """The mean time of the work, of tuning that of a token."""
    of: Callable[[Run], float | None] = (
        (lambda run: run["total_s"]) if runs[0]["kind"] == "vision" else (lambda run: _inverse(run["tokens_per_s"]))
    )
    known = [time_s for run in runs if (time_s := of(run)) is not None]
    return sum(known) / len(known) if known else None


def _inverse(per_s: float | None) -> float | None:
    return 1 / per_s if per_s else None


def _against_one(rows: Sequence[Row], labels: Sequence[str], column: str, title: str, of: str) -> Spec:
    ranks = sorted({row[RANKS] for row in rows})
    divisor = 0.01 if column == "efficiency" else 1
    most = max([*(row[column] for row in rows), ranks[-1] if column == "speedup" else 1.0]) / divisor
    x = alt.X(f"{RANKS}:Q", title=of, axis=alt.Axis(values=ranks, format="d", grid=False))
    x = x.scale(domain=[ranks[0] - 0.2, ranks[-1] + 0.2], nice=False, zero=False)
    y = alt.Y("shown:Q", title=title, axis=alt.Axis(format="~f"), scale=alt.Scale(domain=[0, 1.05 * most], nice=False))
    base = alt.Chart().encode(x=x, y=y)
    tips = [alt.Tooltip(f"{SETTING}:N"), alt.Tooltip(f"{RANKS}:Q", title=of), alt.Tooltip("shown:Q", format=".3~g")]
    ideal = "datum.ranks" if column == "speedup" else "100"
    line = base.transform_calculate(shown=ideal).mark_line(style="ideal")
    layers = [line, *series(base.encode(tooltip=tips), labels)]
    return layered(layers, calculated(shown=f"datum.{column} / {divisor}"), WIDTH, HEIGHT)


@dataclass(frozen=True)
class Against:
    """What is set against time: its column, and whether the first of two settings is better in it."""

    column: str
    better: Callable[[Row, Row], bool]


def _more_accurate(a: Row, b: Row) -> bool:
    above = a["test_accuracy"] > b["test_accuracy"]
    return above and shares_differ(a["test_accuracy"], a["samples"], b["test_accuracy"], b["samples"])


AGAINST = (
    Against("test_accuracy", _more_accurate),
    Against("peak_memory_bytes", lambda a, b: a["peak_memory_bytes"] < b["peak_memory_bytes"]),
)


def trade_off(runs: Sequence[Run]) -> list[Figure]:
    """Time against accuracy, and against memory, of settings that did the same work, each with its front: settings that
    no other beats in both. Accuracies that the test set cannot tell apart are equal, as in `best`."""
    drawn = []
    measured = [run for run in runs if run["status"] == "ok" and run["total_s"] is not None]
    for kind in dict.fromkeys(run["kind"] for run in measured):
        mine = [run for run in measured if run["kind"] == kind]
        for work in grouping.group(mine, same_work.work_keys(mine, mix=False)).values():
            for same in same_work.by_amount(work).values():
                for group in groups(same, len(same)):
                    figures = _trade_off(group, named("trade_off", len(drawn)))
                    drawn += figures
    return drawn


def _trade_off(group: Group, name: str) -> list[Figure]:
    rows, charts, notes = [], [], []
    told = _told(group)
    for against in AGAINST:
        found = [row for setting in group.settings if (row := _place(setting, against, told)) is not None]
        if len(found) < 2:
            continue
        found.sort(key=lambda row: (row["total_s"], row["setting"]))
        kept = front(found, [lambda a, b: a["total_s"] < b["total_s"], against.better])
        for row in found:
            row["front"] = kept.index(row) + 1 if row in kept else None
        rows += found
        notes.append(_front(kept, against))
        charts.append(_scatter(found, against, told, group))
    if not charts:
        return []
    if "filled" in told:
        column = captions.column(told["filled"], group.runs)
        notes.append("Filled: {0} {1}; hollow: {0} {2}".format(column, *_order(group, told["filled"])))
    notes.append("Dashed grey and numbers: the front, settings that no other beats in both")
    shown = dict.fromkeys(row["against"] for row in rows)
    title = f"Time against {captions.listed([captions.measure(column, '') for column in shown])}"
    return [around(name, {"hconcat": charts}, rows, title, group, notes)]


def _told(group: Group) -> dict[str, str]:
    """Channel to the column it shows: the first that differ and have few enough values; filled or hollow are two."""
    few = [key for key in group.by if 2 <= len(_order(group, key)) <= SERIES]
    told: dict[str, str] = dict(zip(("colour", "shape"), few, strict=False))
    two = next((key for key in few[2:] if len(_order(group, key)) == 2), None)
    return told if two is None else told | {"filled": two}


def _place(setting: Setting, against: Against, told: dict[str, str]) -> Row | None:
    known = [run for run in setting.runs if run[against.column] is not None]
    if not known:
        return None
    highest = against.column.endswith("_bytes")  # of memory the highest counts, as in `best`
    values = [run[against.column] for run in known]
    columns = {channel: captions.value(known[0][name]) for channel, name in told.items()}
    return {
        "against": against.column,
        SETTING: setting.label,
        **columns,
        "total_s": sum(run["total_s"] for run in known) / len(known),
        against.column: max(values) if highest else sum(values) / len(values),
        "samples": sum(run["test_samples"] or 0 for run in known),
        "n": len(known),
    }


def _front(kept: Sequence[Row], against: Against) -> str:
    told = "; ".join(
        f"{row['front']} {row[SETTING]} ({formatting.seconds(row['total_s'])} s, {_value(row, against)})"
        for row in kept[:LISTED]
    )
    rest = f" and {len(kept) - LISTED} more" if len(kept) > LISTED else ""
    return f"Front in time and {captions.measure(against.column, '')}: {told}{rest}"


def _value(row: Row, against: Against) -> str:
    found = row[against.column]
    return in_bytes(found) if against.column.endswith("_bytes") else f"{found:.2%}"


def _scatter(rows: Sequence[Row], against: Against, told: dict[str, str], group: Group) -> Spec:
    kind = group.runs[0]["kind"]
    times = captions.unit("total_s", max(row["total_s"] for row in rows))
    unit = captions.unit(against.column, max(row[against.column] for row in rows))
    fields = {"x": f"datum.total_s / {times.divisor}", "shown": f"datum.{against.column} / {unit.divisor}"}
    title = captions.axis(against.column, kind, unit)
    y = alt.Y("shown:Q", title=title, axis=alt.Axis(format=unit.format), scale=alt.Scale(zero=False))
    x = alt.X("x:Q", title=captions.axis("total_s", kind, times), scale=alt.Scale(zero=False, padding=16))
    base = alt.Chart().encode(x=x, y=y.scale(zero=False, padding=16))
    front = base.transform_filter("isValid(datum.front)")
    encoding = {CHANNELS[channel][0]: _channel(channel, name, group) for channel, name in told.items()}
    if "colour" in told:  # points have both, so that a hollow one keeps its outline
        encoding["stroke"] = alt.Stroke("colour:N", **_titled("colour", told["colour"], group))
    tips = [alt.Tooltip(f"{SETTING}:N"), alt.Tooltip("x:Q", title="time"), alt.Tooltip("shown:Q"), alt.Tooltip("n:Q")]
    layers = [
        front.mark_line(style="ideal", interpolate="step-after", strokeDash=[4, 2]).encode(order="total_s:Q"),
        base.mark_point(size=60, opacity=0.9, strokeWidth=1.5).encode(**encoding, tooltip=tips),
        front.mark_text(dx=7, dy=-8).encode(text="front:N"),
    ]
    return layered(layers, [only("against", against.column), *calculated(**fields)], WIDTH, HEIGHT)


CHANNELS = {
    "colour": ("fill", alt.Fill),
    "shape": ("shape", alt.Shape),
    "filled": ("fillOpacity", alt.FillOpacity),
}


def _channel(channel: str, name: str, group: Group) -> Any:
    """A column as fill, shape, or filled or hollow points."""
    kind = "O" if channel == "filled" else "N"
    return CHANNELS[channel][1](f"{channel}:{kind}", **_titled(channel, name, group))


def _titled(channel: str, name: str, group: Group) -> dict[str, Any]:
    """Scale, title and legend of a channel: the same wherever a column is shown, so that it has one legend."""
    order = _order(group, name)
    ranges = {"shape": [SHAPES[index % len(SHAPES)] for index in range(len(order))], "filled": [1, 0]}
    scale = alt.Scale(domain=order, range=ranges[channel]) if channel in ranges else alt.Scale(domain=order)
    return {"title": captions.column(name, group.runs), "scale": scale, "legend": alt.Legend(symbolOpacity=1)}


def _order(group: Group, name: str) -> list[str]:
    values = list(dict.fromkeys(run[name] for run in group.runs))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return [captions.value(value) for value in (sorted(values) if numbers else values)]
