"""Check the project's prose: the pages, and the docstrings and comments of its Python.

    python -m tools.prose           counts; exit code 1 if a rule is broken
    python -m tools.prose --list    each place

Each rule can be checked without an opinion:

- A sentence has at most 30 words. Inline code counts as one word.
- A line of a page has at most 100 characters, except tables, code, headings and HTML.
- Some habitual phrases are not used. `PHRASES` says what to write instead.
- No sentence begins with "Of ".

Generated pages and the changelog of released versions are not checked. The sentences of Python are
not measured, because the lists in docstrings have no full stops.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.reading import ROOT, python_files

MAX_SENTENCE_WORDS = 30
MAX_LINE_CHARACTERS = 100

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
GENERATED = ("docs/reference/record.md", "docs/reference/keys.md")

PHRASES = {  # Phrases over which readers stumbled, and what to write instead.
    r"\b(?:tell|tells|telling|told)\b[^,;:.]* (?:from|apart)\b": "they differ, or by how much",
    r"\bwhat (?:is|are) no\b": "name the thing that it is",
    r"\b(?:is|are) no results?\b": "does not count as a result",
    r"\bby turns\b": "take turns, alternate",
    r"\bwhoever\b": "anyone who, a user who",
    r"\bto either side\b": "±",
    r"(?:^|[.!?:;] )of (?!course)(?=[^,;:]* none\b)": "begin with the subject: none of 3 runs",
}
OF_BEGINS = re.compile(r"(?:^|[.!?] )Of (?!course)")

CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\[\"*])")
LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|al|Fig|Figs|No|vs|approx)\.$")


@dataclass(frozen=True)
class BrokenRule:
    """A place in a file that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text.strip()[:100]}"


@dataclass(frozen=True)
class PageParagraph:
    """Lines of prose that belong together, joined by spaces."""

    line: int
    text: str


def page_paths(root: Path = ROOT) -> list[Path]:
    paths = []
    for pattern in PAGES:
        paths += sorted(root.glob(pattern))
    return [path for path in paths if path.relative_to(root).as_posix() not in GENERATED]


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each prose line of a page; other lines yield "" as the text."""
    is_code = False
    is_html = False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            is_code = not is_code
            yield number, ""
            continue
        if stripped.startswith("<"):
            is_html = True
        if is_html and not stripped:
            is_html = False
        is_other = stripped.startswith(("|", "#", ">", "![", "[!["))
        yield number, "" if is_code or is_html or is_other else line


def paragraphs(text: str) -> Iterator[PageParagraph]:
    """Yield the paragraphs of a page. An item of a list is a paragraph."""
    start = 0
    parts: list[str] = []
    for number, line in [*prose_lines(text), (0, "")]:
        if parts and (not line.strip() or LIST_ITEM.match(line)):
            yield PageParagraph(start, " ".join(parts))
            parts = []
        if line.strip():
            if not parts:
                start = number
            parts.append(LIST_ITEM.sub("", line).strip())


def sentences(text: str) -> list[str]:
    """Split a paragraph. Code becomes a single word, and a link becomes its text."""
    plain = LINK.sub(r"\1", CODE.sub("CODE", text))
    split: list[str] = []
    for part in SENTENCE_END.split(plain):
        if split and ABBREVIATION.search(split[-1]):
            split[-1] += " " + part
        else:
            split.append(part)
    return split


def word_count(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def check_page(path: str, text: str) -> Iterator[BrokenRule]:
    for number, line in prose_lines(text):
        unbreakable = [*CODE.findall(line), *re.findall(r"\]\([^)]*\)", line)]
        longest = max(map(len, unbreakable), default=0)
        if len(line) > MAX_LINE_CHARACTERS and longest <= MAX_LINE_CHARACTERS // 2:
            yield BrokenRule(path, number, f"over {MAX_LINE_CHARACTERS} characters", line)
    for paragraph in paragraphs(text):
        for sentence in sentences(paragraph.text):
            words = word_count(sentence)
            if words > MAX_SENTENCE_WORDS:
                yield BrokenRule(path, paragraph.line, f"a sentence of {words} words", sentence)
        yield from check_phrases(path, paragraph.line, paragraph.text)


def habits(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each phrase of `PHRASES` in the text, and what to write instead."""
    for pattern, instead in PHRASES.items():
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            yield match, instead


def check_phrases(path: str, line: int, text: str) -> Iterator[BrokenRule]:
    for match, instead in habits(text):
        phrase = match[0].strip(". ")
        yield BrokenRule(path, line, f'"{phrase}" (write: {instead})', text[match.start() :])
    match = OF_BEGINS.search(text)
    if match:
        rule = 'a sentence that begins with "Of" (write: name the subject first)'
        yield BrokenRule(path, line, rule, text[match.start() :])


def check_python(path: str, source: str) -> Iterator[BrokenRule]:
    """Check the phrases in the comments and docstrings of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comment = PageParagraph(0, "")
    last_line = -1
    previous = tokenize.NEWLINE
    for token in tokens:
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("# ")
            if line == last_line + 1:
                comment = PageParagraph(comment.line, f"{comment.text} {words}")
            else:
                yield from check_phrases(path, comment.line, comment.text)
                comment = PageParagraph(line, words)
            last_line = line
            continue
        if token.type in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type == tokenize.STRING and previous == tokenize.NEWLINE:  # a docstring
            text = " ".join(token.string.strip('"').split())
            yield from check_phrases(path, line, text)
        previous = token.type
    yield from check_phrases(path, comment.line, comment.text)


def find_broken_rules(root: Path = ROOT) -> Iterator[BrokenRule]:
    """Check all pages and Python files."""
    for path in page_paths(root):
        yield from check_page(path.relative_to(root).as_posix(), path.read_text())
    for path in python_files(root):
        yield from check_python(path.relative_to(root).as_posix(), path.read_text())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="name each place")
    options = parser.parse_args(arguments)

    broken_rules = list(find_broken_rules())
    if options.list:
        print(*broken_rules, sep="\n")
    pages = sum(broken.path.endswith(".md") for broken in broken_rules)
    print(f"{pages:5}  places in pages")
    print(f"{len(broken_rules) - pages:5}  places in comments and docstrings")
    return 1 if broken_rules else 0


if __name__ == "__main__":
    sys.exit(main())
