"""Tables with a column for each class, of which one is 1 in each row."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.vision.data import datasets
from tests.helpers.messages import find, refused, remedies
from tests.vision.test_class_folders import left, options, parts, put
from tests.vision.test_sample_sources import write

FLAGS = {
    "whole numbers": ("1,0,0", "0,0,1"),
    "decimals": ("1.0,0.0,0.0", "0.0,0.0,1.0"),
    "words": ("True,False,False", "FALSE,FALSE,TRUE"),
}


def one_hot(file: Path, head: str, first: str, second: str, numbers: range) -> None:
    write(
        file, f"image_id,{head}", *(f"{number},{[first, second][number % 2]}" for number in numbers)
    )


@pytest.mark.parametrize("name", FLAGS)
def test_the_class_is_the_column_that_is_1(name: str, tmp_path: Path):
    root = put(tmp_path / "root", "images", count=8)
    one_hot(root / "train.csv", "healthy,rust,scab", *FLAGS[name], range(8))
    word = "dataset.split=0.5"
    assert parts(root / "train.csv", word)[2:] == (4, 4, ["healthy", "scab"])
    data = datasets.DATASETS["images"].read(options(root / "train.csv", word), 0)
    first = {
        Path(str(image)).stem: label
        for image, label in zip(data.train.images, data.train.labels, strict=True)
    }
    assert all(label == int(number) % 2 for number, label in first.items())
    assert find(data.notices, "photographs.one-hot-columns", columns=["healthy", "rust", "scab"])
    with refused("photographs.table-of-classes") as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    assert remedy == f"dataset.root={root / 'train.csv'} dataset.split=0.2"


def test_a_table_of_each_part_has_its_classes(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=12)
    for part, numbers in (("train", range(8)), ("val", range(8, 12))):
        one_hot(root / f"{part}.csv", "healthy,rust,age", "1,0,30", "0,1,40", numbers)
    assert parts(root) == ("train", "val", 8, 4, ["healthy", "rust"])
    assert left(root) == {"column age": 12}


def roboflow(root: Path, flags: str) -> Path:
    """Parts with a table of flags each, as Roboflow exports them.

    Args:
        flags: those of the third image to train on.
    """
    put(root, "train", "valid", count=6)
    for part in ("train", "valid"):
        rows = [f"{number}.png, {number % 2}, {1 - number % 2}" for number in range(6)]
        if part == "train":
            rows[2] = f"2.png, {flags}"
        write(root / part / "_classes.csv", "filename, cat, dog", *rows)
    (root / "README.roboflow.txt").touch()
    return root


def test_the_flags_of_each_part_give_the_classes_if_each_image_has_one(tmp_path: Path):
    root = roboflow(tmp_path / "root", "0, 1")
    assert parts(root) == ("train", "valid", 6, 6, ["cat", "dog"])
    assert left(root) == {".txt": 1}


@pytest.mark.parametrize("flags", ["1, 1", "0, 0"])
def test_flags_of_several_classes_or_none_are_refused(flags: str, tmp_path: Path):
    with refused("photographs.one-hot"):
        datasets.check(options(roboflow(tmp_path / "root", flags)))


def test_a_part_without_classes_is_not_read_by_flags_of_something_else(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=12)
    write(root / "train.csv", "image_id,label", *(f"{n},{['cat', 'dog'][n % 2]}" for n in range(8)))
    one_hot(root / "test.csv", "indoors,outdoors", "1,0", "0,1", range(8, 12))
    with refused("photographs.test-unlabelled", parts=["test"]):
        datasets.check(options(root))


def test_files_with_images_may_have_such_columns(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=6)
    images = [(root / f"images/{number}.png").read_bytes() for number in range(6)]
    is_cat = [number % 2 == 0 for number in range(6)]
    columns = {"image": images, "cat": is_cat, "dog": [not flag for flag in is_cat]}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    assert parts(tmp_path / "data.parquet", "dataset.split=0.34")[4] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("head", "first", "second"),
    [
        ("young,smiling", "1,1", "0,1"),
        ("cat,dog", "1,0", "0,0"),
        ("cat,dog", "1,0", "0,2"),
        ("train,test", "1,0", "0,1"),
    ],
)
def test_other_columns_of_0_and_1_are_no_classes(
    head: str, first: str, second: str, tmp_path: Path
):
    root = put(tmp_path / "root", "images", count=8)
    one_hot(root / "a.csv", head, first, second, range(8))
    with refused("photographs.columns"):
        datasets.check(options(root / "a.csv", "dataset.split=0.5"))
