"""All messages of the source, as one page that a maintainer reads: tests/goldens/messages.md.

    python -m tests.goldens.messages

Write the page anew after a message was added, removed or reworded.
No other file depends on a sentence's words.

Each place of the source that makes a `Message` or a `Refusal` is a line of the page, with what is
not known before it runs in braces. A text that the same function has
in a variable stands where the variable is used.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parent / "messages.md"
SOURCES = ("multicard", "analysis", "hydra_plugins", "benchmarks", "docs")
MAKERS = ("Message", "Refusal")
DEFINITION = "multicard/messages.py"  # makes messages of codes that it is given, too
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+")
DEPTH = 4  # variables within variables
BEGINNING = """# Messages

What multicard says, by file: code, key, sentence. Made by `python -m tests.goldens.messages`.
"""
Texts = dict[str, list[tuple[int, ast.expr]]]  # by variable: the line, and the text


@dataclass(frozen=True)
class Place:
    """A place of the source that makes a message."""

    file: str
    line: int
    code: str
    key: str | None
    sentence: str


def places() -> Iterator[Place]:
    """All places, file by file."""
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            tree = ast.parse(path.read_text())
            yield from _of_scope(tree, path.relative_to(ROOT).as_posix(), _texts(tree, deep=False))


def _of_scope(scope: ast.AST, file: str, texts: Texts) -> Iterator[Place]:
    """The places of a module or function, and of the functions within it."""
    for node in _own_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_scope(node, file, texts | _texts(node, deep=True))
        elif isinstance(node, ast.Call) and _name(node.func) in MAKERS and node.args:
            copies = file == DEFINITION and not isinstance(node.args[0], ast.Constant)
            if not copies:
                yield _place(node, file, texts)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without those within further functions."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own_nodes(child)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(scope: ast.AST, deep: bool) -> Texts:
    """The texts that variables of this scope are given, each with its line, in their order."""
    found: Texts = {}
    for node in _own_nodes(scope) if deep else ast.iter_child_nodes(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for name, value in _assigned(node.targets[0], node.value):
                found.setdefault(name, []).append((node.lineno, value))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            before = _latest(found, node.target.id, node.lineno)
            if before is not None:
                longer = ast.BinOp(before, ast.Add(), node.value)
                found[node.target.id].append((node.lineno, longer))
    return {name: sorted(values, key=lambda pair: pair[0]) for name, values in found.items()}


def _latest(texts: Texts, name: str, line: int) -> ast.expr | None:
    """The text that a variable was given last before a line; None where it is no text."""
    earlier = [value for at, value in texts.get(name, ()) if at < line]
    return earlier[-1] if earlier and _is_text(earlier[-1]) else None


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, each in zip(target.elts, value.elts, strict=False):
            yield from _assigned(name, each)


def _is_text(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_text(value.left) and isinstance(value.op, ast.Add)
    return isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str)
    )


def _place(call: ast.Call, file: str, texts: Texts) -> Place:
    code, sentence = call.args[0], call.args[1] if len(call.args) > 1 else None
    keys = [word.value for word in call.keywords if word.arg == "key"]
    assert isinstance(code, ast.Constant), f"{file}:{call.lineno}: the code is no literal"
    assert sentence is not None, f"{file}:{call.lineno}: no sentence"
    key = _sentence(keys[0], texts, call.lineno) if keys else None
    return Place(file, call.lineno, str(code.value), key, _sentence(sentence, texts, call.lineno))


def _sentence(value: ast.expr, texts: Texts, line: int, depth: int = 0) -> str:
    """A text with what is not known before it runs in braces."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(_sentence(part, texts, line, depth) for part in value.values)
    if isinstance(value, ast.FormattedValue):
        return _sentence(value.value, texts, line, depth)
    if isinstance(value, ast.Name) and depth < DEPTH:
        text = _latest(texts, value.id, line)
        if text is not None:
            return _sentence(text, texts, line, depth + 1)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _sentence(value.left, texts, line, depth) + _sentence(
            value.right, texts, line, depth
        )
    return f"{{{ast.unparse(value)}}}"


def page() -> str:
    """The page's text."""
    lines, file = [BEGINNING], None
    for place in places():
        if place.file != file:
            file = place.file
            lines.append(f"\n## {file}\n")
        key = f" ({place.key})" if place.key else ""
        lines.append(f"- {place.code}{key}: {place.sentence}".replace("\n", "\\n"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)}: {PAGE.read_text().count(chr(10) + '- ')} messages")
