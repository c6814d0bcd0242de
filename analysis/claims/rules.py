"""Rules: which cells of an experiment a claim compares, and the bounds that its figures must keep.

A rule is an entry under `rules` of a claim, and makes comparisons of a panel of the claim's experiment. Cells are
compared that are alike in all swept columns but the axis in question. A comparison whose cells were not measured has no
runs, so that a verdict can say how much of the claim it rests on.
"""

import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations, product
from typing import Any, Literal

import msgspec

from analysis.claims.comparison import (
    FAILS,
    HOLDS,
    UNDECIDED,
    UNITS,
    AtConfidence,
    Comparison,
    Readings,
    Sides,
    UnitName,
)
from analysis.claims.measures import MEASURES
from analysis.experiments import Panel
from analysis.runs import grouping
from analysis.runs.grouping import Cell, of_setting
from analysis.runs.load import Run
from analysis.stats import intervals
from analysis.stats.intervals import Interval
from multicard.measure import formulas

_ESTIMATE = operator.attrgetter("estimate")
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, tag_field="rule"):
    """A rule of a claim, which makes comparisons.

    over, under: the bounds, in `unit`.
    only: the cells that count, by swept column: a value, a list of values, or a condition (">= 300").
    """

    unit: UnitName = "times"
    over: float = -math.inf
    under: float = math.inf
    only: dict[str, Any] = {}

    def comparison(
        self, what: str, cell: Cell, runs: Sequence[Run] = (), interval: AtConfidence | None = None, **more: Any
    ) -> Comparison:
        return Comparison(what, _typed(cell), UNITS[self.unit], self.over, self.under, tuple(runs), interval, **more)

    @property
    def text(self) -> str:
        rule = msgspec.to_builtins(self)
        measure, kind, only = (rule.pop(key, "") for key in ("measure", "rule", "only"))
        limits = (("above", rule.pop("over", None)), ("below", rule.pop("under", None)))
        bounds = " and ".join(f"{side} {limit:g}" for side, limit in limits if limit is not None)
        parts = [f"{bounds} {UNITS[self.unit].name}"] if bounds else []
        parts += [kind.replace("_", " ")] if kind != "contrast" else []
        parts += [f"{key} {_in_words(value, key)}" for key, value in rule.items() if key != "unit"]
        parts += [f"where {_in_words(only)}"] if only else []
        return f"{MEASURES[measure].words if measure else 'how runs end'}: {', '.join(parts)}"


class Contrast(Rule, frozen=True, kw_only=True, tag="contrast"):
    """Compare values of an axis in each cell of the others: the measure of the first, the top, with the second's.

    axis: a swept column, or several of them.
    pairs: top and bottom, a list of values for several axes. "*" is every other value, "first" the first, "next_fewer"
        the value before the other one.
    """

    measure: str
    axis: str | list[str]
    pairs: list[tuple[Any, Any]]

    @property
    def axes(self) -> list[str]:
        return [self.axis] if isinstance(self.axis, str) else self.axis

    def comparisons(self, panel: Panel) -> list[Comparison]:
        pairs: Sequence[tuple[Any, Any]] = self.pairs
        if len(self.axes) == 1:
            values = _values(panel, self.axes[0])
            pairs = [([top], [bottom]) for pair in self.pairs for top, bottom in _expanded(pair, values)]
        sides = [tuple(dict(zip(self.axes, side, strict=True)) for side in pair) for pair in pairs]
        return [
            self._compared(panel, cell, top, bottom)
            for top, bottom in sides
            for cell in _cells(panel, self.axes, self.only)
            if all(panel.experiment.has((*cell, *side.items())) for side in (top, bottom))
        ]

    def _compared(self, panel: Panel, cell: Cell, top: Mapping[str, Any], bottom: Mapping[str, Any]) -> Comparison:
        first, second = (bottom, top) if UNITS[self.unit].of_bottom else (top, bottom)
        what = f"{_typed(tuple(first.items()))} against {' '.join(map(grouping.typed, second.values()))}"
        tops, bottoms = (_ok_runs(panel, {**dict(cell), **side}) for side in (top, bottom))
        if not (tops and bottoms):
            return self.comparison(what, cell)
        most = _most(self.measure, tops, bottoms)
        return self.comparison(what, cell, (*tops, *bottoms), _measured(self.measure, tops, bottoms), most=most)


