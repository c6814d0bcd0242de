"""Select the cells of an experiment's panel that a rule compares, and their runs.

Values of a swept column are the papers' and others that were measured. A rule names values, or
placeholders for them ("*", "first", "fewer", "next_fewer"), and narrows cells by `only`.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise, product
from typing import Any

from ..experiments import Panel
from ..runs import grouping
from ..runs.grouping import Cell
from ..runs.load import Run

UNLUCKY = ("oom", "diverged")  # Repeating such a run would probably end the same way.
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def papers_cells(panel: Panel, cell: Cell, axes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the cells along some axes that the papers have; all cells if they have none."""
    cells_along = [
        dict(zip(axes, values, strict=True))
        for values in product(*(_axis_values(panel, axis) for axis in axes))
    ]
    cells = [
        {**dict(cell), **cell_values}
        for cell_values in cells_along
        if panel.experiment.has((*cell, *cell_values.items()))
    ]
    return [cell_values for cell_values in cells if panel.experiment.prints(cell_values)] or cells


def groups_along(
    panel: Panel, cells: Sequence[Mapping[str, Any]], axis: str
) -> list[list[tuple[Run, ...]]]:
    """Group the cells by the values of the other axes, and return their runs."""
    groups = grouping.grouped(
        cells, lambda cell: tuple(pair for pair in cell.items() if pair[0] != axis)
    )
    return [
        [ok_runs_of_cells(panel, cell) for cell in group_cells]
        for group_cells in groups.values()
        if len(group_cells) > 1
    ]


def pairs_of_values(panel: Panel, axis: str, pair: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of values that a pair stands for.

    Pairs of the papers' values come first, then pairs with other values that were measured.
    """
    values = _axis_values(panel, axis)
    printed_values = [value for value in values if value in panel.experiment.swept[axis]]
    return list(
        dict.fromkeys((*_expand_pair(pair, printed_values or values), *_expand_pair(pair, values)))
    )


def _expand_pair(pair: tuple[Any, Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Replace "*", "first", "fewer" and "next_fewer" in a pair by values of the axis."""
    if pair[0] == "next_fewer":
        return [(before, after) for before, after in pairwise(values) if pair[1] in ("*", after)]
    if pair[0] == "fewer":
        return [
            (before, after) for before, after in combinations(values, 2) if pair[1] in ("*", after)
        ]
    if pair[1] == "next_fewer":
        return [(after, before) for before, after in pairwise(values) if pair[0] in ("*", after)]
    placeholders = {"*": values, "first": values[:1]}
    tops, bottoms = (
        placeholders.get(side, [side]) if isinstance(side, str) else [side] for side in pair
    )
    return [(top, bottom) for top, bottom in product(tops, bottoms) if top != bottom]


def _axis_values(panel: Panel, column: str) -> list[Any]:
    """Return the values of a swept column: the paper's and others that were measured.

    If none of the paper's values was measured, only the others are returned. Numbers ascend.
    """
    printed_values = panel.experiment.swept[column]
    measured_values = panel.values(column)
    all_values = [
        *printed_values,
        *(value for value in measured_values if value not in printed_values),
    ]
    return grouping.ordered(
        all_values if {*printed_values} & {*measured_values} else measured_values
    )


def cells_across(panel: Panel, axes: Sequence[str], only: Mapping[str, Any]) -> Iterator[Cell]:
    """Yield the cells of all swept columns except `axes` that meet the conditions of `only`.

    Columns that follow from an axis are left out too.
    """
    experiment = panel.experiment
    other_columns = [column for column in experiment.swept if column not in axes]
    columns = [
        column
        for column in other_columns
        if not any(experiment.follows(column, axis) for axis in axes)
    ]
    for values in product(*(_axis_values(panel, column) for column in columns)):
        cell = dict(zip(columns, values, strict=True))
        if all(_meets_condition(cell[column], condition) for column, condition in only.items()):
            yield tuple(cell.items())


def _meets_condition(value: Any, condition: Any) -> bool:
    """Return True if a value meets a condition of `only`: a value, a list, or ">= 300"."""
    if isinstance(condition, list):
        return value in condition
    match = re.fullmatch(r"([<>]=?) ?(\d+)", condition) if isinstance(condition, str) else None
    if match is None:
        return value == condition
    return isinstance(value, int | float) and OPERATORS[match[1]](value, int(match[2]))


def runs_by_cell(panel: Panel, wanted: Mapping[str, Any]) -> list[list[Run]]:
    """Return the runs of each cell that has the wanted values."""
    return [runs for cell, runs in panel.cells.items() if wanted.items() <= dict(cell).items()]


def ok_runs_of_cells(panel: Panel, wanted: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs of the wanted cells that ended ok.

    If another run of these cells ran out of memory or diverged, the others were lucky, and none is
    returned.
    """
    runs = list(chain.from_iterable(runs_by_cell(panel, wanted)))
    were_lucky = any(run["status"] in UNLUCKY for run in runs)
    return () if were_lucky else tuple(run for run in runs if run["status"] == "ok")
