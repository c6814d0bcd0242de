"""Rules: which cells of an experiment a claim compares, and the bounds that its figures must keep.

A rule is an entry under `rules` of a claim, and makes comparisons of a panel of the claim's
experiment. Cells are compared that are alike in all swept columns but the axis in question. A
comparison whose cells were not measured has no runs, so that a verdict can say how much of the
claim it rests on. One in cells that the papers do not have is beyond them, and decides nothing.
"""

import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise, permutations, product
from typing import Any, Literal

import msgspec

from multicard.measure import formulas
from multicard.messages import Message
from multicard.papers import printed
from multicard.records.limits import Forbids

from ..experiments import Panel
from ..runs import grouping
from ..runs.grouping import Cell, of_setting
from ..runs.load import Run
from ..stats import intervals
from ..stats.intervals import Interval
from .comparison import (
    FAILS,
    HOLDS,
    UNDECIDED,
    UNITS,
    AtConfidence,
    ComparedCell,
    Readings,
    RuleComparison,
    Sides,
    UnitName,
)
from .conditions import Condition
from .measures import MEASURES, Measure

UNLUCKY = ("oom", "diverged")  # ends that would come again
LEAST_SPREAD = 1e-9  # relative, below which figures are equal
_ESTIMATE = operator.attrgetter("estimate")
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Rule(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="rule",
):
    """A rule of a claim, which makes comparisons.

    over, under: the bounds, in `unit`; bounds: the word of `words.csv` that they are of, multiplied
    by `times`.
    upto: what the papers print at most, in `unit`; above it a figure exceeds the claim.
    only: the cells that count, by swept column: a value, a list of values, or a condition (">=
    300").
    by_design: conditions of a comparison that this one does not need to meet, as its sides differ
    there by design:
        `learning`, `work`, `cores` (see `conditions`).
    """

    unit: UnitName = "times"
    over: float = -math.inf
    under: float = math.inf
    upto: float = math.inf
    bounds: str = ""
    times: float = 1.0
    only: dict[str, Any] = {}
    by_design: list[Condition] = []

    def comparison(
        self, panel: Panel, what: str, where: Cell, cells: Sequence[Mapping[str, Any]], **more: Any
    ) -> RuleComparison:
        """A comparison of these cells, without runs where one of them has none that ended ok."""
        sides = tuple(
            ComparedCell(grouping.short_label(cell.items()), _ok_runs(panel, cell))
            for cell in cells
        )
        is_measured = all(side.runs for side in sides)
        runs = tuple(chain.from_iterable(side.runs for side in sides)) if is_measured else ()
        beyond = not all(map(panel.experiment.prints, cells))
        about = {"runs": runs, "sides": sides, "beyond": beyond} | more
        where_label = grouping.short_label(where)
        unit = UNITS[self.unit]
        return RuleComparison(what, where_label, unit, self.over, self.under, self.upto, **about)

    @property
    def axes(self) -> list[str]:
        """The columns along which runs are compared."""
        axis: str | list[str] = getattr(self, "axis", [])
        return [axis] if isinstance(axis, str) else axis

    @property
    def forbidden(self) -> set[Forbids]:
        """Limits that forbid one of these forbid to judge the rule by a run."""
        of_axes = {Forbids.speed_up} if "gpus" in self.axes else set[Forbids]()
        return of_axes.union(*(measure.forbidden for measure in self.measures))

    @property
    def measures(self) -> list[Measure]:
        """What is measured of runs."""
        names = (getattr(self, name, "") for name in ("measure", "than_measure"))
        return [MEASURES[name] for name in names if name]

    @property
    def text(self) -> str:
        rule = msgspec.to_builtins(self)
        measure, kind, only = (rule.pop(key, "") for key in ("measure", "rule", "only"))
        word = rule.pop("bounds", "")
        factor = rule.pop("times", 1)
        over, under, upto = (rule.pop(key, None) for key in ("over", "under", "upto"))
        limits = (("above", over), ("below", under), ("at most", upto))
        bounds = " and ".join(f"{side} {limit:g}" for side, limit in limits if limit is not None)
        bounds = f"{bounds} {UNITS[self.unit].name}" if bounds else ""
        parts = list[str]()
        if bounds and word:
            times = f" times {factor:g}" if factor != 1 else ""
            parts.append(f"{word}{times} ({bounds})")
        elif bounds:
            parts.append(bounds)
        parts += [kind.replace("_", " ")] if kind != "contrast" else []
        parts += [f"{key} {_in_words(value, key)}" for key, value in rule.items() if key != "unit"]
        parts += [f"where {_in_words(only)}"] if only else []
        return f"{MEASURES[measure].words if measure else 'how runs end'}: {', '.join(parts)}"


