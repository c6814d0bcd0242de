"""Labels in lists of one: read as what they hold, in every form of table."""

from pathlib import Path
from typing import Any

import datasets as hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from multicard.vision.data import image_tables
from tests.helpers.messages import refused

pytestmark = pytest.mark.core

COUNT = 6
NAMES = ["ant", "bee", "cow"]


def written(folder: Path, labels: list[Any], column: str = "label") -> Path:
    for number in range(COUNT):
        Image.new("RGB", (32, 32)).save(folder / f"{number}.png")
    paths = [f"{number}.png" for number in range(COUNT)]
    pq.write_table(pa.table({"path": paths, column: labels}), folder / "a.parquet")
    return folder / "a.parquet"


def read(path: Path, **options: Any) -> list[str]:
    (part,) = image_tables.table_parts([path], **options).parts
    return part.read().labels


@pytest.mark.parametrize("column", ["label", "labels", "tags"])
def test_a_list_of_one_is_its_label(column: str, tmp_path: Path):
    path = written(tmp_path, [[number % 3] for number in range(COUNT)], column)
    named = {"label": column} if column == "tags" else {}
    assert read(path, column_names=named) == ["0", "1", "2"] * 2
    # the column that is trained on, of a table to test on
    assert read(path, column_names=named, trained_label=column) == ["0", "1", "2"] * 2


def test_the_declared_names_of_a_list_are_those_of_its_classes(tmp_path: Path):
    features = hub.Features(
        {"path": hub.Value("string"), "label": hub.Sequence(hub.ClassLabel(names=NAMES))}
    )
    path = written(tmp_path, [[0]] * COUNT)
    paths = [f"{number}.png" for number in range(COUNT)]
    rows = {"path": paths, "label": [[number % 3] for number in range(COUNT)]}
    hub.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    assert read(path) == NAMES * 2


def test_several_labels_in_a_list_are_refused(tmp_path: Path):
    path = written(tmp_path, [[0], [1], [0, 1], [1], [0], [1]])
    with refused("photographs.lists-of-labels", column="label", labels=["0", "1"]):
        read(path)


def test_an_empty_list_is_no_label(tmp_path: Path):
    path = written(tmp_path, [[0], [1], [], [1], [0], [1]])
    with refused("photographs.bad-rows", row=3):
        read(path)


def test_a_list_beside_a_plain_column_of_classes_is_not_read(tmp_path: Path):
    path = written(tmp_path, ["a", "b"] * 3)
    table = pq.read_table(path).append_column("labels", pa.array([["x", "y"]] * COUNT))
    pq.write_table(table, path)
    assert read(path) == ["a", "b"] * 3

    written(tmp_path, [[0]] * COUNT)
    lines = [
        f'{{"image": "{number}.png", "label": ["{NAMES[number % 3]}"]}}' for number in range(COUNT)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert read(tmp_path / "a.jsonl") == NAMES * 2


def test_lists_beside_folders_of_classes_are_taken_for_tags(tmp_path: Path):
    written(tmp_path, [[0]] * COUNT)
    lines = [f'{{"image": "{number}.png", "label": ["x", "y"]}}' for number in range(COUNT)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert image_tables.column_of_classes(tmp_path / "a.jsonl", {}) == ("label", True)
