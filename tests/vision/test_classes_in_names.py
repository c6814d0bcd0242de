"""Images whose names begin with their classes, of which a command writes a table."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from multicard.vision.data import datasets
from tests.helpers.messages import refused, remedies
from tests.vision.test_class_folders import options, parts


def images(folder: Path, names: Sequence[str]) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / name)
    return folder


@pytest.mark.parametrize(
    ("form", "classes"),
    [
        ("{}.{}.jpg", ["cat", "dog"]),
        ("{}_{}.png", ["Abyssinian", "american_bulldog"]),
        ("{} ({}).jpg", ["a b", "it's c"]),
        ("{}-00{}.JPG", ["n01440764", "x"]),
        ("{}{}.jpg", ["cat", "dog"]),
    ],
)
def test_a_table_of_them_is_offered(form: str, classes: list[str], tmp_path: Path):
    names = [form.format(name, number) for name in classes for number in range(10)]
    root = images(tmp_path / "the data", names)
    with refused("photographs.classes-in-names", classes=classes) as refusal:
        datasets.check(options(root))
    facts = refusal.value.message.facts
    assert {*remedies(refusal.value)} == {facts["command"], facts["remedy"]}
    subprocess.run(facts["command"], shell=True, check=True)
    assert parts(root, *shlex.split(facts["remedy"]))[2:] == (16, 4, classes)


def test_the_part_to_train_on_is_offered_alone(tmp_path: Path):
    names = [f"{name}.{number}.jpg" for name in ("cat", "dog") for number in range(5)]
    root = images(tmp_path / "pets/train", names).parent
    images(root / "test1", [f"{number}.jpg" for number in range(5)])
    with refused("photographs.classes-in-names", folder=str(root / "train")):
        datasets.check(options(root))


@pytest.mark.parametrize(
    "names",
    [
        ["IMG_0001.jpg", "IMG_0002.jpg", "IMG_0003.jpg", "IMG_0004.jpg"],
        ["0001.jpg", "0002.jpg", "1_3.jpg", "1_4.jpg"],
        ["cat.1.jpg", "cat.2.jpg", "dog.1.jpg"],
        ["cat.1.jpg", "cat.2.jpg", "dog.1.jpg", "dog.2.jpg", "frog.jpg"],
    ],
)
def test_other_names_say_no_classes(names: list[str], tmp_path: Path):
    root = images(tmp_path / "root", names)
    with refused("photographs.no-classes"):
        datasets.check(options(root))


def test_no_table_is_overwritten(tmp_path: Path):
    root = images(
        tmp_path / "root", [f"{name}.{number}.jpg" for name in "ab" for number in range(4)]
    )
    (root / "labels.csv").write_text("mine\n")
    with refused("photographs.no-classes"):
        datasets.check(options(root))
