"""No check of what a user gives is an assertion: `python -O` leaves assertions out.

An assertion of the source says what a type checker cannot see: that a value is there (`is not
None`), or of a class (`isinstance`). Any other says on a line of its own, or the line above,
why it cannot fail: "always: ...".
"""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = ("multicard", "analysis", "hydra_plugins")
EXCEPTION = "always: "


def narrows(test: ast.expr) -> bool:
    """True where a test only tells the type checker about a value."""
    if isinstance(test, ast.BoolOp):
        return all(map(narrows, test.values))
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.IsNot)
    is_instance = (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "isinstance"
    )
    return is_instance or isinstance(test, ast.Name | ast.Attribute)


def checks(source: str) -> list[int]:
    """The lines of assertions that check more."""
    lines = source.splitlines()
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ]
    return [
        node.lineno
        for node in found
        if EXCEPTION not in "".join(lines[max(node.lineno - 2, 0) : node.end_lineno])
    ]


def test_assertions_of_the_source_check_nothing_that_a_user_gives():
    paths = [path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))]
    found = {
        str(path.relative_to(ROOT)): checks(path.read_text())
        for path in [*paths, *Path(ROOT).glob("*.py")]
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("assert x is not None and isinstance(y, int)", 0),
        ("assert x > 0", 1),
        ("assert x in ('a', 'b'), 'no such option'", 1),
        ("assert x > 0  # always: counted above", 0),
    ],
)
def test_what_is_a_check(line: str, count: int):
    assert len(checks(line)) == count
