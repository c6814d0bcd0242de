"""Lists of paths that divide folders of classes into parts, as Food-101 has them."""

import shlex
from pathlib import Path

import pytest
from PIL import Image

from multicard.vision.data import datasets
from tests.helpers.messages import refused, remedies
from tests.vision.test_class_folders import options, parts, put
from tests.vision.test_sample_sources import write

TRAIN = [f"{name}/{number}" for name in ("pie", "ribs") for number in range(8)]
TEST = [f"{name}/{number}" for name in ("pie", "ribs") for number in range(8, 12)]


def food(folder: Path, form: str = "{}", place: str = "meta") -> Path:
    """Folders of two classes below images/, and the lists of their parts."""
    root = put(folder, "images/pie", "images/ribs", count=12)
    (root / place).mkdir(exist_ok=True)
    for part, names in (("train", TRAIN), ("test", TEST)):
        twice = [names[0], *names]  # A line that is there twice counts once.
        write(root / place / f"{part}.txt", *(form.format(name) for name in twice))
    return root


@pytest.mark.parametrize("form", ["{}", "{}.png", "images/{}.png", "./images/{}.png"])
@pytest.mark.parametrize("place", ["meta", "."])
def test_lists_of_paths_divide_folders_of_classes(form: str, place: str, tmp_path: Path):
    root = food(tmp_path / "food", form, place)
    assert parts(root) == ("train", "test", 16, 8, ["pie", "ribs"])


def test_an_archive_may_hold_one_folder_and_what_no_list_names_is_counted(tmp_path: Path):
    root = food(tmp_path / "archive/food-101")
    write(root / "meta/classes.txt", "pie", "ribs")
    Image.new("RGB", (32, 32), (1, 2, 3)).save(root / "images/pie/more.png")
    data = datasets.DATASETS["images"].read(options(tmp_path / "archive"), 0)
    assert parts(tmp_path / "archive") == ("train", "test", 16, 8, ["pie", "ribs"])
    ignored = {part.what: part.count for part in data.ignored}
    assert ignored == {"meta/": 1, "images that no list names": 1}


def test_a_line_without_an_image_is_refused_and_the_folders_can_be_read_alone(tmp_path: Path):
    for place in ("meta", "."):
        root = food(tmp_path / place / "food", place=place)
        (root / "images/ribs/3.png").unlink()
        with refused("photographs.line-without-image", line="ribs/3", missing=1) as refusal:
            datasets.check(options(root))
        (remedy,) = remedies(refusal.value)
        assert sum(parts(root, *shlex.split(remedy))[2:4]) == 23


def test_lists_of_other_images_divide_nothing(tmp_path: Path):
    root = food(tmp_path / "food", "other_{}")
    with refused("photographs.nothing-to-test-on"):
        datasets.check(options(root))
    assert parts(root, "dataset.split=0.5")[2:4] == (12, 12)


def test_of_lists_to_test_by_the_one_of_validation_is_taken(tmp_path: Path):
    root = food(tmp_path / "food")
    write(root / "meta/test.txt", "pie/8", "ribs/8")
    write(root / "meta/valid.txt", "pie/9", "pie/10", "ribs/9")
    assert parts(root) == ("train", "valid", 16, 3, ["pie", "ribs"])
    assert parts(root, "dataset.parts=[train,test]") == ("train", "test", 16, 2, ["pie", "ribs"])


def test_of_several_divisions_into_lists_one_is_chosen_by_its_names(tmp_path: Path):
    """DTD has train1.txt to train10.txt."""
    root = food(tmp_path / "dtd", "{}.png", "labels")
    for part in ("train", "test"):
        (root / f"labels/{part}.txt").rename(root / f"labels/{part}1.txt")
    write(root / "labels/train2.txt", "pie/0.png", "ribs/0.png")
    write(root / "labels/test2.txt", "pie/1.png", "ribs/1.png")
    with refused("photographs.two-trains") as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    assert parts(root, *shlex.split(remedy)) == ("train1", "test1", 16, 8, ["pie", "ribs"])
    with refused("photographs.no-part", absent=["train3"]):
        datasets.check(options(root, "dataset.parts=[train3,test1]"))


def test_lists_of_the_pieces_of_an_archive_do_not_make_them_classes(tmp_path: Path):
    root = put(tmp_path / "scans", "images_001", "images_002", count=4)
    for part, numbers in (("train", (0, 1, 2)), ("test", (3,))):
        paths = [f"images_00{piece}/{number}.png" for piece in (1, 2) for number in numbers]
        write(root / f"{part}.txt", *paths)
    with refused("photographs.nothing-to-test-on"):
        datasets.check(options(root))
    with refused("photographs.no-folder-of-part"):
        datasets.check(options(root, "dataset.parts=[train,test]"))
