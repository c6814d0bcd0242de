"""Which column of a table is the class: by its name, else where nothing else speaks against it;
and tables of several labels, objects, addresses and measurements, which are no classes.
"""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicard.vision.data import class_values, datasets
from tests.helpers.messages import find, refused, remedies, told
from tests.vision.test_class_folders import options, parts, put
from tests.vision.test_sample_sources import write

SPLIT = "dataset.split=0.25"
COUNT = 16
Cell = Callable[[int], Any]


def two(number: int) -> str:
    return ["cat", "dog"][number % 2]


def tabled(root: Path, head: str, *cells: Cell, count: int = COUNT) -> Path:
    """A table of images, and of further columns."""
    put(root, "images", count=count)
    rows = [
        ",".join([f"images/{number}.png", *(f"{cell(number)}" for cell in cells)])
        for number in range(count)
    ]
    return write(root / "t.csv", head, *rows)


# ---- a table of two columns

OTHER_THINGS: dict[str, Cell] = {
    "patient_id": lambda n: f"p{n // 8}",
    "photographer": lambda n: f"p{n % 2}",
    "age": lambda n: n // 8,
    "StudyDate": lambda n: n // 8,
    "taken": lambda n: f"2020-0{n // 8 + 1}-01",
    "text": lambda n: f"a {two(n)}",
    "EncodedPixels": lambda n: n % 2,
    "runs": lambda n: f"{n % 2} 3 10 5",
    "where": lambda n: f"https://a.b/{n % 2}",
    "price": lambda n: [1.5, 2.25][n % 2],
    "preview": lambda n: f"{n % 2}.jpg",
    "bounds": lambda n: f"[{n % 2}; 2]",
    "serial": lambda n: f"s{n}",
    "remark": lambda n: f"one of the {two(n)}s that I once met in the street",
}


@pytest.mark.parametrize("name", OTHER_THINGS)
def test_the_other_of_two_columns_is_no_class_where_it_may_be_anything(name: str, tmp_path: Path):
    table = tabled(tmp_path / "root", f"image,{name}", OTHER_THINGS[name])
    with refused("photographs.no-class-column", key="dataset.columns", column=name) as refusal:
        datasets.check(options(table, SPLIT))
    (remedy,) = remedies(refusal.value)
    if name != "serial":
        assert len(parts(table, SPLIT, *shlex.split(remedy))[4]) == 2


@pytest.mark.parametrize("name", ["animal", "emotion", "is_cat"])
def test_the_other_of_two_columns_is_taken_and_said(name: str, tmp_path: Path, capsys: Any):
    table = tabled(tmp_path / "root", f"image,{name}", two)
    datasets.check(options(table, SPLIT))
    said = find(capsys.readouterr().out, "photographs.guessed-column", column=name)
    datasets.check(options(table, SPLIT, *shlex.split(str(said.facts["remedy"]))))
    assert told(capsys.readouterr().out) == []


@pytest.mark.parametrize("name", ["label", "Class", "category", "diagnosis", "breed", "ClassId"])
def test_a_column_that_is_called_as_classes_are_needs_no_words(
    name: str, tmp_path: Path, capsys: Any
):
    assert parts(tabled(tmp_path / "root", f"image,{name}", two), SPLIT)[4] == ["cat", "dog"]
    assert told(capsys.readouterr().out) == []


def test_folders_beside_the_other_of_two_columns_are_offered(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog", count=8)
    paths = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(8)]
    rows = [f"{path},{two(number // 2)}s" for number, path in enumerate(paths)]
    table = write(root / "t.csv", "image,view", *rows)
    with refused("photographs.no-class-column", folders=["cat", "dog"]) as refusal:
        datasets.check(options(table, SPLIT))
    column, folders = remedies(refusal.value)
    assert parts(table, SPLIT, *shlex.split(column))[4] == ["cats", "dogs"]
    where, *words = shlex.split(folders)
    assert parts(Path(where.removeprefix("dataset.root=")), *words)[4] == ["cat", "dog"]
    # the same as the folders
    agreeing = write(root / "u.csv", "image,animal", *(f"{p},{p.split('/')[0]}" for p in paths))
    assert parts(agreeing, SPLIT)[4] == ["cat", "dog"]


def test_two_columns_of_classes_that_differ_are_named(tmp_path: Path):
    table = tabled(tmp_path / "root", "path,label,target", two, lambda n: f"t{n % 4}")
    with refused("photographs.two-columns-of-classes", columns=["label", "target"]) as refusal:
        datasets.check(options(table, SPLIT))
    read = [parts(table, SPLIT, *shlex.split(remedy))[4] for remedy in remedies(refusal.value)]
    assert read == [["cat", "dog"], ["t0", "t1", "t2", "t3"]]
    coarse = tabled(tmp_path / "other", "path,label,category", lambda n: f"t{n % 4}", two)
    assert parts(coarse, SPLIT)[4] == ["t0", "t1", "t2", "t3"]


# ---- several labels

COMBINED = {
    "pipes": (["No Finding", "Edema|Mass", "Mass", "Edema"], "Edema|Mass"),
    "pipes, never alone": (["a|b", "b|c", "a|c", "d"], "a|b"),
    "blanks": (["healthy", "scab rust", "scab", "rust"], "scab rust"),
    "semicolons": (["a; b", "a", "b", "c"], "a; b"),
    "lists": (["['a' 'c']", "['a'; 'b']", "['a']", "['b']"], None),
    "Python's lists": (["('a'|'b')", "{'a'}", "x", "y"], None),
    "an end": (["a|", "b|", "a|b|", "c|"], "a|b|"),
    "and": (["a and b", "a", "b", "c"], "a and b"),
    "plus": (["a+b", "a", "b", "c"], "a+b"),
}


