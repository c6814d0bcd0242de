"""JSON that holds a table by its columns: read where it can mean nothing else; a single row stays
one.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import files, row_sources
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
ROWS = [{"question": "q", "answer": "a"}, {"question": "p", "answer": "b"}]
CELLS = [["q", "a"], ["p", "b"]]
SWAPPED = [["a", "q"], ["b", "p"]]
NAMES = ["question", "answer"]

# By form: what the file holds, its rows and what stands beside them
TABLES: dict[str, tuple[Any, list[Any], dict[str, int]]] = {
    "pandas' split": ({"columns": NAMES, "index": [0, 1], "data": CELLS}, ROWS, {}),
    "split, swapped": ({"columns": NAMES[::-1], "index": [0, 1], "data": SWAPPED}, ROWS, {}),
    "split with names of rows": (
        {"columns": NAMES, "index": ["x", "y"], "data": CELLS},
        ROWS,
        {"index": 1},
    ),
    "header and rows": ({"header": NAMES, "rows": CELLS, "ok": True}, ROWS, {"ok": 1}),
    "lists with a header": ([NAMES, *CELLS], ROWS, {}),
    "pandas' columns": (
        {"question": {"0": "q", "1": "p"}, "answer": {"0": "a", "1": "b"}},
        ROWS,
        {},
    ),
    "pandas' index": ({"0": ROWS[0], "1": ROWS[1]}, ROWS, {}),
    "rows by their names": ({"x": ROWS[0], "y": ROWS[1]}, ROWS, {"keys of rows": 2}),
    "a list for each column": ({"question": ["q", "p"], "answer": ["a", "b"]}, ROWS, {}),
    "lists and what is beside": (
        {"question": ["q", "p"], "answer": ["a", "b"], "tags": ["x"], "version": 1},
        ROWS,
        {"tags": 1, "version": 1},
    ),
    "ChatterBot": (
        {"categories": ["x"], "conversations": CELLS},
        [{"conversations": pair} for pair in CELLS],
        {"categories": 1},
    ),
    "conversations by columns": (
        {"messages": [[Q, A], [Q, A]], "id": [1, 2]},
        [{"messages": [Q, A], "id": 1}, {"messages": [Q, A], "id": 2}],
        {},
    ),
    "texts": ({"text": ["x", "y"]}, [{"text": "x"}, {"text": "y"}], {}),
}


def read_json(folder: Path, held: Any, name: str = "a.json") -> files.StoredRows:
    (folder / name).write_text(json.dumps(held))
    return files.read_file(str(folder / name))


@pytest.mark.parametrize("form", TABLES)
def test_a_table_by_its_columns_is_read_as_its_rows(form: str, tmp_path: Path):
    held, rows, beside = TABLES[form]
    found = read_json(tmp_path, held)
    assert (found.rows, dict(found.ignored)) == (rows, beside)


@pytest.mark.parametrize("form", ["pandas' split", "split, swapped", "pandas' columns"])
def test_a_table_in_the_only_line_is_read_as_its_rows(form: str, tmp_path: Path):
    held, rows, _ = TABLES[form]
    assert read_json(tmp_path, held, "a.jsonl").rows == rows


def test_lines_that_are_lists_have_the_names_of_the_first(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [NAMES, *CELLS]))
    assert files.read_file(str(tmp_path / "a.jsonl")).rows == ROWS


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [Q, A]},
        {"messages": [Q, A], "tools": [{"name": "f"}, {"name": "g"}]},
        {"conversations": ["Q", "A"]},
        {"dialog": ["Q", "A"], "act": [1, 1]},
        {"prompt": [Q], "completion": [A]},
        {"prompt": Q, "completion": A},
        {"messages": {"role": ["user", "assistant"], "content": ["Q", "A"]}},
        {"chosen": [Q, A], "rejected": [Q, A]},
        {"segments": [{"text": "Q", "label": False}, {"text": "A", "label": True}]},
        {"question": "q", "answer": ["a"], "tags": ["x"]},
        {"instruction": ["P", "Q"], "output": ["A"]},
        {"question": {"en": "q", "de": "f"}, "answer": {"en": "a", "de": "w"}},
    ],
)
def test_a_row_alone_stays_one_whatever_its_lists(row: Any, tmp_path: Path):
    assert read_json(tmp_path, row).rows == [row]


def test_cells_that_the_header_does_not_name_are_refused(tmp_path: Path):
    with refused("llm.data-file-unread") as caught:
        read_json(tmp_path, {"columns": NAMES, "data": [["q", "a"], ["p"]]})
    assert find(str(caught.value), "llm.json-cells", row=2, cells=1, columns=2)


@pytest.mark.parametrize(
    "held", [CELLS, [["ask", "reply"], *CELLS], {"x": {"y": 1}, "z": {"w": 2}}]
)
def test_lists_without_known_names_are_refused(held: Any, tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match=r"llm\.(broken-rows|data-file-unread)"):
        row_sources.load_rows(
            typed_llm("dataset=chat", f"dataset.data_files={tmp_path / 'a.json'}", "batch_size=1")
        )


def test_lists_that_are_named_as_splits_are_read_as_a_column_of_splits(tmp_path: Path):
    (tmp_path / "a.json").write_text(
        json.dumps({"train": ROWS, "validation": ROWS[:1], "test": ROWS, "by": "me"})
    )
    found = row_sources.load_rows(
        typed_llm("dataset=chat", f"dataset.data_files={tmp_path / 'a.json'}", "batch_size=1")
    )
    assert len(found.rows or []) == 2
    assert found.held_out is not None and len(found.held_out.rows) == 1
    assert dict(found.ignored) == {"by": 1, "rows of test (split)": 2}


def test_of_rows_to_test_on_those_of_the_training_split_are_left_out(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "b.json").write_text(json.dumps({"train": ROWS, "test": ROWS[:1]}))
    found = row_sources.load_rows(
        typed_llm(
            "dataset=chat",
            f"dataset.data_files={tmp_path / 'a.json'}",
            f"dataset.test_files={tmp_path / 'b.json'}",
            "batch_size=1",
        )
    )
    assert found.held_out is not None and found.held_out.numbers == [2]
    assert dict(found.ignored) == {"rows to train on (split)": 2}


@pytest.mark.parametrize(
    "held",
    [
        {"test": ROWS, "validation": ROWS},
        {"train": [row | {"split": "x"} for row in ROWS], "test": ROWS},
        {"train": ROWS, "more": ROWS},
    ],
)
def test_several_lists_of_another_kind_are_refused(held: Any, tmp_path: Path):
    with refused("llm.data-file-unread") as caught:
        read_json(tmp_path, held)
    assert find(str(caught.value), "llm.several-lists", lists=[*held])
