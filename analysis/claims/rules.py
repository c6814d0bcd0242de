"""Rules: which cells of an experiment a claim compares, and which bounds the figures must keep.

A rule is an entry under `rules` of a claim. It makes comparisons of a panel of the claim's
experiment. The compared cells agree in all swept columns except the axis in question.

A comparison without runs stands for cells that were not measured. This way, a verdict can say how
much of the claim was measured. A comparison of cells that the papers do not have is "beyond" them,
and decides nothing.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from itertools import chain, permutations, product
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
from .rule_cells import (
    cells_across,
    groups_along,
    ok_runs_of_cells,
    pairs_of_values,
    papers_cells,
    runs_by_cell,
)

LEAST_SPREAD = 1e-9  # Figures whose relative difference is below it count as equal.
_ESTIMATE = operator.attrgetter("estimate")


class Rule(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="rule",
):
    """A rule of a claim, which makes comparisons.

    over, under: the bounds, in `unit`.
    upto: the most that the papers print, in `unit`. A figure above it exceeds the claim.
    bounds: the word of `words.csv` that the bounds come from, multiplied by `times`.
    only: the cells that count, by swept column: a value, a list of values, or a condition (">=
        300").
    by_design: conditions (`learning`, `work`, `cores`, see `conditions`) that the sides need not
        meet, because they differ there by design.
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
        self,
        panel: Panel,
        what: str,
        where: Cell,
        cells: Sequence[Mapping[str, Any]],
        **more_fields: Any,
    ) -> RuleComparison:
        """Make a comparison of these cells.

        It has no runs if one of the cells has no run that ended ok.
        """
        sides = tuple(
            ComparedCell(grouping.short_label(cell.items()), ok_runs_of_cells(panel, cell))
            for cell in cells
        )
        is_measured = all(side.runs for side in sides)
        runs = tuple(chain.from_iterable(side.runs for side in sides)) if is_measured else ()
        beyond = not all(map(panel.experiment.prints, cells))
        fields = {"runs": runs, "sides": sides, "beyond": beyond} | more_fields
        where_label = grouping.short_label(where)
        unit = UNITS[self.unit]
        return RuleComparison(what, where_label, unit, self.over, self.under, self.upto, **fields)

    @property
    def axes(self) -> list[str]:
        """The columns along which runs are compared."""
        axis: str | list[str] = getattr(self, "axis", [])
        return [axis] if isinstance(axis, str) else axis

    @property
    def forbidden(self) -> set[Forbids]:
        """The uses of runs that the rule needs. A limit that forbids one of them excludes a run."""
        of_axes = {Forbids.speed_up} if "gpus" in self.axes else set[Forbids]()
        return of_axes.union(*(measure.forbidden for measure in self.measures))

    @property
    def measures(self) -> list[Measure]:
        """The measures that the rule compares."""
        names = (getattr(self, name, "") for name in ("measure", "than_measure"))
        return [MEASURES[name] for name in names if name]

    @property
    def text(self) -> str:
        """The rule in words."""
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
        parts += [f"{key} {_describe(value, key)}" for key, value in rule.items() if key != "unit"]
        parts += [f"where {_describe(only)}"] if only else []
        return f"{MEASURES[measure].words if measure else 'how runs end'}: {', '.join(parts)}"


