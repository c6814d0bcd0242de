"""Files of rows in each form, alone, several, in folders: read whole, or refused;
what is no row is counted.
"""

import bz2
import gzip
import json
import lzma
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.config.base import plain
from multicard.llm import preflight
from multicard.llm.data import columns, files, row_sources
from multicard.records import content
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused, says

ROWS = [{"input": 'a, "b"\n c', "output": "é"}, {"input": "d", "output": "e"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def arrow(rows: list[Any], stream: bool) -> bytes:
    table, sink = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    writer = pa.ipc.new_stream if stream else pa.ipc.new_file
    with writer(sink, table.schema) as written:
        written.write_table(table)
    return sink.getvalue().to_pybytes()


def separated(delimiter: str) -> str:
    quoted = ['"' + text.replace('"', '""') + '"' for row in ROWS for text in row.values()]
    lines = [["input", "output"], quoted[:2], quoted[2:]]
    return "".join(delimiter.join(line) + "\r\n" for line in lines)


def parquet(folder: Path) -> bytes:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "x")
    return (folder / "x").read_bytes()


# By the file's name: its bytes
FORMS: dict[str, bytes | Callable[[Path], bytes]] = {
    "a.jsonl": LINES.encode(),
    "a.ndjson": LINES.encode(),
    "lines.json": LINES.encode(),
    "list.json": json.dumps(ROWS).encode(),
    "list.jsonl": json.dumps(ROWS, indent=1).encode(),
    "bom.jsonl": LINES.encode("utf-8-sig"),
    "key.json": json.dumps({"version": "1", "data": ROWS}, indent=2).encode(),
    "a.jsonl.gz": gzip.compress(LINES.encode()),
    "a.json.bz2": bz2.compress(json.dumps(ROWS).encode()),
    "a.jsonl.zst": pa.Codec("zstd").compress(LINES.encode(), asbytes=True),
    # two frames, as parallel compressors write them
    "frames.jsonl.zst": b"".join(
        pa.Codec("zstd").compress(line.encode(), asbytes=True)
        for line in LINES.splitlines(keepends=True)
    ),
    "a.csv.xz": lzma.compress(separated(",").encode()),
    "a.csv": separated(",").encode("utf-8-sig"),
    "semicolons.csv": separated(";").encode(),
    "excel.csv": ("sep=;\r\n" + separated(";")).encode("utf-8-sig"),
    "told.csv": ("sep=,\n" + separated(",")).encode(),
    "unicode.csv": separated("\t").encode("utf-16"),
    "unicode.tsv": separated("\t").encode("utf-16"),
    "big.csv": b"\xfe\xff" + separated(",").encode("utf-16-be"),
    "utf16.jsonl": LINES.encode("utf-16"),
    "a.tsv": separated("\t").encode(),
    "a.parquet": parquet,
    "stream.arrow": arrow(ROWS, stream=True),
    "file.arrow": arrow(ROWS, stream=False),
    "A.JSONL": LINES.encode(),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_same_rows_are_read_of_each_form_of_file(name: str, tmp_path: Path):
    held = FORMS[name]
    (tmp_path / name).write_bytes(held if isinstance(held, bytes) else held(tmp_path))
    found = files.read_file(str(tmp_path / name))
    assert found.rows == [
        {key: text.replace("\r\n", "\n") for key, text in row.items()} for row in ROWS
    ]
    assert found.ignored == ({"version": 1} if name == "key.json" else {})


MISSING = {
    "a.csv": ("instruction,input,output,note\nI,nan,O,nan\nI, ,None,x\n", "input", "output"),
    "a.jsonl": (
        '{"messages": [{"role": "user", "content": "nan"},'
        ' {"role": "assistant", "content": "O"}]}\n'
        '{"prompt": "Is it null or None?", "completion": "None"}\n',
        "messages of the user",
        "completion",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_words_for_a_missing_value_are_told_before_the_start(name: str, tmp_path: Path):
    text, nan_in, none_in = MISSING[name]
    (tmp_path / name).write_text(text)
    key = f"dataset.data_files={tmp_path / name}"
    config = typed_llm("dataset=chat", key, "dataset.split=0", "batch_size=1")
    preflight.prepare(config)
    (told,) = (
        notice for notice in preflight.notices(config) if says(str(notice), "llm.missing-words")
    )
    assert told.facts["words"] == {f"nan in {nan_in}": 1, f"None in {none_in}": 1}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.arrow"])
def test_nan_is_an_empty_cell(name: str, tmp_path: Path):
    row = {"instruction": "I", "input": math.nan, "output": "O", "score": math.nan}
    stored = row if name == "a.jsonl" else [row]
    if name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_text(json.dumps(stored))
    elif name == "a.arrow":
        (tmp_path / name).write_bytes(arrow([row], stream=True))
    else:
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name)
    key = f"dataset.data_files={tmp_path / name}"
    for dataset in ("alpaca_cleaned", "chat"):
        inputs = preflight.prepare(
            typed_llm(f"dataset={dataset}", key, "dataset.split=0", "batch_size=1")
        )
        assert "nan" not in json.dumps(inputs.rows).lower()
        assert not inputs.ignored


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.json", {"train": ROWS, "more": ROWS}, "llm.several-lists"),
        ("a.json", {"a": {"b": 1}}, "llm.no-list"),
        ("a.csv", "input,output\na,b,c\n", "llm.csv-cells"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "llm.bad-line"),
        ("a.json", "[1,\n2", "llm.bad-line"),
        ("a.csv", "input,input\na,b\n", "llm.csv-header"),
        ("a.csv", "input,,\na,b,c\n", "llm.csv-header"),
        ("a.json", '[{"input": "a", "input": "b"}]', "llm.json-key-twice"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(
    name: str, text: Any, code: str, tmp_path: Path
):
    (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
    with refused("llm.data-file-unread", value=str(tmp_path / name)) as caught:
        files.read_file(str(tmp_path / name))
    assert find(str(caught.value), code)


@pytest.mark.parametrize(
    ("encoding", "likely"),
    [("cp1252", "WINDOWS-1252"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE")],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_an_encoding_that_a_file_does_not_tell_is_refused_with_the_line(
    name: str, encoding: str, likely: str, tmp_path: Path
):
    text = "input\toutput\nf\xfcr\tb\n" if name != "a.jsonl" else '{"a": 1}\n{"a": "\xfc"}\n'
    (tmp_path / name).write_bytes(text.encode(encoding))
    with refused("llm.data-file-unread") as caught:
        files.read_file(str(tmp_path / name))
    line = 2 if encoding == "cp1252" else 1
    assert find(str(caught.value), "table.encoding", likely=likely, line=line)


def test_a_column_without_a_name_is_called_so(tmp_path: Path):
    (tmp_path / "a.csv").write_text(",instruction,output\n0,a,b\n1,c,d\n")
    ignored = preflight.prepare(
        typed_llm("dataset=chat", f"dataset.data_files={tmp_path / 'a.csv'}")
    ).ignored
    assert ignored == {columns.UNNAMED: 2}


@pytest.mark.parametrize(
    ("name", "text", "code", "line"),
    [
        ("a.csv", 'input,output\na,b\n"c,d\ne,f\n', "llm.csv-quotes", 3),
        ("a.csv", 'input,output\na,b\n"c,d\ne,f\n"g",h\n', "llm.csv-quotes", 3),
        ("a.csv", 'input,output\n"c" d,e\n', "llm.csv-quotes", 2),
        ("a.tsv", 'input\toutput\n"c\td\ne"\tf\n', "llm.csv-quotes", 2),
        ("a.tsv", 'input\toutput\n"c\td\ne\n', "llm.csv-quotes", 2),
        ("a.jsonl", '{"a": 1}\n{"a": {"b": 1, "b": 2}}\n', "llm.json-key-twice", 2),
        ("a.jsonl", '{"a": 1, "a": 2}\n', "llm.json-key-twice", 1),
    ],
)
def test_rows_that_would_be_swallowed_are_refused_with_their_line(
    name: str, text: str, code: str, line: int, tmp_path: Path
):
    (tmp_path / name).write_text(text)
    with refused("llm.data-file-unread") as caught:
        files.read_file(str(tmp_path / name))
    assert find(str(caught.value), code, line=line)


@pytest.mark.parametrize(
    ("name", "text", "cells"),
    [
        ("a.tsv", 'input\toutput\n"c" d\te\n"f\tg\n', [('"c" d', "e"), ('"f', "g")]),
        ("a.tsv", 'input\toutput\n"c"\t"d\te"\n"f\n""g"\th\n', [("c", "d\te"), ('f\n"g', "h")]),
        ("a.csv", 'input\toutput\n"c" d\te\n', [('"c" d', "e")]),
        ("a.csv", 'input,output,,\n5" pipe,b,,\n\n', [('5" pipe', "b")]),
    ],
)
def test_quotes_are_read_as_they_are_meant(
    name: str, text: str, cells: list[tuple[str, str]], tmp_path: Path
):
    (tmp_path / name).write_text(text)
    assert [
        (row["input"], row["output"]) for row in files.read_file(str(tmp_path / name)).rows
    ] == cells


def test_an_object_alone_is_a_row_whatever_lists_it_has(tmp_path: Path):
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    for row in ({"messages": turns, "tools": [{"name": "add"}]}, {"input": "a", "output": "b"}):
        (tmp_path / "a.json").write_text(json.dumps(row, indent=1))
        assert files.read_file(str(tmp_path / "a.json")).rows == [row]
    (tmp_path / "a.jsonl").write_text(json.dumps({"data": [{"input": "a"}]}))
    assert files.read_file(str(tmp_path / "a.jsonl")).rows == [{"data": [{"input": "a"}]}]


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    assert len(files.read_file(str(tmp_path / "a.jsonl")).rows) == 1
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert len(files.read_file(str(tmp_path / "a.jsonl")).rows) == 2


# ---- several files


def folder_of(folder: Path, *names: str) -> Path:
    """Each file has one row, which says its name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        row = {"input": name, "output": "b"}
        (folder / name).write_bytes(
            arrow([row], stream=True) if name.endswith(".arrow") else json.dumps(row).encode()
        )
    return folder


def read_names(place: Any) -> list[str]:
    return [row["input"] for row in files.read_file(place).rows]


def test_a_folder_a_pattern_and_a_list_are_all_of_their_files(tmp_path: Path):
    folder_of(tmp_path, "a.jsonl", "b/c.jsonl", "README.md", "x.md", ".cache/d.jsonl", "b/e.json")
    found = files.read_file(str(tmp_path))
    assert read_names(str(tmp_path)) == ["a.jsonl", "b/c.jsonl", "b/e.json"] and found.ignored == {
        "*.md": 2,
        ".cache/": 1,
    }
    assert read_names(f"{tmp_path}/**/*.jsonl") == ["a.jsonl", "b/c.jsonl"]
    assert read_names([str(tmp_path / "b"), str(tmp_path / "a.jsonl"), f"{tmp_path}/a*"]) == [
        "b/c.jsonl",
        "b/e.json",
        "a.jsonl",
    ]
    config = typed_llm(
        "dataset=grammar", f"dataset.data_files=[{tmp_path}/a.jsonl,{tmp_path}/b]", "dataset.rows=3"
    )
    inputs = preflight.prepare(config)
    assert len(inputs.rows or []) == 3 and plain(config)["dataset"]["data_files"] == [
        f"{tmp_path}/a.jsonl",
        f"{tmp_path}/b",
    ]


@pytest.mark.parametrize(
    ("names", "read", "ignored"),
    [
        (
            ["train.jsonl", "test.jsonl", "validation.jsonl"],
            ["train.jsonl"],
            ["test.jsonl", "validation.jsonl"],
        ),
        (
            ["data/train-0-of-2.json", "data/train-1-of-2.json", "data/test-0-of-1.json"],
            ["data/train-0-of-2.json", "data/train-1-of-2.json"],
            ["data/test-0-of-1.json"],
        ),
        (["Training/a.jsonl", "Testing/a.jsonl"], ["Training/a.jsonl"], ["Testing/a.jsonl"]),
        (
            ["my_data_train.jsonl", "my_data_val.jsonl"],
            ["my_data_train.jsonl"],
            ["my_data_val.jsonl"],
        ),
        (["part.jsonl", "dev.jsonl"], ["part.jsonl"], ["dev.jsonl"]),
        (["latest.jsonl", "contest.jsonl"], ["contest.jsonl", "latest.jsonl"], []),
        (
            ["train2024.jsonl", "test2024.jsonl", "val2024.jsonl"],
            ["train2024.jsonl"],
            ["test2024.jsonl", "val2024.jsonl"],
        ),
        (["wiki.train.jsonl", "wiki.test.jsonl"], ["wiki.train.jsonl"], ["wiki.test.jsonl"]),
        (
            ["squad_train_v1.json", "squad_dev_v1.json"],
            ["squad_train_v1.json"],
            ["squad_dev_v1.json"],
        ),
        (["trainset.jsonl", "testset.jsonl"], ["trainset.jsonl"], ["testset.jsonl"]),
        (["TrainData.jsonl", "TestData.jsonl"], ["TrainData.jsonl"], ["TestData.jsonl"]),
        (["a_dev_kit.jsonl", "b_test_kit.jsonl"], ["a_dev_kit.jsonl", "b_test_kit.jsonl"], []),
        (
            [
                "train-00000-of-00002-a09b74b3ef9c3b56.json",
                "train-00001-of-00002-b09b74b3ef9c3b57.json",
            ],
            [
                "train-00000-of-00002-a09b74b3ef9c3b56.json",
                "train-00001-of-00002-b09b74b3ef9c3b57.json",
            ],
            [],
        ),
    ],
)
def test_of_a_folder_of_splits_the_training_split_is_read_and_the_others_are_named(
    names: list[str], read: list[str], ignored: list[str], tmp_path: Path
):
    folder_of(tmp_path, *names)
    assert read_names(str(tmp_path)) == read
    assert files.read_file(str(tmp_path)).ignored == dict.fromkeys(ignored, 1)


@pytest.mark.parametrize(
    ("names", "splits", "first"),
    [
        (
            ["train_prefs-0.json", "train_prefs-1.json", "train_sft-0.json", "test_prefs-0.json"],
            ["train_prefs-0.json", "train_sft-0.json"],
            ["train_prefs-0.json", "train_prefs-1.json"],
        ),
        (
            ["main/train.json", "socratic/train.json"],
            ["main/train.json", "socratic/train.json"],
            ["main/train.json"],
        ),
        (
            ["a/train/0000.json", "a/train/0001.json", "a/test/0000.json", "b/train/0000.json"],
            ["a/train/", "b/train/"],
            ["a/train/0000.json", "a/train/0001.json"],
        ),
        (["en/train/a.json", "fr/train/a.json"], ["en/train/", "fr/train/"], ["en/train/a.json"]),
        (["train.json", "train.jsonl"], ["train.json", "train.jsonl"], ["train.json"]),
    ],
)
def test_several_training_splits_are_refused_with_the_files_of_one(
    names: list[str], splits: list[str], first: list[str], tmp_path: Path
):
    folder_of(tmp_path, *names)
    with refused("llm.data-two-trains", key="dataset.data_files", splits=splits) as caught:
        files.read_file(str(tmp_path))
    (word,) = shlex.split(caught.value.facts["remedy"])
    if "/" in names[0]:
        assert word.endswith(f"/{names[0].partition('/')[0]}")  # the folder of a configuration
    found = row_sources.load_rows(typed_llm("dataset=grammar", word, "batch_size=1")).rows or []
    assert sorted(row["input"] for row in found) == first


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["default/train/0000.json", "default/test/0000.json"], "default/train/0000.json"),
        (
            ["data/train-00000-of-00001.json", "data/test-00000-of-00001.json"],
            "data/train-00000-of-00001.json",
        ),
        (["plain_text/train-0.json", "plain_text/validation-0.json"], "plain_text/train-0.json"),
    ],
)
def test_the_layouts_of_the_hub_are_read_by_their_folder(
    names: list[str], read: str, tmp_path: Path
):
    folder_of(tmp_path, *names)
    assert read_names(str(tmp_path)) == [read]
    assert files.read_file(str(tmp_path)).ignored == {names[1]: 1}


@pytest.mark.parametrize("pattern", ["", "train-*"])
def test_a_missing_shard_is_named_with_the_files_to_read_alone(tmp_path: Path, pattern: str):
    names = ["train-00000-of-00003.json", "train-00002-of-00003.json"]
    folder_of(tmp_path, *names)
    value = str(tmp_path / pattern)
    missing = ["train-00001-of-00003.json"]
    with refused("llm.data-missing-shards", key="dataset.data_files", missing=missing) as caught:
        files.read_file(value)
    (word,) = shlex.split(caught.value.facts["remedy"])
    found = row_sources.load_rows(typed_llm("dataset=grammar", word, "batch_size=1")).rows or []
    assert sorted(row["input"] for row in found) == names
    folder_of(tmp_path, *missing)
    assert len(files.read_file(value).rows) == 3


def test_a_file_is_read_once_and_links_and_hidden_files_are_named(tmp_path: Path):
    folder_of(tmp_path / "data", "a.jsonl", ".b.jsonl", ".DS_Store")
    folder_of(tmp_path / "other", "c.jsonl")
    (tmp_path / "data" / "A.jsonl").symlink_to("a.jsonl")
    (tmp_path / "data" / "hard.jsonl").hardlink_to(tmp_path / "data" / "a.jsonl")
    (tmp_path / "data" / "gone.jsonl").symlink_to("nothing")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "other")
    found = files.read_file(str(tmp_path / "data"))
    assert [row["input"] for row in found.rows] == ["a.jsonl"]
    assert found.ignored == dict.fromkeys(
        ["A.jsonl", "hard.jsonl", ".b.jsonl", "gone.jsonl", "more/"], 1
    )


def test_a_copy_is_read_once_and_files_without_rows_are_named(tmp_path: Path):
    folder_of(tmp_path, "a.jsonl", "b.jsonl")
    (tmp_path / "a (1).jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "none.json").write_text("[]")
    (tmp_path / "dataset_infos.json").write_text(json.dumps({"default": {"splits": {}}}))
    found = files.read_file(str(tmp_path))
    assert sorted(row["input"] for row in found.rows) == ["a.jsonl", "b.jsonl"]
    assert found.ignored == dict.fromkeys(
        ["a.jsonl (a copy)", "empty.jsonl (no rows)", "none.json (no rows)", "*.json"], 1
    )


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_a_damaged_stream_after_the_first_one_is_not_passed_over(
    compress: Callable[[bytes], bytes], tmp_path: Path
):
    name = "a.jsonl.bz2" if compress is bz2.compress else "a.jsonl.xz"
    (first, second) = (compress(line.encode()) for line in LINES.splitlines(keepends=True))
    (tmp_path / name).write_bytes(first + second)
    assert files.read_file(str(tmp_path / name)).rows == ROWS
    for damaged in (second[:-4], b"x" + second[1:]):
        (tmp_path / name).write_bytes(first + damaged)
        with refused("llm.data-file-unread"):
            files.read_file(str(tmp_path / name))


def test_files_with_byte_order_marks_may_follow_one_another(tmp_path: Path):
    lines = LINES.splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join(line.encode("utf-8-sig") for line in lines))
    assert files.read_file(str(tmp_path / "a.jsonl")).rows == ROWS


def test_a_folder_without_a_training_split_is_refused_with_a_file_to_name(tmp_path: Path):
    folder_of(tmp_path, "test.jsonl", "validation.jsonl")
    with refused("llm.data-folder-splits", splits=["test", "validation"]) as caught:
        files.read_file(str(tmp_path))
    assert read_names(caught.value.facts["remedy"].partition("=")[2]) == ["test.jsonl"]
    (tmp_path / "empty").mkdir()
    with refused("llm.data-folder-empty"):
        files.read_file(str(tmp_path / "empty"))
    with refused("llm.data-file-absent", value=f"{tmp_path}/*.csv"):
        files.read_file(f"{tmp_path}/*.csv")


def test_of_a_folder_that_datasets_wrote_its_listed_files_alone_are_read(tmp_path: Path):
    folder_of(
        tmp_path,
        "train/data-00000-of-00001.arrow",
        "train/cache-1a2b.arrow",
        "test/data-00000-of-00001.arrow",
    )
    for split in ("train", "test"):
        listed = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (tmp_path / split / "state.json").write_text(json.dumps(listed))
        (tmp_path / split / "dataset_info.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read_names(str(tmp_path)) == ["train/data-00000-of-00001.arrow"]
    found = files.read_file(str(tmp_path))
    assert found.ignored == {"*.json": 5, "*.arrow": 1, "test/data-00000-of-00001.arrow": 1}


def test_several_files_are_identified_by_all_of_them_and_one_as_before(tmp_path: Path):
    folder_of(tmp_path, "a.jsonl", "b/c.jsonl")

    def parts(place: str) -> dict[str, str]:
        return content.fingerprint(
            preflight.data_parts(typed_llm("dataset=grammar", f"dataset.data_files={place}"))
        ).parts

    both = parts(str(tmp_path))
    assert (
        both == parts(f"[{tmp_path}/a.jsonl,{tmp_path}/b/c.jsonl]") != parts(f"{tmp_path}/a.jsonl")
    )
    (tmp_path / "b" / "c.jsonl").write_text("{}")
    assert parts(str(tmp_path)) != both
    assert [
        name
        for name, _ in files.identified(
            typed_llm("dataset=grammar", f"dataset.data_files={tmp_path}/a.jsonl").dataset
        )
    ] == ["rows"]


@pytest.mark.parametrize("value", ["{a: b}", "[]", "3", "[1]"])
def test_what_is_no_file_is_refused(value: str):
    with refused("config.data-files", key="dataset.data_files"):
        typed_llm("dataset=grammar", f"dataset.data_files={value}")


# ---- Arrow's nulls


def test_nulls_of_arrows_union_of_columns_reach_no_text(tmp_path: Path):
    """Tools and calls of other parameters: stored together, each has the keys of all."""

    def row(name: str, arguments: Any) -> Any:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        tool = {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"properties": {key: {"type": "string"} for key in arguments}},
            },
        }
        turns = [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        return {"messages": turns, "tools": [tool]}

    rows = [row("a", {"x": "1"}), row("b", {"y": "2", "z": "3"})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (tmp_path / "t.jinja").write_text(
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ (m.tool_calls or '') | tojson }}\n{% endfor %}"
    )

    def texts(name: str) -> Any:
        words = (
            "dataset=chat",
            f"dataset.data_files={tmp_path / name}",
            f"dataset.chat_template={tmp_path}/t.jinja",
        )
        return row_sources.load_rows(typed_llm(*words, "dataset.loss=all")).rows

    assert texts("r.parquet") == texts("r.jsonl") and "null" not in json.dumps(texts("r.parquet"))


@pytest.mark.parametrize("names", [["a.jsonl", "a.json"], ["b/a.json", "b/a.jsonl", "c.json"]])
def test_files_of_one_name_in_several_forms_are_refused_with_one_of_them(
    names: list[str], tmp_path: Path
):
    folder_of(tmp_path, *names)
    with refused("llm.data-file-twice", key="dataset.data_files") as caught:
        files.read_file(str(tmp_path))
    (word,) = shlex.split(caught.value.facts["remedy"])
    found = row_sources.load_rows(typed_llm("dataset=grammar", word, "batch_size=1"))
    assert found.available == len({Path(name).stem for name in names})


def test_a_file_and_its_compressed_copy_are_refused(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text(LINES)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    with refused("llm.data-file-twice", names=["train.jsonl", "train.jsonl.gz"]):
        files.read_file(str(tmp_path))


def test_a_file_called_after_what_it_holds_is_no_split_in_silence(tmp_path: Path):
    folder_of(tmp_path, "code.jsonl", "math.jsonl", "train_tickets.jsonl")
    with refused("llm.data-folder-unclear", names=["train_tickets.jsonl"]) as caught:
        files.read_file(str(tmp_path))
    (word,) = shlex.split(caught.value.facts["remedy"])
    found = row_sources.load_rows(typed_llm("dataset=grammar", word, "batch_size=1"))
    assert found.available == 3
    (tmp_path / "test_tickets.jsonl").write_text(LINES)
    found_files = files.read_file(str(tmp_path))
    assert [row["input"] for row in found_files.rows] == ["train_tickets.jsonl"]
