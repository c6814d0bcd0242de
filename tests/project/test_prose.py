"""`tools.prose`: what it finds in pages and in Python, and what it leaves alone."""

import pytest

from tools import prose

LONG = "Word " + "word " * 14 + "\n" + "word " * 16
PAGE = f"""# A heading may be as long as it likes, and even longer than that, as it is no prose at all, see

A short sentence. {LONG.strip()}.

```
a fenced line that is longer than one hundred characters is code, and code is not measured by this check
```

| a table | may be wider than one hundred characters, since its rows cannot be wrapped in Markdown at all |

- An item. `code with many words inside counts as one word` and so on.
- Of a rank, the name.
"""


def rules(path: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in prose.check_page(path, text)]


def test_a_page_has_long_sentences_and_phrases_of_habit():
    assert rules("page.md", PAGE) == [
        (3, "a sentence of 31 words"),
        (13, 'a sentence that begins with "Of" (write: name the subject first)'),
    ]


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("x" * 101, True),
        ("y " * 51, True),
        (f"`{'code ' * 21}` follows", False),  # it cannot be wrapped
        (f"[link]({'a' * 99})", False),
    ],
)
def test_lines_of_prose_end_at_100_characters(line: str, is_found: bool):
    assert bool(rules("page.md", line)) == is_found


def test_code_counts_as_one_word_and_abbreviations_end_no_sentence():
    text = "See Fig. 2 of Lawenda et al. There `a b c d` is one word. Next."
    assert prose.sentences(text) == [
        "See Fig. 2 of Lawenda et al. There CODE is one word.",
        "Next.",
    ]
    assert prose.word_count("one CODE - two.") == 3


def test_comments_and_docstrings_are_read_and_strings_are_not():
    source = '''"""Module.

Runs are told from one another.
"""

NAME = "by turns"  # a value


def read(path):
    """Of a file: its text."""
    # Nothing is read by
    # turns here.
    return "is no result"
'''
    found = [
        (finding.line, finding.rule.split('"')[1]) for finding in prose.check_python("a.py", source)
    ]
    assert found == [(1, "told from"), (10, "Of"), (11, "by turns")]
