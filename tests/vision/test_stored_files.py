"""Files of `datasets` and folders that lack something: columns, bytes, shards or classes;
and names in one line.
"""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.records.schema_data import Ignored
from multicard.vision.data import datasets
from tests.helpers.messages import refused, remedies, told
from tests.vision.test_class_folders import left, options, parts, put
from tests.vision.test_sample_sources import Bad, fill, hub_files, loaded, write


@pytest.mark.parametrize(
    ("column", "values", "parts"),
    [
        ("split", ["train", "test"], ("train", "test")),
        ("Set", ["Training", "val"], ("training", "val")),
        ("is_valid", [False, True], ("train", "valid")),
        ("set", ["a", "b"], None),
    ],
)
@pytest.mark.parametrize("name", ["a.parquet", "data/train-00000-of-00001.parquet"])
def test_columns_of_files_of_datasets_split_their_rows_or_are_counted(
    name: str, column: str, values: list[Any], parts: tuple[str, str] | None, tmp_path: Path
):
    file = hub_files(tmp_path / "hub", name) / name
    table = pq.read_table(file).append_column("mask", pa.array([0] * 15))
    halves = pa.array([values[row % 5 > 2] for row in range(15)])
    pq.write_table(table.append_column(column, halves), file)
    data = loaded(tmp_path / "hub", *([] if parts else ["dataset.split=0.4"]))
    found = {part.what: part.count for part in data.ignored}
    if parts is None:
        assert found == {"column mask": 15, f"column {column}": 15}
        return
    assert (data.facts["parts"]["train"], data.facts["parts"]["test"]) == parts
    assert len(data.train) + len(data.test) == 15 and found == {"column mask": 15}


def test_further_columns_of_each_part_of_files_are_counted(tmp_path: Path):
    root = hub_files(tmp_path / "hub", "train.parquet", "test.parquet")
    for name in ("train.parquet", "test.parquet"):
        table = pq.read_table(root / name)
        pq.write_table(table.append_column("mask", pa.array([0] * 15)), root / name)
    assert loaded(root).ignored == [Ignored("column mask", 30)]


def nulls(form: Any) -> Callable[[Path], Path]:
    """Files with six rows of images without bytes, stored as this type."""

    def make(root: Path) -> Path:
        images = pa.array(
            [{"bytes": None, "path": "a.png"}] * 6,
            pa.struct([("bytes", form), ("path", pa.string())]),
        )
        for part in ("train", "test"):
            pq.write_table(
                pa.table({"image": images, "label": [0, 1] * 3}), root / f"{part}.parquet"
            )
        return root

    return make


def renamed(root: Path) -> Path:
    """Files of one part, of which the second has its images in another column."""
    hub_files(root, "train-0.parquet", "train-1.parquet", "test.parquet")
    table = pq.read_table(root / "train-1.parquet")
    pq.write_table(table.rename_columns(["img", "label"]), root / "train-1.parquet")
    return root


