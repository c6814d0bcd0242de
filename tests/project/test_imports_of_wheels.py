"""What modules import is in a wheel too, and is multicard's own (setup.py)."""

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
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else []
        )
        start = f"{'.' * node.level}{node.module}." if isinstance(node, ast.ImportFrom) else ""
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
    outside = {
        path.name: [name for name in imported(path) if not name.startswith(IN_WHEEL)]
        for path in needed()
    }
    assert {name: found for name, found in outside.items() if found} == {}


def test_analysis_finds_itself_whatever_else_has_its_name():
    """Its modules import one another relatively;
    what is above them names them through `repository.module`.
    """
    files = [path for name in ("analysis", "multicard") for path in (ROOT / name).rglob("*.py")]
    typed_alone = {"multicard/__init__.py"}  # under TYPE_CHECKING
    by_name = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if any(map(is_of_analysis, imported(path)))
    }
    assert by_name <= typed_alone


def is_of_analysis(name: str) -> bool:
    return name.partition(".")[0] == "analysis"
