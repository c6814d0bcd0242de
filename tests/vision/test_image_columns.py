"""Tables of images: columns of any name, parts to test on without labels,
and where the hub's files lie.
"""

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets as hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.config.pasting import override
from multicard.vision.data import datasets
from multicard.vision.data.splits import DataSplits
from tests.conftest import typed
from tests.helpers.messages import refused, remedies
from tests.vision.test_data import image_options
from tests.vision.test_sample_sources import (
    CLASSES,
    COUNT,
    fill,
    hub_files,
    loaded,
    picture,
    rows,
    write,
)

SPLIT = "dataset.split=0.2"


def stored(file: Path, image: str = "image", **labels: list[Any]) -> None:
    """A parquet file as `datasets` writes it, with these columns of classes;
    -1 and None are of no class.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    features: dict[str, Any] = {image: hub.Image()}
    features |= {name: hub.ClassLabel(names=list(CLASSES)) for name in labels}
    count = len(next(iter(labels.values()), range(6)))
    images = [picture(number % 3, number % COUNT) for number in range(count)]
    hub.Dataset.from_dict({image: images, **labels}, hub.Features(features)).to_parquet(file)


def read(root: Path, refusal: Any) -> DataSplits:
    """The data with the override that a refusal offers."""
    return loaded(
        root, *(word for remedy in remedies(refusal.value) for word in shlex.split(remedy))
    )


EVERY = [0, 1, 2] * COUNT


# ---- parts without labels


def of_the_hub(root: Path) -> Path:
    stored(root / "data" / "train-00000-of-00001.parquet", label=EVERY)
    stored(root / "data" / "test-00000-of-00001.parquet", label=[-1] * 6)
    return root


def of_nulls(root: Path) -> Path:
    stored(root / "train.parquet", label=EVERY)
    stored(root / "test.parquet", label=[None] * 6)
    return root


def without_the_column(root: Path) -> Path:
    stored(root / "train.parquet", label=EVERY)
    stored(root / "test.parquet")
    table = pq.read_table(root / "test.parquet")
    # which is no label
    pq.write_table(table.append_column("id", pa.array(range(6))), root / "test.parquet")
    return root


def of_a_table(empty: str, names: dict[str, str]) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        fill(root / "all")
        trained = [(path, names.get(label, label), "train") for path, label in rows(root)]
        # not read, and so not missed
        tested = [(f"nowhere/{number}.png", empty, "test") for number in range(6)]
        return write(root / "a.csv", "path,label,split", *trained, *tested)

    return make


NUMBERS = dict(zip(CLASSES, "012", strict=True))
UNLABELLED: dict[str, Callable[[Path], Path]] = {
    "-1 of the hub": of_the_hub,
    "nulls": of_nulls,
    "no column": without_the_column,
    "empty cells of a table": of_a_table("", {}),
    "-1 in a table": of_a_table("-1", NUMBERS),
}


@pytest.mark.parametrize("name", UNLABELLED)
def test_a_part_to_test_on_without_labels_is_called_so_and_the_rest_is_read(
    name: str, tmp_path: Path
):
    (tmp_path / "x").mkdir()
    root = UNLABELLED[name](tmp_path / "x")
    with refused("photographs.test-unlabelled", key="dataset.root", parts=["test"]) as refusal:
        loaded(root)
    data = read(root, refusal)
    assert (len(data.train), len(data.test), data.classes) == (12, 3, 3)
    found = {part.what: part.count for part in data.ignored}
    assert found["images of test, which has no labels"] == 6
    assert len(loaded(root, "dataset.parts=[train]", SPLIT).train) == 12
    with refused("photographs.test-unlabelled", parts=["test"]):
        loaded(root, "dataset.parts=[train,test]")


def test_another_part_with_labels_is_tested_on(tmp_path: Path):
    root = of_nulls(tmp_path)
    stored(root / "validation.parquet", label=EVERY)
    (root / "test.parquet").rename(root / "valid.parquet")  # which would be taken first
    stored(root / "test.parquet", label=EVERY)
    assert loaded(root).facts["parts"] == {
        "train": "train",
        "test": "validation",
        "unused": ["valid", "test"],
    }
    (root / "validation.parquet").unlink()
    data = loaded(root)
    assert data.facts["parts"] == {"train": "train", "test": "test", "unused": []}
    assert [(part.what, part.count) for part in data.ignored] == [
        ("images of valid, which has no labels", 6)
    ]


def test_a_row_without_a_label_among_others_is_refused_as_before(tmp_path: Path):
    stored(tmp_path / "train.parquet", label=EVERY)
    stored(tmp_path / "test.parquet", label=[0, 1, -1])
    with refused("photographs.bad-rows", row=3):
        loaded(tmp_path)
    stored(tmp_path / "train.parquet", label=[-1] * 6)
    (tmp_path / "test.parquet").unlink()
    with refused("photographs.bad-rows", row=1, rows=6):
        loaded(tmp_path, SPLIT)


# ---- names of columns


def of_cifar(root: Path) -> Path:
    for name in ("train", "test"):
        stored(
            root / f"{name}.parquet",
            image="picture",
            fine_label=EVERY,
            coarse_label=[0, 1, 1] * COUNT,
        )
    return root


def test_columns_of_files_of_the_hub_are_named(tmp_path: Path):
    root = of_cifar(tmp_path)
    with refused(
        "photographs.columns", remedy="'dataset.columns={image: picture, label: fine_label}'"
    ) as refusal:
        loaded(root)
    assert read(root, refusal).class_names == list(CLASSES)
    coarse = loaded(root, "dataset.columns={image: picture, label: coarse_label}")
    assert (coarse.class_names, len(coarse.train)) == (["ant", "bee"], 15)
    assert [(part.what, part.count) for part in coarse.ignored] == [("column fine_label", 30)]
    with refused("photographs.column-absent", key="dataset.columns", value="fine") as refusal:
        loaded(root, "dataset.columns={image: picture, label: fine}")
    typed("dataset=images", "dataset.root=x", *shlex.split(remedies(refusal.value)[0]))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize(
    "names", [("fn", "species", "grp"), ("Datei (neu)", "名", "a: b"), ("label", "path", "is_test")]
)
def test_columns_of_tables_of_text_are_named(
    names: tuple[str, str, str], ending: str, tmp_path: Path
):
    """Names that mean something else count for nothing then."""
    fill(tmp_path / "all")
    values = [
        (*row, "train" if number % COUNT < 3 else "test")
        for number, row in enumerate(rows(tmp_path))
    ]
    table = tmp_path / f"a{ending}"
    if ending == ".jsonl":
        table = write_lines(table, [dict(zip(names, row, strict=True)) for row in values])
    else:
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="," if ending == ".csv" else "\t").writerows(
                [names, *values]
            )
    named = dict(zip(("image", "label", "split"), names, strict=True))
    data = loaded(table, *shlex.split(override("dataset.columns", named)))
    assert (len(data.train), len(data.test), data.class_names, data.ignored) == (
        9,
        6,
        list(CLASSES),
        [],
    )
    whole = loaded(
        table, *shlex.split(override("dataset.columns", {**named, "split": None})), SPLIT
    )
    assert len(whole.train) + len(whole.test) == 15


def write_lines(file: Path, values: list[dict[str, str]]) -> Path:
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return file


def test_columns_are_named_of_tables_alone_and_by_three_names(tmp_path: Path):
    root = fill(tmp_path / "root")
    with refused("photographs.no-table-to-name", key="dataset.columns") as refusal:
        loaded(root, "dataset.columns={label: species}", SPLIT)
    assert loaded(root, *remedies(refusal.value), SPLIT).classes == 3
    for words in ("{path: a}", "{image: null}"):
        with refused("config.images-columns", key="dataset.columns"):
            typed("dataset=images", "dataset.root=x", f"dataset.columns={words}")
    with refused("config.images-label-null", key="dataset.columns"):
        typed("dataset=images", "dataset.root=x", "dataset.columns={label: null, image: a}")


def test_two_columns_of_images_in_a_file_are_other_data_with_caches_of_their_own(tmp_path: Path):
    root = hub_files(tmp_path / "root", "train.parquet", "test.parquet")
    for name in ("train.parquet", "test.parquet"):
        table = pq.read_table(root / name)
        other = pa.chunked_array(
            [table["image"].combine_chunks().take(pa.array(range(14, -1, -1)))]
        )
        pq.write_table(table.append_column("img", other), root / name)
    first, second = (
        loaded(root, f"dataset.columns={{image: {name}}}") for name in ("image", "img")
    )
    assert (first.train.images == second.train.images[::-1]).all()
    found = [
        datasets.content(image_options(root, f"dataset.columns={{image: {name}}}"))
        for name in ("image", "img")
    ]
    assert [name for name, _ in found[0]["dataset"]] != [name for name, _ in found[1]["dataset"]]


# ---- where files lie


@pytest.mark.parametrize(
    "names",
    [
        ("default/train/0000.parquet", "default/test/0000.parquet"),
        ("plain_text/train-00000-of-00001.parquet", "plain_text/test-00000-of-00001.parquet"),
        ("cifar10/plain_text/train/0000.parquet", "cifar10/plain_text/test/0000.parquet"),
        ("data/default/train-00000-of-00001.parquet", "data/default/test-00000-of-00001.parquet"),
        ("default/train", "default/test"),
    ],
)
def test_the_only_folder_with_files_is_read(names: tuple[str, ...], tmp_path: Path):
    root = hub_files(tmp_path / "root", *names)
    (root / "README.md").write_text("---")
    data = loaded(root)
    assert (len(data.train), len(data.test), data.facts["parts"]["test"]) == (15, 15, "test")
    assert [(part.what, part.count) for part in data.ignored] == [(".md", 1)]


@pytest.mark.parametrize(
    "form", ["{}/train-00000-of-00001.parquet", "{}/train/0000.parquet", "{}/0000.parquet"]
)
@pytest.mark.parametrize("names", [("a", "b"), ("it's", "x (1)")])
def test_several_configurations_are_named_and_one_is_read(
    names: tuple[str, str], form: str, tmp_path: Path
):
    root = hub_files(tmp_path / "root", *(form.format(name) for name in names))
    with refused(
        "photographs.configurations", key="dataset.root", folders=sorted(names)
    ) as refusal:
        loaded(root, SPLIT)
    words = shlex.split(remedies(refusal.value)[0])
    assert len(loaded(root, *words, SPLIT).train) == 12


def test_files_beside_folders_of_classes_are_no_configurations(tmp_path: Path):
    root = hub_files(fill(tmp_path / "root"), "features/a.parquet")
    with refused("photographs.empty-class"):
        loaded(root, SPLIT)


@pytest.mark.parametrize(
    "head",
    [
        "label,1x1,1x2,2x1,2x2",
        "label," + ",".join(f"pixel{number}" for number in range(20)),
        "emotion,pixels,Usage",
        ",".join(["5", *("0" for _ in range(20))]),  # without names
        ",".join(map(str, range(20))),
    ],
)
def test_a_table_of_pixels_is_called_so(head: str, tmp_path: Path):
    row = ",".join("1" for _ in head.split(","))
    with refused("photographs.pixels", key="dataset.root") as refusal:
        loaded(write(tmp_path / "a.csv", head, row))
    assert remedies(refusal.value) == []


@pytest.mark.parametrize(
    ("head", "code"),
    [("emotion,pixels,Usage", "photographs.pixels"), ("emotion,report", "photographs.columns")],
)
def test_a_text_longer_than_any_name_of_a_file_is_no_file(head: str, code: str, tmp_path: Path):
    row = ["0", "70 80 82 " * 500, "Training"][: head.count(",") + 1]
    with refused(code, key="dataset.root"):
        loaded(write(tmp_path / "a.csv", head, ",".join(row)))


def test_a_class_that_looks_like_a_date_keeps_its_name(tmp_path: Path):
    fill(tmp_path)
    lines = [
        {"path": str(path), "label": f"2021-01-0{number % 2 + 1}"}
        for number, path in enumerate(images(tmp_path))
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert loaded(tmp_path / "a.jsonl", SPLIT).facts["classes"] == ["2021-01-01", "2021-01-02"]


def images(root: Path) -> list[Path]:
    return sorted(root.rglob("*.png")) + sorted(root.rglob("*.jpg"))
