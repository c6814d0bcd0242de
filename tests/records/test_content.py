"""Fingerprints of data: the content counts, and not its place."""

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from multicard.llm import preflight
from multicard.llm.data import hub as text_hub
from multicard.llm.data import row_sources
from multicard.machine import network
from multicard.machine.slurm import Allocation
from multicard.records import content, ownership, run_folder
from multicard.records.content import Blob
from multicard.records.schema_data import DataContent
from multicard.run import prepare
from multicard.run.peers import Peers
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, Called, composed, typed, typed_llm
from tests.helpers.messages import find, refused, says


def photographs(root: Path, red: int = 0) -> Path:
    for part in ("train", "validation"):
        for index, name in enumerate(("cat", "dog")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(24):
                colour = (red, 100 * index, number)
                # of one size, whatever it shows
                Image.new("RGB", (32, 32), colour).save(folder / f"{number:02d}.bmp")
    return root


def digits(root: Path) -> str:
    config = typed("dataset=images", f"dataset.root={root}", "dataset.image_size=32")
    return content.fingerprint(WORKLOAD.data(config)).fingerprint


def digest(*blobs: Blob) -> DataContent:
    return content.fingerprint({"dataset": blobs})


def test_photographs_are_known_by_names_classes_and_content_wherever_they_lie(tmp_path: Path):
    first, same = photographs(tmp_path / "a"), photographs(tmp_path / "far" / "b")
    assert digits(first) == digits(same)
    assert digits(photographs(tmp_path / "c", red=1)) != digits(first)
    (same / "train/cat/00.bmp").rename(same / "train/cat/000.bmp")
    renamed = digits(same)
    assert renamed != digits(first)
    shutil.move(same / "train/cat/000.bmp", same / "train/dog/000.bmp")
    assert digits(same) not in (renamed, digits(first))


def test_names_of_any_bytes_are_known_and_recorded(tmp_path: Path):
    root, name = photographs(tmp_path / "a"), os.fsdecode(b"caf\xe9")
    before = digits(root)
    for part in ("train", "validation"):
        (root / part / "cat").rename(root / part / name)
    assert digits(root) != before
    run_folder.write_json(tmp_path / name / "result.json", {"classes": [name]})
    assert run_folder.read_json(tmp_path / name / "result.json") == {"classes": [r"caf\xe9"]}


def test_all_of_small_data_counts():
    whole = b"x" * 300_000
    known = digest(("rows", memoryview(whole)))
    assert known.bytes == known.hashed_bytes == 300_000
    assert all(
        digest(("rows", memoryview(whole[:place] + b"y" + whole[place + 1 :]))).fingerprint
        != known.fingerprint
        for place in (0, 65_536, 150_000, 299_999)
    )


def test_of_large_data_evenly_spaced_pieces_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content, "BUDGET_BYTES", 4 * content.PIECE_BYTES)
    file, whole = tmp_path / "weights", bytearray(50 * content.PIECE_BYTES)
    file.write_bytes(whole)
    known = digest(("weights", file))
    assert known.hashed_bytes == 4 * content.PIECE_BYTES
    assert digest(("weights", memoryview(bytes(whole)))) == known  # a file and its bytes are one
    changed = []
    for place in (0, len(whole) // 3, 2 * len(whole) // 3, len(whole) - 1, 5 * content.PIECE_BYTES):
        file.write_bytes(whole[:place] + b"y" + whole[place + 1 :])
        changed.append(digest(("weights", file)) != known)
    assert changed == [True, True, True, True, False]  # the last lies between two pieces
    file.write_bytes(whole + b"y")
    assert digest(("weights", file)) != known  # the size counts whatever its bytes


def test_of_many_files_some_are_opened_and_all_are_known_by_name_and_size(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(content, "MOST_FILES", 3)

    def blobs(changed: int = -1, value: bytes = b"y") -> list[Blob]:
        return [
            (f"{index}.jpg", memoryview(value if index == changed else b"x")) for index in range(9)
        ]

    known = digest(*blobs())
    assert known.hashed_bytes == 3
    assert [digest(*blobs(index)) != known for index in (0, 1, 4, 8)] == [True, False, True, True]
    assert digest(*blobs(1, b"yy")) != known


def test_a_difference_names_the_parts():
    before, now = (
        {"dataset": [("rows", memoryview(word))], "tokenizer": [("t", memoryview(b"t"))]}
        for word in (b"a", b"b")
    )
    old, new = content.fingerprint(before), content.fingerprint(now)
    changed = content.difference(old, new)
    assert changed == f"dataset {old.parts['dataset']}, now {new.parts['dataset']}"
    assert content.difference(old, old) is content.difference(None, new) is None
    with refused("data.unreadable", file="nowhere"):
        digest(("rows", Path("nowhere")))


def test_rows_are_known_by_their_file_and_synthetic_ones_by_their_generator(tmp_path: Path):
    def of(*words: str) -> dict[str, str]:
        return content.fingerprint(preflight.data_parts(typed_llm(*words))).parts

    for name, answer in (("a", "b"), ("same", "b"), ("other", "c")):
        row = {"instruction": "a", "output": answer}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    a, same, other = (
        of("dataset=alpaca_cleaned", f"dataset.data_files={tmp_path / name}.jsonl")
        for name in ("a", "same", "other")
    )
    assert a == same != other and set(a) == {"dataset"}
    # they are repetitions of one data set
    assert of("seed=1", "template=grammar", "dataset.rows=9") == of() != a
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.safetensors").write_bytes(b"w")
    assert set(of(f"model.weights={tmp_path / 'model'}")) == {"dataset", "weights"}
    (tmp_path / "tokenizer.model").write_text("t")
    assert set(of("tokenizer=llama3", f"tokenizer.path={tmp_path / 'tokenizer.model'}")) == {
        "dataset",
        "tokenizer",
    }


def test_a_data_set_of_the_hub_is_fetched_before_it_is_identified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import datasets as hub

    fetched: list[str] = []

    def load_dataset(source: str, revision: str | None, split: str) -> hub.Dataset:
        fetched.append(source)
        (tmp_path / "yahma___alpaca-cleaned" / "default" / "0.0.0" / "abc").mkdir(
            parents=True, exist_ok=True
        )
        return hub.Dataset.from_list([{"instruction": "a", "output": "b"}])

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "load_dataset", load_dataset)
    monkeypatch.setattr(network, "problem", lambda url: None)
    (tmp_path / "tokenizer.model").write_text("t")
    config = typed_llm(
        "dataset=alpaca_cleaned", "tokenizer=llama3", f"tokenizer.path={tmp_path}/tokenizer.model"
    )
    unknown = content.fingerprint(preflight.data_parts(config))
    assert set(unknown.parts) == {"tokenizer"}
    assert (
        row_sources.load_rows(config)[0] is row_sources.load_rows(config)[0] is None
        and len(fetched) == 1
    )
    assert (
        text_hub.revision("yahma/Alpaca-Cleaned") == "abc" and text_hub.revision("yahma/a") is None
    )
    known = content.fingerprint(preflight.data_parts(config))
    assert set(known.parts) == {"dataset", "tokenizer"}
    assert content.difference(unknown, known) is None and content.difference(known, unknown) is None


def test_columns_of_a_whole_data_set_of_the_hub_are_counted_and_rows_are_read_for_one_with_a_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import datasets as hub

    folder = tmp_path / "yahma___alpaca-cleaned" / "default" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))

    def stored(*columns: str) -> None:
        rows = hub.Dataset.from_list([dict.fromkeys(columns, "x")])
        monkeypatch.setattr(hub, "load_dataset", lambda source, revision, split: rows)
        known = {"features": dict.fromkeys(columns), "splits": {"train": {"num_examples": 7}}}
        (folder / "dataset_info.json").write_text(json.dumps(known))

    stored("instruction", "input", "output", "id")
    config = typed_llm("dataset=alpaca_cleaned")
    assert row_sources.load_rows(config) == row_sources.LoadedRows(None, ignored={"id": 7})
    stored("instruction", "output", "system")
    with refused("llm.broken-rows", row=1) as caught:
        row_sources.load_rows(config)
    assert find(str(caught.value), "llm.row-bears", column="system")
    read = row_sources.load_rows(
        typed_llm("dataset=alpaca_cleaned", "dataset.columns={system: null}")
    )
    assert read.rows == [{"instruction": "x", "output": "x", "input": ""}] and read.ignored == {
        "system": 1
    }


