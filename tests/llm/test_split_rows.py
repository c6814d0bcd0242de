"""Rows whose column names their split: those to test on are held out,
and none of them is trained on.
"""

from pathlib import Path
from typing import Any

import pytest

from multicard.llm import preflight
from multicard.llm.data import row_sources
from multicard.llm.data.row_sources import LoadedRows
from tests.conftest import typed_llm
from tests.helpers.messages import remedies
from tests.llm.test_chat import written

CHAT = ("dataset=chat", "batch_size=1")


def row(number: int, **others: Any) -> dict[str, Any]:
    return {"prompt": "Q", "completion": f"A{number}"} | others


def loaded(folder: Path, rows: list[dict[str, Any]], *words: str) -> LoadedRows:
    return row_sources.load_rows(typed_llm(written(folder, *rows), *CHAT, *words))


def split(*names: Any, column: str = "split") -> list[dict[str, Any]]:
    return [row(number, **{column: name}) for number, name in enumerate(names)]


SPLITS: dict[str, list[dict[str, Any]]] = {
    "train and test": split("train", "test", "train", "test", "train"),
    "other names": split("train_sft", "test_sft", "train_sft", "test_sft", "train_sft"),
    "in capitals": split("TRAIN", "Test", "TRAIN", "Test", "TRAIN", column="Split"),
    "another column": split("train", "dev", "train", "dev", "train", column="subset"),
    "a boolean": split(False, True, False, True, False, column="is_valid"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_rows_to_test_on_are_held_out_and_the_others_trained_on(name: str, tmp_path: Path):
    found = loaded(tmp_path, SPLITS[name])
    assert found.held_out is not None and found.held_out.numbers == [1, 3]
    assert len(found.rows or ()) == 3 and len(found.held_out.rows) == 2
    assert not found.ignored


def test_validation_is_taken_before_test_and_other_splits_are_counted(tmp_path: Path):
    rows = split("train", "test", "train", "validation", "train", "unsupervised", None)
    found = loaded(tmp_path, rows)
    assert found.held_out is not None and found.held_out.numbers == [3]
    assert found.ignored == {
        "rows of test (split)": 1,
        "rows of unsupervised (split)": 1,
        "rows of no split (split)": 1,
    }


@pytest.mark.parametrize(
    ("share", "held_out"), [("dataset.split=0", None), ("dataset.split=0.5", 2)]
)
def test_a_share_that_is_named_is_drawn_from_the_rows_to_train_on(
    share: str, held_out: int | None, tmp_path: Path
):
    rows = split("train", "test", "train", "test", "train", "train")
    found = loaded(tmp_path, rows, share)
    assert found.ignored == {"rows of test (split)": 2}
    assert len(found.rows or ()) == 4 - (held_out or 0)
    numbers = [] if found.held_out is None else found.held_out.numbers
    assert len(numbers) == (held_out or 0) and not {*numbers} & {1, 3}


def test_the_held_out_rows_are_said_with_words_that_train_on_all(tmp_path: Path):
    place = written(tmp_path, *SPLITS["train and test"])
    config = typed_llm(place, *CHAT)
    preflight.prepare(config)
    (notice,) = [
        each for each in preflight.notices(config) if each.code == "llm.held-out-by-column"
    ]
    assert (notice.facts["column"], notice.facts["part"], notice.facts["rows"]) == (
        "split",
        "test",
        2,
    )
    (remedy,) = remedies(notice)
    found = row_sources.load_rows(typed_llm(place, *CHAT, "dataset.split=0", remedy.strip("'")))
    assert len(found.rows or ()) == 5 and found.ignored == {"split": 5}


def test_a_column_can_be_named_that_is_called_otherwise(tmp_path: Path):
    rows = split("train", "test", "train", column="fold name")
    assert loaded(tmp_path, rows).held_out is None
    found = loaded(tmp_path, rows, "dataset.columns={split: fold name}")
    assert found.held_out is not None and found.held_out.numbers == [1]


@pytest.mark.parametrize(
    "rows",
    [
        split("a", "b", "a"),
        split("train", "train"),
        split("test", "test"),
        split("train", "x", column="set"),
    ],
    ids=["others", "train", "test", "one that is none"],
)
def test_a_column_that_names_no_two_kinds_of_splits_is_only_counted(
    rows: list[dict[str, Any]], tmp_path: Path
):
    found = loaded(tmp_path, rows, "dataset.split=0")
    assert len(found.rows or ()) == len(rows) and [*found.ignored.values()] == [len(rows)]
