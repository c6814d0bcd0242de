"""Folders and files that are taken for classes and samples, and are none: masks, versions,
copies and parts.
"""

import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from multicard.vision.data import datasets
from tests.helpers.messages import find, refused, remedies, told
from tests.vision.test_class_folders import left, options, parts, put, within


def paths(*levels: str) -> list[str]:
    """All folders of these levels, each a list of names with blanks between them."""
    found = [""]
    for level in levels:
        found = [f"{above}/{name}".lstrip("/") for above in found for name in level.split()]
    return found


# Folders, what of them is not read, and the parts that are
MASKED = {
    "in parts": (paths("train test", "images masks", "cat dog"), {"masks/": 8}, "test"),
    "annotations in parts": (
        paths("train val", "images annotations", "cat dog"),
        {"annotations/": 8},
        "val",
    ),
    "other words": (
        paths("train val", "Original Ground_Truth", "cat dog"),
        {"Ground_Truth/": 8},
        "val",
    ),
    "around parts": (paths("images masks", "train val", "cat dog"), {"masks/": 8}, "val"),
    "in classes": (paths("train val", "cat dog", "images labels"), {"labels/": 8}, "val"),
    "below the images of classes": (
        [*within("train", "val"), *paths("train val", "cat dog", "masks")],
        {"masks/": 8},
        "val",
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks_in_folders_of_their_own_are_no_samples_at_any_level(name: str, tmp_path: Path):
    folders, ignored, test = MASKED[name]
    root = put(tmp_path / "root", *folders)
    assert parts(root) == ("train", test, 4, 4, ["cat", "dog"])
    assert left(root) == ignored


def test_masks_beside_folders_of_classes_without_parts_are_no_samples(tmp_path: Path):
    root = put(tmp_path / "root", *paths("images masks", "cat dog"))
    assert parts(root, "dataset.split=0.5") == ("all", "0.5 of all", 2, 2, ["cat", "dog"])
    assert left(root, "dataset.split=0.5") == {"masks/": 4}


SEGMENTATION = {
    "in parts": paths("train val", "images masks"),
    "labels in parts": paths("train val", "images labels"),
    "without parts": paths("images masks"),
    "around parts": paths("images masks", "train val"),
    "around parts, with boxes": paths("images labels", "train val test"),
    "called as parts": ["train_images", "train_masks", "val_images", "val_masks"],
    "called so first": ["images_train", "masks_train", "images_val", "masks_val"],
    "beside the part to train on": ["train", "train_masks", "test"],
    "beside a third folder": paths("images masks edges"),
}


@pytest.mark.parametrize("words", [[], ["dataset.split=0.5"]])
@pytest.mark.parametrize("name", SEGMENTATION)
def test_images_and_masks_without_classes_are_refused(name: str, words: list[str], tmp_path: Path):
    root = put(tmp_path / "root", *SEGMENTATION[name])
    with refused("photographs.masks", key="dataset.root") as refusal:
        if words and (root / "val").is_dir():
            words = [*words, "dataset.parts=[train]"]
        datasets.check(options(root, *words))
    assert remedies(refusal.value) == []


def test_folders_called_as_images_and_masks_are_classes_where_that_is_said(tmp_path: Path):
    root = put(tmp_path / "root", "image", "mask")
    assert parts(root, "dataset.parts=[]", "dataset.split=0.5")[4] == ["image", "mask"]


@pytest.mark.parametrize(
    "classes", [["mask", "no mask"], ["label", "other"], ["images", "drawings"]]
)
def test_one_such_word_alone_is_a_class(classes: list[str], tmp_path: Path):
    root = put(
        tmp_path / "root", *(f"{part}/{name}" for part in ("train", "val") for name in classes)
    )
    assert parts(root)[4] == sorted(classes)


@dataclass(frozen=True)
class NoClasses:
    """Folders in which others lie than those of classes, and what each remedy reads (parts,
    classes).
    """

    folders: list[str]
    code: str
    reads: list[tuple[str, str, list[str]]]
    facts: dict[str, Any] = field(default_factory=dict)


NO_CLASSES = {
    "versions in parts": NoClasses(
        paths("train valid", "color grayscale", "cat dog"),
        "photographs.versions-in-part",
        [
            ("train/color", "valid/color", ["cat", "dog"]),
            ("train", "valid", ["color", "grayscale"]),
        ],
        {"part": "train", "folders": ["color", "grayscale"], "shared": ["cat", "dog"]},
    ),
    "versions in the only part": NoClasses(
        paths("train", "v1 v2 v3", "cat dog"),
        "photographs.versions-in-part",
        [
            ("train/v1", "0.2 of train/v1", ["cat", "dog"]),
            ("train", "0.2 of train", ["v1", "v2", "v3"]),
        ],
    ),
    "versions below a folder": NoClasses(
        paths("set", "train val", "train_images", "a b", "cat dog"),
        "photographs.versions-in-part",
        [
            ("train/train_images/a", "val/train_images/a", ["cat", "dog"]),
            ("train", "val", ["a", "b"]),
        ],
    ),
    "a copy beside classes": NoClasses(
        [*paths("cat dog"), *paths("augmented", "cat dog")],
        "photographs.classes-inside",
        [("all", "0.2 of all", ["cat", "dog"])],
        {"folder": "augmented", "inside": ["cat", "dog"]},
    ),
    "a copy of the folder in itself": NoClasses(
        [*paths("cells", "cat dog"), *paths("cells", "cells", "cat dog")],
        "photographs.classes-inside",
        [("all", "0.2 of all", ["cat", "dog"])],
        {"folder": "cells"},
    ),
    "a copy in a part": NoClasses(
        [*within("train", "test"), *within("train/augmented")],
        "photographs.classes-inside",
        [("train/augmented", "test", ["cat", "dog"])],
    ),
    "parts in a part": NoClasses(
        [*paths("train", "train test", "cat dog"), *within("val")],
        "photographs.sets-inside",
        [("train", "test", ["cat", "dog"])],
        {"sets": ["train"]},
    ),
}


@pytest.mark.parametrize("name", NO_CLASSES)
def test_folders_that_hold_classes_are_none_themselves(name: str, tmp_path: Path):
    unclear = NO_CLASSES[name]
    root = put(tmp_path / "data set", *unclear.folders, count=5)
    with refused(unclear.code, key="dataset.root", **unclear.facts) as refusal:
        datasets.check(options(root))
    reads = []
    for remedy in remedies(refusal.value):
        train, test, _, _, classes = parts(root, *shlex.split(remedy))
        reads.append((train, test, classes))
    assert reads == unclear.reads


PATIENTS = {
    "of patients": paths("p1 p2 p3", "0 1"),
    "one without findings": [*paths("p1 p2", "0 1"), "p3/0"],
    "below a folder": paths("amazon dslr", "images", "mug pen"),
    "with blanks and commas": [f"{day}/{name}" for day in ("day 1", "day, 2") for name in "ab"],
    "with further folders": paths("p1 p2", "0 1", "left right"),
}


@pytest.mark.parametrize("name", PATIENTS)
def test_folders_with_the_same_classes_can_be_taken_together(name: str, tmp_path: Path):
    root = put(tmp_path / "data set", *PATIENTS[name], count=5)
    (root / PATIENTS[name][0] / "notes.txt").touch()
    (root / PATIENTS[name][0] / ".0.png").touch()
    with refused("photographs.like-parts") as refusal:
        datasets.check(options(root))
    facts = refusal.value.message.facts
    command, overrides = facts["together"]
    assert [command, overrides] == remedies(refusal.value)[-2:]
    subprocess.run(command, shell=True, check=True)
    whole, split = shlex.split(overrides)
    train, test, trained, tested, classes = parts(Path(whole.removeprefix("dataset.root=")), split)
    assert (train, test, classes) == ("all", "0.2 of all", facts["shared"])
    assert trained + tested == 5 * len(PATIENTS[name])


def test_folders_that_only_some_classes_hold_are_not_taken_for_classes(tmp_path: Path):
    folders = [*paths("cat dog", "google flickr"), "owl/own", *paths("fox", "google")]
    root = put(tmp_path / "root", *folders, count=5)
    assert parts(root, "dataset.split=0.5")[4] == ["cat", "dog", "fox", "owl"]


def test_classes_at_different_depths_are_not_put_into_a_table(tmp_path: Path):
    root = put(tmp_path / "root", *paths("amazon", "images", "mug pen"), *paths("dslr", "mug pen"))
    with refused("photographs.like-parts", together=None):
        datasets.check(options(root))


# ---- masks beside their images, by name


FORMS = [
    "{}_mask",
    "{}_mask_1",
    "{}-mask",
    "{}_seg",
    "{}_label",
    "{}_gt",
    "mask_{}",
    "{}.mask",
    "{} Segmentation",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_mask_beside_its_image_is_no_sample(form: str, tmp_path: Path):
    root = put(tmp_path / "root", *within("train", "val"))
    for image in [*root.glob("*/*/*.png")]:
        plain = image.with_name(f"{image.parent.name} ({image.stem}).png")
        mask = image.with_name(f"{form.format(plain.stem)}.PNG")
        mask.write_bytes(image.read_bytes())
        image.rename(plain)
    assert parts(root) == ("train", "val", 4, 4, ["cat", "dog"])
    assert left(root) == {"masks, by their names": 8}


def test_masks_without_their_image_are_samples_unless_most_have_theirs(tmp_path: Path):
    root = put(tmp_path / "root", *within("train", "val"))
    for image in [*(root / "train").glob("*/*.png")]:
        image.rename(image.with_name(f"{image.stem}_mask.png"))
    assert parts(root)[2] == 4 and left(root) == {}
    for name in ("0", "1"):
        original = root / "train/cat" / f"{name}_mask.png"
        (root / "train/cat" / f"{name}.png").write_bytes(original.read_bytes())
    (root / "train/cat/2_mask.png").write_bytes((root / "train/cat/0.png").read_bytes())
    assert left(root) == {"masks, by their names": 3}


# Folders, and those that lie in a class and may be classes
IN_CLASSES = {
    "beside others": (["data/cat", "data/dog", "figures"], {"data": ["cat", "dog"]}),
    "in each": (
        ["a/abbey", "a/airport", "b/bar", "b/barn"],
        {"a": ["abbey", "airport"], "b": ["bar", "barn"]},
    ),
    "deeper": (["labelled/cat/old", "labelled/dog", "rest"], {"labelled": ["cat", "dog"]}),
    "in parts": (
        [
            "train/defect/dent",
            "train/defect/hole",
            "train/good",
            "val/defect/dent",
            "val/defect/hole",
            "val/good",
        ],
        {"defect": ["dent", "hole"]},
    ),
    "plain": (["cat", "dog"], {}),
    "parts in classes": (["cat/train", "cat/test", "dog/train", "dog/test"], {}),
    "one folder": (["cat/images", "dog/images", "fox"], {}),
    "images beside folders": (["cat", "cat/old", "cat/new", "dog"], {}),
    "masks": (["cat/images", "cat/masks", "dog/images", "dog/masks"], {}),
}


@pytest.mark.parametrize("name", IN_CLASSES)
def test_folders_within_a_class_that_may_be_classes_are_said(
    name: str, tmp_path: Path, capsys: Any
):
    folders, inside = IN_CLASSES[name]
    split = [] if "train" in "".join(folders) else ["dataset.split=0.5"]
    root = put(tmp_path / "root", *folders)
    datasets.check(options(root, *split))
    said = [
        message
        for message in told(capsys.readouterr().out)
        if message.code != "photographs.ignored"
    ]
    assert [message.code for message in said] == (
        ["photographs.folders-in-classes"] if inside else []
    )
    assert [message.facts["classes"] for message in said] == ([inside] if inside else [])
    # which says that they are the classes
    datasets.check(options(root, "dataset.parts=[]", "dataset.split=0.5"))
    assert "photographs.folders-in-classes" not in [
        one.code for one in told(capsys.readouterr().out)
    ]


def test_the_folder_that_alone_holds_classes_is_offered(tmp_path: Path, capsys: Any):
    root = put(tmp_path / "root", "data/cat", "data/dog", "figures")
    datasets.check(options(root, "dataset.split=0.5"))
    said = find(capsys.readouterr().out, "photographs.folders-in-classes", key="dataset.root")
    remedy = str(said.facts["remedy"])
    assert parts(root, *shlex.split(remedy), "dataset.split=0.5")[4] == ["cat", "dog"]


# Dogs vs. Cats, and the German traffic signs, as their archives are unpacked
WRAPPED = {
    "folders named as their part": (["train/train", "test1/test1"], ["test1", "train"]),
    "archives": (["train_zip/train", "test_zip/test"], ["test_zip", "train_zip"]),
    "folders named as images": (["train/images", "valid/images"], ["train", "valid"]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_folder_that_only_wraps_a_parts_images_is_no_class(name: str, tmp_path: Path):
    folders, named = WRAPPED[name]
    root = put(tmp_path / "root", *folders)
    with refused("photographs.part-without-classes", parts=named):
        datasets.check(options(root))


@pytest.mark.parametrize("wrapper", ["Test/Test", "Test/images"])
def test_wrapped_images_of_a_part_to_test_on_are_not_read(wrapper: str, tmp_path: Path):
    root = put(tmp_path / "root", *within("Train"), wrapper)
    with refused("photographs.test-unlabelled", parts=["Test"]) as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    assert parts(root, *shlex.split(remedy), "dataset.split=0.5")[2:] == (2, 2, ["cat", "dog"])
    assert left(root, "dataset.split=0.5") == {"Test/": 2}


def test_the_only_class_of_a_part_to_test_on_is_not_taken_for_a_wrapper(tmp_path: Path):
    root = put(tmp_path / "root", *within("train"), "test/cat")
    with refused("photographs.other-classes", classes=["dog"]):
        datasets.check(options(root))