class Contrast(Rule, frozen=True, kw_only=True, tag="contrast"):
    """Compare values of an axis in each cell of the others: the measure of the first, the top,
    with the second's.

    axis: a swept column, or several of them.
    pairs: top and bottom, a list of values for several axes. "*" is every other value, "first" the
    first, "next_fewer"
        the value before the other one, for "*" before each, and "fewer" all those before it.
    what: the measure, where a claim has several of the same pairs.
    """

    measure: str
    what: str = ""
    axis: str | list[str]
    pairs: list[tuple[Any, Any]]

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        pairs = self.pairs
        if len(self.axes) == 1:
            of_axis = chain.from_iterable(_pairs(panel, self.axes[0], pair) for pair in pairs)
            pairs = [([top], [bottom]) for top, bottom in of_axis]
        sides = [tuple(dict(zip(self.axes, side, strict=True)) for side in pair) for pair in pairs]
        comparisons = []
        for top, bottom in sides:
            comparisons.extend(
                self._compared(panel, cell, top, bottom)
                for cell in _cells(panel, self.axes, self.only)
                if all(panel.experiment.has((*cell, *side.items())) for side in (top, bottom))
            )
        return comparisons

    def _compared(
        self, panel: Panel, cell: Cell, top: Mapping[str, Any], bottom: Mapping[str, Any]
    ) -> RuleComparison:
        first, second = (bottom, top) if UNITS[self.unit].of_bottom else (top, bottom)
        what = (
            f"{grouping.short_label(tuple(first.items()))} against"
            f" {' '.join(map(grouping.typed, second.values()))}"
        )
        what = f"{self.what}, {what}" if self.what else what
        cells = [{**dict(cell), **side} for side in (top, bottom)]
        tops, bottoms = (_ok_runs(panel, each) for each in cells)
        about: dict[str, Any] = {"interval": _measured(self.measure, tops, bottoms)}
        if tops and bottoms:
            about["most"] = _most(self.measure, tops, bottoms)
            about["least"] = 1 / _most(self.measure, bottoms, tops)
        return self.comparison(panel, what, cell, cells, **about)


class GainFalls(Rule, frozen=True, kw_only=True, tag="gain_falls"):
    """The share that `bottom` saves of the top's measure is
    larger on fewer GPUs than on the next more.
    """

    measure: str
    axis: str
    top: Any
    bottom: Any
    unit: UnitName = "points"
    over: float = 0.0

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        steps = _pairs(panel, "gpus", ("next_fewer", "*"))
        cells = _cells(panel, [self.axis, "gpus"], self.only)
        return [self._compared(panel, cell, *step) for cell, step in product(cells, steps)]

    def _compared(self, panel: Panel, cell: Cell, few: int, many: int) -> RuleComparison:
        sides = [
            [{**dict(cell), self.axis: value, "gpus": gpus} for value in (self.top, self.bottom)]
            for gpus in (few, many)
        ]

        def interval(readings: Readings, confidence: float) -> Interval:
            at_few, at_many = (
                _measured(self.measure, *(_ok_runs(panel, one) for one in both))(
                    readings, confidence
                )
                for both in sides
            )
            return intervals.difference(
                *(gain.mapped(lambda ratio: 1 - 1 / ratio) for gain in (at_few, at_many))
            )

        what = f"gain with gpus={few} against gpus={many}"
        return self.comparison(panel, what, cell, [*sides[0], *sides[1]], interval=interval)


class EachCell(Rule, frozen=True, kw_only=True, tag="each_cell"):
    """A figure of every cell by itself."""

    measure: str
    what: str

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        cells = _cells(panel, [], self.only)
        return [self._of_cell(panel, cell) for cell in cells if panel.experiment.has(cell)]

    def _of_cell(self, panel: Panel, cell: Cell) -> RuleComparison:
        interval = _measured(self.measure, _ok_runs(panel, dict(cell)), ())
        return self.comparison(panel, self.what, cell, [dict(cell)], interval=interval)


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

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        return [self._compared(panel, cell) for cell in _cells(panel, [self.axis], self.only)]

    def _compared(self, panel: Panel, cell: Cell) -> RuleComparison:
        column = MEASURES[self.measure].column
        cells = _papers_cells(panel, cell, [self.axis])
        groups = [(one[self.axis], _ok_runs(panel, one)) for one in cells]
        measured = [
            (figure, value, runs) for value, runs in groups if (figure := of_setting(runs, column))
        ]
        if not len(groups) == len(measured) > 1:
            return self.comparison(panel, f"{self.axis}: best against worst", cell, cells, runs=())
        measured.sort(key=operator.itemgetter(0))
        _, best, least = measured[0]
        _, worst, most = measured[-1]
        what = f"{self.axis}: {grouping.typed(best)} against {grouping.typed(worst)}"
        interval = _measured(self.measure, most, least)
        pairs = math.comb(len(measured), 2)
        named = ((worst, most), (best, least))
        sides = tuple(
            ComparedCell(f"{self.axis}={grouping.typed(value)}", runs) for value, runs in named
        )
        about = {"runs": (*most, *least), "sides": sides, "stands_for": pairs}
        return self.comparison(panel, what, cell, cells, interval=interval, **about)


