"""How much runs of a script trained."""

from collections.abc import Mapping

import pytest

from multicard.records import amounts


def of_figures(*each: Mapping[str, float | None]) -> amounts.Amounts | None:
    return amounts.of_runs([figures.get for figures in each])


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        ({"samples_trained": 8, "tokens": 80}, {"samples_trained": 8, "tokens": 80}, "samples"),
        ({"samples_trained": 8, "tokens": 80}, {"tokens": 80}, "tokens"),
        ({"samples_trained": 8, "steps_of_ranks": 4}, {"steps_of_ranks": 4}, amounts.STEPS),
        ({"samples_trained": 8}, {"tokens": 80}, None),
    ],
)
def test_amounts_are_in_a_unit_that_all_know(
    first: dict[str, float], second: dict[str, float], unit: str | None
):
    found = of_figures(first, second)
    assert (None if found is None else found.unit) == unit


@pytest.mark.parametrize(
    ("figure", "values", "classes"),
    [
        ("samples_trained", [6144, 2048, 2040, 6100], [6100, 2040, 2040, 6100]),
        ("samples_trained", [1000, 991], [991, 991]),
        ("samples_trained", [1000, 989], [1000, 989]),
        ("steps_of_ranks", [100, 96], [96, 96]),
        ("steps_of_ranks", [100, 94], [100, 94]),
    ],
)
def test_amounts_are_equal_but_for_last_batches(
    figure: str, values: list[float], classes: list[float]
):
    found = of_figures(*({figure: value} for value in values))
    assert found is not None and found.classes() == classes
    assert found.are_equal is (len({*classes}) == 1)
