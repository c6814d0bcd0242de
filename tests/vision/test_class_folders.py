"""Folders as people have them: parts under any usual name, what only looks like parts,
and what is not read.
"""

import os
import shlex
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets as hub
import pytest
from PIL import Image

from multicard.config.vision_data import ImagesConfig
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.vision.data import class_folders, datasets, folder_contents
from tests.conftest import typed
from tests.helpers.messages import find, refused, remedies, told
from tests.vision.test_sample_sources import hub_files, write


def put(root: Path, *folders: str, count: int = 2) -> Path:
    """Folders with images of a colour each, every image with bytes of its own."""
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            colour = zlib.crc32(f"{folder}/{index}".encode()).to_bytes(4)[:3]
            Image.new("RGB", (32, 32), tuple(colour)).save(root / folder / f"{index}.png")
    return root


def options(root: Path, *words: str) -> ImagesConfig:
    """`dataset.*` as a command line with these words has it."""
    asked = typed("dataset=images", f"dataset.root={root}", "dataset.image_size=32", *words).dataset
    assert isinstance(asked, ImagesConfig)
    return asked


def parts(root: Path, *words: str) -> tuple[str, str, int, int, list[str]]:
    """The names of both parts, how many images each has, and the classes."""
    asked = options(root, *words)
    datasets.check(asked)
    data = datasets.DATASETS["images"].read(asked, 0)
    named = data.facts["parts"]
    return named["train"], named["test"], len(data.train), len(data.test), data.facts["classes"]


def within(*names: str) -> list[str]:
    """Each of these folders with the same two classes in it."""
    return [f"{name}/{each}" for name in names for each in ("cat", "dog")]


SPLIT = {
    "plain": (within("train", "val"), "train", "val"),
    "capitals": (within("TRAIN", "TEST"), "train", "test"),
    "brain tumours": (within("Training", "Testing"), "training", "testing"),
    "images": (within("train_images", "test_images"), "train_images", "test_images"),
    "images first": (within("images_train", "images_val"), "images_train", "images_val"),
    "sets": (within("training_set", "test_set"), "training_set", "test_set"),
    "one word": (within("trainset", "valset"), "trainset", "valset"),
    "camels": (within("TrainImages", "TestImages"), "trainimages", "testimages"),
    "blanks": (within("Train Set", "Test Set"), "train set", "test set"),
    "a year": (within("train2017", "val2017"), "train2017", "val2017"),
    "numbered": (within("01_training", "02_eval"), "01_training", "02_eval"),
    "dev": (within("train", "dev"), "train", "dev"),
    "trainval": (within("trainval", "test"), "trainval", "test"),
    "of dogs": (within("dogs_train", "dogs_test"), "dogs_train", "dogs_test"),
    "Intel": ([*within("seg_train/seg_train", "seg_test/seg_test")], "seg_train", "seg_test"),
    "with what is to be predicted": (
        [*within("seg_train/x", "seg_test/x"), "seg_pred/x"],
        "seg_train",
        "seg_test",
    ),
    "too high": (within("data/train", "data/test"), "train", "test"),
    "much too high": (within("a/b/train", "a/b/test"), "train", "test"),
    "beside notes": ([*within("data/train", "data/test"), "notes"], "train", "test"),
    "within classes": (
        [f"{name}/{part}" for name in ("cat", "dog") for part in ("train", "test")],
        "train",
        "test",
    ),
    "one folder inside": (within("train/images", "val/images"), "train", "val"),
    "beside others": ([*within("train", "test"), "masks"], "train", "test"),
}


@pytest.mark.parametrize("name", SPLIT)
def test_parts_are_seen_under_any_usual_name(name: str, tmp_path: Path):
    folders, train, test = SPLIT[name]
    put(tmp_path / "root", *(folder for folder in folders if folder != "notes"))
    if "notes" in folders:
        (tmp_path / "root" / "notes").mkdir()
        write(tmp_path / "root" / "notes" / "a.txt", "x")
    assert parts(tmp_path / "root") == (train, test, 4, 4, ["cat", "dog"])


