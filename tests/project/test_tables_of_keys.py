"""No table of keys outside the schema: what a key means stands in its entry,
and is asked for by its role.

A tuple, list or set with two or more names of keys is one, wherever it stands, and so is a
dictionary at the top of a module that has them as keys. A dictionary within a function has the
values of a run, and those of `multicard/papers` and `benchmarks` have the values of commands. A
table that says something else has a comment on a line of its own source, or on the line above,
that says what: "no roles: ...".
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from multicard import workloads
from multicard.config import schema
from multicard.records.figures import FIGURES
from tests.conftest import ROOT

PACKAGES = ("multicard", "analysis", "hydra_plugins", "benchmarks")
# whose dictionaries are values of keys
COMMANDS = (
    "multicard/papers",
    "benchmarks",
    "analysis/evidence/steps.py",
    "analysis/evidence/step_commands.py",
)
SCHEMAS = "multicard/config/"
EXCEPTION = "no roles: "


def names() -> set[str]:
    """Keys and groups as they are typed, and the columns of axes;
    not those that figures have too.
    """
    keys = {name for workload in workloads.WORKLOADS for name in workloads.known_keys(workload)}
    columns = {schema.column_of(name) for name in keys}
    return (keys | columns) - {*FIGURES} - {"name", "experiment"}


def tables(source: str, commands: bool) -> Iterator[tuple[int, list[str]]]:
    """Line and names of each table of keys in a module that has no exception."""
    known, tree, lines = names(), ast.parse(source), source.splitlines()
    top = {id(node) for node in _outside_functions(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            elements = node.elts
        elif isinstance(node, ast.Dict) and id(node) in top and not commands:
            elements = [key for key in node.keys if key is not None]
        else:
            continue
        found = {
            each.value
            for each in elements
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        }
        about = lines[max(node.lineno - 2, 0) : node.end_lineno]
        if len(found & known) > 1 and not any(EXCEPTION in line for line in about):
            yield node.lineno, sorted(found & known)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _outside_functions(child)


def sources() -> list[Path]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in paths if SCHEMAS not in path.as_posix()]


def test_no_table_of_keys_stands_outside_the_schema():
    found = []
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        for line, keys in tables(path.read_text(), name.startswith(COMMANDS)):
            found.append(f"{name}:{line}: {', '.join(keys)}")
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('CHANGES = ("precision", "batch_size")', 1),
        ('def f(key):\n    return key in ("dataset.root", "dataset.cache")', 1),
        ('AXES = {"image_size", "rows"}', 1),
        ('WHY = {"gpus": "a reason", "nodes": "another"}', 1),
        ('def f():\n    return {"gpus": 1, "nodes": 2}', 0),  # values of a run
        ('ONE = ("precision", "total_s")', 0),
        ('LENGTHS = ("epochs", "max_steps")  # no roles: advice, in this order', 0),
        ('# no roles: sentences\nWHY = {"gpus": "a reason", "nodes": "another"}', 0),
    ],
)
def test_what_a_table_of_keys_is(source: str, count: int):
    assert len([*tables(source, commands=False)]) == count
