"""Which rows are held out: not trained on, so that the loss on
them says how well a model was tuned. No torch.

They are the same on every rank, in each engine, and for each seed of the training: they are drawn
from all stored rows by a number of their own, before the seed draws those that are trained on. A
larger share holds out the same rows and more.
"""

import json
from collections.abc import Iterable, Sequence
from math import ceil
from random import Random
from typing import Any, NamedTuple

from multicard.llm.data.split_rows import SplitRows
from multicard.messages import Refusal

DRAWN_BY = 49  # seeds which rows are held out, whatever `seed` is


class HeldOutRows(NamedTuple):
    """Rows that are not trained on.

    rows: in the form of the run's engine. numbers: the place of each in the data set as it is read,
    from 0.
    splits: the column that calls them so; None of others.
    """

    rows: list[dict[str, Any]]
    numbers: list[int]
    splits: SplitRows | None = None

    def are_trained(self, trained: Iterable[dict[str, Any]]) -> list[bool]:
        """Of each, whether it is equal to a row that is trained on."""
        texts = {json.dumps(row, sort_keys=True) for row in trained}
        return [json.dumps(row, sort_keys=True) in texts for row in self.rows]

    def lines(self, are_trained: Sequence[bool]) -> str:
        """JSON lines: each row with its number as `row`, and `is_trained`.
        No reader of rows looks at these two.
        """
        lines = list[str]()
        for row, number, is_trained in zip(self.rows, self.numbers, are_trained, strict=True):
            lines.append(json.dumps({"row": number, "is_trained": is_trained} | row) + "\n")
        return "".join(lines)


def size(rows: int, share: float | None) -> int:
    """How many of so many rows a share holds out."""
    return 0 if share is None else round(share * rows)


def drawn(available: int, count: int) -> set[int]:
    """The numbers of `count` of the rows 0 to `available` - 1:
    the first that a shuffle of all would give.

    It takes time and memory for those alone (Fisher and
    Yates): sets of the hub have millions of rows.
    """
    random = Random(DRAWN_BY)
    moved = dict[int, int]()
    found = set[int]()
    for place in range(count):
        other = random.randrange(place, available)
        found.add(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return found


def refusal(
    share: float, rows: int, trained: Sequence[Any], held_out: Sequence[Any]
) -> Refusal | None:
    """Why a share of so many rows cannot be held out;
    None where rows are left to train on and to measure on.
    """
    if trained and held_out:
        return None
    lacking = "measure" if trained else "train"
    remedy = "use `dataset.split=0`"
    if rows > 1:
        possible = 0.5 if not trained else ceil(100 / rows) / 100
        remedy = f"use `dataset.split={possible:g}`, or `dataset.split=0` to hold none out"
    return Refusal(
        "llm.split-empty",
        f"dataset.split={share:g}: leaves no row to {lacking} on, of {rows}; {remedy}",
        key="dataset.split",
        value=share,
        rows=rows,
        lacking=lacking,
    )
