"""General figures of any runs, by setting.

They show losses over epochs or steps, phases of a step, what more GPUs are worth, and time against
accuracy, loss, memory, energy and cost. The last one covers settings that did the same work, with
the trade-off front that `best` names.

The runs of a setting share the configuration except for the seed, the commit and the machine. A
figure has as many settings as a reader can distinguish. The others get figures of their own.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import altair as alt

from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.estimate import shared_rows
from multicard.measure import formulas, timing
from multicard.messages import Message
from multicard.records import figures as registry
from multicard.records.comparable import DOUBTFUL
from multicard.records.text_table import clean, first_few

from ..commands.best import known_rankings
from ..commands.ranking import COST, RankedSetting, Ranking
from ..runs import details, grouping, quality
from ..runs.columns import KINDS, RunKind
from ..runs.details import REST
from ..runs.grouping import HELD_OUT, MEMORY, of_setting
from ..runs.load import Run
from ..runs.works import did_work_of
from . import captions, chart_data
from .chart_data import IDEAL, MEASURED, SHARED, Row
from .charts import (
    SERIES,
    WIDTH,
    by_series,
    facets,
    filtered,
    line_layers,
    number_axis,
    tooltips,
    with_drawn_values,
    y_axis,
)
from .experiment_charts import CURVES, MARGIN_WIDTH, loss_gaps
from .vega import Chart, Spec, escaped, numbered

MAX_SERIES = 8  # The most settings of a figure with lines.
MAX_BARS = 30  # The most settings of a figure with bars.
BAR_HEIGHT = 18  # The thickness of a bar, in points.
WINDOWS = 50  # Windows of a tuning run's steps. A point is a window's mean loss.
STEP_PHASES = (*timing.PHASES, REST)
RANKS = "ranks"
# Points that others measured are left out if they take longer than this multiple of the slowest
# setting, because they would squeeze the chart.
MAX_TIMES_SLOWEST = 5
MAX_POINTS = 500  # The most settings of a trade-off, besides its front.
COST_MEASURES = (MEMORY, "energy_joules", COST)  # Drawn after what was learned.
CHOSEN_SELECTION = "chosen"  # The selection of points by which a page filters its tables.
MAX_NAMED = 6  # The most settings of the front that the text below the chart names.
FRONT_NOTE = Message(
    "figure.front-numbered",
    "Numbered: the front in time, ranks and accuracy or loss; faint: others are as good or better"
    " in both axes",
)


@dataclass(frozen=True)
class SettingGroup:
    """The settings of a figure.

    settings: the runs that ended ok, by a label that distinguishes a setting from the others.
    by: the columns that distinguish the settings.
    unended_count: the number of runs that did not end ok.
    work: the kind and the data set if the runs have several, else empty.
    left_out: the number of settings that have nothing to show.
    """

    settings: dict[str, list[Run]]
    by: list[str]
    unended_count: int = 0
    work: str = ""
    left_out: int = 0

    @property
    def runs(self) -> list[Run]:
        return list(chain.from_iterable(self.settings.values()))

    @property
    def kind(self) -> RunKind:
        return KINDS[self.runs[0]["kind"]]

    def figure(
        self,
        name: str,
        chart: Spec,
        rows: list[Row],
        title: str,
        notes: Sequence[str],
        timed: Iterable[Sequence[Run]] | None = None,
    ) -> Chart:
        """Return a chart of the settings with its title and what all runs share.

        Args:
            timed: the runs behind each time that the chart shows; disturbed ones are left out.
                None if it shows no times.
        """
        counted_runs = self.runs
        left_out = []
        if timed is not None:
            groups = [*timed]
            left_out = grouping.disturbed_notes(groups)
            counted_runs = list(
                chain.from_iterable(grouping.undisturbed(group_runs) for group_runs in groups)
            )
        _, legend = captions.marks(counted_runs)
        above = [captions.in_short(self.runs), captions.common_settings(self.runs, self.by)]
        below = [*notes]
        if self.unended_count:
            text = f"Not in it: {count(self.unended_count, 'run')} that did not end"
            below.append(Message("figure.unended", text, runs=self.unended_count))
        below += legend
        title = f"{title}: {self.work}" if self.work else title
        run_limits = tuple(grouping.limits_of(counted_runs))
        width = 2 * WIDTH + MARGIN_WIDTH
        return Chart(name, title, chart, rows, above, below, run_limits, width, left_out=left_out)

    def line_figure(
        self,
        name: str,
        rows: list[Row],
        x: str,
        title: str,
        notes: Sequence[str],
        axis: str = "",
        timed: Iterable[Sequence[Run]] | None = None,
    ) -> Chart:
        drawn_rows = with_drawn_values(rows, x)
        ticks = number_axis(x, sorted({row[x] for row in rows}), axis or x)
        chart = facets(
            line_layers(drawn_rows, ticks, list(self.settings), band=True), drawn_rows, 2
        )
        return self.figure(name, chart, drawn_rows, title, notes, timed)


def groups(
    runs: Sequence[Run],
    most: int,
    without: Sequence[str] = (),
    shows: Callable[[list[Run]], bool] = lambda runs: True,
) -> Iterator[SettingGroup]:
    """Yield the settings of the runs, by kind and data set, at most `most` in a group.

    Groups in which no run ended ok are left out.

    Args:
        without: columns that do not make another setting, besides the seed.
        shows: returns True if a setting with these runs, which ended ok, has something to show.
    """
    started = [run for run in runs if run["status"] != "refused"]
    runs_by_work = grouping.group(started, ["kind", "dataset"])
    for key, work_runs in runs_by_work.items():
        kind, dataset = (value for _, value in key)
        work = f"{KINDS[kind].title} on {grouping.typed(dataset)}" if len(runs_by_work) > 1 else ""
        cells = grouping.by_setting(work_runs, without)
        ok_by_cell = {
            cell: [run for run in cell_runs if run["status"] == "ok"]
            for cell, cell_runs in cells.items()
        }
        shown_cells = [
            cell for cell, cell_runs in ok_by_cell.items() if cell_runs and shows(cell_runs)
        ]
        left_out = sum(map(bool, ok_by_cell.values())) - len(shown_cells)
        failed_elsewhere = sum(
            len(cell_runs) for cell, cell_runs in cells.items() if not ok_by_cell[cell]
        )
        for start in range(0, len(shown_cells), most):
            group_cells = shown_cells[start : start + most]
            varied_columns = grouping.apart(
                [dict(cell) for cell in group_cells], grouping.keys_of(group_cells)
            )
            names = grouping.short_names(varied_columns)
            short_cells = [
                tuple((names[key], value) for key, value in cell if key in names)
                for cell in group_cells
            ]
            settings = {
                grouping.label(short_cell, names.values()) or "all": ok_by_cell[cell]
                for short_cell, cell in zip(short_cells, group_cells, strict=True)
            }
            unended_count = sum(len(cells[cell]) - len(ok_by_cell[cell]) for cell in group_cells)
            if start > 0:
                yield SettingGroup(settings, varied_columns, unended_count, work)
                continue
            # The first group also counts the settings that no group shows.
            unended_count += failed_elsewhere
            yield SettingGroup(settings, varied_columns, unended_count, work, left_out)


def losses(runs: Sequence[Run]) -> list[Chart]:
    """Draw training loss and test accuracy by epoch.

    For tuning runs, draw the training loss by step, in windows, and the held-out loss.
    """
    figures = []

    def has_curve(setting_runs: list[Run]) -> bool:
        return any((run[f"{KINDS[run['kind']].curve}s"] or 0) > 1 for run in setting_runs)

    for group in groups(runs, MAX_SERIES, shows=has_curve):
        x = group.kind.curve
        if x == "step":
            title = "Training loss by step"
            rows = list(
                _curve_rows(
                    group, "train_loss", x, lambda run, _: details.window_losses(run, WINDOWS)
                )
            )
            held_out = list(
                _curve_rows(group, HELD_OUT, x, lambda run, _: details.held_out_losses(run))
            )
            if held_out:
                title = "Training loss and held-out loss by step"
            rows += held_out
        else:
            title = "Training loss and test accuracy by epoch"
            rows = []
            for measure in CURVES:
                rows.extend(_curve_rows(group, measure, x, details.epoch_values))
        if not rows:
            continue
        notes = [*chart_data.means_notes(rows), *loss_gaps(group.runs)]
        if x == "step":
            text = f"Each point is the mean of a {WINDOWS}th of the steps"
            notes.append(Message("figure.loss-windows", text, windows=WINDOWS))
        if group.left_out:
            text = (
                f"Not in it: {count(group.left_out, 'setting')} of a single {x}, which makes no"
                " curve"
            )
            notes.append(
                Message("figure.settings-without-curve", text, settings=group.left_out, along=x)
            )
        figures.append(group.line_figure(numbered("losses", len(figures)), rows, x, title, notes))
    return figures


def _curve_rows(
    group: SettingGroup,
    measure: str,
    x: str,
    values_of: Callable[[Run, str], list[tuple[int, float]]],
) -> Iterator[Row]:
    for label, setting_runs in group.settings.items():
        # Further runs of a seed show nothing about how curves differ.
        first_runs = [seed_runs[0] for seed_runs in grouping.by_seed(setting_runs)]
        series_fields = {"measure": measure, SERIES: label} | chart_data.answer_counts(
            setting_runs, measure
        )
        pairs = []
        for run in first_runs:
            pairs.extend(values_of(run, measure))
        for row in chart_data.means_by(x, pairs, least=2):
            yield series_fields | row


def phases(runs: Sequence[Run]) -> list[Chart]:
    """Draw where a step's time went, with a bar for each setting.

    Tuning runs record only how long a step waited for a batch.
    """
    figures = []
    for group in groups(runs, MAX_BARS):
        rows = []
        for label, setting_runs in group.settings.items():
            rows.extend(_phase_rows(label, setting_runs))
        if not rows:
            continue
        longest_s = max(
            sum(row["mean"] for row in rows if row[SERIES] == label) for label in group.settings
        )
        unit = captions.unit("step_s", longest_s)
        rows = [row | {"shown": row["mean"] / unit.divisor, "chart": row[SERIES]} for row in rows]
        known_phases = [
            phase for phase in STEP_PHASES if any(row["phase"] == phase for row in rows)
        ]
        ticks = alt.Axis(format=captions.PLAIN_FORMAT, tickCount=7)
        x = alt.X("shown:Q", stack="zero", title=f"mean step ({unit.name})", axis=ticks)
        colour = alt.Color("phase:N", scale=alt.Scale(domain=known_phases), title="phase")
        tooltip = tooltips("phase", interval=False)
        order = alt.Order("order:Q")
        bars = (
            alt.Chart()
            .mark_bar(style="part")
            .encode(x=x, color=colour, order=order, tooltip=tooltip)
        )
        chart = facets([bars], rows, 1, 2 * WIDTH, BAR_HEIGHT, free="") | {
            "spacing": 6,
            "resolve": {},
        }
        rest = group.kind.rest
        notes = [
            Message("figure.phase-means", "Means over the measured steps and ranks"),
            Message("figure.phase-rest", f"Rest of the step: {rest}", rest=rest),
        ]
        name = numbered("phases", len(figures))
        timed = group.settings.values()
        figures.append(group.figure(name, chart, rows, "Where a step's time went", notes, timed))
    return figures


def _phase_rows(label: str, runs: Sequence[Run]) -> Iterator[Row]:
    phases_of_runs = [
        phases for run in grouping.undisturbed(runs) if (phases := details.phases_s(run))
    ]
    for order, phase in enumerate(STEP_PHASES):
        values = [phases[phase] for phases in phases_of_runs if phase in phases]
        if values:
            mean = sum(values) / len(values)
            yield {SERIES: label, "phase": phase, "order": order, "mean": mean, "n": len(values)}


def efficiency(runs: Sequence[Run]) -> list[Chart]:
    """Draw speed-up over one GPU and parallel efficiency.

    Only settings that were measured on one GPU and on several are shown.
    """
    figures = []
    for group in groups(
        runs,
        MAX_SERIES,
        schema.keys(Role.ranks),
        lambda setting_runs: len(time_by_ranks_s(setting_runs)) > 1,
    ):
        rows = list[Row]()
        for label, setting_runs in group.settings.items():
            rows.extend(_speedup_rows(label, setting_runs))
        ranks = captions.column("gpus", group.runs)
        notes: list[str] = [
            Message("figure.speedups-are-ratios", "Ratios of means; thin grey: the ideal")
        ]
        by_ranks = (
            grouping.grouped(setting_runs, grouping.ranks).values()
            for setting_runs in group.settings.values()
        )
        if any(row.get("signs") for row in rows):
            notes.append(captions.DOUBTFUL_NOTE)
        if group.left_out:
            text = (
                f"Not in it: {count(group.left_out, 'setting')} not measured on one and on several"
            )
            notes.append(Message("figure.settings-without-speedup", text, settings=group.left_out))
        name = numbered("efficiency", len(figures))
        timed_runs = chain.from_iterable(by_ranks)
        title = f"What more {ranks} are worth"
        figures.append(group.line_figure(name, rows, RANKS, title, notes, ranks, timed_runs))
    return figures


def _speedup_rows(label: str, runs: Sequence[Run]) -> Iterator[Row]:
    time_by_ranks = time_by_ranks_s(runs)
    for ranks, time_s in time_by_ranks.items():
        efficiency_share = formulas.parallel_efficiency(time_by_ranks[1], time_s, ranks)
        signs = DOUBTFUL if efficiency_share > formulas.DOUBTFUL_EFFICIENCY else ""
        n = len(grouping.undisturbed([run for run in runs if grouping.ranks(run) == ranks]))
        series_fields = {SERIES: label, RANKS: ranks}
        speedup = formulas.speedup(time_by_ranks[1], time_s)
        for measure, mean, ideal in (
            ("speedup", speedup, ranks),
            ("efficiency", efficiency_share, 1.0),
        ):
            yield series_fields | {
                "measure": measure,
                "mean": mean,
                "of": MEASURED,
                "signs": signs,
                "n": n,
            }
            yield series_fields | {"measure": measure, "mean": ideal, "of": IDEAL}


def time_by_ranks_s(runs: Sequence[Run]) -> dict[int, float]:
    """Return the mean time of a setting by its number of ranks.

    The result is empty unless one rank and another number of ranks were measured.
    """
    comparable_runs = [run for run in runs if grouping.shows_speed_up([run])]
    by_ranks = sorted(grouping.grouped(comparable_runs, grouping.ranks).items())
    time_by_ranks = {
        ranks: time_s
        for ranks, rank_runs in by_ranks
        if (time_s := mean_time_s(rank_runs)) is not None
    }
    return time_by_ranks if 1 in time_by_ranks and len(time_by_ranks) > 1 else {}


def mean_time_s(runs: Sequence[Run]) -> float | None:
    """Return the time by which a setting is compared.

    For training it is the time of the whole run. For tuning it is the time per token: with
    `max_steps`, n GPUs tune on n times the rows.
    """
    return registry.taken_s(runs[0]["kind"], lambda name: of_setting(runs, name))


# ---- Trade-offs


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
    words_by_setting = [
        {key: captions.value(key, setting.runs[0][key], group.runs) for key in encoded_keys}
        for setting in shown_settings
    ]
    words_by_setting = [
        {**value_words, "setting": ", ".join(value_words.values())}
        for value_words in words_by_setting
    ]
    encodings = {}
    for channel, key in zip(("color", "shape"), encoded_keys, strict=False):
        order = list(dict.fromkeys(captions.value(key, value, group.runs) for value in values[key]))
        encodings |= by_series(order, channel, field=escaped(key))
    if len(encoded_keys) > 2 and len(shown_settings) <= MAX_SERIES:
        encodings = by_series(
            [value_words["setting"] for value_words in words_by_setting],
            "color",
            "shape",
            field="setting",
        )
    time_unit = ranking.unit
    time_title = (
        f"time{ranking.paced} ({time_unit.name})"
        if ranking.is_at_pace
        else captions.axis(ranking.column, time_unit)
    )
    front_places = {id(setting): number for number, setting in enumerate(ranking.front, 1)}
    rows = list[Row]()
    against = (*quality.to_draw(setting.learned for setting in shown_settings), *COST_MEASURES)
    # At pace, settings did different amounts of work. Only their memory can be compared.
    for measure in (MEMORY,) if ranking.is_at_pace else against:
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
                "x": setting.cost / time_unit.divisor,
                "folders": [clean(str(run.folder)) for run in setting.runs],
            }
            rows.append(row | chart_data.answer_counts(setting.runs, measure))
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
    opacity = alt.when("datum.faint").then(alt.value(0.35)).otherwise(alt.value(0.95))
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
