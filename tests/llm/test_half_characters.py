"""Half of a surrogate pair in rows, as JSON can hold it: refused with its file, row and place,
of any kind of data.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import row_sources
from multicard.messages import Message
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused
from tests.llm.test_chat import with_template, written

HALF, LOW = "a \ud83d b", "\ude00"
Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
CHAT = ("dataset=chat",)
PAIRS = ("dataset=preference", "method=dpo")
ALPACA, GRAMMAR, SAMSUM = ("dataset=alpaca_cleaned",), ("dataset=grammar",), ("dataset=samsum",)
SLIMORCA = ("dataset=slimorca",)
GOOD: dict[tuple[str, ...], Any] = {
    CHAT: {"messages": [Q, A]},
    PAIRS: {"prompt": "Q", "chosen": "A", "rejected": "B"},
    ALPACA: {"instruction": "Q", "output": "A"},
    GRAMMAR: {"input": "Q", "output": "A"},
    SAMSUM: {"dialogue": "Q", "summary": "A"},
    SLIMORCA: {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
}
PLACES: list[tuple[tuple[str, ...], Any, str]] = [
    (CHAT, {"messages": [Q | {"content": HALF}, A]}, "messages[0].content"),
    (CHAT, {"messages": [Q, A | {"content": LOW}]}, "messages[1].content"),
    (CHAT, {"messages": [Q, A], "system": HALF}, "system"),
    (CHAT, {"instruction": "Q", "input": HALF, "output": "A"}, "input"),
    (CHAT, {"messages": json.dumps([Q, A | {"content": HALF}])}, "messages[1].content"),
    (CHAT, {"segments": [{"text": "Q", "label": False}, {"text": HALF, "label": True}]}, "segments[1].text"),
    (CHAT, {"note": HALF, "messages": [Q, A | {"content": HALF}]}, "messages[1].content"),
    (PAIRS, {"prompt": HALF, "chosen": "A", "rejected": "B"}, "prompt"),
    (PAIRS, {"chosen": [Q, A], "rejected": [Q, A | {"content": HALF}]}, "rejected[1].content"),
    (ALPACA, {"instruction": HALF, "output": "A"}, "instruction"),
    (ALPACA, {"instruction": "Q", "input": HALF, "output": "A"}, "input"),
    (GRAMMAR, {"input": "Q", "output": HALF}, "output"),
    (SAMSUM, {"dialogue": HALF, "summary": "A"}, "dialogue"),
    (SLIMORCA, {"conversations": [{"from": "human", "value": HALF}, {"from": "gpt", "value": "A"}]},
     "conversations[0].value"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "row", "place"), PLACES)
def test_half_a_character_is_refused_with_its_place(
    words: tuple[str, ...], row: Any, place: str, tmp_path: Path
):
    data = written(tmp_path, *[GOOD[words]] * 3, row)
    file = {"key": "dataset.data_files", "value": str(tmp_path / "chats.jsonl")}
    with refused("llm.broken-rows", **file, row=4, broken=1, rows=4) as caught:
        row_sources.load_rows(typed_llm(*words, data, "dataset.split=0"))
    find(str(caught.value), "llm.row-half-character", column=place)
    caught.value.message.sentence.encode()  # it can be printed


def test_a_text_that_is_learnt_whole_and_tools_are_looked_at(tmp_path: Path):
    text = written(tmp_path, {"text": HALF})
    with refused("llm.broken-rows") as caught:
        row_sources.load_rows(typed_llm(*CHAT, text, "dataset.loss=all"))
    assert find(str(caught.value), "llm.row-half-character", column="text")
    tool = {"type": "function", "function": {"name": "add", "description": HALF}}
    tools = written(tmp_path, {"messages": [Q, A], "tools": [tool]})
    with refused("llm.broken-rows") as caught:
        row_sources.load_rows(typed_llm(*CHAT, tools, with_template(tmp_path / "m", "qwen")))
    place = "tools[0].function.description"
    assert find(str(caught.value), "llm.row-half-character", column=place)


def test_json_in_a_cell_of_a_table_is_looked_at(tmp_path: Path):
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["messages"], [json.dumps([Q, A | {"content": HALF}])]])
    with refused("llm.broken-rows", row=1) as caught:
        row_sources.load_rows(typed_llm(*CHAT, f"dataset.data_files={tmp_path / 'rows.csv'}"))
    assert find(str(caught.value), "llm.row-half-character", column="messages[1].content")


def test_an_escape_that_is_text_is_read(tmp_path: Path):
    said = json.dumps({"emoji": "\ud83d"})
    data = written(tmp_path, {"messages": [Q | {"content": said}, A]}, GOOD[CHAT])
    rows = row_sources.load_rows(typed_llm(*CHAT, data, "dataset.split=0")).rows or []
    assert any(said in piece["content"] for row in rows for piece in row["pieces"])


def test_a_column_that_nobody_reads_may_hold_one_and_its_name_is_written_as_text(tmp_path: Path):
    data = written(tmp_path, GOOD[ALPACA] | {"id": HALF, "\ud83d": "x"})
    loaded = row_sources.load_rows(typed_llm(*ALPACA, data, "dataset.split=0"))
    assert (len(loaded.rows or []), loaded.ignored) == (1, {"id": 1, "\\ud83d": 1})
    assert Message("a.b", "not read: \ud83d, caf\udce9").sentence == "not read: \\ud83d, caf\\xe9"


def test_of_several_files_the_one_with_the_row_is_named(tmp_path: Path):
    written(tmp_path, *[GOOD[CHAT]] * 3, name="a.jsonl")
    written(tmp_path, GOOD[CHAT], PLACES[0][1], name="b.jsonl")
    with refused("llm.broken-rows", row=2, file=str(tmp_path / "b.jsonl"), value=str(tmp_path)):
        row_sources.load_rows(typed_llm(*CHAT, f"dataset.data_files={tmp_path}"))
    files = (
        f"dataset.data_files={tmp_path / 'a.jsonl'}",
        f"dataset.test_files={tmp_path / 'b.jsonl'}",
    )
    named = {"row": 2, "file": str(tmp_path / "b.jsonl"), "key": "dataset.test_files"}
    with refused("llm.test-rows-unlike", **named, reason="llm.row-half-character"):
        row_sources.load_rows(typed_llm(*CHAT, *files))
