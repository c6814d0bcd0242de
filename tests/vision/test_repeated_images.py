"""Images that are in both parts, or have two labels: by path, link, hard link and bytes;
and what that forbids.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from multicard.records import limits
from multicard.records.limits import Forbids
from multicard.records.schema_data import DataContent, RepeatedImages
from multicard.vision.data import datasets, repeated_images
from multicard.vision.workload import WORKLOAD
from tests.conftest import Measured, ok, typed
from tests.helpers import records
from tests.helpers.messages import find, told
from tests.vision.test_class_folders import put, within
from tests.vision.test_sample_sources import hub_files, write


def counted(root: Path, *words: str) -> RepeatedImages:
    found = WORKLOAD.repeated(typed("dataset=images", f"dataset.root={root}", *words))
    assert found is not None and found.compared == found.images
    return found


SAME: dict[str, Callable[[Path, Path], object]] = {
    "a copy": shutil.copy,
    "a link": lambda image, place: place.symlink_to(image),
    "a hard link": os.link,
}


@pytest.mark.parametrize("name", SAME)
def test_an_image_in_both_parts_or_with_two_labels_is_counted_and_said(
    name: str, tmp_path: Path, capsys: Any
):
    root = put(tmp_path / "root", *within("train", "val"), count=4)
    assert counted(root) == RepeatedImages(0, 0, 8, 16, 16) and not told(capsys.readouterr().out)
    SAME[name](root / "train/cat/0.png", root / "val/cat/x.png")
    SAME[name](root / "train/cat/1.png", root / "train/dog/y.png")  # two labels
    SAME[name](root / "train/dog/1.png", root / "train/dog/z.png")  # twice, which harms nobody
    SAME[name](root / "train/cat/2.png", root / "val/dog/w.png")  # both
    assert counted(root) == RepeatedImages(
        in_both=2, two_labels=4, tested=10, compared=20, images=20
    )
    counted(root)
    (said,) = told(capsys.readouterr().out)
    assert (said.code, said.key) == ("photographs.repeated", "dataset.root")
    assert (said.facts["in_both"], said.facts["two_labels"], said.facts["tested"]) == (2, 4, 10)


def test_the_same_row_of_tables_and_of_files_of_datasets_is_found(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog", count=4)
    halves = [*enumerate(["train", "val"] * 2)]
    rows = [
        f"{name}/{number}.png,{name},{part}" for name in ("cat", "dog") for number, part in halves
    ]
    table = write(
        root / "a.csv",
        "path,label,split",
        *rows,
        "./cat/0.png,cat,val",
        "dog/../cat/1.png,dog,train",
    )
    assert counted(table) == RepeatedImages(
        in_both=2, two_labels=2, tested=5, compared=10, images=10
    )
    stored = hub_files(tmp_path / "hub", "train.parquet", "test.parquet")  # the same images in both
    assert counted(stored) == RepeatedImages(
        in_both=15, two_labels=0, tested=15, compared=30, images=30
    )
    half = pq.read_table(stored / "test.parquet").slice(0, 5)
    pq.write_table(half, stored / "test.parquet")
    assert counted(stored).in_both == 5
    assert counted(hub_files(tmp_path / "saved", "train", "test")).in_both == 15


def test_what_a_run_does_not_meet_is_not_counted(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog", count=10)
    for number in range(10):
        shutil.copy(root / "cat" / f"{number}.png", root / "cat" / f"copy {number}.png")
    by_seed = {counted(root, "dataset.split=0.5", f"seed={seed}").in_both for seed in range(5)}
    assert len(by_seed) > 1 and all(0 <= both <= 10 for both in by_seed)
    limited = counted(root, "dataset.split=0.5", "dataset.train_limit=3", "dataset.test_limit=4")
    assert (limited.tested, limited.images) == (4, 7)
    assert WORKLOAD.repeated(typed("dataset=digits")) is None


def test_images_that_begin_alike_are_not_the_same(tmp_path: Path):
    for number, folder in enumerate(within("train", "val")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.ppm").write_bytes(
            bytes(repeated_images.FIRST_BYTES) + bytes([number])
        )
    assert counted(tmp_path) == RepeatedImages(0, 0, 2, 4, 4)


def test_more_than_can_be_read_is_compared_in_part_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "root"
    for folder in within("train", "val"):
        (root / folder).mkdir(parents=True)
        for size in range(1, 41):  # each is in both parts
            (root / folder / f"{size}.png").write_bytes(folder.split("/")[1].encode() + bytes(size))
    config = typed("dataset=images", f"dataset.root={root}").dataset
    data = datasets.DATASETS["images"].read(config, 0)
    whole = repeated_images.count_repeated(data.train, data.test)
    assert whole == RepeatedImages(in_both=80, two_labels=0, tested=80, compared=160, images=160)
    monkeypatch.setattr(repeated_images, "MOST_READ", 40)
    part = repeated_images.count_repeated(data.train, data.test)
    assert part is not None and 0 < part.in_both < 80 and part.in_both == part.compared / 2
    assert part == repeated_images.count_repeated(data.train, data.test)  # the same ones each time


@pytest.mark.parametrize(
    ("in_both", "tested", "limited"), [(0, 100, False), (1, 101, False), (1, 100, True)]
)
def test_accuracy_is_not_compared_where_the_test_images_were_trained_on(
    in_both: int, tested: int, limited: bool
):
    record = records.as_record(records.vision())
    record.data = DataContent(
        "0" * 12, {}, 0, 0, repeated=RepeatedImages(in_both, 0, tested, 200, 200)
    )
    found = [limit for limit in limits.of(record) if limit.code == "test-seen"]
    assert bool(found) is limited
    assert not found or found[0].forbids == [Forbids.learning]


def test_a_run_records_what_it_met_twice(measured: Measured, tmp_path: Path, capfd: Any):
    root = put(tmp_path / "root", *within("train", "val"), count=10)
    shutil.copy(root / "train/cat/0.png", root / "val/cat/x.png")
    record = ok(measured("dataset=images", f"dataset.root={root}", "batch_size=4"))
    assert record["data"]["repeated"] == {
        "in_both": 1,
        "two_labels": 0,
        "tested": 21,
        "compared": 41,
        "images": 41,
    }
    assert "test-seen" in [limit["code"] for limit in record["limits"]]
    assert find(capfd.readouterr().out, "photographs.repeated").facts["in_both"] == 1
