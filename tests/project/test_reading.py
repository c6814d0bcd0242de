"""The figures of `tools.reading`, by sources whose figures are known."""

import pytest

from tools import reading
from tools.reading import Reading, add_file


def places(source: str) -> tuple[int, int, int]:
    """Truth factors, parallel assignments and comprehensions with two `for`."""
    found = Reading()
    add_file(found, source, "a.py")
    counted = (found.truth_factors, found.parallel_assignments, found.double_comprehensions)
    return tuple(len(each) for each in counted)  # pyright: ignore[reportReturnType]


def test_lines_are_counted_without_blank_ones():
    found = Reading()
    add_file(found, f"a = 1\n\n{'b' * 101}\n   \n{'c' * 100}\n", "a.py")
    assert (found.lines, found.characters) == (3, 5 + 101 + 100)
    assert [place.line for place in found.long_lines] == [3]
    assert found.long_lines_percent == pytest.approx(100 / 3)
    assert found.mean_line_characters == pytest.approx(206 / 3)


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        ('a = "s" * (n > 1)', (1, 0, 0)),
        ("a = [x] * bool(x)", (1, 0, 0)),
        ("a = bool(x) * [x]", (1, 0, 0)),
        ('a = f"{x}" * (not y)', (1, 0, 0)),
        ("a = [0] * n", (0, 0, 0)),
        ("a = 2 * (n > 1)", (0, 0, 0)),
        ("a, b = 1, 2", (0, 1, 0)),
        ("a, b = b, a", (0, 0, 0)),
        ("a, b = b, a + b", (0, 0, 0)),
        ("self.a, b = 1, 2", (0, 1, 0)),
        ("a, b = pair", (0, 0, 0)),
        ("a, *b = 1, 2", (0, 0, 0)),
        ("a = [x for y in z for x in y]", (0, 0, 1)),
        ("a = {x: y for x in z for y in x}", (0, 0, 1)),
        ("a = [[x for x in y] for y in z]", (0, 0, 0)),
        ("a, b = 1, 2  # reading: both at once", (0, 0, 0)),
        ("a = [x for y in z for x in y]  # reading: a table", (0, 0, 0)),
    ],
)
def test_each_habit_is_counted_but_where_a_line_says_why(source: str, counted: tuple[int, ...]):
    assert places(source) == counted


def test_a_name_of_two_classes_counts_both():
    found = Reading()
    add_file(found, "class A: ...\nclass B: ...\n", "a.py")
    add_file(found, "class A: ...\n", "b.py")
    assert [str(place) for place in found.repeated_classes] == [
        "a.py:1: class A: ...",
        "b.py:1: class A: ...",
    ]


def test_a_figure_over_its_limit_fails_the_check(capsys: pytest.CaptureFixture[str], monkeypatch):
    assert reading.main([]) == 0, capsys.readouterr().out
    monkeypatch.setattr(reading, "MAX_MEAN_LINE_CHARACTERS", 1.0)
    assert reading.main([]) == 1
    assert "over the limit of 1" in capsys.readouterr().out