@pytest.mark.usefixtures("processes")
def test_the_record_has_it_and_a_measurement_of_other_data_is_refused_not_taken(
    called: Called, tmp_path: Path
):
    root = photographs(tmp_path / "data")
    words = [
        "-m",
        *SMALL,
        "dataset=images",
        f"dataset.root={root}",
        "dataset.cache=none",
        "batch_size=8",
    ]
    words += ["seed=1", f"hydra.sweep.dir={tmp_path}/sweep"]
    ended, printed = called(*words)
    assert ended == 0, printed
    (result,) = (tmp_path / "sweep").glob("*/result.json")
    record = json.loads(result.read_text())
    assert record["data"]["fingerprint"] == digits(root)
    assert (
        record["cores"] >= 1
        and record["beside"] == 0
        and record["load"]["seconds"] > record["total_s"]
    )

    moved = root.rename(tmp_path / "gone")
    assert called(*words)[0] == 0  # as where the data are on the nodes alone, the record stands
    photographs(root, red=9)
    for more in ([], ["dry_run=true"]):
        ended, printed = called(*words, *more)
        assert ended == 1 and find(printed, "record.other-data").facts["changed"].startswith(
            "dataset "
        )
        assert "refused: " in printed and json.loads(result.read_text()) == record
    single = [
        *(word for word in words if word != "-m" and "hydra" not in word),
        f"hydra.run.dir={tmp_path}/sweep",
    ]
    assert says(called(*single)[1], "record.other-data")

    shutil.rmtree(root)
    moved.rename(root)
    ended, printed = called(*words)
    assert ended == 0 and "measured before" in printed
    shutil.rmtree(root)
    photographs(root, red=9)
    assert called(*words, "rerun=true")[0] == 0
    assert (
        json.loads(result.read_text())["data"]["fingerprint"]
        == digits(root)
        != record["data"]["fingerprint"]
    )


def test_a_requeued_run_is_refused_on_other_data_and_keeps_its_checkpoint(tmp_path: Path):
    root, folder = photographs(tmp_path / "data"), tmp_path / "sweep" / "run"
    cfg = composed(*SMALL, "dataset=images", f"dataset.root={root}", "dataset.cache=none")
    job = Allocation(job="7")

    def begin() -> None:
        prepare.prepare(WORKLOAD, cfg, folder, 0.0, job, Peers(job))
        for (
            descriptor
        ) in ownership._own_claims.values():  # its process is killed, and its claim stays
            os.close(descriptor)
        ownership._own_claims.clear()

    def replace(red: int) -> None:
        shutil.rmtree(root)
        photographs(root, red)

    begin()
    replace(red=1)
    begin()  # nothing was saved: it starts over
    run_folder.write_json(folder / "checkpoint" / "latest.json", {"steps": 5, "world_size": 1})
    begin()
    replace(red=9)
    with refused("checkpoint.other-data") as refusal:
        begin()
    assert refusal.value.facts["changed"].startswith("dataset ")
    assert (folder / "checkpoint" / "latest.json").exists()
