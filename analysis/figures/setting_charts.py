"""General figures of runs, by setting: losses, phases of a step, and what more GPUs are worth."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import altair as alt

from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.measure import formulas, timing
from multicard.messages import Message
from multicard.records import figures as registry
from multicard.records.comparable import DOUBTFUL

from ..runs import details, grouping
from ..runs.columns import KINDS
from ..runs.details import REST
from ..runs.grouping import HELD_OUT, of_setting
from ..runs.load import Run
from . import captions, chart_data
from .chart_data import IDEAL, MEASURED, Row
from .charts import (
    LABEL_LETTERS,
    SERIES,
    WIDTH,
    facets,
    heading,
    tooltips,
)
from .experiment_charts import CURVES, loss_gaps
from .setting_groups import MAX_SERIES, SettingGroup, groups
from .vega import Chart, numbered

MAX_BARS = 30  # The most settings of a figure with bars.
BAR_HEIGHT = 18  # The thickness of a bar, in points.
WINDOWS = 50  # Windows of a tuning run's steps. A point is a window's mean loss.
STEP_PHASES = (*timing.PHASES, REST)
RANKS = "ranks"


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
        for row in rows:
            row["shown"] = row["mean"] / unit.divisor
            row["chart"] = heading(row[SERIES], letters=LABEL_LETTERS)
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
