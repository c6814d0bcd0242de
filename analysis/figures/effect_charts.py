"""Draw what each swept setting gains alone, in time and in learning.

Each axis has a bar for its best level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from typing import Any

import altair as alt

from multicard import workloads
from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure import formulas
from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Message
from multicard.records.comparable import DOUBTFUL

from ..commands.best import known_rankings
from ..commands.ranking import RankedSetting, Ranking
from ..runs import circumstances, grouping, quality, works
from ..runs.grouping import ACCURACY, HELD_OUT, of_setting
from ..runs.load import Run
from ..stats import effects
from ..stats.between_runs import REMEDY, accuracy_over_answers
from ..stats.effects import Effect, Interaction, Point
from ..stats.intervals import faster
from . import captions
from .charts import LINE_BREAK, WIDTH
from .setting_groups import MAX_SERIES, SettingGroup
from .vega import FAINT, Chart, layered, numbered

ROW_HEIGHT = 48  # The height of a bar and its name of three lines, in points.
TIME = "total_s"
# An interval within these bounds says that nothing changes.
SAME_BOUNDS = {TIME: math.log1p(MARGIN), ACCURACY: 0.01, HELD_OUT: quality.LOSS_APART}
MIN_REACH = 2  # An axis reaches at least twice these bounds, so that equal settings look equal.
TICKS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
AXIS_TITLES = {
    TIME: "times as fast",
    ACCURACY: "points of accuracy",
    HELD_OUT: "% less held-out loss",
}
MEASURE_NAMES = {TIME: "time", ACCURACY: "accuracy", HELD_OUT: "held-out loss"}
EFFECTS_NOTE = Message(
    "figure.effects-are-means",
    "Means over all pairs of settings that differ in this alone, with 95 % intervals; faint bars"
    " may be no gain",
)
UNREPEATED = Message(
    "figure.effects-unrepeated",
    "Nothing was repeated. The intervals come from the usual noise of such machines, and from how"
    f" a gain differs between pairs; {REMEDY}",
    remedy=REMEDY,
)
UNREPEATED_ACCURACIES = Message(
    "figure.effects-unrepeated-accuracies",
    "No seed was repeated. The intervals of accuracies come from the number of tested answers, and"
    " from how a gain differs between pairs; `seed=0,1,2` shows how seeds differ",
)


@dataclass(frozen=True)
class WorkEffects:
    """The effects of a work's axes on one measure: time, accuracy or held-out loss.

    Effects on time and loss are differences of their logarithms.
    """

    ranking: Ranking
    measure: str

    @cached_property
    def points(self) -> list[Point]:
        is_time = self.measure == TIME
        is_accuracy = self.measure == ACCURACY
        points_found = list[Point]()
        column = self.ranking.column if is_time else self.measure
        repeated = self.ranking.repeated
        spreads = repeated.of_column(column)
        for setting in self._compared_settings:
            value = of_setting(setting.runs, column)
            if value is not None and (value > 0 or is_accuracy):
                levels = {key: dict(setting.cell).get(key) for key in self.ranking.keys}
                counting_runs = grouping.counting(setting.runs, column)
                n = len(counting_runs if is_time else grouping.by_seed(counting_runs))
                spread = spreads.of(counting_runs)
                usual = None if spread.repetitions else spread
                answers = partial(accuracy_over_answers, counting_runs) if is_accuracy else None
                rows = repeated.held_out.of(setting.runs) if self.measure == HELD_OUT else None
                figure = value if is_accuracy else -math.log(value)
                points_found.append(Point(levels, figure, n, spread, usual, rows, answers))
        return points_found

    @property
    def _compared_settings(self) -> Sequence[RankedSetting]:
        """The settings that are compared.

        For held-out losses, these are the largest group of settings that were evaluated on the same
        rows after the same amount of work.
        """
        if self.measure != HELD_OUT:
            return self.ranking.settings
        scored_settings = [
            setting for setting in self.ranking.settings if setting.held_out_loss is not None
        ]
        groups = grouping.grouped(scored_settings, self.ranking.comparable)
        with_rows = [group for (rows, *_), group in groups.items() if rows is not None]
        return max(with_rows, key=len, default=[])

    @property
    def is_repeated(self) -> bool:
        return all(point.spread.repetitions for point in self.points)

    @property
    def noise_notes(self) -> list[Message]:
        """Say what noise is, if nothing was repeated."""
        if self.is_repeated:
            return []
        return [UNREPEATED_ACCURACIES if self.measure == ACCURACY else UNREPEATED]

    @cached_property
    def by_axis(self) -> list[list[Effect]]:
        """The effects of each axis with few levels, against its default or else its first level."""
        defaults = workloads.defaults(self.ranking.runs[0]["kind"])
        bases = dict[str, Any]()
        for key in self.ranking.keys:
            levels = grouping.ordered(
                list(dict.fromkeys(point.levels[key] for point in self.points))
            )
            default = defaults.get(key.removesuffix(".name"))
            if 1 < len(levels) <= MAX_SERIES:
                bases[key] = next(
                    (level for level in levels if level == getattr(default, "value", default)),
                    levels[0],
                )
        return effects.main_effects(self.points, bases)

    @cached_property
    def interactions(self) -> list[Message]:
        """A sentence for each interaction.

        For example "gpus=2, not 1: 1.8x faster with layout=nhwc, but 1.1x faster with layout=nchw".
        """
        return [
            self._interaction_message(interaction)
            for interaction in effects.interactions(
                self.points, [axis_effects[0] for axis_effects in self.by_axis]
            )
        ]

    def _interaction_message(self, interaction: Interaction) -> Message:
        change = self.change(interaction.effect)
        gains = {
            f"{self._short_names[interaction.axis]}={grouping.typed(level)}": gain
            for level, gain in interaction.gains.items()
        }
        phrases = [f"{self._gain_text(gain)} with {setting}" for setting, gain in gains.items()]
        unit = float if self.measure == ACCURACY else math.exp
        gains_in_unit = {setting: unit(gain) for setting, gain in gains.items()}
        return Message(
            "figure.interaction",
            f"{change}: {', but '.join(phrases)}",
            change=change,
            gains=gains_in_unit,
        )

    @cached_property
    def doubts(self) -> list[str]:
        """Messages about further differences between the runs of an axis's best level and base."""
        doubts_found: dict[str, None] = {}
        for best, *_ in self.by_axis:
            sides = []
            names = []
            for level in (best.level, best.base):
                settings_at_level = [
                    setting
                    for setting in self.ranking.settings
                    if dict(setting.cell).get(best.axis) == level
                ]
                sides.append(
                    list(chain.from_iterable(setting.counted for setting in settings_at_level))
                )
                names.append(f"{self._short_names[best.axis]}={grouping.typed(level)}")
            doubts_found |= dict.fromkeys(circumstances.doubts(sides[0], sides[1], names))
            unequal = works.unequal_amounts(sides[0], sides[1])
            # Times per amount of work do not depend on how much was trained.
            if unequal is not None and not self.ranking.is_at_pace:
                unit, *means = unequal
                text = (
                    f"{names[0]} trained on {means[0]:,.0f} {unit}, {names[1]} on {means[1]:,.0f}"
                )
                doubt = Message("doubt.other-amounts", text, amounts=means, sides=names)
                doubts_found[doubt] = None
        return [*doubts_found]

    @cached_property
    def _short_names(self) -> dict[str, str]:
        return grouping.short_names(self.ranking.keys)

    def change(self, effect: Effect) -> str:
        """Say what is changed: "gpus=2, not 1"."""
        return (
            f"{self._short_names[effect.axis]}={grouping.typed(effect.level)}, not"
            f" {grouping.typed(effect.base)}"
        )

    def signs(self, effect: Effect) -> str:
        """Return the sign of an effect if a pair of it has a speed-up that is hardly possible."""
        levels = effect.level, effect.base
        is_of_ranks = effect.axis in schema.keys(Role.ranks) and grouping.is_numeric(levels)
        if self.measure != TIME or not is_of_ranks:
            return ""
        ratio = effect.level / effect.base
        most = formulas.DOUBTFUL_EFFICIENCY * max(ratio, 1 / ratio)
        speed_ups = [math.exp(gain if ratio > 1 else -gain) for gain in effect.pairs]
        return DOUBTFUL if max(speed_ups) > most else ""

    def gain(self, effect: Effect) -> str:
        """Write a gain with its interval and its sign: "1.33x faster (1.25x to 1.41x)"."""
        gain = effect.gain
        bounds = [end for end in (effect.gain.low, effect.gain.high) if end is not None]
        unclear_text = (
            "no difference"
            if bounds and max(map(abs, bounds)) <= SAME_BOUNDS[self.measure]
            else "within noise"
        )
        end_texts = [self._gain_text(end) for end in bounds]
        if gain.excludes_zero:
            end_texts = [
                end.partition(" ")[0]
                for end in (end_texts if gain.estimate > 0 else reversed(end_texts))
            ]
        interval = (
            " to ".join(end_texts)
            or f"no interval: {'repeat=2' if self.measure == TIME else 'seed=0,1'}"
        )
        shown = (
            self._gain_text(gain.estimate) if gain.excludes_zero or not end_texts else unclear_text
        )
        return f"{shown}{self.signs(effect)} ({interval})"

    def _gain_text(self, gain: float) -> str:
        if self.measure == ACCURACY:
            return f"{100 * max(-1.0, min(1.0, gain)):+.1f} points"
        if self.measure == HELD_OUT:
            return f"{-_percent_less(gain):+.1f}% held-out loss"
        return faster(math.exp(gain))

    def figure(self, name: str) -> Chart:
        group = SettingGroup(
            {str(setting.cell): setting.runs for setting in self.ranking.settings},
            self.ranking.keys,
            work=self.ranking.work,
        )
        units = {TIME: math.exp, ACCURACY: (100.0).__mul__, HELD_OUT: _percent_less}
        unit = units[self.measure]
        rows = []
        for best, *_ in self.by_axis:
            gain_in_unit = best.gain.mapped(unit)
            rows.append(
                {
                    "change": self.change(best),
                    "gain": self.gain(best),
                    "pairs": best.blocks,
                    "signs": self.signs(best),
                    "told": best.gain.excludes_zero,
                }
                | {
                    "mean": gain_in_unit.estimate,
                    "low": gain_in_unit.low,
                    "high": gain_in_unit.high,
                    "base": unit(0.0),
                }
                | {
                    "at": f"{self.change(best)}{LINE_BREAK}{self.gain(best)}".replace(
                        " (", f"{LINE_BREAK}("
                    ),
                    "series": "+" if best.gain.estimate > 0 else "-",
                }
            )
        largest_gain = max(abs(best.gain.estimate) for best, *_ in self.by_axis)
        bounds = chain.from_iterable((best.gain.low, best.gain.high) for best, *_ in self.by_axis)
        known_bounds = [bound for bound in bounds if bound is not None]
        reach = 1.1 * max(
            largest_gain, min(2 * largest_gain, max(map(abs, known_bounds), default=0.0))
        )
        reach = max(reach, MIN_REACH * SAME_BOUNDS[self.measure])
        kind = "log" if self.measure == TIME else "linear"
        scale = alt.Scale(type=kind, domain=[unit(-reach), unit(reach)], nice=False, clamp=True)
        label_axis = alt.Axis(
            labelExpr=f"split(datum.label, '{LINE_BREAK}')",
            labelLimit=320,
            labelPadding=6,
            labelOffset=-9,
        )
        opacity = alt.when("datum.told").then(alt.value(1)).otherwise(alt.value(FAINT))
        colour = alt.Color("series:N", scale=alt.Scale(domain=["+", "-"]), legend=None)
        largest_tick = max((tick for tick in TICKS if tick <= unit(reach)), default=1.0)
        ticks = [1 / largest_tick, 1, largest_tick] if self.measure == TIME else alt.Undefined
        axis = alt.Axis(values=ticks, tickCount=5, format=".2~f", grid=False)
        base = alt.Chart().encode(y=alt.Y("at:N", sort=None, title=None, axis=label_axis))
        x = alt.X("base:Q", title=AXIS_TITLES[self.measure], scale=scale, axis=axis)
        zero = alt.Chart().mark_rule(style="ideal").encode(x=x)
        bars = base.mark_bar(size=ROW_HEIGHT / 2.5).encode(
            x="base:Q", x2="mean:Q", opacity=opacity, color=colour
        )
        rules = (
            base.transform_filter("isValid(datum.low)")
            .mark_rule(style="plain")
            .encode(x="low:Q", x2="high:Q")
        )
        chart = layered([zero, bars, rules], WIDTH, ROW_HEIGHT * len(rows))
        notes = [EFFECTS_NOTE, *self.noise_notes, *self.interactions]
        notes += [captions.DOUBTFUL_NOTE] if any(row["signs"] for row in rows) else []
        notes += self.doubts if self.measure == TIME else []
        title = f"What each setting gains in {MEASURE_NAMES[self.measure]}, all else equal"
        timed_runs = (
            [setting.runs for setting in self.ranking.settings] if self.measure == TIME else None
        )
        return group.figure(name, chart, rows, title, notes, timed_runs)


def _percent_less(gain: float) -> float:
    """Return how much lower a loss is, in percent, from the difference of the logarithms."""
    return -100 * math.expm1(-gain)


def what_matters(rankings: Sequence[Ranking]) -> list[WorkEffects]:
    """Return the effects in each work, on time and on learning.

    Works in which no two settings differ in one axis alone are left out.
    """
    all_effects = (
        WorkEffects(ranking, measure) for ranking, measure in product(rankings, AXIS_TITLES)
    )
    return [work_effects for work_effects in all_effects if work_effects.by_axis]


def effects_alone(runs: Sequence[Run]) -> list[Chart]:
    return [
        work_effects.figure(numbered("effects", index))
        for index, work_effects in enumerate(what_matters(known_rankings(runs)))
    ]
