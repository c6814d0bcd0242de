"""Rules: which cells of an experiment a claim compares, and the bounds that its figures must keep.

A rule is an entry under `rules` of a claim, and makes comparisons of a panel of the claim's experiment. Cells are
compared that are alike in all swept columns but the axis in question. A comparison whose cells were not measured has no
runs, so that a verdict can say how much of the claim it rests on.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from typing import Any, Literal

import msgspec

from analysis.claims.measures import MEASURES
from analysis.claims.sides import Readings, Sides
from analysis.experiments import Panel
from analysis.runs import grouping
from analysis.runs.grouping import Cell, of_setting
from analysis.runs.load import Run
from analysis.stats import intervals
from analysis.stats.intervals import Interval
from multicard.measure import formulas

HOLDS, FAILS, UNDECIDED, UNMEASURED = "holds", "does not hold", "undecided", "not measured"
_ESTIMATE = operator.attrgetter("estimate")
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class ClaimUnit:
    """A unit in which a figure of a claim is printed.

    convert: brings the measured ratio or share into the unit; it increases.
    text: the words around the number. opposite: those around a number below 0, which `mirrored` makes positive; empty
        where a sign says it.
    of_bottom: True if the figure says what the bottom has over the top, as "faster by" does.
    """

    name: str
    text: str
    convert: Callable[[float], float]
    digits: int = 1
    of_bottom: bool = False
    opposite: str = ""
    mirrored: Callable[[float], float] = abs

    def phrase(self, estimate: float, low: float | None = None, high: float | None = None) -> str:
        """A figure in words, with its interval: "faster by 25.0 % (20.0 to 30.0)", "slower by 10.0 % (5.0 to 15.0)"."""
        bounds = [] if low is None or high is None or low == high else [low, high]
        is_opposite = bool(self.opposite) and estimate < 0
        if self.opposite and any((bound < 0) != is_opposite for bound in bounds):  # each bound needs words of its own
            ends = [self.phrase(bound) for bound in bounds]
        elif is_opposite:
            ends = [self._number(self.mirrored(bound)) for bound in reversed(bounds)]
        else:
            ends = [self._number(bound) for bound in bounds]
        words, shown = (self.opposite, self.mirrored(estimate)) if is_opposite else (self.text, estimate)
        return words.format(self._number(shown)) + (f" ({' to '.join(ends)})" if ends else "")

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


def _slower(percent: float) -> float:
    """How much faster the other side is, in percent: B is 25 % slower than A where A is 25 % faster than B."""
    share = 1 + percent / 100
    return 100 * (1 / share - 1) if share > 0 else math.inf


UnitName = Literal["faster", "less", "times", "points", "percent"]
UNITS: dict[UnitName, ClaimUnit] = {
    "faster": ClaimUnit("% faster", "faster by {} %", lambda x: 100 * (x - 1), 1, True, "slower by {} %", _slower),
    "less": ClaimUnit("% less", "less by {} %", lambda ratio: 100 * (1 - 1 / ratio), 1, True, "more by {} %"),
    "times": ClaimUnit("x", "{} x", float, 2),
    "points": ClaimUnit("points", "{} points", lambda share: 100 * share, 2),
    "percent": ClaimUnit("%", "{} %", lambda share: 100 * share),
}


@dataclass(frozen=True)
class Comparison:
    """One comparison of a rule, before its interval is worked out.

    what: what is compared ("gpus=4 against 1"). where: the cell that both are in ("precision=fp32").
    over, under: the bounds between which the claim has the figure, in `unit`.
    runs: of both sides; empty where a cell was not measured.
    interval: the interval of the measured ratio at a confidence; None where `settled`.
    stands_for: the number of comparisons from which this one was picked, for the correction of the confidence.
    settled: verdict and text of a comparison that has no number.
    most: the largest ratio that is physically possible; a larger one is marked as doubtful.
    """

    what: str
    where: str
    unit: ClaimUnit
    over: float
    under: float
    runs: tuple[Run, ...] = ()
    interval: Callable[[Readings, float], Interval] | None = None
    stands_for: int = 1
    settled: tuple[str, str] | None = None
    most: float = math.inf

    def verdict(self, low: float | None, high: float | None) -> str:
        """By where the whole interval lies; undecided where there is none, or it contains a bound."""
        if low is None or high is None:
            return UNDECIDED
        if low > self.over and high < self.under:
            return HOLDS
        return FAILS if high <= self.over or low >= self.under else UNDECIDED


class Contrast(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule", tag="contrast"):
    """Compare values of an axis in each cell of the others: the measure of the first, the top, with the second's.

    axis: a swept column, or several of them.
    pairs: top and bottom, a list of values for several axes. "*" is every other value, "first" the first, "next_fewer"
        the value before the other one.
    over, under: the bounds, in `unit`.
    only: the cells that count, by swept column: a value, a list of values, or a condition (">= 300").
    """

    axis: str | list[str]
    pairs: list[tuple[Any, Any]]
    measure: str
    unit: UnitName = "times"
    over: float = -math.inf
    under: float = math.inf
    only: dict[str, Any] = {}

    def comparisons(self, panel: Panel) -> list[Comparison]:
        axes = [self.axis] if isinstance(self.axis, str) else self.axis
        pairs: Sequence[tuple[Any, Any]] = self.pairs
        if len(axes) == 1:
            values = _values(panel, axes[0])
            pairs = [([top], [bottom]) for pair in self.pairs for top, bottom in _expanded(pair, values)]
        sides = [tuple(dict(zip(axes, side, strict=True)) for side in pair) for pair in pairs]
        return [
            self._comparison(panel, cell, top, bottom)
            for top, bottom in sides
            for cell in _cells(panel, axes, self.only)
            if all(panel.experiment.has((*cell, *side.items())) for side in (top, bottom))
        ]

    def _comparison(self, panel: Panel, cell: Cell, top: Mapping[str, Any], bottom: Mapping[str, Any]) -> Comparison:
        unit = UNITS[self.unit]
        first, second = (bottom, top) if unit.of_bottom else (top, bottom)
        what = f"{_typed(tuple(first.items()))} against {' '.join(map(grouping.typed, second.values()))}"
        tops, bottoms = (_ok_runs(panel, {**dict(cell), **side}) for side in (top, bottom))
        bounds = unit, self.over, self.under
        if not (tops and bottoms):
            return Comparison(what, _typed(cell), *bounds)
        interval, most = _measured(self.measure, tops, bottoms), _most(self.measure, tops, bottoms)
        return Comparison(what, _typed(cell), *bounds, (*tops, *bottoms), interval, most=most)


class GainFalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule", tag="gain_falls"):
    """The share that `bottom` saves of the top's measure is larger on the fewest GPUs than on the most."""

    axis: str
    top: Any
    bottom: Any
    measure: str

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [self._comparison(panel, cell) for cell in _cells(panel, [self.axis, "gpus"], {})]

    def _comparison(self, panel: Panel, cell: Cell) -> Comparison:
        bounds = UNITS["points"], 0.0, math.inf
        sides_by_gpus = {
            gpus: [_ok_runs(panel, {**dict(cell), self.axis: value, "gpus": gpus}) for value in (self.top, self.bottom)]
            for gpus in _values(panel, "gpus")
        }
        measured = [(gpus, sides) for gpus, sides in sides_by_gpus.items() if all(sides)]
        if len(measured) < 2:
            return Comparison("gain on fewest against most GPUs", _typed(cell), *bounds)
        (few, at_fewest), (many, at_most) = measured[0], measured[-1]

        def interval(readings: Readings, confidence: float) -> Interval:
            gains = [
                _measured(self.measure, *sides)(readings, confidence).mapped(lambda ratio: 1 - 1 / ratio)
                for sides in (at_fewest, at_most)
            ]
            return intervals.difference(*gains)

        runs = tuple(run for side in (*at_fewest, *at_most) for run in side)
        return Comparison(f"gain with gpus={few} against gpus={many}", _typed(cell), *bounds, runs, interval)


class EachCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule", tag="each_cell"):
    """A figure of every cell by itself, or of those that `only` lets through."""

    what: str
    measure: str
    unit: UnitName = "times"
    over: float = -math.inf
    under: float = math.inf
    only: dict[str, Any] = {}

    def comparisons(self, panel: Panel) -> list[Comparison]:
        bounds = UNITS[self.unit], self.over, self.under
        return [
            Comparison(self.what, _typed(cell), *bounds, runs, _measured(self.measure, runs, ()))
            for cell in _cells(panel, [], self.only)
            if panel.experiment.has(cell)
            for runs in [_ok_runs(panel, dict(cell))]
        ]


class BestOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule", tag="best_of"):
    """The value of an axis with the least of a measure has less of it than the one with the most by over `over` %.

    The two are picked by their figures, so that a comparison counts for all pairs among which they were.
    """

    axis: str
    measure: str
    over: float
    only: dict[str, Any] = {}

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [self._comparison(panel, cell) for cell in _cells(panel, [self.axis], self.only)]

    def _comparison(self, panel: Panel, cell: Cell) -> Comparison:
        bounds = UNITS["less"], self.over, math.inf
        column = MEASURES[self.measure].column
        groups = [(value, _ok_runs(panel, {**dict(cell), self.axis: value})) for value in _values(panel, self.axis)]
        measured = [(figure, value, runs) for value, runs in groups if (figure := of_setting(runs, column))]
        if len(measured) < 2:
            return Comparison(f"{self.axis}: best against worst", _typed(cell), *bounds)
        measured.sort(key=operator.itemgetter(0))
        (_, best, least), (_, worst, most) = measured[0], measured[-1]
        what = f"{self.axis}: {grouping.typed(best)} against {grouping.typed(worst)}"
        interval = _measured(self.measure, most, least)
        return Comparison(what, _typed(cell), *bounds, (*most, *least), interval, math.comb(len(measured), 2))


