"""Rows whose answer is cut away at max_seq_len: counted and left out, before batches or packs are made of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX as IGNORED

from multicard.llm import labelled_rows
from tests.conftest import Measured
from tests.llm.test_llm_data import read

ROWS = 60
CASES = [["template=grammar"], ["template=summarize"], ["template=instruct"], ["method=dpo"]]


def built(folder: Path, *words: str) -> Any:
    return read(folder, f"dataset.rows={ROWS}", *words)[1]


def parts(row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of a row, or of a pair's two."""
    names = [("tokens", "labels")] if "tokens" in row else [(f"{n}_input_ids", f"{n}_labels") for n in CHOICES]
    return [(list(row[tokens]), [int(label) for label in row[labels]]) for tokens, labels in names]


CHOICES = ("chosen", "rejected")


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_rows_without_a_label_are_left_out(words: list[str], tmp_path: Path):
    whole = [parts(row) for row in built(tmp_path / "whole", *words)]
    lengths = [max(len(tokens) for tokens, _ in row) for row in whole]
    prompts = [next(i for i, label in enumerate(labels[1:]) if label != IGNORED) for row in whole for _, labels in row]
    learns_prompts = words == ["template=instruct"]
    assert len(whole) == ROWS
    # at the longest row's length all are whole; little above a median prompt's, longer prompts lose their answers
    for limit in (max(lengths), int(np.median(lengths if learns_prompts else prompts)) + 4):
        # by hand: of a longer row the first tokens remain, the last of which becomes the end, without a label
        cut = [[labels[: limit - 1] if len(tokens) > limit else labels for tokens, labels in row] for row in whole]
        expected = [all(any(label != IGNORED for label in labels[1:]) for labels in row) for row in cut]
        rows = built(tmp_path / str(limit), *words, f"max_seq_len={limit}")
        too_long = sum(length > limit for length in lengths)
        counts = {"read": ROWS, "cut": too_long, "left_out": ROWS - sum(expected), "broken": None, "sequences": None}
        assert labelled_rows.counts(rows) == counts and len(rows) == sum(expected)
        kept = [row for row, has_label in zip(whole, expected, strict=True) if has_label]
        for row, original in zip(rows, kept, strict=True):
            for (tokens, labels), (before, _) in zip(parts(row), original, strict=True):
                assert tokens[: limit - 1] == before[: limit - 1] and len(tokens) <= limit
                assert any(label != IGNORED for label in labels[1:])
    assert too_long > 0 and (counts["left_out"] > 0) is not learns_prompts


def test_no_row_has_more_tokens_than_its_bound_and_short_ones_are_not_tokenized(tmp_path: Path, monkeypatch):
    for words in CASES:
        rows = built(tmp_path / words[0], *words)
        for bound, row in zip(labelled_rows.most_tokens(rows._rows._data), rows, strict=True):
            assert max(len(tokens) for tokens, _ in parts(row)) <= bound
    monkeypatch.setattr(labelled_rows, "labels", lambda _: pytest.fail("tokenized"))
    whole = {"read": ROWS, "cut": 0, "left_out": 0, "broken": None, "sequences": None}
    assert labelled_rows.counts(built(tmp_path / "again")) == whole


def test_packs_hold_no_row_without_a_label(tmp_path: Path):
    words, limit = ["template=grammar"], "max_seq_len=40"
    rows = built(tmp_path / "rows", *words, limit)
    packs = built(tmp_path / "packs", *words, limit, "packed=true")
    assert labelled_rows.counts(packs) == labelled_rows.counts(rows) | {"sequences": len(packs)}
    assert 0 < labelled_rows.counts(packs)["left_out"] < ROWS
    packed = [int(label) for pack in packs for label in pack["labels"] if label != IGNORED]
    assert packed == [label for row in rows for _, labels in parts(row) for label in labels if label != IGNORED]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["max_seq_len=3"], "rank 0: max_seq_len=3: cuts the answer off every one of the 10 rows; use a larger one"),
        (["max_seq_len=60", "packed=true", "batch_size=11"], "rank 0: max_seq_len=60: gives 10 sequences, less than"),
    ],
)
def test_too_little_to_tune_on_ends_in_a_line(tuned: Measured, words: list[str], says: str):
    record = tuned("template=grammar", "dataset.rows=10", *words)
    assert record["status"] == "failed" and record["cause"]["message"].startswith(says), record["cause"]


def test_bytes_of_all_text_of_a_row_whatever_its_columns():
    import datasets

    turns = [[{"from": "human", "value": "é?"}], [], None]
    rows = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": ["abc", "", None], "conversations": turns})
    around, each = labelled_rows.AROUND_ROW, labelled_rows.AROUND_TEXT
    assert labelled_rows.most_tokens(rows).tolist() == [around + 3 + 3 * each + 5 + 3, around + each, around]
    assert labelled_rows.most_tokens(rows.select([2, 0])).tolist() == [around, around + 3 + 3 * each + 5 + 3]
    assert labelled_rows.most_tokens(rows.select([])).tolist() == []