class Contrast(Rule, frozen=True, kw_only=True, tag="contrast"):
    """Compare two values of an axis, in each cell of the other axes.

    The measure of the top value is compared with the measure of the bottom value.

    axis: a swept column, or several of them.
    pairs: the top and the bottom value; lists of values if there are several axes. "*" stands for
        every other value, "first" for the first one, "next_fewer" for the value before the other
        one (with "*": before each), and "fewer" for all values before it.
    what: the name of the measure, if several rules of a claim have the same pairs.
    """

    measure: str
    what: str = ""
    axis: str | list[str]
    pairs: list[tuple[Any, Any]]

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        pairs = self.pairs
        if len(self.axes) == 1:
            of_axis = chain.from_iterable(
                pairs_of_values(panel, self.axes[0], pair) for pair in pairs
            )
            pairs = [([top], [bottom]) for top, bottom in of_axis]
        sides = [tuple(dict(zip(self.axes, side, strict=True)) for side in pair) for pair in pairs]
        comparisons = []
        for top, bottom in sides:
            comparisons.extend(
                self._compare_cell(panel, cell, top, bottom)
                for cell in cells_across(panel, self.axes, self.only)
                if all(panel.experiment.has((*cell, *side.items())) for side in (top, bottom))
            )
        return comparisons

    def _compare_cell(
        self, panel: Panel, cell: Cell, top: Mapping[str, Any], bottom: Mapping[str, Any]
    ) -> RuleComparison:
        first, second = (bottom, top) if UNITS[self.unit].of_bottom else (top, bottom)
        what = (
            f"{grouping.short_label(tuple(first.items()))} against"
            f" {' '.join(map(grouping.typed, second.values()))}"
        )
        what = f"{self.what}, {what}" if self.what else what
        cells = [{**dict(cell), **side} for side in (top, bottom)]
        tops, bottoms = (ok_runs_of_cells(panel, cell) for cell in cells)
        fields: dict[str, Any] = {"interval": _interval_of(self.measure, tops, bottoms)}
        if tops and bottoms:
            fields["most"] = _largest_ratio(self.measure, tops, bottoms)
            fields["least"] = 1 / _largest_ratio(self.measure, bottoms, tops)
        return self.comparison(panel, what, cell, cells, **fields)


class GainFalls(Rule, frozen=True, kw_only=True, tag="gain_falls"):
    """Test that a gain falls with more GPUs.

    The gain is the share that `bottom` saves of the top's measure. It must be larger on fewer GPUs
    than on the next larger number.
    """

    measure: str
    axis: str
    top: Any
    bottom: Any
    unit: UnitName = "points"
    over: float = 0.0

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        steps = pairs_of_values(panel, "gpus", ("next_fewer", "*"))
        cells = cells_across(panel, [self.axis, "gpus"], self.only)
        return [self._compare_cell(panel, cell, *step) for cell, step in product(cells, steps)]

    def _compare_cell(self, panel: Panel, cell: Cell, few: int, many: int) -> RuleComparison:
        sides = [
            [{**dict(cell), self.axis: value, "gpus": gpus} for value in (self.top, self.bottom)]
            for gpus in (few, many)
        ]

        def interval(readings: Readings, confidence: float) -> Interval:
            at_few, at_many = (
                _interval_of(
                    self.measure,
                    *(ok_runs_of_cells(panel, cell_values) for cell_values in two_cells),
                )(readings, confidence)
                for two_cells in sides
            )
            return intervals.difference(
                *(gain.mapped(lambda ratio: 1 - 1 / ratio) for gain in (at_few, at_many))
            )

        what = f"gain with gpus={few} against gpus={many}"
        return self.comparison(panel, what, cell, [*sides[0], *sides[1]], interval=interval)


class EachCell(Rule, frozen=True, kw_only=True, tag="each_cell"):
    """Test a figure of every cell by itself."""

    measure: str
    what: str

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        cells = cells_across(panel, [], self.only)
        return [self._compare_cell(panel, cell) for cell in cells if panel.experiment.has(cell)]

    def _compare_cell(self, panel: Panel, cell: Cell) -> RuleComparison:
        interval = _interval_of(self.measure, ok_runs_of_cells(panel, dict(cell)), ())
        return self.comparison(panel, self.what, cell, [dict(cell)], interval=interval)


