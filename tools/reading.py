"""Measure how the project's Python reads. `make lint` enforces the limits.

    python -m tools.reading           the figures; exit code 1 if a limit is exceeded
    python -m tools.reading --list    each place that counts

Tests are not measured. Four habits cost a reader more than they save a writer. They are allowed
only if a comment `# reading: ...` on the line gives a reason:

- a literal times a truth value (`["--fast"] * bool(fast)`) instead of an `if`
- parallel assignment of unrelated values (`a, b = 1, []`); a swap, or any other assignment that
  needs both old values, does not count
- a comprehension with two `for`
- one class name for two classes

Lines over 100 characters and the mean length of a line show how much a line asks of its reader.
The number of bytes is reported, but not limited.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("analysis", "benchmarks", "docs", "hydra_plugins", "multicard", "tools")
ENTRIES = ("measure_script.py", "setup.py", "train_vision.py", "tune_llm.py")

LONG_LINE_CHARACTERS = 100
MAX_LONG_LINES_PERCENT = 2.0
MAX_MEAN_LINE_CHARACTERS = 48.0

REASON = "# reading: "

LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class SourcePlace:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass
class Reading:
    """The figures of some files, and the places that count against them."""

    lines: int = 0
    characters: int = 0
    long_lines: list[SourcePlace] = field(default_factory=list)
    truth_factors: list[SourcePlace] = field(default_factory=list)
    parallel_assignments: list[SourcePlace] = field(default_factory=list)
    double_comprehensions: list[SourcePlace] = field(default_factory=list)
    classes: dict[str, list[SourcePlace]] = field(default_factory=lambda: defaultdict(list))

    @property
    def long_lines_percent(self) -> float:
        return 100 * len(self.long_lines) / max(self.lines, 1)

    @property
    def mean_line_characters(self) -> float:
        return self.characters / max(self.lines, 1)

    @property
    def repeated_classes(self) -> list[SourcePlace]:
        repeated = []
        for places in self.classes.values():
            if len(places) > 1:
                repeated += places
        return repeated


def python_files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the Python files outside tests, in a fixed order."""
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))
    for entry in ENTRIES:
        if (root / entry).exists():
            yield root / entry


def read_all(files: Iterator[Path], root: Path = ROOT) -> Reading:
    reading = Reading()
    for file in files:
        add_file(reading, file.read_text(encoding="utf-8"), str(file.relative_to(root)))
    return reading


def add_file(reading: Reading, source: str, path: str) -> None:
    """Add the figures of a file to `reading`."""
    lines = source.split("\n")

    def place(line: int) -> SourcePlace:
        return SourcePlace(path, line, lines[line - 1].strip())

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        reading.lines += 1
        reading.characters += len(line)
        if len(line) > LONG_LINE_CHARACTERS:
            reading.long_lines.append(place(number))

    for node in ast.walk(ast.parse(source)):
        if not hasattr(node, "lineno") or _has_reason(node, lines):
            continue
        if isinstance(node, ast.BinOp) and _is_truth_factor(node):
            reading.truth_factors.append(place(node.lineno))
        elif isinstance(node, ast.Assign) and _is_parallel(node):
            reading.parallel_assignments.append(place(node.lineno))
        elif isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
            reading.double_comprehensions.append(place(node.lineno))
        elif isinstance(node, ast.ClassDef):
            reading.classes[node.name].append(place(node.lineno))


def _has_reason(node: ast.AST, lines: list[str]) -> bool:
    if isinstance(node, ast.ClassDef):
        return REASON in lines[node.lineno - 1]
    first = getattr(node, "lineno", 1) - 1
    last = getattr(node, "end_lineno", first + 1)
    return any(REASON in line for line in lines[first:last])


def _is_truth_factor(node: ast.BinOp) -> bool:
    """Return whether a literal is multiplied by a truth value."""
    if not isinstance(node.op, ast.Mult):
        return False
    for literal, factor in ((node.left, node.right), (node.right, node.left)):
        is_sequence = isinstance(literal, LITERALS) and not _is_number(literal)
        if is_sequence and _is_truth(factor):
            return True
    return False


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes)


def _is_truth(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in (
            "bool",
            "isinstance",
            "any",
            "all",
        )
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare | ast.BoolOp)


def _is_parallel(node: ast.Assign) -> bool:
    """Return whether values are assigned at once that could be assigned one after the other."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    if any(isinstance(element, ast.Starred) for element in [*target.elts, *node.value.elts]):
        return False
    assigned = {ast.unparse(element) for element in target.elts}
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    return not assigned & read


@dataclass(frozen=True)
class ReadingFigure:
    name: str
    value: float
    limit: float
    places: list[SourcePlace]

    @property
    def is_kept(self) -> bool:
        return self.value <= self.limit


def figures_of(reading: Reading) -> list[ReadingFigure]:
    return [
        ReadingFigure(
            f"lines over {LONG_LINE_CHARACTERS} characters, %",
            reading.long_lines_percent,
            MAX_LONG_LINES_PERCENT,
            reading.long_lines,
        ),
        ReadingFigure(
            "mean characters of a line that is not blank",
            reading.mean_line_characters,
            MAX_MEAN_LINE_CHARACTERS,
            [],
        ),
        _count("literals times a truth value", reading.truth_factors),
        _count("parallel assignments of unrelated values", reading.parallel_assignments),
        _count("comprehensions with two `for`", reading.double_comprehensions),
        _count("classes whose name another class has", reading.repeated_classes),
    ]


def _count(name: str, places: list[SourcePlace]) -> ReadingFigure:
    return ReadingFigure(name, len(places), 0, places)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.reading", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="name each place that counts")
    options = parser.parse_args(arguments)

    reading = read_all(python_files())
    figures = figures_of(reading)
    for figure in figures:
        verdict = "" if figure.is_kept else f"   over the limit of {figure.limit:g}"
        print(f"{figure.value:8.1f}  {figure.name}{verdict}")
        if options.list:
            for place in figure.places:
                print(f"          {place}")
    tests = sum(len(file.read_bytes()) for file in (ROOT / "tests").rglob("*.py"))
    others = sum(len(file.read_bytes()) for file in python_files())
    print(
        f"{others / 1e6:8.2f}  MB of Python outside tests, and {tests / 1e6:.2f} MB of tests (no"
        " limit)"
    )
    return 0 if all(figure.is_kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