class SpreadsMore(Rule, frozen=True, kw_only=True, tag="spreads_more"):
    """A measure spreads more along one axis than along another, or than another measure does.

    The spread is the logarithm of the most of a measure over its least along an axis, for each
    value of the other axis. Compared are the smallest spread along `axis` and the largest along
    `than`.

    than, than_measure: the other axis and the other measure; by default the same ones.
    """

    measure: str
    axis: str
    than: str = ""
    than_measure: str = ""
    over: float = 1.0

    @property
    def sides(self) -> list[tuple[str, str]]:
        return [
            (self.measure, self.axis),
            (self.than_measure or self.measure, self.than or self.axis),
        ]

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        axes = list(dict.fromkeys(axis for _, axis in self.sides))
        return [self._compared(panel, cell, axes) for cell in _cells(panel, axes, self.only)]

    def _compared(self, panel: Panel, cell: Cell, axes: list[str]) -> RuleComparison:
        cells = _papers_cells(panel, cell, axes)
        wide = _groups_along(panel, cells, axes[0])
        narrow = _groups_along(panel, cells, axes[-1])
        named = [f"{measure} by {axis.rpartition('.')[2]}" for measure, axis in self.sides]
        what = f"spread of {' against '.join(named)}".replace("_", " ")
        (measure, _), (other, _) = self.sides

        def interval(readings: Readings, confidence: float) -> Interval:
            least = min(
                (_spread(measure, groups, readings, confidence) for groups in wide), key=_ESTIMATE
            )
            greatest = max(
                (_spread(other, groups, readings, confidence) for groups in narrow), key=_ESTIMATE
            )
            return intervals.difference(
                least.mapped(_log_spread), greatest.mapped(_log_spread)
            ).mapped(math.exp)

        pairs = sum(math.comb(len(groups), 2) for groups in (*wide, *narrow))
        return self.comparison(panel, what, cell, cells, interval=interval, stands_for=pairs)


class Ends(Rule, frozen=True, kw_only=True, tag="ends"):
    """Runs of cells end with a status: `ok`, or `oom` where this memory runs out.
    Machines with the papers' decide.

    cells: each by some swept columns. memory: of a GPU, or of the host.
    """

    cells: list[dict[str, Any]]
    status: Literal["ok", "oom"]
    memory: Literal["gpu", "host"]

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        return [self._compared(panel, cell) for cell in self.cells]

    def _compared(self, panel: Panel, cell: dict[str, Any]) -> RuleComparison:
        runs = list(chain.from_iterable(_groups(panel, cell)))
        statuses = set(map(self._end, runs))
        refuted = statuses <= {"ok", "oom"} and len(statuses) == 1
        verdict = HOLDS if statuses == {self.status} else FAILS if refuted else UNDECIDED
        settled = verdict, " and ".join(sorted(statuses))
        more: dict[str, Any] = {"runs": tuple(runs), "beyond": False, "settled": settled}
        return self.comparison(panel, "it ends", tuple(cell.items()), [cell], **more)

    @property
    def forbidden(self) -> set[Forbids]:
        """What others used meanwhile, of processors or memory, may be what ran out."""
        return {Forbids.rate}

    def _end(self, run: Run) -> str:
        """A run's status, which says what ran out where it was the other memory,
        or others had a part of it.
        """
        if run["status"] == "oom" and run["beside_others"]:
            return "oom beside other runs"
        is_other = run["status"] == "oom" and run["ran_out"] not in (None, self.memory)
        return f"oom of the {run['ran_out']}" if is_other else run["status"]

    def unlike(self, runs: Sequence[Run]) -> list[str]:
        """The memory of machines that do not have within a tenth as much as the papers'."""
        theirs = printed.papers().memory_gib[self.memory]
        machines = [run.environment() for run in runs]
        parts = []
        for one in machines:
            parts.extend((one.gpus[:1] if self.memory == "gpu" else [one.cpu]) or [None])
        sizes = {round(((part and part.memory_bytes) or 0) / 2**30) for part in parts}
        return [
            Message(
                "claim.other-memory",
                f"{self.memory} memory={gib} GiB (papers: {theirs:g})",
                memory=self.memory,
                gib=gib,
                papers=theirs,
            )
            for gib in sizes
            if abs(gib / theirs - 1) > 0.1
        ]


