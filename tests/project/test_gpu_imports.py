"""Tests that need a GPU run from a wheel, which has few of the tests' files (setup.py)."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

FOLDER = ROOT / "tests"
IN_WHEEL = ("tests.conftest", "tests.gpu", "tests.helpers", "benchmarks", "multicard", "analysis")
OWN = ("tests", "multicard", "analysis", "benchmarks", "docs", "hydra_plugins", "examples")


def imported(path: Path) -> Iterator[str]:
    """The modules of this repository that a file imports, as "tests.helpers.records"."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        yield from (f"{start}{name}" for name in names if f"{start}{name}".split(".")[0] in OWN)


def needed() -> set[Path]:
    """The files of the tests that need a GPU, and those that these import."""
    found, left = set[Path](), [FOLDER / "conftest.py", *(FOLDER / "gpu").glob("*.py")]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            names = [name for name in imported(path) if name.startswith(("tests.", "benchmarks."))]
            modules = [ROOT / name.replace(".", "/") for name in names]
            files = [place.with_suffix(".py") for name in modules for place in (name, name.parent)]
            left += [file for file in files if file.is_file()]
    return found


def test_they_import_nothing_that_a_wheel_does_not_have():
    assert len(needed()) > 10
    outside = {path.name: [name for name in imported(path) if not name.startswith(IN_WHEEL)] for path in needed()}
    assert {name: found for name, found in outside.items() if found} == {}
