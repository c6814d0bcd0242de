"""The trade-off between time and accuracy, loss, memory, energy or cost.

It covers settings that did the same work, with the trade-off front that `best` names.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from multicard.config.job import count
from multicard.estimate import shared_rows
from multicard.messages import Message
from multicard.records import figures as registry
from multicard.records.text_table import clean, first_few

from ..commands.best import known_rankings
from ..commands.ranking import COST, RankedSetting, Ranking
from ..runs import grouping, quality
from ..runs.grouping import MEMORY, of_setting
from ..runs.load import Run
from ..runs.works import did_work_of
from . import captions, chart_data
from .chart_data import MEASURED, SHARED, Row
from .charts import (
    SERIES,
    by_series,
    facets,
    filtered,
    tooltips,
    with_drawn_values,
    y_axis,
)
from .setting_groups import MAX_SERIES, SettingGroup
from .vega import FAINT, Chart, escaped, numbered

# Points that others measured are left out if they take longer than this multiple of the slowest
# setting, because they would squeeze the chart.
MAX_TIMES_SLOWEST = 5
MAX_POINTS = 500  # The most settings of a trade-off, besides its front.
COST_MEASURES = (MEMORY, "energy_joules", COST)  # Drawn after what was learned.
CHOSEN_SELECTION = "chosen"  # The selection of points by which a page filters its tables.
MAX_NAMED = 6  # The most settings of the front that the text below the chart names.
FRONT_NOTE = Message(
    "figure.front-numbered",
    "Numbered: no setting is better in time, ranks and accuracy or loss. Faint: another setting is"
    " at least as good in both axes",
)


def trade_off(runs: Sequence[Run]) -> list[Chart]:
    """Draw a trade-off for each work.

    A work is left out if fewer than two of its settings have a figure to draw time against.
    """
    figures: list[Chart] = []
    for ranking in known_rankings(runs):
        figure = trade_off_of(ranking, numbered("trade_off", len(figures)))
        figures += [figure] if figure is not None else []
    return figures


def trade_off_of(ranking: Ranking, name: str) -> Chart | None:
    """Draw the front and the fastest other settings as points.

    Color and shape show the setting if there are few settings. Otherwise they show the first two
    columns with few values. The result is None if fewer than two settings have a figure that time
    is drawn against.
    """
    shown_settings = [
        setting
        for rank, setting in enumerate(ranking.settings)
        if rank < MAX_POINTS or setting in ranking.front
    ]
    group = SettingGroup(
        {ranking.label(setting): setting.runs for setting in shown_settings},
        ranking.keys,
        work=ranking.work,
    )
    values = {
        key: grouping.ordered(list(dict.fromkeys(run[key] for run in group.runs)))
        for key in group.by
    }
    encoded_keys = [key for key, key_values in values.items() if 2 <= len(key_values) <= MAX_SERIES]
    words_by_setting = _words(shown_settings, encoded_keys, group.runs)
    encodings = {}
    for channel, key in zip(("color", "shape"), encoded_keys, strict=False):
        order = list(dict.fromkeys(captions.value(key, value, group.runs) for value in values[key]))
        encodings |= by_series(order, channel, field=escaped(key))
    if len(encoded_keys) > 2 and len(shown_settings) <= MAX_SERIES:
        settings_in_words = [value_words["setting"] for value_words in words_by_setting]
        encodings = by_series(settings_in_words, "color", "shape", field="setting")
    time_unit = ranking.unit
    time_title = (
        f"time{ranking.paced} ({time_unit.name})"
        if ranking.is_at_pace
        else captions.axis(ranking.column, time_unit)
    )
    rows = _point_rows(ranking, shown_settings, words_by_setting)
    if not rows:
        return None
    rows = with_drawn_values([*rows, *_shared_rows(ranking, rows, time_unit.divisor)])
    is_shared = any(row["of"] == SHARED for row in rows)
    chart = facets(_trade_off_layers(encodings, time_title, is_shared), rows, 2)
    measures = dict.fromkeys(row["measure"] for row in rows)
    title = f"Time against {captions.listed([*map(captions.measure, measures)], 'or')}"
    elsewhere = list(dict.fromkeys(row["hardware"] for row in rows if row["of"] == SHARED))
    notes = list(_trade_off_notes(ranking, len(shown_settings), elsewhere))
    figure = group.figure(
        name, chart, rows, title, notes, timed=[setting.runs for setting in shown_settings]
    )
    return replace(figure, above=[FRONT_NOTE, *figure.above], one_at_a_time=True)


def _words(
    settings: Sequence[RankedSetting], keys: Sequence[str], runs: Sequence[Run]
) -> list[dict[str, str]]:
    """Return each setting's values in words, by key, and all of them as its `setting`."""
    words_by_setting = []
    for setting in settings:
        value_words = {key: captions.value(key, setting.runs[0][key], runs) for key in keys}
        words_by_setting.append({**value_words, "setting": ", ".join(value_words.values())})
    return words_by_setting


