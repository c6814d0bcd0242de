"""What each swept setting gains alone, in time and in what it
learns: a bar for the best level of each axis.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import Any

import altair as alt

from multicard import workloads
from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Message

from ..commands.best import known_rankings
from ..commands.ranking import RankedSetting, Ranking
from ..runs import circumstances, grouping, quality, works
from ..runs.grouping import ACCURACY, HELD_OUT, of_setting
from ..runs.load import Run
from ..stats import effects
from ..stats.between_runs import REMEDY
from ..stats.effects import Effect, Interaction, Point
from ..stats.intervals import faster
from .charts import LINE, WIDTH
from .setting_charts import MOST_SERIES, SettingGroup
from .vega import Chart, layered, numbered

ROW = 48  # points, of a bar and its name of three lines
TIME = "total_s"
# Bounds within which an interval says that nothing changes
SAME = {TIME: math.log1p(MARGIN), ACCURACY: 0.01, HELD_OUT: quality.LOSS_APART}
LEAST_REACH = 2  # of an axis, in such bounds, so that settings that are alike look so
TICKS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
AXES = {TIME: "times as fast", ACCURACY: "points of accuracy", HELD_OUT: "% less held-out loss"}
IN_WORDS = {TIME: "time", ACCURACY: "accuracy", HELD_OUT: "held-out loss"}
HOW = Message(
    "figure.effects-are-means",
    "Means over all pairs of settings that differ in this alone, with 95 % intervals; faint: may be"
    " no gain",
)
UNREPEATED = Message(
    "figure.effects-unrepeated",
    "Nothing was repeated: what is usual for such machines counts as noise of times, and how a"
    f" gain differs from pair to pair; {REMEDY}",
    remedy=REMEDY,
)


@dataclass(frozen=True)
class WhatMatters:
    """The effects of a work's axes on its time or its held-out loss (their logarithms),
    or on its accuracy.
    """

    ranking: Ranking
    measure: str

    @cached_property
    def points(self) -> list[Point]:
        is_time = self.measure == TIME
        is_accuracy = self.measure == ACCURACY
        made = list[Point]()
        column = self.ranking.column if is_time else self.measure
        repeated = self.ranking.repeated
        spreads = repeated.of_column(column)
        for one in self._settings:
            value = of_setting(one.runs, column)
            if value is not None and (value > 0 or is_accuracy):
                levels = {key: dict(one.cell).get(key) for key in self.ranking.keys}
                counted = grouping.counting(one.runs, column)
                n = len(counted if is_time else grouping.by_seed(counted))
                spread = spreads.of(counted)
                usual = None if is_accuracy or spread.repetitions else spread
                rows = repeated.held_out.of(one.runs) if self.measure == HELD_OUT else None
                made.append(
                    Point(
                        levels, value if is_accuracy else -math.log(value), n, spread, usual, rows
                    )
                )
        return made

    @property
    def _settings(self) -> Sequence[RankedSetting]:
        """The settings that are compared: of held-out losses the most that were evaluated on the
        same rows after as much work.
        """
        if self.measure != HELD_OUT:
            return self.ranking.settings
        scored = [one for one in self.ranking.settings if one.held_out_loss is not None]
        groups = grouping.grouped(scored, self.ranking.comparable)
        with_rows = [own for (rows, *_), own in groups.items() if rows is not None]
        return max(with_rows, key=len, default=[])

    @property
    def is_repeated(self) -> bool:
        return all(point.spread.repetitions for point in self.points)

    @cached_property
    def by_axis(self) -> list[list[Effect]]:
        """The effects of each axis of few levels, against its default,
        or the first level without that.
        """
        defaults = workloads.defaults(self.ranking.runs[0]["kind"])
        bases = dict[str, Any]()
        for key in self.ranking.keys:
            levels = grouping.ordered(
                list(dict.fromkeys(point.levels[key] for point in self.points))
            )
            default = defaults.get(key.removesuffix(".name"))
            if 1 < len(levels) <= MOST_SERIES:
                bases[key] = next(
                    (one for one in levels if one == getattr(default, "value", default)), levels[0]
                )
        return effects.main_effects(self.points, bases)

    @cached_property
    def interactions(self) -> list[Message]:
        """A sentence for each: "gpus=2, not 1: 1.8x faster with layout=nhwc,
        but 1.1x faster with layout=nchw".
        """
        return [
            self._interaction(one)
            for one in effects.interactions(self.points, [own[0] for own in self.by_axis])
        ]

    def _interaction(self, found: Interaction) -> Message:
        change = self.change(found.effect)
        gains = {
            f"{self._names[found.axis]}={grouping.typed(at)}": gain
            for at, gain in found.gains.items()
        }
        said = [f"{self._gain(gain)} with {setting}" for setting, gain in gains.items()]
        unit = float if self.measure == ACCURACY else math.exp
        shown = {setting: unit(gain) for setting, gain in gains.items()}
        return Message(
            "figure.interaction", f"{change}: {', but '.join(said)}", change=change, gains=shown
        )

    @cached_property
    def doubts(self) -> list[str]:
        """What else differs between the runs of the best level of
        an axis and those that it is compared with.
        """
        said: dict[str, None] = {}
        for best, *_ in self.by_axis:
            sides = []
            names = []
            for level in (best.level, best.base):
                with_level = [
                    one for one in self.ranking.settings if dict(one.cell).get(best.axis) == level
                ]
                sides.append(list(chain.from_iterable(one.counted for one in with_level)))
                names.append(f"{self._names[best.axis]}={grouping.typed(level)}")
            said |= dict.fromkeys(circumstances.doubts(sides[0], sides[1], names))
            unequal = works.unequal_amounts(sides[0], sides[1])
            # the time of as much work has no such doubt
            if unequal is not None and not self.ranking.is_at_pace:
                unit, *means = unequal
                amounts = (
                    f"{names[0]} trained on {means[0]:,.0f} {unit}, {names[1]} on {means[1]:,.0f}"
                )
                doubt = Message("doubt.other-amounts", amounts, amounts=means, sides=names)
                said[doubt] = None
        return [*said]

    @cached_property
    def _names(self) -> dict[str, str]:
        return grouping.short_names(self.ranking.keys)

    def change(self, effect: Effect) -> str:
        """What is changed: "gpus=2, not 1"."""
        return (
            f"{self._names[effect.axis]}={grouping.typed(effect.level)}, not"
            f" {grouping.typed(effect.base)}"
        )

    def gain(self, effect: Effect) -> str:
        """A gain with its interval: "1.33x faster (1.25x to 1.41x)"."""
        gain = effect.gain
        bounds = [end for end in (effect.gain.low, effect.gain.high) if end is not None]
        unclear = (
            "no difference"
            if bounds and max(map(abs, bounds)) <= SAME[self.measure]
            else "within noise"
        )
        ends = [self._gain(end) for end in bounds]
        if gain.excludes_zero:
            ends = [
                end.partition(" ")[0] for end in (ends if gain.estimate > 0 else reversed(ends))
            ]
        interval = (
            " to ".join(ends)
            or f"no interval: {'repeat=2' if self.measure == TIME else 'seed=0,1'}"
        )
        shown = self._gain(gain.estimate) if gain.excludes_zero or not ends else unclear
        return f"{shown} ({interval})"

    def _gain(self, gain: float) -> str:
        if self.measure == ACCURACY:
            return f"{100 * max(-1.0, min(1.0, gain)):+.1f} points"
        if self.measure == HELD_OUT:
            return f"{-_percent_less(gain):+.1f}% held-out loss"
        return faster(math.exp(gain))

    def figure(self, name: str) -> Chart:
        group = SettingGroup(
            {str(one.cell): one.runs for one in self.ranking.settings},
            self.ranking.keys,
            work=self.ranking.work,
        )
        units = {TIME: math.exp, ACCURACY: (100.0).__mul__, HELD_OUT: _percent_less}
        unit = units[self.measure]
        rows = []
        for best, *_ in self.by_axis:
            shown = best.gain.mapped(unit)
            rows.append(
                {
                    "change": self.change(best),
                    "gain": self.gain(best),
                    "pairs": best.blocks,
                    "told": best.gain.excludes_zero,
                }
                | {"mean": shown.estimate, "low": shown.low, "high": shown.high, "base": unit(0.0)}
                | {
                    "at": f"{self.change(best)}{LINE}{self.gain(best)}".replace(" (", f"{LINE}("),
                    "series": "+" if best.gain.estimate > 0 else "-",
                }
            )
        most = max(abs(best.gain.estimate) for best, *_ in self.by_axis)
        bounds = chain.from_iterable((best.gain.low, best.gain.high) for best, *_ in self.by_axis)
        ends = [bound for bound in bounds if bound is not None]
        reach = 1.1 * max(most, min(2 * most, max(map(abs, ends), default=0.0)))
        reach = max(reach, LEAST_REACH * SAME[self.measure])
        kind = "log" if self.measure == TIME else "linear"
        scale = alt.Scale(type=kind, domain=[unit(-reach), unit(reach)], nice=False, clamp=True)
        names = alt.Axis(
            labelExpr=f"split(datum.label, '{LINE}')",
            labelLimit=320,
            labelPadding=6,
            labelOffset=-9,
        )
        told = alt.when("datum.told").then(alt.value(1)).otherwise(alt.value(0.35))
        colour = alt.Color("series:N", scale=alt.Scale(domain=["+", "-"]), legend=None)
        most_times = max((tick for tick in TICKS if tick <= unit(reach)), default=1.0)
        ticks = [1 / most_times, 1, most_times] if self.measure == TIME else alt.Undefined
        axis = alt.Axis(values=ticks, tickCount=5, format=".2~f", grid=False)
        base = alt.Chart().encode(y=alt.Y("at:N", sort=None, title=None, axis=names))
        x = alt.X("base:Q", title=AXES[self.measure], scale=scale, axis=axis)
        zero = alt.Chart().mark_rule(style="ideal").encode(x=x)
        bars = base.mark_bar(size=ROW / 2.5).encode(
            x="base:Q", x2="mean:Q", opacity=told, color=colour
        )
        rules = (
            base.transform_filter("isValid(datum.low)")
            .mark_rule(style="plain")
            .encode(x="low:Q", x2="high:Q")
        )
        chart = layered([zero, bars, rules], WIDTH, ROW * len(rows))
        notes = (
            [HOW, *self.interactions] if self.is_repeated else [HOW, UNREPEATED, *self.interactions]
        )
        notes += self.doubts if self.measure == TIME else []
        title = f"What each setting gains in {IN_WORDS[self.measure]}, all else equal"
        timed = [one.runs for one in self.ranking.settings] if self.measure == TIME else None
        return group.figure(name, chart, rows, title, notes, timed)


def _percent_less(gain: float) -> float:
    """By how much a loss is lower, in percent of it, from the difference of its logarithms."""
    return -100 * math.expm1(-gain)


def what_matters(rankings: Sequence[Ranking]) -> list[WhatMatters]:
    """The effects in each work, in their order, on time and on what it learned;
    none where none differ in one axis.
    """
    every = (WhatMatters(ranking, measure) for ranking, measure in product(rankings, AXES))
    return [one for one in every if one.by_axis]


def effects_alone(runs: Sequence[Run]) -> list[Chart]:
    return [
        one.figure(numbered("effects", index))
        for index, one in enumerate(what_matters(known_rankings(runs)))
    ]