class GainFalls(Rule, frozen=True, kw_only=True, tag="gain_falls"):
    """The share that `bottom` saves of the top's measure is larger on the fewest GPUs than on the most."""

    measure: str
    axis: str
    top: Any
    bottom: Any
    unit: UnitName = "points"
    over: float = 0.0

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [self._compared(panel, cell) for cell in _cells(panel, [self.axis, "gpus"], self.only)]

    def _compared(self, panel: Panel, cell: Cell) -> Comparison:
        sides_by_gpus = {
            gpus: [_ok_runs(panel, {**dict(cell), self.axis: value, "gpus": gpus}) for value in (self.top, self.bottom)]
            for gpus in _values(panel, "gpus")
        }
        measured = [(gpus, sides) for gpus, sides in sides_by_gpus.items() if all(sides)]
        if len(measured) < 2:
            return self.comparison("gain on fewest against most GPUs", cell)
        (few, at_fewest), (many, at_most) = measured[0], measured[-1]

        def interval(readings: Readings, confidence: float) -> Interval:
            gains = [
                _measured(self.measure, *sides)(readings, confidence).mapped(lambda ratio: 1 - 1 / ratio)
                for sides in (at_fewest, at_most)
            ]
            return intervals.difference(*gains)

        runs = [run for side in (*at_fewest, *at_most) for run in side]
        return self.comparison(f"gain with gpus={few} against gpus={many}", cell, runs, interval)


class EachCell(Rule, frozen=True, kw_only=True, tag="each_cell"):
    """A figure of every cell by itself."""

    measure: str
    what: str

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [
            self.comparison(self.what, cell, runs, _measured(self.measure, runs, ()))
            for cell in _cells(panel, [], self.only)
            if panel.experiment.has(cell)
            for runs in [_ok_runs(panel, dict(cell))]
        ]


class BestOf(Rule, frozen=True, kw_only=True, tag="best_of"):
    """The best value of an axis needs at least `over` % less of a measure than the worst.

    Both are picked after measuring, so a comparison counts as often as there are pairs.
    """

    measure: str
    axis: str
    unit: UnitName = "less"

    def __post_init__(self) -> None:
        if math.isinf(self.over):
            raise ValueError("best_of needs `over`, the least difference")

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [self._compared(panel, cell) for cell in _cells(panel, [self.axis], self.only)]

    def _compared(self, panel: Panel, cell: Cell) -> Comparison:
        column = MEASURES[self.measure].column
        groups = [(value, _ok_runs(panel, {**dict(cell), self.axis: value})) for value in _values(panel, self.axis)]
        measured = [(figure, value, runs) for value, runs in groups if (figure := of_setting(runs, column))]
        if len(measured) < 2:
            return self.comparison(f"{self.axis}: best against worst", cell)
        measured.sort(key=operator.itemgetter(0))
        (_, best, least), (_, worst, most) = measured[0], measured[-1]
        what = f"{self.axis}: {grouping.typed(best)} against {grouping.typed(worst)}"
        interval, pairs = _measured(self.measure, most, least), math.comb(len(measured), 2)
        return self.comparison(what, cell, (*most, *least), interval, stands_for=pairs)


