"""Tables that are parts of the data, and folders of classes beside tables: the author's parts are
kept, and what is not read is named.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest

from multicard.vision.data import datasets
from tests.helpers.messages import codes, find, refused, remedies
from tests.vision.test_class_folders import left, options, parts, put, within
from tests.vision.test_class_values import two
from tests.vision.test_sample_sources import write


def table(file: Path, *numbers: int, head: str = "path,label", form: str = "images/{}.png") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, head, *(f"{form.format(number)},{two(number)}" for number in numbers))


# ---- tables of parts beside the images

NAMES = {
    "val": ("train.csv", "val.csv"),
    "words": ("Training_set.csv", "Testing_set.csv"),
    "labels": ("train_labels.csv", "test_labels.csv"),
    "in notes": ("splits/train.csv", "splits/valid.csv"),
    "of annotations": ("annotations/train.csv", "annotations/test.csv"),
}


@pytest.mark.parametrize("name", NAMES)
def test_tables_that_are_called_as_parts_are_these(name: str, tmp_path: Path):
    root = put(tmp_path / "root", "images", count=20)
    train, test = NAMES[name]
    table(root / train, *range(10))
    table(root / test, *range(10, 16))
    stems = [Path(file).stem.lower() for file in (train, test)]
    assert parts(root) == (*stems, 10, 6, ["cat", "dog"])
    assert left(root) == {"images that no row names": 4}
    names = f"dataset.parts=[{Path(test).stem},{Path(train).stem}]"
    assert parts(root, names)[2:4] == (6, 10)
    with refused("photographs.part-alone", above=str((root / train).parent)) as refusal:
        datasets.check(options(root / train))
    assert parts(root / train, remedies(refusal.value)[1])[2:4] == (8, 2)
    with refused("photographs.split-already", key="dataset.split"):
        datasets.check(options(root, "dataset.split=0.2"))


def test_names_alone_are_of_the_folder_of_their_part(tmp_path: Path):
    root = put(tmp_path / "root", "train", "test", count=8)
    for part in ("train", "test"):
        table(root / f"{part}.csv", *range(8), form="{}")
    assert parts(root) == ("train", "test", 8, 8, ["cat", "dog"])
    train = datasets.DATASETS["images"].read(options(root), 0).train
    assert {Path(str(image)).parent.name for image in train.images} == {"train"}


def test_a_table_to_test_on_may_lack_classes(tmp_path: Path):
    root = put(tmp_path / "root", "train", "test", count=10)
    table(root / "train.csv", *range(10), head="id,diagnosis", form="{}")
    write(root / "test.csv", "id", *map(str, range(10)))
    with refused("photographs.test-unlabelled", parts=["test"]) as refusal:
        datasets.check(options(root))
    assert parts(root, *remedies(refusal.value))[2:4] == (8, 2)


def test_columns_of_tables_of_parts_are_named(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=12)
    table(root / "train.csv", *range(8), head="photo,dx")
    table(root / "val.csv", *range(8, 12), head="photo,dx")
    words = "dataset.columns={image: photo, label: dx}"
    assert parts(root, words) == ("train", "val", 8, 4, ["cat", "dog"])


def test_several_tables_of_one_part_are_refused(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=12)
    files = ["test_a.csv", "test_b.csv", "train_a.csv", "train_b.csv"]
    for number, file in enumerate(files):
        table(root / file, *range(number * 3, number * 3 + 3))
    with refused("photographs.tables-of-one-part", key="dataset.root", files=files):
        datasets.check(options(root))


def test_paths_of_a_table_that_begin_with_parts_are_in_these(tmp_path: Path):
    root = put(tmp_path / "root", "train", "test", count=8)
    rows = [f"{part}/{n}.png,{two(n)}" for part in ("train", "test") for n in range(8)]
    write(root / "all.csv", "path,label", *rows)
    assert parts(root / "all.csv") == ("train", "test", 8, 8, ["cat", "dog"])
    with refused("photographs.table-beside") as refusal:
        datasets.check(options(root))
    assert remedies(refusal.value) == [f"dataset.root={root / 'all.csv'}"]
    whole = ("dataset.columns={split: null}", "dataset.split=0.25")
    assert parts(root / "all.csv", *whole) == ("all", "0.25 of all", 12, 4, ["cat", "dog"])


def test_a_flat_folder_of_classes_is_divided_by_tables_of_parts(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog", count=8)
    rows = {
        part: [f"{name}/{number}.png,{name}" for name in ("cat", "dog") for number in numbers]
        for part, numbers in (("train", range(6)), ("test", range(6, 8)))
    }
    for part, lines in rows.items():
        write(root / f"{part}.csv", "path,label", *lines)
    assert parts(root) == ("train", "test", 12, 4, ["cat", "dog"])
    by_folders = ("dataset.columns={label: null}", "dataset.split=0.25")
    assert parts(root, *by_folders) == ("all", "0.25 of all", 12, 4, ["cat", "dog"])
    for part, lines in rows.items():
        shades = [line.replace(",dog", ",black").replace(",cat", ",black") for line in lines]
        shades[::2] = [line.replace(",black", ",white") for line in shades[::2]]
        write(root / f"{part}.csv", "path,label", *shades)
    with refused("photographs.table-or-folders", key="dataset.columns") as refusal:
        datasets.check(options(root))
    column, folders = remedies(refusal.value)
    assert parts(root, *shlex.split(column))[4] == ["black", "white"]
    assert parts(root, *shlex.split(folders), "dataset.split=0.25")[4] == ["cat", "dog"]


# ---- tables within parts


@pytest.mark.parametrize("file", ["labels.csv", "_annotations.tsv"])
def test_the_only_table_of_each_part_gives_its_classes(file: str, tmp_path: Path):
    root = put(tmp_path / "root", "train", "test", count=8)
    for part in ("train", "test"):
        table(root / part / file, *range(8), form="{}.png")
        text = (root / part / file).read_text()
        (root / part / file).write_text(text.replace(",", "\t") if ".tsv" in file else text)
    assert parts(root) == ("train", "test", 8, 8, ["cat", "dog"])


FURTHER = {
    "one": ("file_name,photographer", ",p"),
    "a caption": ("file_name,caption", ",a photo"),
    "two": ("file_name,photographer,date", ",p,d"),
    "none": ("file_name", ""),
}


@pytest.mark.parametrize("name", FURTHER)
def test_folders_are_the_classes_where_tables_of_parts_name_none(
    name: str, tmp_path: Path, capsys: Any
):
    head, cells = FURTHER[name]
    root = put(tmp_path / "root", *within("train", "test"), count=4)
    for part in ("train", "test"):
        rows = [
            f"{each}/{number}.png{cells}{number % 2 if cells else ''}"
            for each in ("cat", "dog")
            for number in range(4)
        ]
        write(root / part / "metadata.csv", head, *rows)
    assert parts(root) == ("train", "test", 8, 8, ["cat", "dog"])
    said = find(capsys.readouterr().out, "photographs.table-not-read")
    assert said.facts["table"] == str(root / "train/metadata.csv")
    remedy = said.facts["remedy"]
    assert (remedy is None) == (name == "none")
    if remedy is not None:
        assert len(parts(root, *shlex.split(str(remedy)))[4]) == 2
    capsys.readouterr()
    assert parts(root, "dataset.columns={label: null}")[4] == ["cat", "dog"]
    assert "photographs.table-not-read" not in codes(capsys.readouterr().out)


def test_a_table_of_parts_that_differs_from_their_folders_is_not_taken_in_silence(tmp_path: Path):
    root = put(tmp_path / "root", *within("train", "test"), count=6)
    for part in ("train", "test"):
        rows = [f"{each}/{n}.png,q{n % 3}" for each in ("cat", "dog") for n in range(6)]
        write(root / part / "metadata.csv", "file_name,label", *rows)
    with refused("photographs.table-or-folders", key="dataset.columns") as refusal:
        datasets.check(options(root))
    column, folders = remedies(refusal.value)
    assert parts(root, *shlex.split(column))[4] == ["q0", "q1", "q2"]
    assert parts(root, *shlex.split(folders))[4] == ["cat", "dog"]


def test_a_table_has_no_folders_to_take(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=8)
    table(root / "t.csv", *range(8))
    with refused("photographs.no-folders-to-take", key="dataset.columns"):
        datasets.check(options(root / "t.csv", "dataset.columns={label: null}"))


# ---- paths

PATHS = {
    "the name of the folder": "root/images/{}.png",
    "another machine": "/kaggle/input/birds/images/{}.png",
    "another system": "D:\\data\\images\\{}.png",
    "names there": "/data/upload/1/{}.png",
    "capitals": "images/{}.PNG",
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_that_were_written_elsewhere_lead_to_their_files(name: str, tmp_path: Path):
    root = put(tmp_path / "root", "images", count=8)
    table(root / "t.csv", *range(8), form=PATHS[name])
    assert parts(root / "t.csv", "dataset.split=0.25")[2:4] == (6, 2)


def test_paths_of_two_places_are_not_taken_for_one(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=8)
    rows = [f"/data/{'ab'[n % 2]}/images/{n // 2}.png,{two(n)}" for n in range(8)]
    with refused("photographs.bad-rows", row=1, rows=8):
        datasets.check(options(write(root / "t.csv", "path,label", *rows), "dataset.split=0.25"))


def test_names_that_differ_by_how_accents_are_written_are_the_same(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=8)
    for number in range(8):
        (root / f"images/{number}.png").rename(root / f"images/u\u0308{number}.png")
    table(root / "t.csv", *range(8), form="images/\u00fc{}.png")
    assert parts(root / "t.csv", "dataset.split=0.25")[2:4] == (6, 2)
