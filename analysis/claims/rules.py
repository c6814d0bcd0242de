"""The cells that a claim compares, and the bounds that decide it.

A rule finds comparisons in a panel of the claim's experiment: cells that are alike in all that is swept but the axis in
question. Where a cell of the papers' grid was not measured, its comparison is there without runs, so that a verdict can
say how much of the claim it rests on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from analysis.claims.measures import Known
from analysis.papers.experiments import Panel
from analysis.runs import grouping
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.stats import intervals
from analysis.stats.intervals import Interval

HOLDS, FAILS, UNDECIDED, UNMEASURED = "holds", "does not hold", "undecided", "not measured"
Measure = Callable[[Known, Sequence[Run], Sequence[Run], float], Interval]
Pairs = Callable[[Sequence[Any]], list[tuple[Any, Any]]]  # of an axis' values: which is compared with which


@dataclass(frozen=True)
class Unit:
    """How a measure is told: `of` is an increasing function of it, `form` the words around it."""

    name: str
    form: str
    of: Callable[[float], float]
    digits: int = 1

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


# of time(top) / time(bottom): what the bottom does more in a second, and by how much less it takes
FASTER = Unit("% faster", "faster by {} %", lambda ratio: 100 * (ratio - 1))
LESS = Unit("% less", "less by {} %", lambda ratio: 100 * (1 - 1 / ratio))
TIMES = Unit("x", "{} x", float, 2)
POINTS = Unit("points", "{} points", lambda share: 100 * share, 2)
SHARE = Unit("%", "{} %", lambda share: 100 * share)
OF_TOP = (TIMES, POINTS)  # the others say what the bottom has of the top


@dataclass(frozen=True)
class Bound:
    """A claim about a figure, in its unit: it lies above `over` and below `under`."""

    over: float = -math.inf
    under: float = math.inf

    def verdict(self, low: float | None, high: float | None) -> str:
        """By where the whole interval lies; undecided where there is none, or it reaches over a bound."""
        if low is None or high is None:
            return UNDECIDED
        if low > self.over and high < self.under:
            return HOLDS
        return FAILS if high <= self.over or low >= self.under else UNDECIDED


@dataclass(frozen=True)
class Comparison:
    """One figure of a claim, not yet worked out.

    what: what is compared with what ("gpus: 4 against 1"); where: in which cell beside that ("precision=fp32").
    runs: those that it takes; empty where a cell was not measured.
    of: the interval at a confidence.
    stands_for: comparisons among which it was picked, itself counted.
    settled: verdict and text of what is no number.
    part: of a claim of several; it holds only if something of each was measured.
    """

    what: str
    where: str
    unit: Unit
    bound: Bound
    runs: tuple[Run, ...]
    of: Callable[[Known, float], Interval] | None = None
    stands_for: int = 1
    settled: tuple[str, str] | None = None
    part: int = 0


Rule = Callable[[Panel], list[Comparison]]
Only = Callable[[Mapping[str, Any]], bool]  # of a cell of the axes that are not compared


def contrast(
    axis: str,
    pairs: Pairs | Sequence[tuple[Any, Any]],
    measure: Measure,
    unit: Unit,
    bound: Bound,
    only: Only = lambda _: True,
) -> Rule:
    """Compare values of an axis in each cell of the others.

    Args:
        pairs: top and bottom, or what makes them of the axis' values.
        only: whether a cell of the other axes counts.
    """

    def compared(panel: Panel) -> list[Comparison]:
        chosen = pairs(values(panel, axis)) if callable(pairs) else pairs
        rules = [versus({axis: top}, {axis: bottom}, measure, unit, bound, only) for top, bottom in chosen]
        return [one for rule in rules for one in rule(panel)]

    return compared


def versus(
    top: Mapping[str, Any],
    bottom: Mapping[str, Any],
    measure: Measure,
    unit: Unit,
    bound: Bound,
    only: Only = lambda _: True,
) -> Rule:
    """Compare two settings of the same axes in each cell of the others."""

    def compared(panel: Panel) -> list[Comparison]:
        cells_of_both = [cell for cell in _others(panel, [*top]) if only(dict(cell))]
        return [_comparison(panel, cell, top, bottom, measure, unit, bound) for cell in cells_of_both]

    return compared


def _comparison(
    panel: Panel,
    cell: Cell,
    top: Mapping[str, Any],
    bottom: Mapping[str, Any],
    measure: Measure,
    unit: Unit,
    bound: Bound,
) -> Comparison:
    ours, theirs = (_runs(panel, {**dict(cell), **side}) for side in (top, bottom))
    first, second = (top, bottom) if unit in OF_TOP else (bottom, top)
    what = f"{_where(tuple(first.items()))} against {' '.join(grouping.typed(value) for value in second.values())}"
    runs = (*ours, *theirs) if ours and theirs else ()
    return Comparison(what, _where(cell), unit, bound, runs, _two(measure, ours, theirs))


def fewer_gain(axis: str, top: Any, bottom: Any, measure: Measure) -> Rule:
    """How much more, in points, `bottom` saves of `top`'s measure on the fewest GPUs than on the most."""

    def compared(panel: Panel) -> list[Comparison]:
        counts = values(panel, "gpus")
        told = []
        for cell in _others(panel, [axis, "gpus"]):
            sides = [
                [_runs(panel, {**dict(cell), axis: value, "gpus": gpus}) for value in (top, bottom)] for gpus in counts
            ]
            there = [(gpus, side) for gpus, side in zip(counts, sides, strict=True) if all(side)]
            if len(there) < 2:
                told.append(Comparison("gain on fewest against most GPUs", _where(cell), POINTS, Bound(over=0.0), ()))
                continue
            (few, fewest), (many, most) = there[0], there[-1]
            runs = tuple(run for side in (*fewest, *most) for run in side)
            what = f"gain with gpus={few} against gpus={many}"
            of = _apart(measure, fewest, most)
            told.append(Comparison(what, _where(cell), POINTS, Bound(over=0.0), runs, of))
        return told

    return compared


