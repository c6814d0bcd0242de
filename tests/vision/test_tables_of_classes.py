"""Tables beside images in parts, as Kaggle and `imagefolder` have them,
and what their cells say of classes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.messages import Message
from multicard.vision.data import class_names, datasets
from tests.helpers.messages import find, refused, remedies, told
from tests.vision.test_class_folders import options, parts, put
from tests.vision.test_sample_sources import parquet, write


def kaggle(root: Path, *folders: str, table: str = "train.csv") -> Path:
    """Folders with images of the same names, and a table of the ids of those in the first."""
    put(root, *folders, count=8)
    write(
        root / table,
        "id,label",
        *(f"{number},{['cat', 'dog'][number % 2]}" for number in range(8)),
    )
    write(root / "sample_submission.csv", "id,label", *(f"{number},cat" for number in range(8)))
    return root


FOLDERS = pytest.mark.parametrize(
    "folders", [["train", "test"], ["train_images", "test_images", "more"]]
)


@FOLDERS
def test_ids_in_several_folders_are_of_the_part_that_the_table_is_named_as(
    folders: list[str], tmp_path: Path
):
    root = kaggle(tmp_path / "root", *folders, table="trainLabels.csv")
    data = datasets.DATASETS["images"].read(
        options(root / "trainLabels.csv", "dataset.split=0.5"), 0
    )
    assert {str(image) for image in [*data.train.images, *data.test.images]} == {
        str(root / folders[0] / f"{number}.png") for number in range(8)
    }
    with refused("photographs.table-beside", table=str(root / "trainLabels.csv")) as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    table, split = remedy.split()
    assert parts(Path(table.removeprefix("dataset.root=")), split)[2:] == (6, 2, ["cat", "dog"])


@pytest.mark.parametrize("name", ["labels.csv", "."])
@FOLDERS
def test_ids_of_images_in_several_folders_are_called_so(
    folders: list[str], name: str, tmp_path: Path
):
    root = kaggle(tmp_path / "root", *folders, table="labels.csv")
    with refused("photographs.bad-rows", key="dataset.root", row=1, rows=8) as refusal:
        datasets.check(options(root / name, "dataset.split=0.5"))
    reason = refusal.value.message.facts["reason"]
    assert isinstance(reason, Message) and reason.code == "photographs.image-twice"
    assert reason.facts["folders"][0] == folders[0] and {*reason.facts["folders"]} == {*folders}
    assert remedies(refusal.value) == []
    rows = (root / "labels.csv").read_text().splitlines()
    write(
        root / "labels.csv",
        rows[0],
        *(f"{folders[0]}/{row.replace(',', '.png,')}" for row in rows[1:]),
    )
    assert parts(root / "labels.csv", "dataset.split=0.5")[2:] == (4, 4, ["cat", "dog"])


def test_an_id_with_several_endings_is_called_so(tmp_path: Path):
    root = kaggle(tmp_path / "root", "train")
    (root / "train/1.jpg").write_bytes((root / "train/1.png").read_bytes())
    with refused("photographs.bad-rows", row=2, rows=1) as refusal:
        parts(root / "train.csv", "dataset.split=0.5")
    assert refusal.value.message.facts["reason"].facts == {"folders": ["train"]}


def test_images_called_by_their_class_in_parts_are_no_classes_train_and_test(tmp_path: Path):
    root = put(tmp_path / "root", "train", "test1", count=4)
    for image in (root / "train").iterdir():
        image.rename(image.with_name(f"cat.{image.name}"))
    with refused("photographs.part-without-classes", parts=["test1", "train"]) as refusal:
        datasets.check(options(root))
    assert remedies(refusal.value) == []


def with_metadata(root: Path, name: str, labelled_parts: list[str], unlabelled: list[str]) -> Path:
    """Images in parts, and a table beside those of each, with classes or without."""
    put(root, "train", "test", count=10)
    for part in (*labelled_parts, *unlabelled):
        rows = [
            {"file_name": f"{number}.png", "label": ["cat", "dog"][number % 2]}
            for number in range(10)
        ]
        if part in unlabelled:
            rows = [{"file_name": row["file_name"]} for row in rows]
        if name.endswith(".csv"):
            lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        else:
            lines = [json.dumps(row) for row in rows]
        write(root / part / name, *lines)
    return root


METADATA = pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])


@METADATA
def test_a_table_in_the_part_to_train_on_is_named_and_its_remedy_reads_it(
    name: str, tmp_path: Path
):
    root = with_metadata(tmp_path / "root", name, ["train"], [])
    with refused("photographs.table-beside", table=str(root / "train" / name)) as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    table, split = remedy.split()
    read = parts(Path(table.removeprefix("dataset.root=")), split)
    assert read == ("all", "0.2 of all", 8, 2, ["cat", "dog"])


@METADATA
def test_a_table_in_each_part_gives_the_classes_of_its_images(name: str, tmp_path: Path):
    root = with_metadata(tmp_path / "root", name, ["train", "test"], [])
    assert parts(root) == ("train", "test", 10, 10, ["cat", "dog"])
    assert parts(root, "dataset.parts=[test,train]") == ("test", "train", 10, 10, ["cat", "dog"])
    put(root, "other", count=3)
    assert {
        found.what: found.count
        for found in datasets.DATASETS["images"].read(options(root), 0).ignored
    } == {"other/": 3}


@METADATA
def test_a_table_of_a_part_to_test_on_may_lack_classes(name: str, tmp_path: Path):
    root = with_metadata(tmp_path / "root", name, ["train"], ["test"])
    with refused("photographs.test-unlabelled", parts=["test"]) as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    assert parts(root, remedy) == ("train", "0.2 of train", 8, 2, ["cat", "dog"])


def test_a_broken_table_of_json_lines_is_refused(tmp_path: Path):
    write(tmp_path / "a.jsonl", '{"file_name": "0.png", "label": ')
    with refused("photographs.unreadable-table", file=str(tmp_path / "a.jsonl")):
        parts(tmp_path / "a.jsonl", "dataset.split=0.5")


def labelled(root: Path, labels: list[str]) -> Path:
    """A table of as many images as there are labels."""
    put(root, "images", count=len(labels))
    return write(
        root / "a.csv",
        "path,label",
        *(f"images/{row}.png,{label}" for row, label in enumerate(labels)),
    )


@pytest.mark.parametrize("name", ["nan", "NaN"])
def test_the_text_nan_is_a_class_among_names(name: str, tmp_path: Path):
    table = labelled(tmp_path / "root", [name, "nv"] * 4)
    assert parts(table, "dataset.split=0.5")[4] == sorted([name, "nv"])
    stored = parquet(
        table.parent, path=[f"images/{row}.png" for row in range(8)], label=[name, "nv"] * 4
    )
    assert parts(stored, "dataset.split=0.5")[4] == sorted([name, "nv"])


def test_nan_among_numbers_and_an_empty_cell_are_no_class(tmp_path: Path):
    for labels in (["0.0", "1.0", "nan"], ["a", "b", ""]):
        table = labelled(tmp_path / labels[0], labels)
        with refused("photographs.bad-rows", row=3) as refusal:
            parts(table, "dataset.split=0.5")
        assert refusal.value.message.facts["reason"].code == "photographs.no-label"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_minus_one_beside_numbers_of_classes_is_no_class_in_any_file(kind: str, tmp_path: Path):
    numbers = [0, 1, -1, 2] * 4
    table = labelled(tmp_path / "root", [*map(str, numbers)])
    paths = [f"images/{row}.png" for row in range(len(numbers))]
    if kind == "parquet":
        table = parquet(table.parent, path=paths, label=numbers)
    elif kind == "jsonl":
        lines = [
            json.dumps({"path": path, "label": label})
            for path, label in zip(paths, numbers, strict=True)
        ]
        table = write(table.with_suffix(".jsonl"), *lines)
    with refused("photographs.bad-rows", row=3, rows=4) as refusal:
        parts(table, "dataset.split=0.5")
    assert refusal.value.message.facts["reason"].code == "photographs.no-label"


@pytest.mark.parametrize("labels", [["-1", "1"], ["-2", "-1", "0", "1"], ["-1", "cat", "dog"]])
def test_minus_one_is_a_class_where_it_is_of_two_or_of_other_kinds(
    labels: list[str], tmp_path: Path
):
    assert parts(labelled(tmp_path / "root", labels * 4), "dataset.split=0.5")[4] == labels


def test_classes_whose_names_differ_by_case_alone_are_said(tmp_path: Path, capsys: Any):
    table = labelled(tmp_path / "root", ["NV", "nv", "mel"] * 4)
    datasets.check(options(table, "dataset.split=0.5"))
    said = find(capsys.readouterr().out, "photographs.alike-classes", key="dataset.root")
    assert said.facts["classes"] == [["NV", "nv"]]
    datasets.check(options(labelled(tmp_path / "other", ["nv", "mel"] * 4), "dataset.split=0.5"))
    assert told(capsys.readouterr().out) == []
    names = ["covid 19", "Covid-19", "healthy", "1", "-1", "1.0", "01", "2"]
    assert class_names.group_similar_names(names) == [["covid 19", "Covid-19"], ["1", "1.0", "01"]]
