"""Every table and figure of both papers, and where it is here: a row of `places.csv` each.

Which experiment measures one is said by the experiment's file, whose first comment names its tables and figures.
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.formatting import counted
from analysis.papers import experiments
from multicard import workloads
from multicard.records.text_table import in_bytes
from multicard.sweep import full_scale
from multicard.workloads import WORKLOADS

FILE = Path(__file__).with_name("places.csv")
LATER, EARLIER = "2505.22905", "2503.15252"  # the papers; a number alone is the later one's
NAMED = re.compile(r"(Table|Fig)s?\.? (\d+(?:(?:,| and| to) \d+)*)(?: of (2503\.15252))?")


@dataclass(frozen=True)
class Place:
    """A table or figure of the papers.

    in_2505, in_2503: its name in each; empty where a paper does not have it.
    form: what it is drawn as here. where: it stands, where no experiment measures it.
    needs: without which it cannot be as printed.
    """

    in_2505: str
    in_2503: str
    shows: str
    form: str
    where: str
    needs: str

    @property
    def name(self) -> str:
        """As both papers call it: "Fig. 10 (Fig. 4 of 2503.15252)"."""
        if not self.in_2505:
            return f"{self.in_2503} of {EARLIER}"
        return self.in_2505 + (f" ({self.in_2503} of {EARLIER})" if self.in_2503 not in ("", self.in_2505) else "")

    @property
    def experiments(self) -> list[str]:
        """Those that measure it."""
        own = {(LATER, self.in_2505), (EARLIER, self.in_2503)}
        return [name for name in experiments.names() if not own.isdisjoint(_named(experiments.load(name).title))]


@cache
def places() -> tuple[Place, ...]:
    """All of them, tables first."""
    with FILE.open(newline="") as lines:
        return tuple(Place(**row) for row in csv.DictReader(lines))


@cache
def in_full(name: str) -> str:
    """What an experiment takes on the papers' node, as a sentence."""
    (workload,) = (workload for workload in WORKLOADS if name in workloads.experiments(workload))
    cost = full_scale.of_experiment(workload, name)
    plural = "s" * (cost.gpus[1] > 1)
    parts = [f"{counted(cost.cells, 'cell')} on {cost.gpus_in_words} GPU{plural}"]
    if cost.known:
        parts.append(f"{cost.time_s / 3600:.1f} hours ({cost.gpu_s / 3600:.1f} GPU hours)")
    if cost.unknown:
        parts.append(f"{'and ' * bool(cost.known)}{counted(cost.unknown, 'cell')} of which the papers tell no time")
    parts.append(f"{in_bytes(cost.disk_bytes)} on disk")
    if cost.host_bytes:
        parts.append(f"up to {in_bytes(cost.host_bytes)} of memory")
    return ", ".join(parts)


def _named(title: str) -> set[tuple[str, str]]:
    """The tables and figures that a title names, each with its paper."""
    found = set()
    for kind, numbers, paper in NAMED.findall(title):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            for number in range(int(first), int(last or first) + 1):
                found.add((paper or LATER, f"{'Table' if kind == 'Table' else 'Fig.'} {number}"))
    return found