def _apart(
    measure: Measure, fewest: Sequence[Sequence[Run]], most: Sequence[Sequence[Run]]
) -> Callable[[Known, float], Interval]:
    def found(known: Known, confidence: float) -> Interval:
        few, many = (
            measure(known, side[0], side[1], confidence).mapped(lambda ratio: 1 - 1 / ratio) for side in (fewest, most)
        )
        return intervals.difference(few, many)

    return found


def each(what: str, measure: Measure, unit: Unit, bound: Bound) -> Rule:
    """A figure of every cell by itself. Those of a single rank, of which nothing says how it scatters, are left out
    where there are others."""

    def compared(panel: Panel) -> list[Comparison]:
        told = []
        for cell in _others(panel, []):
            runs = _runs(panel, dict(cell))
            told.append(Comparison(what, _where(cell), unit, bound, runs, _alone(measure, runs)))
        several = [one for one in told if sum(run["gpus"] for run in one.runs) > 1]
        return several or told

    return compared


def _alone(measure: Measure, runs: Sequence[Run]) -> Callable[[Known, float], Interval]:
    return lambda known, confidence: measure(known, runs, (), confidence)


def best_of(axis: str, column: str, measure: Measure, bound: Bound, only: Only = lambda _: True) -> Rule:
    """By how much the value of an axis that has least of `column` has less than the one with most, in each cell of the
    others. The two are picked by their figures: each comparison counts for all pairs among which they were."""

    def compared(panel: Panel) -> list[Comparison]:
        told = []
        for cell in _others(panel, [axis]):
            if not only(dict(cell)):
                continue
            there = [(value, _runs(panel, {**dict(cell), axis: value})) for value in values(panel, axis)]
            known = [(value, runs) for value, runs in there if runs and all(run[column] for run in runs)]
            if len(known) < 2:
                told.append(Comparison(f"{axis}: best against worst", _where(cell), LESS, bound, ()))
                continue
            known.sort(key=lambda one: sum(run[column] for run in one[1]) / len(one[1]))
            (best, least), (worst, most) = known[0], known[-1]
            what = f"{axis}: {grouping.typed(best)} against {grouping.typed(worst)}"
            pairs = math.comb(len(known), 2)
            of = _two(measure, most, least)
            told.append(Comparison(what, _where(cell), LESS, bound, (*most, *least), of, pairs))
        return told

    return compared


def _two(measure: Measure, top: Sequence[Run], bottom: Sequence[Run]) -> Callable[[Known, float], Interval]:
    return lambda known, confidence: measure(known, top, bottom, confidence)


def ends(method: str, expected: Mapping[int, str]) -> Rule:
    """How runs of a method end, by the number of GPUs: `ok`, or `oom` where memory ran out."""

    def compared(panel: Panel) -> list[Comparison]:
        told = []
        for gpus, wanted in expected.items():
            wanted_cell = {"method": method, "gpus": gpus}
            runs = [run for cell, group in panel.cells.items() if _fits(cell, wanted_cell) for run in group]
            ended = {run["status"] for run in runs}
            verdict = FAILS if ended <= {"ok", "oom"} and len(ended) == 1 else UNDECIDED
            settled = (HOLDS if ended == {wanted} else verdict, " and ".join(sorted(ended)))
            where = f"method={method} gpus={gpus}"
            told.append(Comparison("it ends", where, TIMES, Bound(), tuple(runs), None, 1, settled))
        return told

    return compared


def both(*rules: Rule) -> Rule:
    """The comparisons of all of them, each a part of the claim."""
    return lambda panel: [replace(one, part=part) for part, rule in enumerate(rules) for one in rule(panel)]


# ---- which is compared with which


def fewest_with_each(found: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The first value with each later one."""
    return [(found[0], value) for value in found[1:]]


def each_with_fewest(found: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(value, found[0]) for value in found[1:]]


def neighbours(found: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(pairwise(found))


def all_with(value: Any, on_top: bool) -> Pairs:
    """Every other value with this one; on top if it is to be above them."""
    return lambda found: [(value, one) if on_top else (one, value) for one in found if one != value]


# ---- a panel


def values(panel: Panel, column: str) -> list[Any]:
    """Of a swept column: what the papers had, and what was measured beside; where none of theirs was, the latter
    alone. Numbers ascend."""
    asked, there = panel.experiment.swept[column], panel.values(column)
    found = [*asked, *(value for value in there if value not in asked)] if {*asked} & {*there} else there
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return sorted(found) if numbers else found


def _others(panel: Panel, axes: Sequence[str]) -> Iterator[Cell]:
    """Cells of the swept columns but `axes`."""
    columns = [column for column in panel.experiment.swept if column not in axes]
    for combination in product(*(values(panel, column) for column in columns)):
        yield tuple(zip(columns, combination, strict=True))


def _runs(panel: Panel, wanted: Mapping[str, Any]) -> tuple[Run, ...]:
    """Those that ended ok in a cell."""
    return tuple(
        run for cell, runs in panel.cells.items() if _fits(cell, wanted) for run in runs if run["status"] == "ok"
    )


def _fits(cell: Cell, wanted: Mapping[str, Any]) -> bool:
    found = dict(cell)
    return all(found[name] == value for name, value in wanted.items())


def _where(cell: Cell) -> str:
    """The cell as it would be typed, without the groups of keys."""
    return " ".join(f"{key.rpartition('.')[2]}={grouping.typed(value)}" for key, value in cell)