class SpreadsMore(Rule, frozen=True, kw_only=True, tag="spreads_more"):
    """A measure spreads more along one axis than along another, or than another measure does.

    The spread is the most of a measure over its least along an axis, for each value of the other axis. The smallest
    spread along `axis` has to exceed the largest along `than`.

    than, than_measure: the other axis and the other measure; by default the same ones.
    """

    measure: str
    axis: str
    than: str = ""
    than_measure: str = ""
    over: float = 1.0

    @property
    def sides(self) -> list[tuple[str, str]]:
        return [(self.measure, self.axis), (self.than_measure or self.measure, self.than or self.axis)]

    def comparisons(self, panel: Panel) -> list[Comparison]:
        axes = list(dict.fromkeys(axis for _, axis in self.sides))
        return [self._compared(panel, cell, axes) for cell in _cells(panel, axes, self.only)]

    def _compared(self, panel: Panel, cell: Cell, axes: list[str]) -> Comparison:
        wide, narrow = _groups_along(panel, cell, axes), _groups_along(panel, cell, axes[::-1])
        named = [f"{measure} by {axis.rpartition('.')[2]}" for measure, axis in self.sides]
        what = f"spread of {' against '.join(named)}".replace("_", " ")
        if not (wide and narrow):
            return self.comparison(what, cell)
        (measure, _), (other, _) = self.sides

        def interval(readings: Readings, confidence: float) -> Interval:
            least = min((_spread(measure, groups, readings, confidence) for groups in wide), key=_ESTIMATE)
            greatest = max((_spread(other, groups, readings, confidence) for groups in narrow), key=_ESTIMATE)
            return intervals.difference(least.mapped(math.log), greatest.mapped(math.log)).mapped(math.exp)

        runs = {id(run): run for groups in (*wide, *narrow) for group in groups for run in group}
        pairs = sum(math.comb(len(groups), 2) for groups in (*wide, *narrow))
        return self.comparison(what, cell, tuple(runs.values()), interval, stands_for=pairs)


class Ends(Rule, frozen=True, kw_only=True, tag="ends"):
    """Runs of cells end with a status: `ok`, or `oom` where memory runs out. cells: each by some swept columns."""

    cells: list[dict[str, Any]]
    status: Literal["ok", "oom"]

    def comparisons(self, panel: Panel) -> list[Comparison]:
        return [self._compared(panel, cell) for cell in self.cells]

    def _compared(self, panel: Panel, cell: dict[str, Any]) -> Comparison:
        runs = [run for group in _groups(panel, cell) for run in group]
        statuses = {run["status"] for run in runs}
        refuted = statuses <= {"ok", "oom"} and len(statuses) == 1
        verdict = HOLDS if statuses == {self.status} else FAILS if refuted else UNDECIDED
        settled = verdict, " and ".join(sorted(statuses))
        return self.comparison("it ends", tuple(cell.items()), runs, settled=settled)


AnyRule = Contrast | GainFalls | EachCell | BestOf | SpreadsMore | Ends


def _groups_along(panel: Panel, cell: Cell, axes: Sequence[str]) -> list[list[tuple[Run, ...]]]:
    """Groups of runs along the first axis, for each value of the other; where two or more groups were measured."""
    along, *others = axes
    several = [
        [runs for value in _values(panel, along) if (runs := _ok_runs(panel, {**dict(cell), **beside, along: value}))]
        for beside in ([{axis: value} for axis in others for value in _values(panel, axis)] or [{}])
    ]
    return [groups for groups in several if len(groups) > 1]


def _spread(measure: str, groups: Sequence[Sequence[Run]], readings: Readings, confidence: float) -> Interval:
    return max((_measured(measure, *pair)(readings, confidence) for pair in permutations(groups, 2)), key=_ESTIMATE)


def _measured(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> AtConfidence:
    return lambda readings, confidence: MEASURES[measure].interval(Sides(top, bottom, confidence, readings))


def _most(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> float:
    """The largest possible ratio of the time on fewer GPUs (`top`) to that on more (`bottom`). An iteration is at best
    equally long, as it takes more rows on more GPUs."""
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


def _in_words(value: Any, key: str = "") -> str:
    """The value of a rule's key: "nchw against nhwc", "strategy ddp_ds and gpus >= 2"."""
    if isinstance(value, dict):
        return " and ".join(f"{name} {_in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return (" against " if key == "pair" else ", ").join(_in_words(one, "pair" * (key == "pairs")) for one in value)
    return grouping.typed(value)


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
    return " ".join(f"{key.rpartition('.')[2]}={grouping.typed(value)}" for key, value in cell)