AnyRule = Contrast | GainFalls | EachCell | BestOf | SpreadsMore | Ends


def _papers_cells(panel: Panel, cell: Cell, axes: Sequence[str]) -> list[dict[str, Any]]:
    """The cells along some axes that the papers have; all of them where they have none."""
    along = [
        dict(zip(axes, values, strict=True))
        for values in product(*(_values(panel, axis) for axis in axes))
    ]
    cells = [{**dict(cell), **one} for one in along if panel.experiment.has((*cell, *one.items()))]
    return [one for one in cells if panel.experiment.prints(one)] or cells


def _groups_along(
    panel: Panel, cells: Sequence[Mapping[str, Any]], axis: str
) -> list[list[tuple[Run, ...]]]:
    """The runs of the cells along an axis, for each value of the others."""
    groups = grouping.grouped(
        cells, lambda cell: tuple(pair for pair in cell.items() if pair[0] != axis)
    )
    return [
        [_ok_runs(panel, cell) for cell in alike] for alike in groups.values() if len(alike) > 1
    ]


def _log_spread(ratio: float) -> float:
    return math.log(math.log(ratio)) if ratio > 1 + LEAST_SPREAD else math.log(LEAST_SPREAD)


def _spread(
    measure: str, groups: Sequence[Sequence[Run]], readings: Readings, confidence: float
) -> Interval:
    return max(
        (_measured(measure, *pair)(readings, confidence) for pair in permutations(groups, 2)),
        key=_ESTIMATE,
    )


def _measured(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> AtConfidence:
    return lambda readings, confidence: MEASURES[measure].interval(
        Sides(top, bottom, confidence, readings)
    )


def _most(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> float:
    """The largest possible ratio of the time on fewer GPUs (`top`) to that on more (`bottom`). An
    iteration is at best equally long, as it takes more rows on more GPUs.
    """
    fewer = grouping.ranks(top[0])
    more = grouping.ranks(bottom[0])
    if measure not in ("time", "iteration", "evaluation") or fewer >= more:
        return math.inf
    return formulas.DOUBTFUL_EFFICIENCY * (1 if measure == "iteration" else more / fewer)


def _pairs(panel: Panel, axis: str, pair: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """The pairs that a pair stands for: of the papers' values of an axis, then of all,
    where others were measured.
    """
    values = _values(panel, axis)
    printed = [value for value in values if value in panel.experiment.swept[axis]]
    return list(dict.fromkeys((*_expanded(pair, printed or values), *_expanded(pair, values))))


def _expanded(pair: tuple[Any, Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The pairs that "*", "first", "fewer" and "next_fewer" stand for, of the values of an axis."""
    if pair[0] == "next_fewer":
        return [(before, after) for before, after in pairwise(values) if pair[1] in ("*", after)]
    if pair[0] == "fewer":
        return [
            (before, after) for before, after in combinations(values, 2) if pair[1] in ("*", after)
        ]
    if pair[1] == "next_fewer":
        return [(after, before) for before, after in pairwise(values) if pair[0] in ("*", after)]
    sides = [values if side == "*" else values[:1] if side == "first" else [side] for side in pair]
    return [(top, bottom) for top, bottom in product(*sides) if top != bottom]


def _values(panel: Panel, column: str) -> list[Any]:
    """Values of a swept column: the paper's and those measured beside them; the latter alone where
    none of the paper's was measured. Numbers ascend.
    """
    printed = panel.experiment.swept[column]
    measured = panel.values(column)
    both = [*printed, *(value for value in measured if value not in printed)]
    return grouping.ordered(both if {*printed} & {*measured} else measured)


def _in_words(value: Any, key: str = "") -> str:
    """The value of a rule's key: "nchw against nhwc", "strategy ddp_ds and gpus >= 2"."""
    if isinstance(value, dict):
        return " and ".join(f"{name} {_in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        between = " against " if key == "pair" else ", "
        key_of_one = "pair" if key == "pairs" else ""
        return between.join(_in_words(one, key_of_one) for one in value)
    return grouping.typed(value)


def _cells(panel: Panel, axes: Sequence[str], only: Mapping[str, Any]) -> Iterator[Cell]:
    """Cells of the swept columns but `axes`, and what follows from these,
    that `only` lets through.
    """
    experiment = panel.experiment
    free = [column for column in experiment.swept if column not in axes]
    columns = [
        column for column in free if not any(experiment.follows(column, axis) for axis in axes)
    ]
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
    """The runs of cells that ended ok; none where another ran out of
    memory or diverged: these are the lucky ones.
    """
    runs = list(chain.from_iterable(_groups(panel, wanted)))
    lucky = any(run["status"] in UNLUCKY for run in runs)
    return () if lucky else tuple(run for run in runs if run["status"] == "ok")
