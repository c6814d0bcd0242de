"""Figures of any runs: what more GPUs are worth, and time against accuracy and memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from analysis.commands.better import Better
from analysis.figures import captions
from analysis.figures.chart_data import Row
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
from analysis.figures.vega import SHAPES, Figure, Spec, calculated, cycled, layered, numbered, only
from analysis.formatting import counted
from analysis.runs import grouping, same_work
from analysis.runs.load import Run
from analysis.runs.setting_figure import ACCURACY, MEMORY, of_setting
from analysis.stats.trade_off import front
from multicard.measure import formulas
from multicard.records import figures
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.text_table import in_bytes

MOST_NAMED = 6  # settings of the front that are named below the chart
ROOM = 0.08  # of the range of the points, around them


def efficiency(runs: Sequence[Run]) -> list[Figure]:
    """Speed-up over one GPU and parallel efficiency, for each setting that was measured on one and on several.

    Of training by `total_s`, of tuning by tokens/s (with `max_steps` more GPUs take more rows), as in the entries' own
    tables.
    """
    figures = []
    scaled = partial(groups, without=("gpus", "nodes"), shows=lambda own: len(_times_s(own)) > 1)
    for group in scaled(runs, MOST_SERIES):
        rows = [row for setting in group.settings for row in _speedup_rows(setting)]
        labels = [setting.label for setting in group.settings]
        ranks = "CPU ranks" if all(run["cpu_ranks"] for run in group.runs) else "GPUs"
        charts = [
            _over_ranks(rows, labels, "speedup", f"speed-up over one of the {ranks}", ranks),
            _over_ranks(rows, labels, "efficiency", "parallel efficiency (%)", ranks),
        ]
        notes = ["Ratios of means; thin grey: the ideal"]
        notes += [f"{DOUBTFUL} {DOUBTFUL_MEANING}"] if any(row["signs"] for row in rows) else []
        if group.left_out:
            notes.append(f"Not in it: {counted(group.left_out, 'setting')} not measured on one and on several")
        name = numbered("efficiency", len(figures))
        figures.append(around(name, {"hconcat": charts}, rows, f"What more {ranks} are worth", group, notes))
    return figures


def _speedup_rows(setting: Setting) -> list[Row]:
    """A row for each number of ranks."""
    rows, times_s = [], _times_s(setting.runs)
    for ranks, time_s in times_s.items():
        share = formulas.parallel_efficiency(times_s[1], time_s, ranks)
        figured = {"speedup": formulas.speedup(times_s[1], time_s), "efficiency": share}
        signs = DOUBTFUL * (share > formulas.DOUBTFUL_EFFICIENCY)
        n = sum(grouping.ranks(run) == ranks for run in setting.runs)
        rows.append({SETTING: setting.label, "ranks": ranks, **figured, "signs": signs, "n": n})
    return rows


def _times_s(runs: Sequence[Run]) -> dict[int, float]:
    """The mean time of a setting by its number of ranks; empty unless one rank and another number were measured."""
    runs_by_ranks: dict[int, list[Run]] = {}
    for run in runs:
        runs_by_ranks.setdefault(grouping.ranks(run), []).append(run)
    times_s = {ranks: _mean_time_s(own) for ranks, own in sorted(runs_by_ranks.items())}
    known = {ranks: time_s for ranks, time_s in times_s.items() if time_s is not None}
    return known if 1 in known and len(known) > 1 else {}


def _mean_time_s(runs: Sequence[Run]) -> float | None:
    """Time of the whole training, of tuning that of a token."""
    if runs[0]["kind"] == "vision":
        return of_setting(runs, "total_s")
    rate = of_setting(runs, "tokens_per_s")
    return 1 / rate if rate else None


def _over_ranks(rows: Sequence[Row], labels: Sequence[str], column: str, title: str, ranks_title: str) -> Spec:
    counts = sorted({row["ranks"] for row in rows})
    is_speedup = column == "speedup"
    divisor = 1 if is_speedup else 0.01
    top = 1.05 * max([*(row[column] for row in rows), counts[-1] if is_speedup else 1.0]) / divisor
    x = alt.X("ranks:Q", title=ranks_title, axis=alt.Axis(values=counts, format="d", grid=False))
    x = x.scale(domain=[counts[0] - 0.2, counts[-1] + 0.2], nice=False, zero=False)
    y = alt.Y("shown:Q", title=title, axis=alt.Axis(format="~f"), scale=alt.Scale(domain=[0, top], nice=False))
    base = alt.Chart().encode(x=x, y=y)
    ideal = base.transform_calculate(shown="datum.ranks" if is_speedup else "100").mark_line(style="ideal")
    shown = alt.Tooltip("shown:Q", format=".3~g")
    tooltip = [alt.Tooltip(f"{SETTING}:N"), alt.Tooltip("ranks:Q", title=ranks_title), shown]
    layers = [ideal, *series(base.encode(tooltip=tooltip), labels)]
    if any(row["signs"] for row in rows):
        layers.append(base.mark_text(dx=6, dy=-8, align="left", fontSize=13).encode(text="signs:N"))
    return layered(layers, calculated(shown=f"datum.{column} / {divisor}"), WIDTH, HEIGHT)


Point = tuple[Row, list[Run]]  # a setting's row, and its runs
Betters = dict[str, Better]  # by what is to be low


@dataclass(frozen=True)
class Quantity:
    """What stands against time: its column, and whether the first of two settings is better in it."""

    column: str
    better: Callable[[Betters, Point, Point], bool]

    def text(self, row: Row) -> str:
        value = row[self.column]
        return in_bytes(value) if self.column.endswith("_bytes") else f"{value:.2%}"


QUANTITIES = (
    Quantity(ACCURACY, lambda better, a, b: better["total_s"].more_accurate(a[1], b[1])),
    Quantity(MEMORY, lambda better, a, b: better[MEMORY].cheaper(a[1], b[1])),
)


def trade_off(runs: Sequence[Run]) -> list[Figure]:
    """Time against accuracy, and against memory, of settings that did the same work, each with its front: the settings
    that no other beats in both. Times and accuracies that the runs do not tell apart are equal, as in `best`."""
    figures = []
    ok = [run for run in runs if run["status"] == "ok"]
    better = {column: Better.of(runs, column) for column in ("total_s", MEMORY)}
    for kind in dict.fromkeys(run["kind"] for run in ok):
        of_kind = [run for run in ok if run["kind"] == kind]
        for work in grouping.group(of_kind, same_work.work_keys(of_kind, mix=False)).values():
            for amount in same_work.by_amount(work).values():
                (group,) = groups(amount, len(amount))
                drawn = _draw_trade_off(group, numbered("trade_off", len(figures)), better)
                figures += [drawn] if drawn is not None else []
    return figures


def _draw_trade_off(group: SettingGroup, name: str, better: Betters) -> Figure | None:
    channels = _channels(group)
    rows, charts, notes, titles = [], [], [], []
    for quantity in QUANTITIES:
        measured = [point for setting in group.settings if (point := _point(setting, quantity, channels)) is not None]
        if len(measured) < 2:
            continue
        measured.sort(key=lambda point: (point[0]["total_s"], point[0][SETTING]))
        best = [row for row, _ in front(measured, [partial(_faster, better), partial(quantity.better, better)])]
        points = [row for row, _ in measured]
        for row in points:
            row["front"] = best.index(row) + 1 if row in best else None
        rows += points
        charts.append(_scatter(points, quantity, channels, group))
        titles.append(captions.measure(quantity.column, ""))
        named = [
            f"{row['front']} {row[SETTING]} ({figures.seconds(row['total_s'])} s, {quantity.text(row)})"
            for row in best[:MOST_NAMED]
        ]
        rest = f" and {len(best) - MOST_NAMED} more" if len(best) > MOST_NAMED else ""
        notes.append(f"Front in time and {titles[-1]}: {'; '.join(named)}{rest}")
    if not charts:
        return None
    if "filled" in channels:
        column = captions.column(channels["filled"], group.runs)
        notes.append("Filled: {0} {1}; hollow: {0} {2}".format(column, *_order(group, channels["filled"])))
    notes.append("Dashed grey and numbers: the front, settings that no other beats in both")
    title = f"Time against {captions.listed(titles)}"
    return around(name, {"hconcat": charts}, rows, title, group, notes)


def _faster(better: Betters, a: Point, b: Point) -> bool:
    return better["total_s"].cheaper(a[1], b[1])


def _channels(group: SettingGroup) -> dict[str, str]:
    """Channel to the column it shows: the first columns with few enough values; filled or hollow shows two."""
    few = [key for key in group.by if 2 <= len(_order(group, key)) <= MOST_SERIES]
    channels: dict[str, str] = dict(zip(("colour", "shape"), few, strict=False))
    two = next((key for key in few[2:] if len(_order(group, key)) == 2), None)
    return channels if two is None else channels | {"filled": two}


def _order(group: SettingGroup, name: str) -> list[str]:
    values = list(dict.fromkeys(run[name] for run in group.runs))
    return [grouping.typed(value) for value in captions.ordered(values)]


def _point(setting: Setting, quantity: Quantity, channels: dict[str, str]) -> Point | None:
    runs = setting.runs
    total_s, value = of_setting(runs, "total_s"), of_setting(runs, quantity.column)
    if total_s is None or value is None:
        return None
    row = {
        "against": quantity.column,
        SETTING: setting.label,
        **{channel: grouping.typed(runs[0][name]) for channel, name in channels.items()},
        "total_s": total_s,
        quantity.column: value,
        "n": len(runs),
    }
    return row, runs


def _scatter(rows: Sequence[Row], quantity: Quantity, channels: dict[str, str], group: SettingGroup) -> Spec:
    column = quantity.column
    x_unit = captions.unit("total_s", max(row["total_s"] for row in rows))
    y_unit = captions.unit(column, max(row[column] for row in rows))
    y = alt.Y("shown:Q", title=captions.axis(column, group.kind, y_unit), axis=alt.Axis(format=y_unit.format))
    x = alt.X("x:Q", title=captions.axis("total_s", group.kind, x_unit), axis=alt.Axis(tickCount=6))
    x = x.scale(_around([row["total_s"] / x_unit.divisor for row in rows]))
    most = 1 / y_unit.divisor if column == ACCURACY else math.inf
    y = y.scale(_around([row[column] / y_unit.divisor for row in rows], most))
    base = alt.Chart().encode(x=x, y=y)
    on_front = base.transform_filter("isValid(datum.front)")
    tooltip = [
        alt.Tooltip(f"{SETTING}:N"),
        alt.Tooltip("x:Q", title="time"),
        alt.Tooltip("shown:Q"),
        alt.Tooltip("n:Q"),
    ]
    points = base.mark_point(size=60, opacity=0.9, strokeWidth=1.5)
    layers = [
        on_front.mark_line(style="ideal", interpolate="step-after", strokeDash=[4, 2]).encode(order="total_s:Q"),
        points.encode(**_encodings(channels, group), tooltip=tooltip),
        on_front.mark_text(dx=7, dy=-8).encode(text="front:N"),
    ]
    fields = {"x": f"datum.total_s / {x_unit.divisor}", "shown": f"datum.{column} / {y_unit.divisor}"}
    return layered(layers, [only("against", column), *calculated(**fields)], WIDTH, HEIGHT)


def _around(values: Sequence[float], most: float = math.inf) -> alt.Scale:
    """A scale with room around the values, nothing of it below 0 or above `most`."""
    room = ROOM * (max(values) - min(values)) or ROOM * max(values) or 1.0
    return alt.Scale(domain=[max(0.0, min(values) - room), min(most, max(values) + room)], nice=False, zero=False)


def _encodings(channels: dict[str, str], group: SettingGroup) -> dict[str, Any]:
    """The columns as fill, shape, and filled or hollow points, each with one legend for all charts.

    A point has its colour as its outline too, which a hollow one keeps.
    """
    encodings: dict[str, Any] = {}
    for channel, name in channels.items():
        order, field = _order(group, name), f"{channel}:{'O' if channel == 'filled' else 'N'}"
        scales = {"colour": alt.Scale(domain=order), "shape": cycled(order, SHAPES), "filled": cycled(order, [1, 0])}
        legend = alt.Legend(symbolOpacity=1)
        options = {"title": captions.column(name, group.runs), "scale": scales[channel], "legend": legend}
        if channel == "colour":
            encodings |= {"fill": alt.Fill(field, **options), "stroke": alt.Stroke(field, **options)}
        elif channel == "shape":
            encodings["shape"] = alt.Shape(field, **options)
        else:
            encodings["fillOpacity"] = alt.FillOpacity(field, **options)
    return encodings
