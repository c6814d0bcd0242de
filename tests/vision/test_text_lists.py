"""Lists of images and the numbers of their classes, which a command turns into tables."""

import shlex
import subprocess
from pathlib import Path

import pytest

from multicard.vision.data import datasets
from tests.helpers.messages import refused, remedies
from tests.vision.test_class_folders import options, parts, put
from tests.vision.test_sample_sources import write


def write_list(file: Path, names: list[str], separator: str = " ") -> None:
    file.parent.mkdir(exist_ok=True)
    write(file, *(f"{name}{separator}{number % 2}" for number, name in enumerate(names)))


def read_as_offered(root: Path) -> tuple[str, str, int, int, list[str]]:
    """Carry out what the refusal offers."""
    with refused("photographs.text-lists", key="dataset.root") as refusal:
        datasets.check(options(root))
    facts = refusal.value.message.facts
    assert {*remedies(refusal.value)} == {facts["command"], facts["remedy"]} - {None}
    subprocess.run(str(facts["command"]), shell=True, check=True)
    return parts(root, *shlex.split(str(facts["remedy"] or "")))


@pytest.mark.parametrize("ending", ["", ".png"])
@pytest.mark.parametrize("separator", [" ", "\t", "  "])
def test_lists_of_images_in_one_folder(ending: str, separator: str, tmp_path: Path):
    root = put(tmp_path / "root", "images", count=12)
    write(root / "synsets.txt", "n01440764", "n01443537")
    for part, numbers in (("train", range(8)), ("val", range(8, 12))):
        write_list(root / f"{part}.txt", [f"{number}{ending}" for number in numbers], separator)
    assert read_as_offered(root) == ("train", "val", 8, 4, ["0", "1"])


def test_lists_in_a_folder_of_notes_are_of_the_folder_of_their_part(tmp_path: Path):
    root = put(tmp_path / "root", "train", "val", count=6)
    for part in ("train", "val"):
        write_list(root / f"meta/{part}.txt", [f"{number}.png" for number in range(6)])
    assert read_as_offered(root) == ("train", "val", 6, 6, ["0", "1"])


def test_a_list_alone_is_offered_with_a_split(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=10)
    write_list(root / "all.txt", [f"images/{number}.png" for number in range(10)])
    assert read_as_offered(root)[2:] == (8, 2, ["0", "1"])
    with refused("photographs.text-lists", files=[str(root / "all.txt")]):
        datasets.check(options(root / "all.txt"))


@pytest.mark.parametrize("line", ["README 1", "0.png cat", "0.png 1 2", ""])
def test_other_texts_are_no_lists(line: str, tmp_path: Path):
    root = put(tmp_path / "root", "images", count=4)
    write(root / "notes.txt", line)
    with refused("photographs.one-class"):
        datasets.check(options(root, "dataset.split=0.5"))


@pytest.mark.parametrize("name", ["list_eval_partition", "train_test_split", "splits"])
def test_a_list_of_parts_is_not_offered_as_classes(name: str, tmp_path: Path):
    root = put(tmp_path / "root", "img_align", count=6)
    names = [f"{number}.png" for number in range(6)]
    write_list(root / f"{name}.txt", names)
    with refused("photographs.one-class", classes=["img_align"]):
        datasets.check(options(root, "dataset.split=0.5"))
    write_list(root / "z_identity.txt", names)
    assert read_as_offered(root)[2:] == (4, 2, ["0", "1"])


def test_a_list_of_a_part_of_a_split_has_classes(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=10)
    write_list(root / "train_split1.txt", [f"{number}.png" for number in range(10)])
    assert read_as_offered(root)[2:] == (8, 2, ["0", "1"])
