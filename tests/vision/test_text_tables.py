"""Tables of images as text: no row is swallowed by a quote, or taken for the header."""

import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from multicard.vision.data import image_tables, text_tables
from multicard.vision.data.stored_images import Encoded
from tests.helpers.messages import refused

pytestmark = pytest.mark.core

COUNT = 4


def table(folder: Path, name: str, text: str) -> Path:
    for number in range(COUNT):
        Image.new("RGB", (32, 32)).save(folder / f"{number}.png")
    (folder / name).write_text(text)
    return folder / name


def samples(path: Path) -> tuple[list[Encoded], list[str]]:
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
