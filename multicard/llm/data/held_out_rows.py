"""Select the rows to hold out: they are not trained on, and the loss on them measures the tuning.

They are the same on every rank, in each engine, and for each seed of the training. A fixed seed
draws them from all stored rows, before the run's seed draws the rows to train on. A larger share
holds out the same rows and more. Imports no torch.
"""

import json
from collections.abc import Iterable, Sequence
from math import ceil
from random import Random
from typing import Any, NamedTuple

from multicard.llm.data.split_rows import SplitRows
from multicard.messages import Refusal

HELD_OUT_SEED = 49  # The seed that draws held-out rows, whatever `seed` is.
ANSWERS = ("output", "summary")  # The keys of answers in rows that a template formats.


class HeldOutRows(NamedTuple):
    """Rows that are not trained on.

    Fields:
        rows: the rows in the form of the run's engine.
        numbers: the place of each row in the data set as it was read, from 0.
        splits: the rows by split, if a column of the data defines the held-out rows; else None.
    """

    rows: list[dict[str, Any]]
    numbers: list[int]
    splits: SplitRows | None = None

    def are_trained(self, trained: Iterable[dict[str, Any]]) -> list[bool]:
        """Tell for each row whether it is equal to a row that is trained on."""
        texts = {json.dumps(row, sort_keys=True) for row in trained}
        return [json.dumps(row, sort_keys=True) in texts for row in self.rows]

    def trained_prompts(
        self, trained: Iterable[dict[str, Any]], are_trained: Sequence[bool]
    ) -> int:
        """Count the rows whose prompt is trained on too, but with another answer.

        Sets of pairs often have several pairs for each prompt.

        Args:
            trained: the rows that are trained on.
            are_trained: the rows that `are_trained` found, which are not counted again.
        """
        trained_prompts = {prompt_of(row) for row in trained} - {None}
        return sum(
            prompt_of(row) in trained_prompts
            for row, is_trained in zip(self.rows, are_trained, strict=True)
            if not is_trained
        )

    def lines(self, are_trained: Sequence[bool]) -> str:
        """Return JSON lines: each row with its number as `row`, and `is_trained`.

        Readers of rows ignore these two keys.
        """
        lines = list[str]()
        for row, number, is_trained in zip(self.rows, self.numbers, are_trained, strict=True):
            lines.append(json.dumps({"row": number, "is_trained": is_trained} | row) + "\n")
        return "".join(lines)


def prompt_of(row: dict[str, Any]) -> str | None:
    """Return what is before the last answer of a row, as a text to compare.

    None if the row has no prompt, or is learnt as a whole.
    """
    answers = [name for name in ANSWERS if name in row]
    if answers:
        return json.dumps({name: row[name] for name in row if name not in answers}, sort_keys=True)
    parts = row.get("chosen") or row.get("pieces") or []
    learnt = [place for place, part in enumerate(parts) if part.get("learnt")]
    # Messages do not say what is learnt: the last one is the answer.
    last = learnt[-1] if learnt else len(parts) - 1
    if last <= 0 or all(part.get("learnt") for part in parts[:last]):
        return None
    return json.dumps([part["content"] for part in parts[:last]])


def size(rows: int, share: float | None) -> int:
    """Return how many of `rows` rows a share holds out."""
    return 0 if share is None else round(share * rows)


def drawn(available: int, count: int) -> set[int]:
    """Draw `count` of the rows 0 to `available` - 1: the first ones in a shuffle of all rows.

    Time and memory grow with `count` only (Fisher and Yates). Sets of the hub have millions of
    rows.
    """
    random = Random(HELD_OUT_SEED)
    moved_rows = dict[int, int]()
    drawn_rows = set[int]()
    for place in range(count):
        other = random.randrange(place, available)
        drawn_rows.add(moved_rows.get(other, other))
        moved_rows[other] = moved_rows.get(place, place)
    return drawn_rows


def refusal(
    share: float, rows: int, trained: Sequence[Any], held_out: Sequence[Any]
) -> Refusal | None:
    """Return why a share cannot be held out; None if rows are left to train and to measure on."""
    if trained and held_out:
        return None
    purpose = "measure" if trained else "train"
    remedy = "use `dataset.split=0`"
    if rows > 1:
        possible_share = 0.5 if not trained else ceil(100 / rows) / 100
        remedy = f"use `dataset.split={possible_share:g}`, or `dataset.split=0` to hold none out"
    return Refusal(
        "llm.split-empty",
        f"dataset.split={share:g}: leaves none of {rows} rows to {purpose} on; {remedy}",
        key="dataset.split",
        value=share,
        rows=rows,
        lacking=purpose,
    )