FLAT = {
    "a class called as a part": ["bus", "train"],
    "folders below classes": ["cat/1", "cat/2", "dog/1"],
    "images beside folders": ["cat", "cat/old", "cat/new", "dog", "dog/old", "dog/new"],
    "one folder each": ["cat/images", "dog/images"],
    "too high": ["flowers/cat", "flowers/dog"],
    "much too high": ["archive/flowers/cat", "archive/flowers/dog"],
    "names with such a word": ["train_tracks", "bus_station"],
}


@pytest.mark.parametrize("name", FLAT)
def test_folders_of_classes_are_no_parts(name: str, tmp_path: Path):
    put(tmp_path / "root", *FLAT[name])
    with refused("photographs.nothing-to-test-on", key="dataset.root") as refusal:
        datasets.check(options(tmp_path / "root"))
    (remedy,) = remedies(refusal.value)
    train, test, _, _, classes = parts(tmp_path / "root", remedy.replace("0.2", "0.5"))
    assert (train, test) == ("all", "0.5 of all") and len(classes) == 2


@dataclass(frozen=True)
class Unclear:
    """Folders that only look like parts, or like classes; and what each remedy reads (parts,
    number of classes).
    """

    folders: list[str]
    code: str
    reads: list[tuple[str, str, int]]
    facts: dict[str, Any] = field(default_factory=dict)
    root: str = "."