FILES = {
    "bytes of type null": Bad(nulls(pa.null()), "photographs.only-paths", {"column": "image"}),
    "no bytes": Bad(nulls(pa.binary()), "cache.nothing-decoded"),
    "another column": Bad(
        renamed,
        "photographs.other-columns",
        {"columns": ["img", "label"], "expected": ["image", "label"]},
    ),
    "no first shard": Bad(
        lambda root: hub_files(root, "data/train-00001-of-00003.parquet", "data/test.parquet"),
        "photographs.missing-shards",
        {"missing": ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"]},
    ),
}


@pytest.mark.parametrize("words", [[], ["dataset.skip_broken=true"]])
@pytest.mark.parametrize("name", FILES)
def test_files_of_datasets_that_lack_something_are_refused_with_what_helps(
    name: str, words: list[str], tmp_path: Path
):
    bad = FILES[name]
    root = tmp_path / "hub"
    root.mkdir()
    with refused(bad.code, key="dataset.root", **bad.facts) as caught:
        loaded(bad.make(root), *words)
    assert "\n" not in caught.value.message.sentence
    assert not remedies(caught.value)  # no override helps: none that leaves no image is offered


def test_a_class_alone_to_train_on_is_refused_with_a_part_that_has_more(tmp_path: Path):
    fill(tmp_path / "test")
    shutil.copytree(tmp_path / "test" / "bee", tmp_path / "train" / "bee")
    with refused(
        "photographs.other-classes", parts=["train", "test"], classes=["ant", "cow"]
    ) as caught:
        loaded(tmp_path)
    (remedy,) = remedies(caught.value)
    data = loaded(tmp_path, *remedy.split())
    assert data.classes == 3 and data.facts["parts"]["test"] == "0.2 of test"
    for image in (tmp_path / "test" / "bee").glob("[1-9].png"):
        image.unlink()  # too few for a fifth
    with refused("photographs.other-classes") as caught:
        loaded(tmp_path)
    assert not remedies(caught.value)


def test_names_with_line_breaks_are_refused_and_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = fill(tmp_path / "root")
    (root / "new\nclass").mkdir()
    with refused("photographs.empty-class", name="new\nclass") as caught:
        loaded(root, "dataset.split=0.4")
    assert caught.value.message.sentence.splitlines() == [caught.value.message.sentence]
    for part in ("train", "val", "x\ny"):
        fill(tmp_path / "parts" / part)
    assert Ignored("x\ny/", 15) in loaded(tmp_path / "parts").ignored
    (said,) = told(capsys.readouterr().out)
    assert said.facts["ignored"] == {"x\ny/": 15}


def test_a_truncated_file_beside_another_part_is_named(tmp_path: Path):
    for part in ("train", "test"):
        (tmp_path / f"{part}-00000-of-00001.parquet").write_bytes(b"PAR1 and no end")
    with refused("photographs.unreadable-table", key="dataset.root"):
        datasets.check(options(tmp_path))


def paths_in_parquet(file: Path, *images: str) -> None:
    labels = [["cat", "dog"][number % 2] for number in range(len(images))]
    pq.write_table(pa.table({"file_name": [*images], "label": labels}), file)


def test_of_images_beside_files_of_paths_those_that_no_row_names_are_counted(tmp_path: Path):
    put(tmp_path, "images", count=12)
    (tmp_path / "more").mkdir()
    write(tmp_path / "more/notes.txt", "x")
    paths_in_parquet(tmp_path / "train.parquet", *(f"images/{n}.png" for n in range(8)))
    paths_in_parquet(tmp_path / "val.parquet", *(f"images/{n}.png" for n in range(8, 11)))
    assert parts(tmp_path)[:4] == ("train", "val", 8, 3)
    assert left(tmp_path) == {"images that no row names": 1, "more/": 1}


def test_metadata_of_an_imagefolder_may_be_parquet(tmp_path: Path):
    for part in ("train", "test"):
        put(tmp_path, part, count=6)
        paths_in_parquet(tmp_path / part / "metadata.parquet", *(f"{n}.png" for n in range(6)))
    assert parts(tmp_path) == ("train", "test", 6, 6, ["cat", "dog"])
    assert left(tmp_path) == {}


def test_folders_and_metadata_in_parquet_that_differ_are_refused(tmp_path: Path):
    for part in ("train", "test"):
        put(tmp_path / part, "red", "blue", count=4)
        images = [f"{folder}/{n}.png" for folder in ("red", "blue") for n in range(4)]
        paths_in_parquet(tmp_path / part / "metadata.parquet", *images)
    with refused("photographs.table-or-folders", column="label") as refusal:
        datasets.check(options(tmp_path))
    classes = [parts(tmp_path, *shlex.split(remedy))[4] for remedy in remedies(refusal.value)]
    assert classes == [["cat", "dog"], ["blue", "red"]]