class BestOf(Rule, frozen=True, kw_only=True, tag="best_of"):
    """Test that the best value of an axis needs at least `over` % less of a measure than the worst.

    Both are picked after measuring. For the confidence, the comparison therefore counts as all
    comparisons of two values.
    """

    measure: str
    axis: str
    unit: UnitName = "less"

    def __post_init__(self) -> None:
        if math.isinf(self.over):
            raise ValueError("best_of needs `over`, the least difference")

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        return [
            self._compare_cell(panel, cell) for cell in cells_across(panel, [self.axis], self.only)
        ]

    def _compare_cell(self, panel: Panel, cell: Cell) -> RuleComparison:
        column = MEASURES[self.measure].column
        cells = papers_cells(panel, cell, [self.axis])
        groups = [
            (cell_values[self.axis], ok_runs_of_cells(panel, cell_values)) for cell_values in cells
        ]
        measured_values = [
            (figure, value, runs) for value, runs in groups if (figure := of_setting(runs, column))
        ]
        if not len(groups) == len(measured_values) > 1:
            return self.comparison(panel, f"{self.axis}: best against worst", cell, cells, runs=())
        measured_values.sort(key=operator.itemgetter(0))
        _, best, least = measured_values[0]
        _, worst, most = measured_values[-1]
        what = f"{self.axis}: {grouping.typed(best)} against {grouping.typed(worst)}"
        interval = _interval_of(self.measure, most, least)
        pairs = math.comb(len(measured_values), 2)
        values_and_runs = ((worst, most), (best, least))
        sides = tuple(
            ComparedCell(f"{self.axis}={grouping.typed(value)}", runs)
            for value, runs in values_and_runs
        )
        fields = {"runs": (*most, *least), "sides": sides, "stands_for": pairs}
        return self.comparison(panel, what, cell, cells, interval=interval, **fields)


class SpreadsMore(Rule, frozen=True, kw_only=True, tag="spreads_more"):
    """Test that a measure spreads more along one axis than another axis or measure does.

    The spread along an axis is the logarithm of the greatest over the least measure, for each value
    of the other axis. The smallest spread along `axis` is compared with the largest along `than`.

    than, than_measure: the other axis and the other measure. By default, they are the same.
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
        return [
            self._compare_cell(panel, cell, axes) for cell in cells_across(panel, axes, self.only)
        ]

    def _compare_cell(self, panel: Panel, cell: Cell, axes: list[str]) -> RuleComparison:
        cells = papers_cells(panel, cell, axes)
        wide_groups = groups_along(panel, cells, axes[0])
        narrow_groups = groups_along(panel, cells, axes[-1])
        side_names = [f"{measure} by {axis.rpartition('.')[2]}" for measure, axis in self.sides]
        what = f"spread of {' against '.join(side_names)}".replace("_", " ")
        (measure, _), (other_measure, _) = self.sides

        def interval(readings: Readings, confidence: float) -> Interval:
            least = min(
                (_spread(measure, groups, readings, confidence) for groups in wide_groups),
                key=_ESTIMATE,
            )
            greatest = max(
                (_spread(other_measure, groups, readings, confidence) for groups in narrow_groups),
                key=_ESTIMATE,
            )
            return intervals.difference(
                least.mapped(_log_spread), greatest.mapped(_log_spread)
            ).mapped(math.exp)

        pairs = sum(math.comb(len(groups), 2) for groups in (*wide_groups, *narrow_groups))
        return self.comparison(panel, what, cell, cells, interval=interval, stands_for=pairs)


class Ends(Rule, frozen=True, kw_only=True, tag="ends"):
    """Test that runs end with a status: `ok`, or `oom` if this memory runs out.

    Only machines with as much memory as the papers' decide.

    cells: the cells to test, each by values of some swept columns.
    memory: the memory that may run out: the GPU's or the host's.
    """

    cells: list[dict[str, Any]]
    status: Literal["ok", "oom"]
    memory: Literal["gpu", "host"]

    def comparisons(self, panel: Panel) -> list[RuleComparison]:
        return [self._compare_cell(panel, cell) for cell in self.cells]

    def _compare_cell(self, panel: Panel, cell: dict[str, Any]) -> RuleComparison:
        runs = list(chain.from_iterable(runs_by_cell(panel, cell)))
        statuses = set(map(self._end_of_run, runs))
        if statuses == {self.status}:
            verdict = HOLDS
        elif statuses in ({"ok"}, {"oom"}):
            verdict = FAILS
        else:
            verdict = UNDECIDED
        verdict_and_text = verdict, " and ".join(sorted(statuses))
        fields: dict[str, Any] = {"runs": tuple(runs), "beyond": False, "settled": verdict_and_text}
        return self.comparison(panel, "it ends", tuple(cell.items()), [cell], **fields)

    @property
    def forbidden(self) -> set[Forbids]:
        """Disturbed runs do not count: other processes may have used the memory that ran out."""
        return {Forbids.rate}

    def _end_of_run(self, run: Run) -> str:
        """Return a run's status, and say so if the other memory ran out, or others used a part."""
        if run["status"] == "oom" and run["beside_others"]:
            return "oom beside other runs"
        is_other = run["status"] == "oom" and run["ran_out"] not in (None, self.memory)
        return f"oom of the {run['ran_out']}" if is_other else run["status"]

    def unlike(self, runs: Sequence[Run]) -> list[str]:
        """Name memory sizes that differ from the papers' by more than a tenth."""
        papers_gib = printed.papers().memory_gib[self.memory]
        machines = [run.environment() for run in runs]
        parts = []
        for machine in machines:
            parts.extend((machine.gpus[:1] if self.memory == "gpu" else [machine.cpu]) or [None])
        sizes = {round(((part and part.memory_bytes) or 0) / 2**30) for part in parts}
        return [
            Message(
                "claim.other-memory",
                f"{self.memory} memory={gib} GiB (papers: {papers_gib:g})",
                memory=self.memory,
                gib=gib,
                papers=papers_gib,
            )
            for gib in sizes
            if abs(gib / papers_gib - 1) > 0.1
        ]


