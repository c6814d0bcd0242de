"""Time against accuracy and memory of settings that did the same work, with the front that `best` names."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.commands.best import Limits, Ranking, rankings
from analysis.figures import captions
from analysis.figures.chart_data import Row
from analysis.figures.charts import by_colour, facets, heading, tooltips, y_axis
from analysis.figures.setting_charts import MOST_SERIES, SETTING, Setting, SettingGroup
from analysis.figures.vega import Figure, numbered
from analysis.runs import grouping
from analysis.runs.load import Run
from analysis.runs.setting_figure import ACCURACY, MEMORY, of_setting
from multicard.records import figures

MOST_NAMED = 6  # settings of the front that are named below the chart
ROOM = 0.08  # of the range of the points, around them
EQUAL = 1e-6  # relative range up to which points are level
FRONT = "Numbers: the front in time, ranks and accuracy, as python -m analysis best --goal time has it"


def trade_off(runs: Sequence[Run]) -> list[Figure]:
    """A figure for each work; none where fewer than two of its settings have an accuracy or a peak memory."""
    try:
        ranked = rankings(runs, "time", Limits(), mix=False)
    except ValueError:  # nothing that can be ranked
        return []
    drawn_figures: list[Figure] = []
    for ranking in ranked:
        drawn = _draw(ranking, numbered("trade_off", len(drawn_figures)))
        drawn_figures += [drawn] if drawn is not None else []
    return drawn_figures


def _draw(ranking: Ranking, name: str) -> Figure | None:
    labels = [grouping.label(setting.cell, ranking.keys) or "all" for setting in ranking.settings]
    settings = [Setting(label, one.runs) for label, one in zip(labels, ranking.settings, strict=True)]
    work = ", ".join(filter(None, (ranking.work, ranking.amount)))
    group = SettingGroup(settings, ranking.keys, 0, work)
    channels, rows, shown = _channels(group), list[Row](), list[str]()
    time = captions.unit("total_s", max(setting.cost for setting in ranking.settings))
    for measure in (ACCURACY, MEMORY):
        values = [of_setting(setting.runs, measure) for setting in settings]
        known = [value for value in values if value is not None]
        if len(known) < 2:
            continue
        unit, most = captions.unit(measure, max(known)), 1.0 if measure == ACCURACY else math.inf
        limits = [end / unit.divisor for end in _around(known, most)]
        shown.append(measure)
        for setting, ranked, value in zip(settings, ranking.settings, values, strict=True):
            place = [number for number, one in enumerate(ranking.front, 1) if one is ranked]
            if value is not None:
                rows.append(
                    {"measure": measure, SETTING: setting.label, "mean": value, "total_s": ranked.cost}
                    | {channel: grouping.typed(setting.runs[0][key]) for channel, key in channels.items()}
                    | {"front": place[0] if place else None, "n": len(setting.runs)}
                    | {"chart": heading(captions.axis(measure, group.kind, unit)), "x": ranked.cost / time.divisor}
                    | {"shown": value / unit.divisor, "least": limits[0], "most": limits[1]}
                )
    if not rows:
        return None
    chart = facets(_layers(rows, channels, group, captions.axis("total_s", group.kind, time)), rows, 2)
    notes = [_named("Front", ranking, labels, ranking.front)]
    if ranking.equals:
        notes.append(_named("Not told from the first by these runs", ranking, labels, ranking.equals))
    title = f"Time against {captions.listed([captions.measure(measure, group.kind) for measure in shown])}"
    return group.figure(name, chart, rows, title, [*notes, FRONT])


def _named(title: str, ranking: Ranking, labels: Sequence[str], chosen: Sequence[Any]) -> str:
    """The chosen settings with their times."""
    by_id = {id(setting): label for setting, label in zip(ranking.settings, labels, strict=True)}
    texts = [f"{by_id[id(one)]} ({figures.seconds(one.cost)} s)" for one in chosen]
    texts = [f"{number} {text}" for number, text in enumerate(texts, 1)] if title == "Front" else texts
    rest = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return f"{title}: {'; '.join(texts[:MOST_NAMED])}{rest}"


def _channels(group: SettingGroup) -> dict[str, str]:
    """Channel to the column it shows: the first columns with few enough values."""
    few = [key for key in group.by if 2 <= len(_order(group, key)) <= MOST_SERIES]
    return dict(zip(("colour", "shape"), few, strict=False))


def _order(group: SettingGroup, name: str) -> list[str]:
    values = list(dict.fromkeys(run[name] for run in group.runs))
    return [grouping.typed(value) for value in captions.ordered(values)]


def _around(values: Sequence[float], most: float = math.inf) -> list[float]:
    """Limits with room around the values, nothing below 0 or above `most`."""
    span = max(values) - min(values)
    room = ROOM * (span if span > EQUAL * max(values) else max(values)) or 1.0
    return [max(0.0, min(values) - room), min(most, max(values) + room)]


def _layers(rows: Sequence[Row], channels: dict[str, str], group: SettingGroup, title: str) -> list[Any]:
    scale = alt.Scale(domain=_around([row["x"] for row in rows]), nice=False, zero=False)
    x = alt.X("x:Q", title=title, axis=alt.Axis(tickCount=6), scale=scale)
    base = alt.Chart().encode(x=x, y=y_axis())
    columns = [alt.Tooltip(f"{SETTING}:N"), alt.Tooltip("x:Q", title="time")]
    points = base.mark_point(size=60, opacity=0.9, filled=True)
    numbers = base.transform_filter("isValid(datum.front)").mark_text(dx=7, dy=-8)
    return [
        points.encode(**_encodings(channels, group), tooltip=tooltips(columns, interval=False)),
        numbers.encode(text="front:N"),
    ]


def _encodings(channels: dict[str, str], group: SettingGroup) -> dict[str, Any]:
    """The columns as colour and shape, each with one legend for all charts."""
    encodings: dict[str, Any] = {}
    for channel, name in channels.items():
        encodings |= by_colour(channel, _order(group, name), captions.column(name, group.runs))[channel]
    return encodings