class SpreadsMore(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule", tag="spreads_more"):
    """A measure spreads more along one axis than along another, or than another measure does.

    The spread is the most of a measure over its least along an axis, for each value of the other axis. The smallest
    spread along `axis` has to exceed the largest along `than`.

    than, than_measure: the other axis and the other measure; by default the same ones.
    """

    axis: str
    measure: str
    than: str = ""
    than_measure: str = ""
    only: dict[str, Any] = {}

    def comparisons(self, panel: Panel) -> list[Comparison]:
        axes = [self.axis] if self.than in ("", self.axis) else [self.axis, self.than]
        return [self._comparison(panel, cell, axes) for cell in _cells(panel, axes, self.only)]

    def _comparison(self, panel: Panel, cell: Cell, axes: list[str]) -> Comparison:
        wide, narrow = _groups_along(panel, cell, axes), _groups_along(panel, cell, axes[::-1])
        other = self.than_measure or self.measure
        named = [f"{name} by {axis.rpartition('.')[2]}" for name, axis in ((self.measure, axes[0]), (other, axes[-1]))]
        what = f"spread of {' against '.join(named)}".replace("_", " ")
        bounds = UNITS["times"], 1.0, math.inf
        if not (wide and narrow):
            return Comparison(what, _typed(cell), *bounds)

        def interval(readings: Readings, confidence: float) -> Interval:
            least = min((_spread(self.measure, groups, readings, confidence) for groups in wide), key=_ESTIMATE)
            greatest = max((_spread(other, groups, readings, confidence) for groups in narrow), key=_ESTIMATE)
            return intervals.difference(least.mapped(math.log), greatest.mapped(math.log)).mapped(math.exp)

        runs = {id(run): run for groups in (*wide, *narrow) for group in groups for run in group}
        pairs = sum(math.comb(len(groups), 2) for groups in (*wide, *narrow))
        return Comparison(what, _typed(cell), *bounds, tuple(runs.values()), interval, pairs)


class Ends(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule", tag="ends"):
    """Runs of cells end with a status: `ok`, or `oom` where memory runs out. cells: each by some swept columns."""

    cells: list[dict[str, Any]]
    status: str

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [self._comparison(panel, cell) for cell in self.cells]

    def _comparison(self, panel: Panel, cell: dict[str, Any]) -> Comparison:
        runs = tuple(run for group in _groups(panel, cell) for run in group)
        statuses = {run["status"] for run in runs}
        refuted = statuses <= {"ok", "oom"} and len(statuses) == 1
        verdict = HOLDS if statuses == {self.status} else FAILS if refuted else UNDECIDED
        settled = verdict, " and ".join(sorted(statuses))
        bounds = UNITS["times"], -math.inf, math.inf
        return Comparison("it ends", _typed(tuple(cell.items())), *bounds, runs, settled=settled)


Rule = Contrast | GainFalls | EachCell | BestOf | SpreadsMore | Ends


def _groups_along(panel: Panel, cell: Cell, axes: Sequence[str]) -> list[list[tuple[Run, ...]]]:
    """Groups of runs along the first axis, for each value of the other; where two or more groups were measured."""
    along, *others = axes
    several = [
        [runs for value in _values(panel, along) if (runs := _ok_runs(panel, {**dict(cell), **beside, along: value}))]
        for beside in ([{axis: value} for axis in others for value in _values(panel, axis)] or [{}])
    ]
    return [groups for groups in several if len(groups) > 1]


def _spread(measure: str, groups: Sequence[Sequence[Run]], readings: Readings, confidence: float) -> Interval:
    """The most of a measure over its least, among groups of runs."""
    return max((_measured(measure, *pair)(readings, confidence) for pair in permutations(groups, 2)), key=_ESTIMATE)


def _measured(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> Callable[[Readings, float], Interval]:
    return lambda readings, confidence: MEASURES[measure].interval(Sides(top, bottom, confidence, readings))


def _most(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> float:
    """The largest ratio of times of fewer GPUs (`top`) to more that more GPUs can give; an iteration takes more rows on
    more GPUs."""
    fewer, more = grouping.ranks(top[0]), grouping.ranks(bottom[0])
    if measure not in ("time", "iteration") or fewer >= more:
        return math.inf
    return formulas.DOUBTFUL_EFFICIENCY * (1 if measure == "iteration" else more / fewer)


def _expanded(pair: tuple[Any, Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The pairs that "*", "first" and "next_fewer" stand for, of the values of an axis."""
    top, bottom = (values[0] if side == "first" else side for side in pair)
    if top == "*":
        return [(value, bottom) for value in values if value != bottom]
    if bottom == "*":
        return [(top, value) for value in values if value != top]
    if top == "next_fewer":
        return [(before, after) for before, after in pairwise(values) if after == bottom]
    return [(top, bottom)]


def _values(panel: Panel, column: str) -> list[Any]:
    """Values of a swept column: the paper's and those measured beside them; the latter alone where none of the paper's
    was measured. Numbers ascend."""
    printed, measured = panel.experiment.swept[column], panel.values(column)
    both = [*printed, *(value for value in measured if value not in printed)]
    values = both if {*printed} & {*measured} else measured
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if numbers else values


def _cells(panel: Panel, axes: Sequence[str], only: Mapping[str, Any]) -> Iterator[Cell]:
    """Cells of the swept columns but `axes`, and what follows from these, that `only` lets through."""
    experiment = panel.experiment
    free = [column for column in experiment.swept if column not in axes]
    columns = [column for column in free if not any(experiment.follows(column, axis) for axis in axes)]
    for values in product(*(_values(panel, column) for column in columns)):
        cell = dict(zip(columns, values, strict=True))
        if all(_meets(cell[column], condition) for column, condition in only.items()):
            yield tuple(cell.items())


def _meets(value: Any, condition: Any) -> bool:
    """True if a value is the one, is among the list, or meets a condition such as ">= 300"."""
    if isinstance(condition, list):
        return value in condition
    match = re.fullmatch(r"([<>]=?) ?(\d+)", condition) if isinstance(condition, str) else None
    if match is None:
        return value == condition
    return isinstance(value, int | float) and OPERATORS[match[1]](value, int(match[2]))


def _groups(panel: Panel, wanted: Mapping[str, Any]) -> list[list[Run]]:
    return [runs for cell, runs in panel.cells.items() if wanted.items() <= dict(cell).items()]


def _ok_runs(panel: Panel, wanted: Mapping[str, Any]) -> tuple[Run, ...]:
    return tuple(run for runs in _groups(panel, wanted) for run in runs if run["status"] == "ok")


def _typed(cell: Cell) -> str:
    """A cell as it would be typed, without the groups of the keys."""
    return " ".join(f"{key.rpartition('.')[2]}={grouping.typed(value)}" for key, value in cell)
