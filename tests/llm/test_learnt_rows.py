"""Rows whose own columns say that they are not learnt: switches of a row, and labels of answers
that are wanted or not.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import row_sources
from multicard.messages import Refusal
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused
from tests.llm.test_chat import written

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
ALL = "dataset.split=0"
CHAT = ("dataset=chat", ALL)
SLIMORCA = ("dataset=slimorca", ALL)
PREFERENCE = ("dataset=preference", "method=dpo", ALL)
ALPACA, GRAMMAR = ("dataset=alpaca_cleaned", ALL), ("dataset=grammar", ALL)
SAMSUM = ("dataset=samsum", ALL)
ASKED = {"prompt": "Q", "completion": "A"}
INSTRUCTED = {"instruction": "Q", "input": "", "output": "A"}
TURNS = {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}
PAIR = {"prompt": "Q", "chosen": "A", "rejected": "B"}


def read_rows(place: str, *words: str) -> row_sources.LoadedRows:
    return row_sources.load_rows(typed_llm(place, "batch_size=1", *words))


# The words of a command, a row without its label, and the label's column with both verdicts
LABELLED: list[tuple[tuple[str, ...], Any, str, Any, Any]] = [
    (CHAT, ASKED, "label", True, False),
    (CHAT, ASKED, "label", 1, 0),
    (CHAT, ASKED, "label", 1.0, 0.0),
    (CHAT, ASKED, "label", "True", "False"),
    (CHAT, ASKED, "Label", "yes", " NO "),
    (CHAT, ASKED, "label", "chosen", "rejected"),
    (CHAT, ASKED, "label", 1, -1),
    (CHAT, ASKED, "kto_tag", "true", "false"),
    (CHAT, ASKED, "desirable", True, False),
    (CHAT, ASKED, "is_correct", True, False),
    (CHAT, ASKED, "chosen", True, False),
    (CHAT, ASKED, "undesirable", False, True),
    (CHAT, ASKED, "is_bad", "no", "yes"),
    (CHAT, {"messages": [Q, A]}, "label", 1, 0),
    (CHAT, TURNS, "kto_tag", "1", "0"),
    (SLIMORCA, TURNS, "label", "true", "false"),
    (ALPACA, INSTRUCTED, "label", True, False),
    (ALPACA, INSTRUCTED, "kto_tag", "1.0", "0.0"),
    (GRAMMAR, {"input": "Q", "output": "A"}, "label", "good", "bad"),
    (SAMSUM, {"dialogue": "Q", "summary": "A"}, "label", True, False),
]


@pytest.mark.parametrize(("words", "row", "column", "wanted", "unwanted"), LABELLED)
def test_rows_that_say_whether_their_answer_is_wanted_are_refused_and_the_remedy_learns_those_alone(
    words: tuple[str, ...], row: Any, column: str, wanted: Any, unwanted: Any, tmp_path: Path
):
    place = written(tmp_path, *[row | {column: value} for value in (unwanted, wanted, unwanted)])
    with refused("llm.broken-rows", broken=3) as caught:
        read_rows(place, *words)
    found = find(str(caught.value), "llm.row-kto", column=column)
    (word,) = shlex.split(found.facts["remedy"])
    learnt = read_rows(place, *words, word)
    assert learnt.rows is not None and len(learnt.rows) == 1
    assert dict(learnt.ignored) == {f"rows that are not to be learnt ({column})": 2}
    all_rows = read_rows(place, *words, f"dataset.columns={{{column}: null}}").rows
    assert all_rows is not None and len(all_rows) == 3


@pytest.mark.parametrize("label", ["true", "1", "yes"])
def test_labels_in_cells_are_read_as_those_of_json(label: str, tmp_path: Path):
    (tmp_path / "a.csv").write_text(f"prompt,completion,label\nP,A,{label}\nQ,B,{label}\n")
    with refused("llm.broken-rows") as caught:
        read_rows(f"dataset.data_files={tmp_path / 'a.csv'}", *CHAT)
    assert find(str(caught.value), "llm.row-kto", column="label")


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ((*CHAT, "dataset.loss=all"), {"text": "Q", "label": 1}),
        (CHAT, ASKED | {"label": "spam"}),
        (CHAT, ASKED | {"label": 2}),
        (CHAT, ASKED | {"correct": "A"}),
        (PREFERENCE, PAIR | {"label": True}),
    ],
)
def test_a_column_that_says_something_else_is_named(
    words: tuple[str, ...], row: Any, tmp_path: Path
):
    found = read_rows(written(tmp_path, row), *words)
    assert len(found.rows or []) == 1 and [*found.ignored] == [[*row][-1]]


@pytest.mark.parametrize("value", [None, "", "spam", 3])
def test_a_named_column_that_does_not_say_whether_an_answer_is_wanted_is_refused(
    value: Any, tmp_path: Path
):
    place = written(tmp_path, ASKED | {"label": True}, ASKED | {"label": value})
    with refused("llm.broken-rows", row=2, broken=1) as caught:
        read_rows(place, *CHAT, "dataset.columns={wanted: label}")
    assert find(str(caught.value), "llm.row-wanted", column="label")


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (CHAT, {"messages": [Q, A]}),
        (CHAT, ASKED),
        ((*CHAT, "dataset.loss=all"), {"text": "Q"}),
        (ALPACA, INSTRUCTED),
        (PREFERENCE, PAIR),
    ],
)
@pytest.mark.parametrize(
    ("column", "on", "off"),
    [
        ("weight", 1, 0),
        ("weight", "1", "0.0"),
        ("train", True, False),
        ("loss", "true", "False"),
        ("Training", True, False),
        ("masked", False, True),
    ],
)
def test_a_row_that_is_not_to_be_learnt_is_left_out_and_counted(
    words: tuple[str, ...], row: Any, column: str, on: Any, off: Any, tmp_path: Path
):
    place = written(tmp_path, *[row | {column: value} for value in (off, on, on)], row)
    found = read_rows(place, *words)
    assert len(found.rows or []) == 3
    assert dict(found.ignored) == {f"rows that are not to be learnt ({column})": 1}


@pytest.mark.parametrize(
    ("column", "value"), [("weight", 0.5), ("weight", "0.5"), ("loss", 1.83), ("train", [0, 1])]
)
def test_a_weight_of_a_row_that_cannot_be_heeded_is_refused_with_words_that_work(
    column: str, value: Any, tmp_path: Path
):
    place = written(tmp_path, ASKED | {column: value})
    with refused("llm.broken-rows") as caught:
        read_rows(place, *CHAT)
    found = find(str(caught.value), "llm.row-weight", column=column)
    (word,) = shlex.split(found.facts["remedy"])
    assert dict(read_rows(place, *CHAT, word).ignored) == {column: 1}


@pytest.mark.parametrize("value", ["notes", "nan"])
def test_a_switch_that_says_nothing_is_named(value: Any, tmp_path: Path):
    found = read_rows(written(tmp_path, ASKED | {"training": value}), *CHAT)
    assert len(found.rows or []) == 1 and dict(found.ignored) == {"training": 1}


def test_rows_of_which_none_is_to_be_learnt_are_refused(tmp_path: Path):
    place = written(tmp_path, ASKED | {"weight": 0}, ASKED | {"weight": 0})
    with refused("llm.rows-unlearnt", column="weight") as caught:
        read_rows(place, *CHAT)
    (word,) = shlex.split(caught.value.facts["remedy"])
    assert len(read_rows(place, *CHAT, word).rows or []) == 2


def test_rows_to_test_on_are_left_out_by_the_same_column(tmp_path: Path):
    row = ASKED | {"label": True}
    trained = written(tmp_path / "a", row, row)
    place = written(tmp_path / "b", row, ASKED | {"label": False})
    tested = place.replace("dataset.data_files", "dataset.test_files")
    found = read_rows(trained, "dataset=chat", tested, "dataset.columns={wanted: label}")
    assert found.held_out is not None and found.held_out.numbers == [0]
    with pytest.raises(Refusal):
        read_rows(trained, "dataset=chat", tested)
