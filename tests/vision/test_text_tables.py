"""Tables of images as text: no row is swallowed by a quote, or taken for the header."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from multicard.vision.data import image_tables, text_tables
from multicard.vision.data.stored_images import EncodedImage
from tests.helpers.messages import refused

pytestmark = pytest.mark.core

COUNT = 4


def table(folder: Path, name: str, text: str) -> Path:
    for number in range(COUNT):
        Image.new("RGB", (32, 32)).save(folder / f"{number}.png")
    (folder / name).write_text(text)
    return folder / name


def samples(path: Path) -> tuple[list[EncodedImage], list[str]]:
    (part,) = image_tables.table_parts([path]).parts
    read = part.read()
    return read.images, read.labels


@pytest.mark.parametrize("column", ["note", "label"])
def test_a_quote_that_would_swallow_rows_is_refused_with_its_line(column: str, tmp_path: Path):
    """Arrow reads the rows up to the next quote as one cell."""
    other = "label" if column == "note" else "note"
    cells = ["x", '"5 in', "x", '"6 in']
    rows = [f"{number}.png,{cell},b" for number, cell in enumerate(cells)]
    path = table(tmp_path, "a.csv", "\n".join([f"path,{column},{other}", *rows]) + "\n")
    with refused("photographs.table-quotes", file=str(path), line=3):
        samples(path)


def test_quotes_of_a_table_with_tabs_are_letters(tmp_path: Path):
    text = 'path\tlabel\tnote\n0.png\ta\t"x\n1.png\tb\t5"\n2.png\ta\t"\n3.png\tb\tx\n'
    images, labels = samples(table(tmp_path, "a.tsv", text))
    assert len(images) == COUNT and labels == ["a", "b", "a", "b"]


def test_cells_of_several_lines_are_read(tmp_path: Path):
    text = 'path,note,label\n0.png,"a\nb, c",a\n1.png,"""",b\n2.png,d,a\n3.png,e,b\n'
    assert samples(table(tmp_path, "a.csv", text))[1] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(
    ("first", "names"),
    [
        (["0.png", "a"], ["path", "label"]),
        (["0", "a"], ["path", "label"]),  # beside the table is 0.png
        (["TRAIN", "gs://bucket/0.png", "a"], ["split", "path", "label"]),
        (["0.png", "a", "b"], ["path", "label", "label_3"]),
    ],
)
def test_a_first_line_that_is_a_row_is_refused_with_a_header(
    first: list[str], names: list[str], delimiter: str, tmp_path: Path
):
    path = table(tmp_path, "a.csv", delimiter.join(first) + "\n")
    with refused("photographs.no-header", file=str(path)) as caught:
        samples(path)
    subprocess.run(shlex.split(str(caught.value.message.facts["remedy"])), check=True)
    assert text_tables.text_table(path).column_names == names
    assert [row[0] for row in text_tables.text_table(path).to_pydict().values()] == first


LABELS = ["b", "a", "b", "c"]
OBJECTS = [{"image": f"{number}.png", "label": label} for number, label in enumerate(LABELS)]
LATER = {**OBJECTS[3], "note": "x", "added": "2024-01-01"}  # keys that the first has not


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.json", OBJECTS),
        ("a.jsonl", OBJECTS),
        ("a.json", [*OBJECTS[:3], LATER]),
        ("a.json", {f"{number}.png": label for number, label in enumerate(LABELS)}),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_in_json_is_read(name: str, value: Any, indent: int | None, tmp_path: Path):
    mark = "\ufeff" if indent is None else ""  # of UTF-8
    path = table(tmp_path, name, mark + json.dumps(value, indent=indent))
    images, labels = samples(path)
    assert [str(image) for image in images] == [
        str(tmp_path / f"{number}.png") for number in range(COUNT)
    ]
    assert labels == LABELS


def test_json_lines_by_the_name_of_json_are_read(tmp_path: Path):
    assert samples(table(tmp_path, "a.json", "\n".join(map(json.dumps, OBJECTS))))[1] == LABELS


@pytest.mark.parametrize(
    "text",
    [
        '{"images": [{"id": 1}], "annotations": [{"id": 1}]}',
        "[1, 2]",
        '[{"image": "0.png"',
        '[{"image": "0.png", "label": 1, "label": 2}]',
    ],
)
def test_json_that_holds_no_list_of_images_is_refused(text: str, tmp_path: Path):
    path = table(tmp_path, "a.json", text)
    with refused("photographs.no-list", file=str(path)):
        samples(path)
