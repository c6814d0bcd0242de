"""Every table and figure of both papers, and where it is here: a row of `places.csv` each."""

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("places.csv")
IN_FULL = Path(__file__).with_name("in_full.csv")
LATER, EARLIER = "2505.22905", "2503.15252"  # the papers; a number alone is the later one's
NAMED = re.compile(r"(Table|Fig)s?\.? (\d+(?:(?:,| and| to) \d+)*)(?: of (2503\.15252))?")


@dataclass(frozen=True)
class Place:
    """A table or figure of the papers.

    in_2505, in_2503: its name in each; empty where a paper does not have it.
    form: the kind of drawing or table here. where: its place here, if no experiment measures it.
    needs: the requirements to have it as printed.
    """

    in_2505: str
    in_2503: str
    shows: str
    form: str
    where: str
    needs: str

    @property
    def name(self) -> str:
        """Its name in both papers: "Fig. 10 (Fig. 4 of 2503.15252)"."""
        if not self.in_2505:
            return f"{self.in_2503} of {EARLIER}"
        return self.in_2505 + (f" ({self.in_2503} of {EARLIER})" if self.in_2503 not in ("", self.in_2505) else "")

    def is_named_in(self, title: str) -> bool:
        """True if an experiment's title names this table or figure."""
        return not {(LATER, self.in_2505), (EARLIER, self.in_2503)}.isdisjoint(_named(title))


@cache
def places() -> tuple[Place, ...]:
    """All of them, tables first."""
    with FILE.open(newline="") as lines:
        return tuple(Place(**row) for row in csv.DictReader(lines))


@cache
def in_full(experiment: str) -> str:
    """A sentence on the time, disk and memory of an experiment on the papers' node, by the papers' times, scaled by
    epochs, rows and GPUs; empty for an experiment that is not theirs."""
    with IN_FULL.open(newline="") as lines:
        return {row["experiment"]: row["takes"] for row in csv.DictReader(lines)}.get(experiment, "")


@cache
def _named(title: str) -> frozenset[tuple[str, str]]:
    """The tables and figures that a title names, each with its paper."""
    found = set()
    for kind, numbers, paper in NAMED.findall(title):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            for number in range(int(first), int(last or first) + 1):
                found.add((paper or LATER, f"{'Table' if kind == 'Table' else 'Fig.'} {number}"))
    return frozenset(found)
