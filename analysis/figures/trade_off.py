"""Time against accuracy and memory of settings that did the same work, with the front that `best` names."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.commands.best import Limits, RankedSetting, Ranking, rankings
from analysis.figures import captions
from analysis.figures.chart_data import Row
from analysis.figures.charts import SERIES, by_series, facets, heading, tooltips, y_axis
from analysis.figures.setting_charts import MOST_SERIES, SettingGroup
from analysis.figures.vega import Figure, escaped, numbered
from analysis.runs import grouping
from analysis.runs.grouping import ACCURACY, MEMORY, of_setting
from analysis.runs.load import Run
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
    made: list[Figure] = []
    for ranking in ranked:
        figure = _draw(ranking, numbered("trade_off", len(made)))
        made += [figure] if figure is not None else []
    return made


def _draw(ranking: Ranking, name: str) -> Figure | None:
    work = ", ".join(filter(None, (ranking.work, ranking.amount)))
    group = SettingGroup({_label(ranking, one): one.runs for one in ranking.settings}, ranking.keys, work=work)
    values = {key: captions.ordered(list(dict.fromkeys(run[key] for run in group.runs))) for key in group.by}
    few = [key for key, own in values.items() if 2 <= len(own) <= MOST_SERIES][:2]  # by colour and by shape
    orders = [list(dict.fromkeys(captions.value(key, value, group.runs) for value in values[key])) for key in few]
    encodings = {}
    for channel, key, order in zip(("color", "shape"), few, orders, strict=False):
        encodings |= by_series(order, channel, field=escaped(key))
    time = captions.unit("total_s", max(setting.cost for setting in ranking.settings))
    rows, measures = list[Row](), list[str]()
    for measure in (ACCURACY, MEMORY):
        known = [(one, value) for one in ranking.settings if (value := of_setting(one.runs, measure)) is not None]
        if len(known) < 2:
            continue
        measures.append(measure)
        unit = captions.unit(measure, max(value for _, value in known))
        least, most = _around([value for _, value in known], 1.0 if measure == ACCURACY else math.inf)
        for one, value in known:
            front = next((number for number, member in enumerate(ranking.front, 1) if member is one), None)
            rows.append(
                {"measure": measure, SERIES: _label(ranking, one), "mean": value, "total_s": one.cost}
                | {key: captions.value(key, one.runs[0][key], group.runs) for key in few}
                | {"front": front, "n": len(one.runs), "x": one.cost / time.divisor}
                | {"chart": heading(captions.axis(measure, group.kind, unit)), "shown": value / unit.divisor}
                | {"least": least / unit.divisor, "most": most / unit.divisor}
            )
    if not rows:
        return None
    chart = facets(_layers(rows, encodings, captions.axis("total_s", group.kind, time)), rows, 2)
    notes = [_named("Front", ranking, ranking.front, is_numbered=True)]
    notes += [_named("Not told from the first by these runs", ranking, ranking.equals)] if ranking.equals else []
    title = f"Time against {captions.listed([captions.measure(measure, group.kind) for measure in measures])}"
    return group.figure(name, chart, rows, title, [*notes, FRONT])


def _label(ranking: Ranking, setting: RankedSetting) -> str:
    return grouping.label(setting.cell, ranking.keys) or "all"


def _named(title: str, ranking: Ranking, chosen: Sequence[RankedSetting], is_numbered: bool = False) -> str:
    """The chosen settings with their times."""
    texts = [
        f"{number} " * is_numbered + f"{_label(ranking, one)} ({figures.seconds(one.cost)} s)"
        for number, one in enumerate(chosen, 1)
    ]
    rest = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return f"{title}: {'; '.join(texts[:MOST_NAMED])}{rest}"


def _around(values: Sequence[float], most: float = math.inf) -> tuple[float, float]:
    """Limits with room around the values, nothing below 0 or above `most`."""
    span = max(values) - min(values)
    room = ROOM * (span if span > EQUAL * max(values) else max(values)) or 1.0
    return max(0.0, min(values) - room), min(most, max(values) + room)


def _layers(rows: Sequence[Row], encodings: dict[str, Any], title: str) -> list[Any]:
    scale = alt.Scale(domain=list(_around([row["x"] for row in rows])), nice=False, zero=False)
    x = alt.X("x:Q", title=title, axis=alt.Axis(tickCount=6), scale=scale)
    base = alt.Chart().encode(x=x, y=y_axis())
    columns = [alt.Tooltip(f"{SERIES}:N"), alt.Tooltip("x:Q", title="time"), *tooltips(interval=False)]
    points = base.mark_point(size=60, opacity=0.9, filled=True)
    numbers = base.transform_filter("isValid(datum.front)").mark_text(dx=7, dy=-8)
    return [points.encode(**encodings, tooltip=columns), numbers.encode(text="front:N")]