@pytest.mark.parametrize("name", COMBINED)
def test_values_of_several_labels_are_no_classes(name: str, tmp_path: Path):
    labels, example = COMBINED[name]
    table = tabled(tmp_path / "root", "path,labels", lambda n: labels[n % 4])
    if example is None:
        assert len(parts(table, SPLIT)[4]) == 4  # no lists that Python reads
        return
    with refused("photographs.several-labels", column="labels", example=example) as refusal:
        datasets.check(options(table, SPLIT))
    assert remedies(refusal.value) == []


def test_lists_of_labels_are_no_classes():
    for labels in (["['a', 'b']", "['a']"], ['["a", "b"]', "c"], ["[]", "['a']"], ["(1, 2)", "3"]):
        with refused("photographs.several-labels", column="c"):
            class_values.require_one_label_an_image("t.csv", "c", labels)
    for labels in (["['a']", "['b']"], ["[a, b]", "[c]"], ["(maize) rust", "(maize) healthy"]):
        class_values.require_one_label_an_image("t.csv", "c", labels)


@pytest.mark.parametrize(
    "labels",
    [
        ["hot dog", "dog", "cat"],
        ["bird|owl", "bird|jay", "cat|lynx", "cat|lion"],
        ["Pepper. bell healthy", "Pepper. bell spot", "Tomato"],
        ["black/white", "black/red", "white/red"],
        ["a|", "a", "|"],
    ],
)
def test_names_with_such_signs_are_classes(labels: list[str], tmp_path: Path):
    count = len(labels)
    table = tabled(tmp_path / "root", "path,label", lambda n: labels[n % count], count=count * 4)
    assert parts(table, SPLIT)[4] == sorted(labels)


# ---- several rows an image


def several(root: Path, head: str, *rows: tuple[Any, ...]) -> Path:
    put(root, "images", count=COUNT)
    return write(root / "t.csv", head, *(",".join(map(str, row)) for row in rows))


@pytest.mark.parametrize(
    "names", ["xmin,ymin,xmax,ymax", "x_min,y_min,x_max,y_max", "x1,y1,x2,y2", "bbox", "rle"]
)
@pytest.mark.parametrize("label", ["class", "class_name,class_id"])
def test_a_table_of_objects_is_not_of_whole_images(names: str, label: str, tmp_path: Path):
    cells = [1] * len(names.split(","))
    rows = [
        (f"images/{number}.png", *[two(other)] * len(label.split(",")), *cells)
        for number in range(COUNT)
        for other in range(1 + number % 2)
    ]
    table = several(tmp_path / "root", f"filename,{label},{names}", *rows)
    with refused("photographs.objects", columns=names.split(","), images=COUNT // 2):
        datasets.check(options(table, SPLIT))
    with refused("photographs.objects"):
        datasets.check(
            options(table, SPLIT, f"dataset.columns={{label: {label.partition(',')[0]}}}")
        )


def test_one_object_an_image_is_its_class(tmp_path: Path):
    table = tabled(tmp_path / "root", "path,class,x1,y1", two, lambda _: 1, lambda _: 2)
    assert parts(table, SPLIT)[4] == ["cat", "dog"]


def test_a_row_for_each_label_is_several_labels(tmp_path: Path):
    rows = [
        (f"images/{number}.png", "abc"[(number + other) % 3])
        for number in range(COUNT)
        for other in range(1 + number % 2)
    ]
    with refused("photographs.several-rows", images=COUNT // 2, of=COUNT):
        datasets.check(options(several(tmp_path / "root", "path,label", *rows), SPLIT))


# ---- what no image, or no class, can be


def test_addresses_are_not_fetched_and_not_offered(tmp_path: Path):
    root = put(tmp_path / "root", "images", count=COUNT)
    rows = [f"https://a.b/{number}.png,{two(number)}" for number in range(COUNT)]
    for head in ("url,label", "image,label", "link,species"):
        with refused("photographs.addresses", column=head.partition(",")[0]) as refusal:
            datasets.check(options(write(root / "t.csv", head, *rows), SPLIT))
        assert remedies(refusal.value) == []


def test_only_columns_that_name_files_are_offered_as_images(tmp_path: Path):
    table = tabled(tmp_path / "root", "photo,id,species", lambda n: 100 + n, two)
    with refused("photographs.columns") as refusal:
        datasets.check(options(table, SPLIT))
    (remedy,) = remedies(refusal.value)
    assert parts(table, SPLIT, *shlex.split(remedy))[4] == ["cat", "dog"]
    write(table, "photo,id,species", *(f"nowhere{n},{n},{two(n)}" for n in range(100, 108)))
    with refused("photographs.columns", remedy=None):
        datasets.check(options(table, SPLIT))


def test_measurements_are_no_classes_and_a_few_numbers_are(tmp_path: Path):
    table = tabled(tmp_path / "root", "path,target", lambda n: f"{n * 0.37:.2f}")
    with refused("photographs.measurements", column="target", different=COUNT):
        datasets.check(options(table, SPLIT))
    few = tabled(tmp_path / "other", "path,target", lambda n: [0.5, 1.5][n % 2])
    assert parts(few, SPLIT)[4] == ["0.5", "1.5"]