AnyRule = Contrast | GainFalls | EachCell | BestOf | SpreadsMore | Ends


def _log_spread(ratio: float) -> float:
    """Return the logarithm of a spread, which is itself the logarithm of a ratio."""
    return math.log(math.log(ratio)) if ratio > 1 + LEAST_SPREAD else math.log(LEAST_SPREAD)


def _spread(
    measure: str, groups: Sequence[Sequence[Run]], readings: Readings, confidence: float
) -> Interval:
    """Return the largest ratio of a measure between two of the groups."""
    return max(
        (_interval_of(measure, *pair)(readings, confidence) for pair in permutations(groups, 2)),
        key=_ESTIMATE,
    )


def _interval_of(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> AtConfidence:
    """Return a function that measures two sides at a confidence."""
    return lambda readings, confidence: MEASURES[measure].interval(
        Sides(top, bottom, confidence, readings)
    )


def _largest_ratio(measure: str, top: Sequence[Run], bottom: Sequence[Run]) -> float:
    """Return the largest possible ratio of the time on fewer GPUs (`top`) to the time on more.

    An iteration is at best equally long, because it processes more rows on more GPUs.
    """
    top_ranks = grouping.ranks(top[0])
    bottom_ranks = grouping.ranks(bottom[0])
    if measure not in ("time", "iteration", "evaluation") or top_ranks >= bottom_ranks:
        return math.inf
    return formulas.DOUBTFUL_EFFICIENCY * (
        1 if measure == "iteration" else bottom_ranks / top_ranks
    )


def _describe(value: Any, key: str = "") -> str:
    """Write the value of a rule's key: "nchw against nhwc", "strategy ddp_ds and gpus >= 2"."""
    if isinstance(value, dict):
        return " and ".join(f"{name} {_describe(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        separator = " against " if key == "pair" else ", "
        part_key = "pair" if key == "pairs" else ""
        return separator.join(_describe(part, part_key) for part in value)
    return grouping.typed(value)
