"""The table of limits in docs/reference/limits.md has every limit, with its mark,
its code and what it forbids.
"""

import re

from multicard.records import limits
from multicard.records.limits import Forbids
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text()
ROW = re.compile(r"^\| `(.)` \| `([a-z-]+)` \| .+ \| ([a-z_, ]*) ?\|$", re.MULTILINE)


def test_the_table_has_every_limit_and_what_it_forbids():
    rows = [
        (sign, code, {*re.findall(r"\w+", forbidden)})
        for sign, code, forbidden in ROW.findall(PAGE)
    ]
    assert rows == [(kind.sign, kind.code, {*kind.forbids}) for kind in limits.KINDS]


def test_the_page_says_what_follows_from_each():
    (section,) = re.findall(r"^\| if it forbids \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\| ([a-z_]+) \|", section, re.MULTILINE) == [*Forbids]


def test_the_columns_are_named_as_the_page_says():
    assert [kind.column for kind in limits.KINDS] == [
        kind.code.replace("-", "_") for kind in limits.KINDS
    ]
