"""Folders that divide an archive or a domain, and no classes: what
tables and deeper folders say of their images.
"""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from multicard.records.schema_data import Ignored
from multicard.vision.data import datasets
from multicard.vision.data.table_images import COPIES
from tests.helpers.messages import refused, remedies
from tests.vision.test_class_folders import left, options, parts, put

CLASSES = ["mel", "nv"]
Row = Callable[[Path, int], str]


def table(root: Path, name: str, head: str, row: Row) -> Path:
    """A table of the images in a folder, in turn of both classes, whichever folder they lie in."""
    images = sorted(root.rglob("*.png"), key=lambda path: path.name)
    lines = [head, *(row(image, number) for number, image in enumerate(images))]
    (root / name).write_text("\n".join(lines) + "\n")
    return root


def archive(root: Path, *folders: str, count: int = 6) -> Path:
    """Folders of images, each with a name of its own."""
    put(root, *folders, count=count)
    for place, folder in enumerate(folders):
        for image in [*(root / folder).glob("*.png")]:
            image.rename(image.with_name(f"{place}{int(image.stem):04d}.png"))
    return root


NUMBERED = ("set_part_1", "set_part_2")
# Folders, the table's name and columns, a row of it, and the classes that the first remedy reads
ARCHIVES: dict[str, tuple[tuple[str, ...], str, str, Row, list[str]]] = {
    "ids and labels": (
        NUMBERED,
        "a.csv",
        "image_id,label",
        lambda p, n: f"{p.stem},{CLASSES[n % 2]}",
        CLASSES,
    ),
    "a diagnosis": (
        NUMBERED,
        "meta.csv",
        "lesion_id,image_id,dx,age",
        lambda p, n: f"L{n},{p.stem},{CLASSES[n % 2]},{40 + n}",
        CLASSES,
    ),
    "names and findings": (
        ("images_001/images", "images_002/images"),
        "Data_Entry.csv",
        "Image Index,Finding Labels,Patient ID",
        lambda p, n: f"{p.name},{CLASSES[n % 2]},{n}",
        CLASSES,
    ),
    "numbers of classes": (
        ("train/0", "train/1", "train/2"),
        "train.csv",
        "id,landmark_id",
        lambda p, n: f"{p.stem},{n % 2}",
        ["0", "1"],
    ),
    "digits and letters": (
        ("train/0", "train/9", "train/a", "train/f"),
        "train.csv",
        "id,landmark_id",
        lambda p, n: f"{p.stem},{n % 2}",
        ["0", "1"],
    ),
    "letters": (
        ("part_a", "part_b"),
        "about.csv",
        "image_id,colour",
        lambda p, n: f"{p.stem},{CLASSES[n % 2]}",
        CLASSES,
    ),
    "tabs": (
        NUMBERED,
        "a.tsv",
        "file\tspecies",
        lambda p, n: f"{p.name}\t{CLASSES[n % 2]}",
        CLASSES,
    ),
    "lines": (
        ("part1", "part2"),
        "a.jsonl",
        "",
        lambda p, n: json.dumps(
            {"file_name": f"{p.parent.name}/{p.name}", "label": CLASSES[n % 2]}
        ),
        CLASSES,
    ),
    "one folder": (
        ("images",),
        "train.csv",
        "filename,label",
        lambda p, n: f"{p.name},{CLASSES[n % 2]}",
        CLASSES,
    ),
    "one folder, another word": (
        ("data",),
        "about.csv",
        "image_id,colour,width",
        lambda p, n: f"{p.stem},{CLASSES[n % 2]},{n}",
        CLASSES,
    ),
}


@pytest.mark.parametrize("words", [[], ["dataset.split=0.2"]], ids=str)
@pytest.mark.parametrize("name", ARCHIVES)
def test_folders_of_an_archive_are_no_classes_where_a_table_has_others(
    name: str, words: list[str], tmp_path: Path
):
    folders, file, head, row, classes = ARCHIVES[name]
    root = table(archive(tmp_path / "data set", *folders), file, head, row)
    with refused(
        "photographs.table-of-classes", key="dataset.root", table=str(root / file)
    ) as refusal:
        datasets.check(options(root, *words))
    offered = remedies(refusal.value)
    assert parts(root, *shlex.split(offered[0]))[4] == classes
    assert [parts(root, *shlex.split(word))[4] for word in offered[1:]] == (
        [] if folders[1:] == () else [sorted(path.name for path in _folders(root, folders))]
    )


