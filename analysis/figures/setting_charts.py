"""Figures of any runs by setting: losses over epochs or steps, phases of a step, what more GPUs are
worth, and time against accuracy and memory of settings that did the same work,
with the front that `best` names.

A setting is the runs of one configuration (apart from the seed), commit and machine. A figure has
as many settings as can be told apart in it; the others are figures of their own.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
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
    drawn,
    facets,
    line_layers,
    number_axis,
    tooltips,
    where,
    y_axis,
)
from .experiment_charts import CURVES, MARGIN, loss_gaps
from .vega import Chart, Spec, escaped, numbered

MOST_SERIES = 8  # settings in a figure with lines
MOST_BARS = 30  # settings in a figure with bars
BAR = 18  # points, a bar's thickness
WINDOWS = 50  # of the steps of a tuning run: a point is the mean loss of one
PHASES = (*timing.PHASES, REST)
RANKS = "ranks"
MOST_TIMES = 5  # of the slowest setting's time, beyond which what others measured would squeeze it
MOST_POINTS = 500  # settings of a trade-off
AGAINST = (MEMORY, "energy_joules", COST)  # beside what was learned
CHOSEN = "chosen"  # the selection of points, by which a page filters its tables
MOST_NAMED = 6  # settings of the front that are named below the chart
FRONT = Message(
    "figure.front-numbered",
    "Numbered: the front in time, ranks and accuracy or loss; faint: others are as good or better"
    " in both axes",
)


@dataclass(frozen=True)
class SettingGroup:
    """The settings of a figure.

    settings: the runs that ended ok, by a label that says what tells a setting from the others of
    its figure.
    by: the columns that tell them apart. work: kind and data set, where the runs have several.
    unended: number of the runs that did not end ok.
    left_out: number of settings that have nothing to show.
    """

    settings: dict[str, list[Run]]
    by: list[str]
    unended: int = 0
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
        """A chart of the settings with its title and what all runs have in common.

        Args:
            timed: the runs behind each time that it shows, of which disturbed ones are left out;
                None without times.
        """
        counted = self.runs
        left_out = []
        if timed is not None:
            groups = [*timed]
            left_out = grouping.disturbed_notes(groups)
            counted = list(chain.from_iterable(grouping.undisturbed(own) for own in groups))
        _, legend = captions.marks(counted)
        above = [captions.in_short(self.runs), captions.common_settings(self.runs, self.by)]
        below = [*notes]
        if self.unended:
            unended = f"Not in it: {count(self.unended, 'run')} that did not end"
            below.append(Message("figure.unended", unended, runs=self.unended))
        below += legend
        title = f"{title}: {self.work}" if self.work else title
        found = tuple(grouping.limits_of(counted))
        width = 2 * WIDTH + MARGIN
        return Chart(name, title, chart, rows, above, below, found, width, left_out=left_out)

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
        shown = drawn(rows, x)
        ticks = number_axis(x, sorted({row[x] for row in rows}), axis or x)
        chart = facets(line_layers(shown, ticks, list(self.settings), band=True), shown, 2)
        return self.figure(name, chart, shown, title, notes, timed)


def groups(
    runs: Sequence[Run],
    most: int,
    without: Sequence[str] = (),
    shows: Callable[[list[Run]], bool] = lambda runs: True,
) -> Iterator[SettingGroup]:
    """The settings of the runs, by kind and data set and then at most `most` at a time; groups in
    which no run ended ok are left out.

    Args:
        without: columns that do not make another setting, beside the seed.
        shows: whether a setting with these runs, which ended ok, has something to show.
    """
    started = [run for run in runs if run["status"] != "refused"]
    works = grouping.group(started, ["kind", "dataset"])
    for key, own_runs in works.items():
        kind, dataset = (value for _, value in key)
        work = f"{KINDS[kind].title} on {grouping.typed(dataset)}" if len(works) > 1 else ""
        cells = grouping.by_setting(own_runs, without)
        ended = {cell: [run for run in own if run["status"] == "ok"] for cell, own in cells.items()}
        shown = [cell for cell, own in ended.items() if own and shows(own)]
        left_out = sum(map(bool, ended.values())) - len(shown)
        elsewhere = sum(len(own) for cell, own in cells.items() if not ended[cell])
        for start in range(0, len(shown), most):
            part = shown[start : start + most]
            by = grouping.apart([dict(cell) for cell in part], grouping.keys_of(part))
            names = grouping.short_names(by)
            short = [
                tuple((names[key], value) for key, value in cell if key in names) for cell in part
            ]
            settings = {
                grouping.label(own, names.values()) or "all": ended[cell]
                for own, cell in zip(short, part, strict=True)
            }
            unended = sum(len(cells[cell]) - len(ended[cell]) for cell in part)
            first = start == 0
            yield SettingGroup(settings, by, unended + elsewhere * first, work, left_out * first)


def losses(runs: Sequence[Run]) -> list[Chart]:
    """Training loss and test accuracy by epoch; of tuning runs the loss by step, in windows,
    and of held-out rows.
    """
    figures = []

    def has_curve(own: list[Run]) -> bool:
        return any((run[f"{KINDS[run['kind']].curve}s"] or 0) > 1 for run in own)

    for group in groups(runs, MOST_SERIES, shows=has_curve):
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
            for one in CURVES:
                rows.extend(_curve_rows(group, one, x, details.epoch_values))
        if not rows:
            continue
        notes = [*chart_data.means_notes(rows), *loss_gaps(group.runs)]
        if x == "step":
            window = f"Each point is the mean of a {WINDOWS}th of the steps"
            notes.append(Message("figure.loss-windows", window, windows=WINDOWS))
        if group.left_out:
            left_out = (
                f"Not in it: {count(group.left_out, 'setting')} of a single {x}, which makes no"
                " curve"
            )
            notes.append(
                Message("figure.settings-without-curve", left_out, settings=group.left_out, along=x)
            )
        figures.append(group.line_figure(numbered("losses", len(figures)), rows, x, title, notes))
    return figures


def _curve_rows(
    group: SettingGroup,
    measure: str,
    x: str,
    values_of: Callable[[Run, str], list[tuple[int, float]]],
) -> Iterator[Row]:
    for label, own in group.settings.items():
        # the others show nothing of how curves differ
        firsts = [same[0] for same in grouping.by_seed(own)]
        about = {"measure": measure, SERIES: label} | chart_data.answers_of(own, measure)
        pairs = []
        for run in firsts:
            pairs.extend(values_of(run, measure))
        for row in chart_data.means_by(x, pairs, least=2):
            yield about | row


def phases(runs: Sequence[Run]) -> list[Chart]:
    """Where a step's time went, a bar for each setting;
    tuning runs know only how long they waited for a batch.
    """
    figures = []
    for group in groups(runs, MOST_BARS):
        rows = []
        for label, own in group.settings.items():
            rows.extend(_phase_rows(label, own))
        if not rows:
            continue
        longest_s = max(
            sum(row["mean"] for row in rows if row[SERIES] == label) for label in group.settings
        )
        unit = captions.unit("step_s", longest_s)
        rows = [row | {"shown": row["mean"] / unit.divisor, "chart": row[SERIES]} for row in rows]
        known = [phase for phase in PHASES if any(row["phase"] == phase for row in rows)]
        ticks = alt.Axis(format=captions.PLAIN, tickCount=7)
        x = alt.X("shown:Q", stack="zero", title=f"mean step ({unit.name})", axis=ticks)
        colour = alt.Color("phase:N", scale=alt.Scale(domain=known), title="phase")
        tooltip = tooltips("phase", interval=False)
        order = alt.Order("order:Q")
        bars = (
            alt.Chart()
            .mark_bar(style="part")
            .encode(x=x, color=colour, order=order, tooltip=tooltip)
        )
        chart = facets([bars], rows, 1, 2 * WIDTH, BAR, free="") | {"spacing": 6, "resolve": {}}
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
    known = [phases for run in grouping.undisturbed(runs) if (phases := details.phases_s(run))]
    for order, phase in enumerate(PHASES):
        values = [phases[phase] for phases in known if phase in phases]
        if values:
            mean = sum(values) / len(values)
            yield {SERIES: label, "phase": phase, "order": order, "mean": mean, "n": len(values)}


def efficiency(runs: Sequence[Run]) -> list[Chart]:
    """Speed-up over one GPU and parallel efficiency,
    for each setting that was measured on one and on several.
    """
    figures = []
    for group in groups(
        runs, MOST_SERIES, schema.keys(Role.ranks), lambda own: len(times_s(own)) > 1
    ):
        rows = list[Row]()
        for label, own in group.settings.items():
            rows.extend(_speedup_rows(label, own))
        ranks = captions.column("gpus", group.runs)
        notes: list[str] = [
            Message("figure.speedups-are-ratios", "Ratios of means; thin grey: the ideal")
        ]
        by_ranks = (
            grouping.grouped(own, grouping.ranks).values() for own in group.settings.values()
        )
        if any(row.get("signs") for row in rows):
            notes.append(captions.DOUBTFUL_NOTE)
        if group.left_out:
            left_out = (
                f"Not in it: {count(group.left_out, 'setting')} not measured on one and on several"
            )
            notes.append(
                Message("figure.settings-without-speedup", left_out, settings=group.left_out)
            )
        name = numbered("efficiency", len(figures))
        timed = chain.from_iterable(by_ranks)
        title = f"What more {ranks} are worth"
        figures.append(group.line_figure(name, rows, RANKS, title, notes, ranks, timed))
    return figures


def _speedup_rows(label: str, runs: Sequence[Run]) -> Iterator[Row]:
    known_s = times_s(runs)
    for ranks, time_s in known_s.items():
        share = formulas.parallel_efficiency(known_s[1], time_s, ranks)
        signs = DOUBTFUL * (share > formulas.DOUBTFUL_EFFICIENCY)
        n = len(grouping.undisturbed([run for run in runs if grouping.ranks(run) == ranks]))
        at = {SERIES: label, RANKS: ranks}
        speedup = formulas.speedup(known_s[1], time_s)
        for measure, mean, best in (("speedup", speedup, ranks), ("efficiency", share, 1.0)):
            yield at | {"measure": measure, "mean": mean, "of": MEASURED, "signs": signs, "n": n}
            yield at | {"measure": measure, "mean": best, "of": IDEAL}


def times_s(runs: Sequence[Run]) -> dict[int, float]:
    """The mean time of a setting by its number of ranks;
    empty unless one rank and another number were measured.
    """
    fair = [run for run in runs if grouping.shows_speed_up([run])]
    by_ranks = sorted(grouping.grouped(fair, grouping.ranks).items())
    known = {ranks: time_s for ranks, own in by_ranks if (time_s := mean_time_s(own)) is not None}
    return known if 1 in known and len(known) > 1 else {}


def mean_time_s(runs: Sequence[Run]) -> float | None:
    """Time by which a setting is compared: of the whole training; of a token in tuning, since with
    `max_steps` n GPUs tune n times the rows.
    """
    return registry.taken_s(runs[0]["kind"], lambda name: of_setting(runs, name))


# Trade-offs


def trade_off(runs: Sequence[Run]) -> list[Chart]:
    """A figure for each work; none where fewer than two of its settings have an accuracy,
    loss or peak memory.
    """
    made: list[Chart] = []
    for ranking in known_rankings(runs):
        figure = trade_off_of(ranking, numbered("trade_off", len(made)))
        made += [figure] if figure is not None else []
    return made


def trade_off_of(ranking: Ranking, name: str) -> Chart | None:
    """The front and the fastest other settings as points, coloured and shaped by what tells few of
    them apart, else by the first two columns of few values; None where fewer than two have what
    time is drawn against.
    """
    shown = [
        one
        for rank, one in enumerate(ranking.settings)
        if rank < MOST_POINTS or one in ranking.front
    ]
    group = SettingGroup(
        {ranking.label(one): one.runs for one in shown}, ranking.keys, work=ranking.work
    )
    values = {
        key: grouping.ordered(list(dict.fromkeys(run[key] for run in group.runs)))
        for key in group.by
    }
    few = [key for key, own in values.items() if 2 <= len(own) <= MOST_SERIES]
    words = [
        {key: captions.value(key, one.runs[0][key], group.runs) for key in few} for one in shown
    ]
    words = [{**own, "setting": ", ".join(own.values())} for own in words]
    encodings = {}
    for channel, key in zip(("color", "shape"), few, strict=False):
        order = list(dict.fromkeys(captions.value(key, value, group.runs) for value in values[key]))
        encodings |= by_series(order, channel, field=escaped(key))
    if len(few) > 2 and len(shown) <= MOST_SERIES:
        encodings = by_series([own["setting"] for own in words], "color", "shape", field="setting")
    time = ranking.unit
    time_title = (
        f"time{ranking.paced} ({time.name})"
        if ranking.is_at_pace
        else captions.axis(ranking.column, time)
    )
    places = {id(one): number for number, one in enumerate(ranking.front, 1)}
    rows = list[Row]()
    against = (*quality.to_draw(one.learned for one in shown), *AGAINST)
    # the others are of different amounts
    for measure in (MEMORY,) if ranking.is_at_pace else against:
        measured = [
            (one, own, of_setting(one.runs, measure)) for one, own in zip(shown, words, strict=True)
        ]
        known = [(one, own, value) for one, own, value in measured if value is not None]
        # of the faster settings
        lowest = [math.inf, *accumulate((value for *_, value in known), min)]
        # which runs must tell apart
        lowest = [0.0] * len(known) if measure in registry.LEARNED else lowest
        rows += [
            {
                "measure": measure,
                SERIES: ranking.label(one),
                "of": MEASURED,
                "mean": value,
                "n": len(grouping.counting(one.runs, measure)),
            }
            | own
            | {"front": places.get(id(one)), "faint": id(one) not in places and value >= least}
            | {"total_s": one.cost, "x": one.cost / time.divisor}
            | {"folders": [clean(str(run.folder)) for run in one.runs]}
            | chart_data.answers_of(one.runs, measure)
            for (one, own, value), least in zip(known * (len(known) > 1), lowest, strict=False)
        ]
    if not rows:
        return None
    rows = drawn([*rows, *_shared_rows(ranking, rows, time.divisor)])
    is_shared = any(row["of"] == SHARED for row in rows)
    chart = facets(_layers(encodings, time_title, is_shared), rows, 2)
    measures = dict.fromkeys(row["measure"] for row in rows)
    title = f"Time against {captions.listed([*map(captions.measure, measures)], 'or')}"
    elsewhere = list(dict.fromkeys(row["hardware"] for row in rows if row["of"] == SHARED))
    notes = list(_trade_off_notes(ranking, len(shown), elsewhere))
    figure = group.figure(name, chart, rows, title, notes, timed=[one.runs for one in shown])
    return replace(figure, above=[FRONT, *figure.above], one_at_a_time=True)


def _trade_off_notes(ranking: Ranking, shown: int, elsewhere: Sequence[str]) -> Iterator[Message]:
    """Lines below a trade-off of the first `shown` settings of a ranking.

    elsewhere: the hardware of others who measured the same work.
    """
    front = [
        f"{place} {ranking.label(one)} ({ranking.time(one)})"
        for place, one in enumerate(ranking.front, 1)
    ]
    yield Message(
        "figure.front",
        f"Front: {first_few(front, MOST_NAMED, '; ')}",
        **_listed(ranking, ranking.front),
    )
    ties = [f"{ranking.label(one)} ({ranking.time(one)})" for one in ranking.equals]
    if ties:
        as_fast = (
            f"Ties with the first, as far as these runs show: {first_few(ties, MOST_NAMED, '; ')}"
        )
        yield Message("figure.ties", as_fast, **_listed(ranking, ranking.equals))
    settings = len(ranking.settings)
    if shown != settings:
        fastest = f"The fastest {shown:,} of {count(settings, 'setting')}"
        yield Message("figure.fastest-settings", fastest, shown=shown, settings=settings)
    if elsewhere:
        others = (
            f"Grey: the same work, measured elsewhere on {first_few(elsewhere, MOST_NAMED, '; ')}"
        )
        yield Message("figure.measured-elsewhere", others, hardware=elsewhere)


def _listed(ranking: Ranking, settings: Sequence[RankedSetting]) -> dict[str, Any]:
    return {"settings": list(map(ranking.label, settings)), "costs": [one.cost for one in settings]}


def _shared_rows(ranking: Ranking, rows: Sequence[Row], divisor: float) -> Iterator[Row]:
    """Points of the same work that others measured, for each measure of the rows,
    within five times their time.
    """
    run = ranking.runs[0]
    longest_s = max(row["total_s"] for row in rows)
    for name, shared in () if ranking.is_at_pace else shared_rows.read_rows(run.folder.parent):
        total_s = shared.figure("total_s")
        is_alike = shared.figure("samples_trained") == run["samples_trained"]
        is_alike = is_alike and did_work_of(run, shared.kind, shared.settings)
        if total_s is None or total_s > MOST_TIMES * longest_s or not is_alike:
            continue
        about = {
            SERIES: f"{name}: {shared.settings['gpus']} x {shared.hardware}",
            "of": SHARED,
            "front": None,
            "hardware": shared.hardware,
        }
        for measure in dict.fromkeys(row["measure"] for row in rows):
            if (value := shared.figure(measure)) is not None:
                at = {
                    "n": shared.figures[measure].n,
                    "total_s": total_s,
                    "x": total_s / divisor,
                    "folders": [],
                }
                yield {"measure": measure, "mean": value} | about | at


def _layers(encodings: dict[str, Any], title: str, is_shared: bool) -> list[Any]:
    base = alt.Chart().encode(x=alt.X("x:Q", title=title, axis=alt.Axis(tickCount=6)), y=y_axis())
    columns = [
        alt.Tooltip(f"{SERIES}:N"),
        alt.Tooltip("x:Q", title="time", format=".4~g"),
        *tooltips(interval=False),
    ]
    chosen = alt.selection_point(CHOSEN, fields=[SERIES], toggle="event.shiftKey")
    size = alt.when(chosen, empty=False).then(alt.value(220)).otherwise(alt.value(60))
    faint = alt.when("datum.faint").then(alt.value(0.35)).otherwise(alt.value(0.95))
    own = where(base, MEASURED) if is_shared else base
    dots = own.mark_point(filled=True, cursor="pointer").encode(
        **encodings, tooltip=columns, size=size, opacity=faint
    )
    numbers = (
        base.transform_filter("isValid(datum.front)").mark_text(dx=7, dy=-8).encode(text="front:N")
    )
    others = where(base, SHARED).mark_point(color="grey", size=40).encode(tooltip=columns)
    return [*[others] * is_shared, dots.add_params(chosen), numbers]
