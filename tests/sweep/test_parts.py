"""Axes that are tried one by one, in place of all their combinations."""

from itertools import product

import pytest

from multicard.sweep.axes import Axes, one_by_one
from tests.helpers.messages import refused

VALUES = {
    "packed": ("false", "true"),
    "compile": ("false", "true"),
    "batch_size": ("2", "4", "8"),
    "gpus": ("1", "2"),
}
GRID = [
    [f"{key}={value}" for key, value in zip(VALUES, cell, strict=True)]
    for cell in product(*VALUES.values())
]


def test_a_part_changes_alone_or_with_all_others():
    kept = one_by_one(GRID, ["packed", "compile", "batch_size"])
    on_one = [
        ("false", "false", "2"),  # the first values
        ("false", "false", "4"),
        ("false", "false", "8"),
        ("false", "true", "2"),
        ("true", "false", "2"),
        ("true", "true", "8"),  # the last values
    ]
    # `gpus` is no part: both of each
    expected = [(*values, gpus) for values in on_one for gpus in ("1", "2")]
    assert [tuple(word.split("=")[1] for word in cell) for cell in kept] == expected


@pytest.mark.parametrize("parts", range(2, 7))
def test_n_parts_of_two_values_take_n_and_two_cells(parts: int):
    keys = [f"key{place}" for place in range(parts)]
    grid = [
        [f"{key}={value}" for key, value in zip(keys, cell, strict=True)]
        for cell in product("ab", repeat=parts)
    ]
    assert len(one_by_one(grid, keys)) == parts + 2


def test_without_parts_the_grid_is_whole():
    assert one_by_one(GRID, []) == GRID


def test_a_part_that_is_no_axis_is_refused():
    with refused("cells.no-such-part", key="hydra.experiment.parts", unknown=["kernels"]):
        one_by_one(GRID, ["packed", "kernels"])


def test_a_typed_axis_joins_an_experiment_as_a_part_or_as_a_whole_axis():
    axes = Axes.of_experiment("fast_tuning", {})
    assert len(axes.cells(["experiment=fast_tuning"], False, 1)) == 6
    assert len(axes.cells(["experiment=fast_tuning", "gpus=1,2"], False, 1)) == 12
    with_kernels = Axes(axes.params, parts=[*axes.parts, "kernels"])
    assert len(with_kernels.cells(["kernels=torch,liger"], False, 1)) == 7


def test_a_part_whose_values_are_typed_as_one_is_none():
    cells = Axes.of_experiment("fast_tuning", {}).cells(["compile=false"], False, 1)
    assert len(cells) == 5 and all("compile=False" in cell for cell in cells)