def _point_rows(
    ranking: Ranking,
    shown_settings: Sequence[RankedSetting],
    words_by_setting: Sequence[dict[str, str]],
) -> list[Row]:
    """Return a row for each point, for each measure that at least two settings have."""
    front_places = {id(setting): number for number, setting in enumerate(ranking.front, 1)}
    against = (*quality.to_draw(setting.learned for setting in shown_settings), *COST_MEASURES)
    if ranking.is_at_pace:
        # The settings did different amounts of work. Only their memory can be compared.
        against = (MEMORY,)
    rows = list[Row]()
    for measure in against:
        known_figures: list[tuple[RankedSetting, dict[str, str], float]] = []
        for setting, value_words in zip(shown_settings, words_by_setting, strict=True):
            value = of_setting(setting.runs, measure)
            if value is not None:
                known_figures.append((setting, value_words, value))
        if len(known_figures) < 2:
            continue
        lowest_of_faster = math.inf
        for setting, value_words, value in known_figures:
            # Only repeated runs can show which setting learned better, and the front judges by
            # them. So for what was learned, every other point is faint.
            is_beaten = measure in registry.LEARNED or value >= lowest_of_faster
            lowest_of_faster = min(lowest_of_faster, value)
            row = {
                "measure": measure,
                SERIES: ranking.label(setting),
                "of": MEASURED,
                "mean": value,
                "n": len(grouping.counting(setting.runs, measure)),
                **value_words,
                "front": front_places.get(id(setting)),
                "faint": id(setting) not in front_places and is_beaten,
                "total_s": setting.cost,
                "x": setting.cost / ranking.unit.divisor,
                "folders": [clean(str(run.folder)) for run in setting.runs],
            }
            rows.append(row | chart_data.answer_counts(setting.runs, measure))
    return rows


def _trade_off_notes(ranking: Ranking, shown: int, elsewhere: Sequence[str]) -> Iterator[Message]:
    """Yield the lines below a trade-off.

    Args:
        shown: the number of settings that are drawn.
        elsewhere: the hardware on which others measured the same work.
    """
    front_names = [
        f"{place} {ranking.label(setting)} ({ranking.time(setting)})"
        for place, setting in enumerate(ranking.front, 1)
    ]
    yield Message(
        "figure.front",
        f"Front: {first_few(front_names, MAX_NAMED, '; ')}",
        **_labels_and_costs(ranking, ranking.front),
    )
    tie_names = [
        f"{ranking.label(setting)} ({ranking.time(setting)})" for setting in ranking.equals
    ]
    if tie_names:
        text = (
            "Ties with the first, as far as these runs show:"
            f" {first_few(tie_names, MAX_NAMED, '; ')}"
        )
        yield Message("figure.ties", text, **_labels_and_costs(ranking, ranking.equals))
    settings = len(ranking.settings)
    if shown != settings:
        text = f"The fastest {shown:,} of {count(settings, 'setting')}"
        yield Message("figure.fastest-settings", text, shown=shown, settings=settings)
    if elsewhere:
        text = f"Grey: the same work, measured elsewhere on {first_few(elsewhere, MAX_NAMED, '; ')}"
        yield Message("figure.measured-elsewhere", text, hardware=elsewhere)


def _labels_and_costs(ranking: Ranking, settings: Sequence[RankedSetting]) -> dict[str, Any]:
    return {
        "settings": list(map(ranking.label, settings)),
        "costs": [setting.cost for setting in settings],
    }


def _shared_rows(ranking: Ranking, rows: Sequence[Row], divisor: float) -> Iterator[Row]:
    """Yield points of the same work that others measured, for each measure of the rows.

    Points that take more than MAX_TIMES_SLOWEST times the time of the slowest setting are left out.
    """
    run = ranking.runs[0]
    longest_s = max(row["total_s"] for row in rows)
    for name, shared_run in () if ranking.is_at_pace else shared_rows.read_rows(run.folder.parent):
        total_s = shared_run.figure("total_s")
        is_same_work = shared_run.figure("samples_trained") == run["samples_trained"]
        is_same_work = is_same_work and did_work_of(run, shared_run.kind, shared_run.settings)
        if total_s is None or total_s > MAX_TIMES_SLOWEST * longest_s or not is_same_work:
            continue
        series_fields = {
            SERIES: f"{name}: {shared_run.settings['gpus']} x {shared_run.hardware}",
            "of": SHARED,
            "front": None,
            "hardware": shared_run.hardware,
        }
        for measure in dict.fromkeys(row["measure"] for row in rows):
            if (value := shared_run.figure(measure)) is not None:
                value_fields = {
                    "n": shared_run.figures[measure].n,
                    "total_s": total_s,
                    "x": total_s / divisor,
                    "folders": [],
                }
                yield {"measure": measure, "mean": value} | series_fields | value_fields


def _trade_off_layers(encodings: dict[str, Any], title: str, is_shared: bool) -> list[Any]:
    base = alt.Chart().encode(x=alt.X("x:Q", title=title, axis=alt.Axis(tickCount=6)), y=y_axis())
    columns = [
        alt.Tooltip(f"{SERIES}:N"),
        alt.Tooltip("x:Q", title="time", format=".4~g"),
        *tooltips(interval=False),
    ]
    chosen_points = alt.selection_point(CHOSEN_SELECTION, fields=[SERIES], toggle="event.shiftKey")
    size = alt.when(chosen_points, empty=False).then(alt.value(220)).otherwise(alt.value(60))
    opacity = alt.when("datum.faint").then(alt.value(FAINT)).otherwise(alt.value(0.95))
    own_points = filtered(base, MEASURED) if is_shared else base
    dots = own_points.mark_point(filled=True, cursor="pointer").encode(
        **encodings, tooltip=columns, size=size, opacity=opacity
    )
    numbers = (
        base.transform_filter("isValid(datum.front)").mark_text(dx=7, dy=-8).encode(text="front:N")
    )
    shared_points = filtered(base, SHARED).mark_point(color="grey", size=40).encode(tooltip=columns)
    own_layers = [dots.add_params(chosen_points), numbers]
    return [shared_points, *own_layers] if is_shared else own_layers