UNCLEAR = {
    "other words": Unclear(
        within("Gallery", "Query"),
        "photographs.like-parts",
        [("gallery", "query", 2), ("gallery", "0.2 of gallery", 2), ("all", "0.2 of all", 2)],
        {"folders": ["Gallery", "Query"], "shared": ["cat", "dog"]},
    ),
    "folds": Unclear(
        within("fold1", "fold2", "fold3"),
        "photographs.like-parts",
        [("fold1", "fold2", 2), ("fold1", "0.2 of fold1", 2), ("all", "0.2 of all", 3)],
    ),
    "one of them known": Unclear(
        within("extra", "train"),
        "photographs.like-parts",
        [("train", "extra", 2), ("train", "0.2 of train", 2)],
    ),
    "blanks": Unclear(
        within("my a", "the b"),
        "photographs.like-parts",
        [("my a", "the b", 2), ("my a", "0.2 of my a", 2), ("all", "0.2 of all", 2)],
    ),
    "a part beside images": Unclear(
        [*within("train"), "unlabelled"],
        "photographs.part-beside-classes",
        [("train", "0.2 of train", 2)],
        {"part": "train"},
    ),
    "parts without classes": Unclear(
        ["train", "test", "bus"], "photographs.part-without-classes", []
    ),
    "two to train on": Unclear(
        within("train", "Training", "val"),
        "photographs.two-trains",
        [("train", "val", 2)],
        {"parts": ["train", "Training"]},
    ),
    "several sets": Unclear(
        within("2019/train", "2019/val", "2020/train", "2020/val"),
        "photographs.sets-inside",
        [("train", "val", 2)],
        {"sets": ["2019", "2020"]},
    ),
    "a set beside classes": Unclear(
        [*within("a b/train", "a b/val"), "more"], "photographs.sets-inside", [("train", "val", 2)]
    ),
    "other classes": Unclear(
        [*within("train"), "test/unknown"],
        "photographs.other-classes",
        [("train", "0.2 of train", 2)],
    ),
    "too deep": Unclear(
        within("train", "val"),
        "photographs.part-alone",
        [("train", "val", 2), ("all", "0.2 of all", 2)],
        root="train",
    ),
    "too deep twice": Unclear(
        within("seg_train/seg_train", "seg_test/seg_test"),
        "photographs.part-alone",
        [("seg_train", "seg_test", 2), ("all", "0.2 of all", 2)],
        root="seg_train/seg_train",
    ),
    "within a class": Unclear(
        within("train", "val"), "photographs.no-classes", [("train", "val", 2)], root="train/cat"
    ),
    "within a class of one part": Unclear(
        ["cat", "dog"], "photographs.no-classes", [("all", "0.2 of all", 2)], root="cat"
    ),
    "images alone in each part": Unclear(
        ["train", "test1"], "photographs.no-classes", [], {"above": None}, "train"
    ),
    "a part beside images without classes": Unclear(
        [*within("train"), "test"],
        "photographs.nothing-to-test-on",
        [("all", "0.2 of all", 2)],
        root="train",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_only_looks_like_parts_is_refused_and_each_remedy_reads_it(name: str, tmp_path: Path):
    unclear = UNCLEAR[name]
    put(tmp_path / "data set", *unclear.folders, count=5)
    root = tmp_path / "data set" / unclear.root
    with refused(unclear.code, **unclear.facts) as refusal:
        datasets.check(options(root))
    assert str(tmp_path) in refusal.value.message.sentence and refusal.value.key == "dataset.root"
    reads = []
    together = refusal.value.message.facts.get("together") or ()
    for remedy in remedies(refusal.value):
        if remedy in together:
            continue  # tests/vision/test_not_classes.py carries it out
        train, test, trained, tested, classes = parts(root, *shlex.split(remedy))
        assert trained and tested
        reads.append((train, test, len(classes)))
    assert reads == unclear.reads


def test_parts_without_classes_are_not_tested_on_and_counted(tmp_path: Path):
    root = put(tmp_path / "root", *within("train"), "test", count=5)
    with refused("photographs.test-unlabelled", parts=["test"]) as refusal:
        datasets.check(options(root))
    data = datasets.DATASETS["images"].read(options(root, *remedies(refusal.value)), 0)
    assert data.facts["parts"]["test"] == "0.2 of train" and [
        (p.what, p.count) for p in data.ignored
    ] == [("test/", 5)]


def test_the_parts_that_are_named_are_taken(tmp_path: Path):
    root = put(tmp_path / "root", *within("train", "val", "test"), *within("more/deep"))
    assert parts(root, "dataset.parts=[train,test]")[:2] == ("train", "test")
    assert parts(root, "dataset.parts=[VAL,more/deep]")[:2] == ("val", "more/deep")
    assert parts(root, "dataset.parts=[val]", "dataset.split=0.5")[:2] == ("val", "0.5 of val")
    with refused(
        "photographs.no-folder-of-part",
        key="dataset.parts",
        absent=["tset"],
        parts=["more", "test", "train", "val"],
    ):
        parts(root, "dataset.parts=[train,tset]")
    for wrong in ("[a,b,c]", "[a,a]"):
        with pytest.raises(Refusal) as refusal:
            options(root, f"dataset.parts={wrong}")
        assert (refusal.value.code, refusal.value.key) == ("config.images-parts", "dataset.parts")
    rows = [
        f"{folder}/{name}/{number}.png,{name},{part}"
        for part, folder in (("a", "train"), ("b", "val"))
        for name in ("cat", "dog")
        for number in range(2)
    ]
    table = write(root / "a.csv", "path,label,split", *rows, "train/cat/0.png,cat,c")
    with refused("photographs.bad-rows"):
        parts(table)
    with refused("photographs.no-part", key="dataset.parts", absent=["d"], parts=["a", "b", "c"]):
        parts(table, "dataset.parts=[a,d]")
    assert parts(table, "dataset.parts=[b,a]") == ("b", "a", 4, 4, ["cat", "dog"])
    assert parts(table, "dataset.parts=[]", "dataset.split=0.5")[0] == "all"
    assert typed("dataset=images", "dataset.root=x").identity() == (
        typed("dataset=images", "dataset.root=x", "dataset.parts=null").identity()
    )


def test_a_column_of_splits_has_any_usual_names(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog")
    rows = [
        f"{name}/{index}.png,{name},{part}"
        for name in ("cat", "dog")
        for index, part in enumerate(("Training", "EVAL"))
    ]
    assert parts(write(root / "a.csv", "path,label,split", *rows)) == (
        "training",
        "eval",
        2,
        2,
        ["cat", "dog"],
    )


def left(root: Path, *words: str) -> dict[str, int]:
    data = datasets.DATASETS["images"].read(options(root, *words), 0)
    return {part.what: part.count for part in data.ignored}


def test_what_is_not_read_is_counted_by_its_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = put(tmp_path / "root", *within("train", "val"))
    expected = {
        ".heic": 3,
        ".txt": 2,
        "hidden": 5,
        ".zip": 1,
        "files without an ending": 2,
        ".csv": 1,
    }
    for number in range(3):
        (root / "train" / "cat" / f"{number}.HEIC").write_bytes(b"x")
    (root / "val" / "dog" / "deep").mkdir()
    for name in (
        "train/cat/a.txt",
        "val/dog/deep/a.TXT",
        "val/cat/images.zip",
        "val/cat/README",
        "labels.csv",
    ):
        (root / name).write_bytes(b"x")
    (root / "train" / "dog" / "link").symlink_to("nowhere")
    for name in ("train/cat/Thumbs.db", "train/.DS_Store", "val/dog/._0.png", "desktop.ini"):
        (root / name).write_bytes(b"x")
    put(root, "__MACOSX/train/cat", ".multicard")
    put(root, "masks/a", "masks/b", count=3)
    put(root, "train", "val")  # beside the classes
    (root / "train" / "0.png").rename(root / "train" / "odd.png")
    for name in ("train/1.png", "val/0.png", "val/1.png"):
        (root / name).unlink()
    expected |= {"masks/": 6}
    assert left(root) == expected | {".png outside of classes": 1}
    (root / "train" / "odd.png").rename(root / "odd.png")
    assert left(root) == expected | {".png outside of classes": 1}
    datasets.check(options(root))
    datasets.check(options(root))
    (said,) = told(capsys.readouterr().out)
    assert (said.code, said.key) == ("photographs.ignored", "dataset.root")
    assert said.facts["ignored"] == left(root)


def test_files_of_another_kind_alone_are_named_where_a_class_has_no_image(tmp_path: Path):
    root = put(tmp_path / "root", *within("train", "val"))
    for path in (root / "train" / "cat").iterdir():
        path.rename(path.with_suffix(".heic"))
    with refused("photographs.empty-class", name="cat", found={".heic": 2}):
        datasets.check(options(root))


def test_arrow_files_that_state_json_does_not_list_are_not_read(tmp_path: Path):
    root = hub_files(tmp_path / "saved", "train", "test")
    before = parts(root)
    part = root / "train"
    (part / "cache-1a2b3c.arrow").write_bytes((part / "data-00000-of-00002.arrow").read_bytes())
    (part / "notes.txt").write_text("x")
    assert parts(root) == before
    assert left(root) == {".arrow not in state.json": 1, ".txt": 1}
    alone = hub_files(tmp_path / "alone", ".")
    mapped = hub.load_from_disk(str(alone))
    mapped.map(lambda row: row, cache_file_name=str(alone / "cache-0.arrow"))
    assert left(alone, "dataset.split=0.4") == {".arrow not in state.json": 1}


def test_columns_and_parts_of_tables_that_are_not_read_are_counted(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog")
    rows = [
        f"{name}/{index}.png,{name},3,,{part}"
        for name in ("cat", "dog")
        for index in range(2)
        for part in ("train", "val")
    ]
    table = write(root / "a.csv", "path,label,width,box,split", *rows)
    columns = {"column width": 8, "column box": 8}
    assert left(table) == columns
    assert left(table, "dataset.parts=[train]", "dataset.split=0.5") == columns | {"part val": 4}
    stored = hub_files(tmp_path / "hub", "train-0.parquet", "test-0.parquet")
    (stored / "other.parquet").write_bytes((stored / "test-0.parquet").read_bytes())
    assert left(stored) == {"other.parquet, of no part": 1}


READ: dict[str, Callable[[Path], object]] = {
    "a link to a file": lambda folder: (folder / "x.png").symlink_to(folder / "0.png"),
    "a link to a folder": (
        lambda folder: (folder / "x").symlink_to(put(folder.parents[2] / "far", "y", count=1) / "y")
    ),
    "a folder below": lambda folder: put(folder, "x/y", count=1),
    "an ending in capitals": (
        lambda folder: (folder / "0.png").rename(folder / "0.PNG") and put(folder, ".", count=1)
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_lies_below_a_class_is_read(name: str, tmp_path: Path):
    root = put(tmp_path / "root", *within("train", "val"))
    READ[name](root / "train" / "cat")
    assert parts(root)[2] == 5 and left(root) == {}


def test_a_look_into_a_folder_ends_at_its_first_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Folders of classes hold a million images, and are read in full once."""
    root = put(tmp_path / "root", *within("train", "val"), count=30)
    seen, scandir = [], os.scandir

    class Counting:
        def __init__(self, path: Any) -> None:
            self.path, self.entries = str(path), scandir(path)

        def __enter__(self) -> "Counting":
            return self

        def __exit__(self, *_: object) -> None:
            self.entries.close()

        def __iter__(self) -> Any:
            for entry in self.entries:
                seen.append(self.path)
                yield entry

    monkeypatch.setattr(folder_contents.os, "scandir", Counting)
    class_folders.parts_of(root)
    assert (
        max(
            seen.count(str(root / part / name))
            for part in ("train", "val")
            for name in ("cat", "dog")
        )
        <= 3
    )


def test_a_name_is_that_of_a_part_by_one_word():
    expected = {"train": "train", "Val_Data": "val", "test2": "test"}
    expected |= dict.fromkeys(("train_test", "trainer", "contest"))
    known = {name: part_names.parsed(name) for name in expected}
    assert {name: part and part.word for name, part in known.items()} == expected
    assert {*part_names.named(["dogs_train", "dogs_test", "cat_test"])} == {
        "dogs_train",
        "dogs_test",
    }


def test_a_run_says_what_it_does_not_read_and_records_it(measured: Any, tmp_path: Path, capfd: Any):
    root = put(tmp_path / "root", *within("Training", "Testing"), count=10)
    (root / "Training" / "cat" / "a.heic").write_bytes(b"x")
    record = measured("dataset=images", f"dataset.root={root}", "batch_size=4")
    assert record["status"] == "ok" and record["ignored"] == [{"what": ".heic", "count": 1}]
    assert record["input"]["parts"] == {"train": "training", "test": "testing", "unused": []}
    said = capfd.readouterr().out
    assert find(said, "photographs.ignored").facts["ignored"] == {".heic": 1}
    assert said.index("photographs.ignored") < said.index("started")


@pytest.mark.parametrize("place", ["train", "val", "."])
@pytest.mark.parametrize("above", ["", "data", "a/data"])
def test_a_stray_image_beside_folders_of_classes_or_of_parts_is_counted(
    above: str, place: str, tmp_path: Path
):
    root = put(tmp_path / "root", *within(*(str(Path(above) / name) for name in ("train", "val"))))
    (root / above / place / "stray.png").write_bytes((root / above / "val/cat/0.png").read_bytes())
    assert parts(root) == ("train", "val", 4, 4, ["cat", "dog"])
    assert left(root) == {".png outside of classes": 1}


def test_a_part_with_one_class_and_a_stray_image_is_read_where_the_class_is_known(tmp_path: Path):
    root = put(tmp_path / "root", *within("train"), "val/cat", "val")
    with refused("photographs.other-classes", classes=["dog"]):
        parts(root)
    (root / "val/cat").rename(root / "val/thumbs")
    assert left(root, "dataset.split=0.5") == {"val/": 4}
    alone = put(tmp_path / "alone", "train", *within("train"), count=4)
    (alone / "notes").mkdir()
    assert parts(alone, "dataset.split=0.5") == ("train", "0.5 of train", 4, 4, ["cat", "dog"])


@pytest.mark.parametrize("others", [[], ["notes"]])
def test_named_parts_are_found_in_the_only_folder_of_data(others: list[str], tmp_path: Path):
    root = put(tmp_path / "root", *within("data/train", "data/val"))
    for name in others:
        (root / name).mkdir()
    assert parts(root, "dataset.parts=[train]", "dataset.split=0.5")[:3] == (
        "train",
        "0.5 of train",
        2,
    )
    assert parts(root, "dataset.parts=[VAL,train]")[:2] == ("val", "train")
    assert left(root, "dataset.parts=[train]", "dataset.split=0.5") == {"val/": 4}
    assert parts(root, "dataset.parts=[]", "dataset.split=0.5")[4] == ["train", "val"]
    with refused("photographs.no-folder-of-part", absent=["x"]):
        parts(root, "dataset.parts=[x]")