def _folders(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """The folders that are the classes if they are taken for these."""
    return [
        root / (folder if folder.startswith("train/") else folder.partition("/")[0])
        for folder in folders
    ]


@pytest.mark.parametrize("folders", [NUMBERED, ("images",)], ids=str)
def test_a_table_in_a_folder_of_notes_is_named(folders: tuple[str, ...], tmp_path: Path):
    root = archive(tmp_path / "root", *folders)
    (root / "csv").mkdir()
    table(root, "csv/labels.csv", "image,label", lambda p, n: f"{p.stem},{CLASSES[n % 2]}")
    file = str(root / "csv/labels.csv")
    with refused("photographs.table-of-classes", table=file) as refusal:
        datasets.check(options(root, "dataset.split=0.2"))
    for remedy, classes in zip(remedies(refusal.value), (CLASSES, [*folders]), strict=False):
        assert parts(root, *shlex.split(remedy))[4] == classes


# Columns beside that of the images, values of the first and of the other images,
# and that which the remedy reads
ONE_HOT: dict[str, tuple[str, str, str, str | None]] = {
    "floats": ("MEL,NV", "1.0,0.0", "0.0,1.0", None),
    "whole numbers": ("healthy,rust,scab", "0,1,0", "0,0,1", None),
    "beside texts": ("MEL,NV,dx", "1,0,mel", "0,1,nv", "dx"),
    "any number of classes": ("young,smiling", "1,1", "0,1", "young"),
}


@pytest.mark.parametrize("name", ONE_HOT)
def test_of_columns_that_are_classes_none_is_offered_as_that_of_the_classes(
    name: str, tmp_path: Path
):
    head, first, other, label = ONE_HOT[name]
    root = archive(tmp_path / "root", "images", count=9)
    table(root, "truth.csv", f"image,{head}", lambda p, n: f"{p.stem},{other if n % 3 else first}")
    with refused("photographs.table-of-classes") as refusal:
        datasets.check(options(root, "dataset.split=0.2"))
    asked = options(root, *shlex.split(str(refusal.value.message.facts["remedy"])))
    assert (asked.columns or {}).get("label") == label


# A table that says the same as the folders, says nothing of classes, or is of other images
AGREEING: dict[str, tuple[str, Row]] = {
    "the folder itself": ("filename,label", lambda p, n: f"{p.name},{p.parent.name}"),
    "a name of the folder": (
        "path,class_name",
        lambda p, n: f"{p.parent.name}/{p.name},the {p.parent.name}",
    ),
    "one of several": ("name,category,labels", lambda p, n: f"{p.stem},{n % 2},{p.parent.name}"),
    "no column of classes": ("filename,width,height", lambda p, n: f"{p.name},{n},{n}"),
    "a camera": ("filename,camera", lambda p, n: f"{p.name},{CLASSES[n % 2]}"),
    "the names alone": ("filename", lambda p, n: p.name),
    "other images": ("image_id,label", lambda p, n: f"other{n},{CLASSES[n % 2]}"),
}


@pytest.mark.parametrize("name", AGREEING)
def test_folders_are_classes_where_no_table_has_others(name: str, tmp_path: Path):
    root = table(archive(tmp_path / "root", "cat", "dog"), "about.csv", *AGREEING[name])
    assert parts(root, "dataset.split=0.5")[4] == ["cat", "dog"]


def test_images_of_the_same_names_in_several_folders_are_told_by_these(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog", count=6)
    rows = [f"{name}/{number}.png,{name}s" for name in ("cat", "dog") for number in range(6)]
    (root / "about.csv").write_text("\n".join(["path,label", *rows]))
    assert parts(root, "dataset.split=0.5")[4] == ["cat", "dog"]
    other = [row.replace("s", "") if number % 2 else row for number, row in enumerate(rows)]
    (root / "about.csv").write_text("\n".join(["path,label", *other]))
    with refused("photographs.table-of-classes"):
        datasets.check(options(root, "dataset.split=0.5"))


@pytest.mark.parametrize("words", [[], ["dataset.split=0.2"]], ids=str)
def test_copies_of_the_folders_of_an_archive_are_no_classes(words: list[str], tmp_path: Path):
    root = archive(tmp_path / "root", *NUMBERED)
    table(root, "meta.csv", "image_id,dx", lambda p, n: f"{p.stem},{CLASSES[n % 2]}")
    for folder in NUMBERED:
        shutil.copytree(root / folder, root / folder.upper())
    with refused("photographs.table-of-classes", table=str(root / "meta.csv")) as refusal:
        datasets.check(options(root, *words))
    offered = remedies(refusal.value)
    assert parts(root, *shlex.split(offered[0]))[2:] == (10, 2, CLASSES)
    read = datasets.DATASETS["images"].read(options(root, *shlex.split(offered[0])), 0)
    assert Ignored(COPIES, 12) in read.ignored


def test_other_images_of_one_name_are_no_copies(tmp_path: Path):
    root = archive(tmp_path / "root", *NUMBERED)
    table(root, "meta.csv", "image_id,label", lambda p, n: f"{p.stem},{CLASSES[n % 2]}")
    first = min((root / NUMBERED[0]).iterdir())
    put(root, "other", count=1)
    other = (root / "other" / "0.png").rename(root / "other" / first.name)
    with refused("photographs.bad-rows", row=1, rows=1):
        parts(root / "meta.csv", "dataset.split=0.5")
    other.unlink()
    (root / "test").mkdir()  # What is tested on may not be trained on.
    shutil.copy(first, root / "test")
    with refused("photographs.bad-rows", row=1, rows=1):
        parts(root / "meta.csv", "dataset.split=0.5")


# A row of a table beside two folders that hold images of the same names, and whether it is about
# these folders as versions of the data
VERSIONS: dict[str, tuple[Row, bool]] = {
    "ids": (lambda p, n: f"{p.stem},{CLASSES[n % 2]}", True),
    "names": (lambda p, n: f"{p.name},{CLASSES[n % 2]}", True),
    "numbers": (lambda p, n: f"{n},{CLASSES[n % 2]}", False),
    "images elsewhere": (lambda p, n: f"test/{p.name},{CLASSES[n % 2]}", False),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_versions_of_the_images_of_a_table_are_no_classes(name: str, tmp_path: Path):
    row, about_versions = VERSIONS[name]
    root = archive(tmp_path / "root", "original")
    for number, image in enumerate(sorted((root / "original").iterdir())):
        image.rename(image.with_name(f"{number}.png" if name == "numbers" else f"id{number}.png"))
    table(root, "meta.csv", "image_id,label", row)
    put(root, "resized", count=6)
    for image in (root / "resized").iterdir():
        image.rename(image.with_name(image.name if name == "numbers" else f"id{image.name}"))
    if not about_versions:
        assert parts(root, "dataset.split=0.2")[4] == ["original", "resized"]
        return
    with refused("photographs.table-of-classes", remedy=None) as refusal:
        datasets.check(options(root, "dataset.split=0.2"))
    (as_classes,) = remedies(refusal.value)
    assert parts(root, *shlex.split(as_classes))[4] == ["original", "resized"]
    moved = (root / "meta.csv").rename(root / "original" / "meta.csv")
    assert parts(moved, "dataset.split=0.4")[2:] == (4, 2, CLASSES)


def test_a_table_of_each_part_is_offered_as_such(tmp_path: Path):
    root = put(tmp_path / "root", "train/cat", "train/dog", "test/cat", "test/dog", count=6)
    for part in ("train", "test"):
        rows = [
            f"{part}/{name}/{number}.png,{CLASSES[number % 2]}"
            for name in ("cat", "dog")
            for number in range(6)
        ]
        (root / f"{part}.csv").write_text("\n".join(["path,label", *rows]))
    with refused("photographs.table-of-classes") as refusal:
        datasets.check(options(root))
    read = [parts(root, *shlex.split(remedy)) for remedy in remedies(refusal.value)]
    assert [each[1:] for each in read] == [
        ("test", 12, 12, CLASSES),
        ("test", 12, 12, ["cat", "dog"]),
    ]


def test_a_form_to_be_filled_in_is_no_table_of_classes(tmp_path: Path):
    """Kaggle's of cats and dogs: images of both in train/, and a form for those of test1/."""
    root = archive(tmp_path / "root", "train", "test1")
    (root / "sampleSubmission.csv").write_text(
        "id,label\n" + "".join(f"1000{n},0\n" for n in range(6))
    )
    with refused("photographs.part-without-classes", key="dataset.root") as refusal:
        datasets.check(options(root))
    assert remedies(refusal.value) == []


def fiftyone(file: Path, names: list[str], **more: object) -> None:
    """Labels as FiftyOne exports them: the classes by turns, by their numbers."""
    labels = {name: number % 2 for number, name in enumerate(names)}
    file.write_text(json.dumps({"classes": CLASSES, "labels": labels, **more}))


@pytest.mark.parametrize("ending", ["", ".png"])
def test_labels_in_json_beside_one_folder_are_offered(ending: str, tmp_path: Path):
    root = archive(tmp_path / "root", "data")
    names = sorted(f"{path.stem}{ending}" for path in root.rglob("*.png"))
    fiftyone(root / "labels.json", names)
    with refused("photographs.table-of-classes", table=str(root / "labels.json")) as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    words = [word.replace("0.2", "0.5") for word in shlex.split(remedy)]
    assert parts(root, *words)[4] == CLASSES
    asked = options(root, *words)
    train = datasets.DATASETS["images"].read(asked, 0).train
    for image, label in zip(train.images, train.labels, strict=True):
        assert label == names.index(f"{Path(str(image)).stem}{ending}") % 2


def test_labels_in_json_of_each_part_are_read(tmp_path: Path):
    for part in ("train", "validation"):
        put(tmp_path / part, "data", count=6)
        fiftyone(tmp_path / part / "labels.json", [str(number) for number in range(6)])
    assert parts(tmp_path) == ("train", "validation", 6, 6, CLASSES)


@pytest.mark.parametrize("more", [{"classes": ["cat"]}, {"tags": {"0": "night"}}])
def test_labels_in_json_that_would_be_read_in_part_are_refused(
    more: dict[str, object], tmp_path: Path
):
    put(tmp_path, "data", count=6)
    fiftyone(tmp_path / "labels.json", [str(number) for number in range(6)], **more)
    with refused("photographs.no-list", key="dataset.root"):
        datasets.check(options(tmp_path / "labels.json", "dataset.split=0.5"))


DOMAINS = {
    "a folder between": [
        f"{name}/images/{each}" for name in ("amazon", "dslr") for each in ("mug", "pen")
    ],
    "the name again": [
        f"{name}/{name}/{each}" for name in ("Art", "Real World") for each in ("mug", "pen")
    ],
    "in one alone": ["amazon/images/mug", "amazon/images/pen", "dslr/mug", "dslr/pen"],
}


@pytest.mark.parametrize("name", DOMAINS)
def test_domains_are_no_classes_whatever_lies_between_them_and_these(name: str, tmp_path: Path):
    root = put(tmp_path / "root", *DOMAINS[name], count=5)
    with refused("photographs.like-parts", key="dataset.root", shared=["mug", "pen"]) as refusal:
        datasets.check(options(root))
    assert parts(root, *shlex.split(remedies(refusal.value)[0]))[4] == ["mug", "pen"]


def signs(root: Path, train: list[str], test: list[str]) -> Path:
    """Traffic signs: classes in the part to train on, and a table of each part."""
    put(root, "Train/0", "Train/1", "Test", "Meta", count=4)
    for part, lines in (("Train", train), ("Test", test)):
        (root / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return root


def test_images_to_test_on_whose_classes_are_in_a_table_are_not_called_unlabelled(tmp_path: Path):
    train = [f"20,{label},Train/{label}/{number}.png" for label in "01" for number in range(4)]
    test = [f"20,{number % 2},Test/{number}.png" for number in range(4)]
    root = signs(tmp_path / "root", ["W,ClassId,Path", *train], ["W,ClassId,Path", *test])
    with refused("photographs.test-in-table", parts=["Test"]) as refusal:
        datasets.check(options(root))
    (remedy,) = remedies(refusal.value)
    assert parts(root, *shlex.split(remedy)) == ("train", "test", 8, 4, ["0", "1"])
    assert parts(root, "dataset.split=0.5")[:2] == ("train", "0.5 of train")


def test_a_table_of_images_to_test_on_may_lack_classes_beside_folders(tmp_path: Path):
    train = [f"20,{label},Train/{label}/{number}.png" for label in "01" for number in range(4)]
    test = [f"20,Test/{number}.png" for number in range(4)]
    root = signs(tmp_path / "root", ["W,ClassId,Path", *train], ["W,Path", *test])
    with refused("photographs.test-unlabelled", parts=["Test"]):
        datasets.check(options(root))


@pytest.mark.parametrize(
    "notes", [["meta/train.txt", "meta/classes.txt"], ["Annotations/ant/annotation_1.mat"]]
)
def test_a_folder_of_notes_beside_that_of_the_images_is_no_class(notes: list[str], tmp_path: Path):
    root = put(tmp_path / "root", "101_images/ant", "101_images/bee", count=5)
    for note in notes:
        (root / note).parent.mkdir(parents=True, exist_ok=True)
        (root / note).write_text("ant/0\n")
    assert parts(root, "dataset.split=0.2")[4] == ["ant", "bee"]
    assert left(root, "dataset.split=0.2") == {f"{notes[0].partition('/')[0]}/": len(notes)}


def test_a_folder_called_as_notes_is_no_class_beside_others(tmp_path: Path):
    root = put(tmp_path / "root", "ant", "bee", "metadata", count=5)
    for image in (root / "metadata").iterdir():
        image.rename(image.with_suffix(".xml"))
    assert parts(root, "dataset.split=0.2")[4] == ["ant", "bee"]
    assert left(root, "dataset.split=0.2") == {"metadata/": 5}


def test_folders_of_notes_alone_hold_no_image(tmp_path: Path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("a")
    with refused("photographs.empty-class", key="dataset.root", name="labels"):
        datasets.check(options(tmp_path, "dataset.split=0.2"))


@pytest.mark.parametrize("file", [None, "0.heic"])
def test_a_class_without_an_image_that_can_be_read_is_no_folder_of_notes(
    file: str | None, tmp_path: Path
):
    root = put(tmp_path / "root", "cat/front", "cat/side", count=5)
    (root / "dog").mkdir()
    if file:
        (root / "dog" / file).write_bytes(b"image")
    with refused("photographs.empty-class", key="dataset.root", name="dog"):
        datasets.check(options(root, "dataset.split=0.2"))


@pytest.mark.parametrize("column", ["partition", "Subset"])
def test_a_column_of_parts_is_not_offered_as_classes(column: str, tmp_path: Path):
    root = archive(tmp_path / "root", "img_align")
    table(root, "list_eval_partition.csv", f"image_id,{column}", lambda p, n: f"{p.name},{n % 3}")
    with refused("photographs.one-class", classes=["img_align"]):
        datasets.check(options(root, "dataset.split=0.5"))
    table(root, "z.csv", f"image_id,{column},Male", lambda p, n: f"{p.name},{n // 4},{n % 2}")
    with refused("photographs.table-of-classes", table=str(root / "z.csv")) as refusal:
        datasets.check(options(root, "dataset.split=0.5"))
    assert "label: Male" in str(refusal.value.message.facts["remedy"])
