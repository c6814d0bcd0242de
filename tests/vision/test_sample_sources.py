"""Images in the forms that people have them: the same samples from each,
and a line for what cannot be used.
"""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets as hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from multicard.estimate.memory import facts
from multicard.records import content
from multicard.records.schema_data import Ignored
from multicard.vision.data import datasets, sample_sources, stored_images
from multicard.vision.data.splits import DataSplits, Split
from multicard.vision.workload import WORKLOAD
from tests.conftest import typed
from tests.helpers.loader_sources import pixels, read, source
from tests.helpers.messages import Told, refused, told
from tests.vision.test_data import image_options
from tests.vision.test_loaders import NAMES, PLAIN

CLASSES = ("ant", "bee", "cow")
COUNT = 5


def picture(number: int, index: int) -> Image.Image:
    return Image.new("RGB", (32 + index, 32), (80 * number, 40 * index, 9))


def fill(folder: Path, count: int = COUNT) -> Path:
    """Folders of classes with plain images of a colour each."""
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            picture(number, index).save(folder / name / f"{index}.png")
    return folder


def rows(folder: Path) -> list[tuple[str, str]]:
    return [
        (path.relative_to(folder).as_posix(), path.parent.name)
        for path in sorted(folder.rglob("*.png"))
    ]


def write(path: Path, *lines: Any, encoding: str = "utf-8") -> Path:
    path.write_text(
        "\n".join(line if isinstance(line, str) else ",".join(line) for line in lines) + "\n",
        encoding,
    )
    return path


def cut(folder: Path) -> Path:
    """The folder, with half of one of its Arrow files."""
    file = min(folder.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return folder


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def hub_files(folder: Path, *parts: str, names: tuple[str, ...] = CLASSES) -> Path:
    """Parquet files as `datasets` writes them, a file a part and several row groups in it;
    Arrow's in other folders.
    """
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=list(names))})
    for part in parts:
        drawn = [(number, index) for index in range(COUNT) for number in range(3)]
        labels = [names.index(CLASSES[number]) for number, _ in drawn]
        columns = {"image": [picture(*each) for each in drawn], "label": labels}
        rows = hub.Dataset.from_dict(columns, features)
        if part.endswith(".parquet"):
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            rows.to_parquet(folder / part, batch_size=4)
        else:
            rows.save_to_disk(folder / part, num_shards=2)
    return folder


def loaded(root: Path, *words: str, seed: int = 0) -> DataSplits:
    """What is read of data that passes the checks, as a rank has it."""
    asked = image_options(root, *words)
    datasets.check(asked)
    return datasets.load(asked, seed)


def seen(split: Split) -> list[tuple[tuple[int, ...], int]]:
    """The colour of each image, and its label, in a fixed order."""
    assert isinstance(split.images, np.ndarray)
    pairs = zip(split.images[:, 9, 9].tolist(), split.labels.tolist(), strict=True)
    return sorted((tuple(colour), label) for colour, label in pairs)


FORMS: dict[str, Callable[[Path], Path]] = {
    "flat": fill,
    "train alone": lambda root: fill(root / "train").parent,
    "csv": lambda root: write(
        fill(root).parent / "a.csv",
        "label,image",
        *((b, f"{root.name}/{a}") for a, b in rows(root)),
    ),
    "semicolons": lambda root: write(
        root / "a.CSV", "\ufeffPath;Class", *(f"{a};{b}" for a, b in rows(fill(root)))
    ),
    "hub": lambda root: hub_files(root / "data", "train-00000-of-00001.parquet").parent,
    "one file": lambda root: hub_files(root, "0000.parquet"),
    "saved to disk": lambda root: hub_files(root, "."),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_the_same_samples(form: str, tmp_path: Path):
    root = FORMS[form](tmp_path / "root")
    data, again, other = (loaded(root, "dataset.split=0.4", seed=seed) for seed in (0, 0, 1))
    assert (
        np.bincount(data.train.labels).tolist() == [3] * 3
        and np.bincount(data.test.labels).tolist() == [2] * 3
    )
    assert data.classes == 3 and data.facts["parts"]["test"].startswith("0.4 of ")
    everything = [
        ((80 * number, 40 * index, 9), number) for number in range(3) for index in range(COUNT)
    ]
    assert sorted(seen(data.train) + seen(data.test)) == everything
    assert seen(again.test) == seen(data.test) != seen(other.test)
    limited = loaded(root, "dataset.split=0.4", "dataset.train_limit=4")
    assert len(limited.train) == 4 and set(seen(limited.train)) < set(seen(data.train))
    config = typed(
        "dataset=images", f"dataset.root={root}", "dataset.split=0.4", "dataset.test_limit=5"
    )
    assert facts.sizes(config) == facts.ImageFacts(9, 5, 3, 300, 3)


def test_the_part_to_test_on_is_chosen_said_once_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for part in ("Train", "test", "val"):
        fill(tmp_path / part)
    (tmp_path / "notes").mkdir()
    assert loaded(tmp_path).facts["parts"] == {"train": "train", "test": "val", "unused": ["test"]}
    loaded(tmp_path)
    (note,) = told(capsys.readouterr().out)
    assert note == Told("photographs.tests-on", "dataset.root", {"part": "val", "unused": ["test"]})
    shutil.rmtree(tmp_path / "val")
    assert loaded(tmp_path).facts["parts"]["test"] == "test"
    few = rows(fill(tmp_path / "more"))[::COUNT]
    split = [(*row, part) for part in ("train", "TEST") for row in few]
    data = loaded(write(tmp_path / "more" / "a.csv", "filename,target,split", *split))
    assert (len(data.train), len(data.test)) == (3, 3) and data.facts["parts"]["test"] == "test"
    train = fill(tmp_path / "vehicles").rename(tmp_path / "train")
    for name in ("bus", "train"):
        shutil.copytree(train / "ant", tmp_path / "vehicles" / name)
    # a class that is called as a part is
    assert loaded(tmp_path / "vehicles", "dataset.split=0.2").classes == 2


def test_numbers_are_in_their_order_and_declared_classes_in_that_of_the_file(tmp_path: Path):
    names = [str(10 - row % 2 * 8) for row in range(15)]
    columns = {"file": [path for path, _ in rows(fill(tmp_path))], "label": names}
    data = datasets.DATASETS["images"].read(
        image_options(parquet(tmp_path, **columns), "dataset.split=0.3"), 0
    )
    assert isinstance(data.train.images, list)
    classes = {str(tmp_path / path): name for path, name in zip(*columns.values(), strict=True)}
    pairs = zip(data.train.images, data.train.labels.tolist(), strict=True)
    assert {(classes[str(image)], label) for image, label in pairs} == {("2", 0), ("10", 1)}
    ordered = {((80 * (2 - at), 40 * i, 9), at) for at in range(3) for i in range(COUNT)}
    for parts in (
        ["train.parquet", "test.parquet"],
        ["own/train.parquet", "own/test.parquet"],
        ["train", "val"],
    ):
        root = hub_files(tmp_path / parts[1], *parts, names=("cow", "none", "bee", "ant"))
        assert set(seen(loaded(root).test)) == ordered


def test_hidden_files_and_those_that_are_no_images_are_left_and_others_found_by_any_common_ending(
    tmp_path: Path,
):
    for part in ("train", "val"):
        folder = fill(tmp_path / part) / "ant"
        for index, name in enumerate(("a.GIF", "b.jfif", "c.avif", "d e.JPG")):
            form = {"b.jfif": "JPEG", "d e.JPG": "JPEG"}.get(name)
            picture(index, 0).save(folder / name, form)
        for name in (".DS_Store", "._0.png", "Thumbs.db"):
            (folder / name).write_bytes(b"no image")
        for name in (f"{part}/.ipynb_checkpoints", f"{part}/ant/.thumbnails/small"):
            shutil.copytree(tmp_path / part / "bee", tmp_path / name)
    data = loaded(tmp_path)
    assert np.bincount(data.train.labels).tolist() == [COUNT + 4, COUNT, COUNT]
    assert data.facts["classes"] == [*CLASSES]
    assert data.ignored == [Ignored("hidden", 2 * 5)]  # the folders too, each once


def test_absolute_and_relative_paths_are_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = rows(fill(tmp_path))
    whole = [(str(tmp_path / path), name) for path, name in paths]
    monkeypatch.chdir(tmp_path)
    known = []
    for each in (
        paths,
        whole,
        [*paths[::2], *whole[1::2]],
        [("./" + path, name) for path, name in paths],
    ):
        write(tmp_path / "a.csv", "path,label", *sorted(each, key=lambda row: row[0][-9:]))
        config = typed("dataset=images", "dataset.root=a.csv", "dataset.split=0.4")
        known.append(content.fingerprint(WORKLOAD.data(config)))
    assert all(each == known[0] for each in known)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10.0, 9.0, 2.5], ["2.5", "9.0", "10.0"]),
        (["1", "01", "-3"], ["-3", "01", "1"]),
        (["10", "9", "b"], None),
    ],
)
def test_classes_of_a_table_are_ordered_by_value_or_else_by_name(
    labels: list[Any], classes: Any, tmp_path: Path
):
    paths = [path for path, _ in rows(fill(tmp_path))]
    table = parquet(tmp_path, file=paths, label=labels * COUNT)
    assert loaded(table, "dataset.split=0.4").facts["classes"] == (classes or labels)


def test_names_of_any_bytes_are_read(tmp_path: Path):
    known = []
    for name in (b"\xe9.png", b"\xe8.png"):
        folder = fill(tmp_path / name.hex()) / "ant"
        (folder / "0.png").rename(folder / os.fsdecode(name))
        assert len(loaded(folder.parent, "dataset.split=0.4").train) == 9
        config = typed("dataset=images", f"dataset.root={folder.parent}", "dataset.split=0.4")
        known.append(content.fingerprint(WORKLOAD.data(config)))
    assert known[0] != known[1]


@pytest.mark.parametrize(
    "about", ["no JSON", '{"info": null}', '{"info": {"features": {"label": [{"names": ["x"]}]}}}']
)
def test_metadata_of_others_declares_no_classes(about: str, tmp_path: Path):
    paths, names = zip(*rows(fill(tmp_path)), strict=True)
    table = pa.table({"file": paths, "label": names}).replace_schema_metadata(
        {"huggingface": about}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert loaded(tmp_path / "a.parquet", "dataset.split=0.4").facts["classes"] == [*CLASSES]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_in_parquet_are_images_however_they_are_stored(kind: pa.DataType, tmp_path: Path):
    files = sorted(fill(tmp_path / "x").rglob("*.png"))
    column = pa.array([path.read_bytes() for path in files], kind)
    table = parquet(tmp_path, image=column, label=[path.parent.name for path in files])
    assert seen(loaded(table, "dataset.split=0.4").train)


@pytest.mark.parametrize("ending", ["-0.parquet", ""], ids=["parquet", "arrow"])
@pytest.mark.parametrize("loader", NAMES)
def test_images_in_files_of_datasets_reach_every_loader(loader: str, ending: str, tmp_path: Path):
    root = hub_files(tmp_path / "hub", f"train{ending}", f"test{ending}")
    cached = loaded(root)
    again = loaded(root)
    assert again.facts["decoded"]["train"]["built_s"] is None and (root / ".multicard").is_dir()
    each_time = loaded(root, "dataset.cache=none")
    splits = [cached.train, *([each_time.train] if loader != "device" else [])]
    words = (*PLAIN, f"loader={loader}")
    images = [pixels(read(source(split, range(15), *words))) for split in splits]
    assert all(abs(images[0] - each).max() <= 1.01 / 255 for each in images)
    tensors = loaded(root, "dataset.cache=process").train
    assert (
        isinstance(tensors.images, np.ndarray)
        and abs(tensors.images * 255 - cached.train.images).max() < 1e-3
    )


def test_a_parquet_file_is_read_once_and_left_when_its_images_are_decoded(tmp_path: Path):
    root = hub_files(tmp_path / "hub", "train-0.parquet", "train-1.parquet", "val.parquet")
    data = datasets.DATASETS["images"].read(image_options(root), 0)
    assert isinstance(data.train.images, list)
    files = stored_images.files_of(data.train.images)
    assert list(files.values()) == [14, 29] and all(file._images is None for file in files)
    datasets.DATASETS["images"].finish(data, image_options(root))
    assert all(file._images is None for file in files)
    data = datasets.DATASETS["images"].finish(data, image_options(root, "dataset.cache=none"))
    assert all(file._images is file.load() for file in files)
    known = content.fingerprint(WORKLOAD.data(typed("dataset=images", f"dataset.root={root}")))
    labels = 8 * (30 + 15)
    sizes = sum(path.stat().st_size for path in root.glob("*.parquet"))
    assert known.bytes == labels + sizes + 1  # each file once, and the version of the decoding


def test_broken_images_in_parquet_are_named_by_row(tmp_path: Path):
    root = hub_files(tmp_path / "hub", "train.parquet", "test.parquet")
    table = pq.read_table(root / "train.parquet")
    images = table["image"].to_pylist()
    images[1]["bytes"], images[2]["bytes"] = b"no image", None
    column = pa.array(images, table["image"].type)
    pq.write_table(table.set_column(0, "image", column), root / "train.parquet")
    with refused("cache.broken", image=f"{root / 'train.parquet'} row 2", broken=2, images=15):
        loaded(root)
    data = loaded(root, "dataset.skip_broken=true")
    assert len(data.train) == 13 and data.facts["decoded"]["train"]["skipped"] == 2


@dataclass(frozen=True)
class Bad:
    """What cannot be used: how it is made, and the code and facts with which it is refused."""

    make: Callable[[Path], Path]
    code: str
    facts: dict[str, Any] = field(default_factory=dict)
    why: str = ""  # a part of what a library says
    reason: str = ""  # the code of the message within


BAD = {
    "nothing": Bad(lambda root: root / "none", "photographs.absent"),
    "another file": Bad(lambda root: write(root / "a.txt", ""), "photographs.no-table"),
    "no folders": Bad(lambda root: root / "ant", "photographs.no-classes"),
    "no classes": Bad(
        lambda root: fill(root.parent / "a/train/.x", 0).parents[1], "photographs.no-classes"
    ),
    "no image": Bad(
        lambda root: write(fill(root / "dog", 0) / "a.txt", "").parents[1],
        "photographs.empty-class",
        {"name": "dog"},
    ),
    "one class": Bad(
        lambda root: write(
            root / "a.csv", "img,class,split", "ant/0.png,a,train", "ant/0.png,a,val"
        ),
        "photographs.one-class",
        {"classes": ["a"]},
    ),
    "no split": Bad(
        lambda root: root, "photographs.nothing-to-test-on", {"classes": ["ant", "bee", "cow"]}
    ),
    "columns": Bad(
        lambda root: write(root / "a.csv", "a,b", "1,2"),
        "photographs.columns",
        {"columns": ["a", "b"]},
    ),
    "empty": Bad(lambda root: write(root / "a.csv", "image,label"), "photographs.no-rows"),
    "ragged": Bad(
        lambda root: write(root / "a.csv", "image,label", "1,2,3"),
        "photographs.unreadable-table",
        why="2 columns",
    ),
    "Latin-1": Bad(
        lambda root: write(root / "a.csv", "image,label,\xe9", encoding="latin-1"),
        "photographs.table-encoding",
    ),
    "cut off": Bad(
        lambda root: cut(hub_files(root.parent / "saved", ".")),
        "photographs.unreadable-table",
        why="Expected to be able to read",
    ),
    "no parquet": Bad(
        lambda root: write(root / "a.parquet", "x"), "photographs.unreadable-table", why="Parquet"
    ),
    "label": Bad(
        lambda root: write(root / "a.csv", "image,label", *rows(root), "ant/0.png,"),
        "photographs.bad-rows",
        {"row": 16, "rows": 1},
        reason="photographs.no-label",
    ),
    "file": Bad(
        lambda root: write(root / "a.csv", "image,label", "x,y", "z,y"),
        "photographs.bad-rows",
        {"row": 1, "rows": 2},
        reason="photographs.no-such-image",
    ),
    "no number": Bad(
        lambda root: parquet(root, file=["ant/0.png"] * 2, label=[1.0, math.nan]),
        "photographs.bad-rows",
        {"row": 2},
        reason="photographs.no-label",
    ),
    "lists": Bad(
        lambda root: parquet(root, file=["ant/0.png"], label=[[[1]]]),
        "photographs.columns",
        {"columns": ["file", "label (list)"]},
    ),
    "pixels": Bad(
        lambda root: parquet(root, image=[[[1, 2], [3, 4]]], label=[0]),
        "photographs.columns",
        {"columns": ["image (list)", "label"]},
    ),
    "arrays": Bad(
        lambda root: parquet(root, image=[{"array": [1, 2]}], label=[0]),
        "photographs.columns",
        {"columns": ["image (struct)", "label"]},
    ),
    "part": Bad(
        lambda root: write(root / "a.csv", "img,class,split", "ant/0.png,ant,tset"),
        "photographs.bad-rows",
        {"row": 1},
        reason="photographs.unknown-split",
    ),
    "train": Bad(
        lambda root: write(root / "a.csv", "img,class,split", "ant/0.png,a,test"),
        "photographs.no-train",
    ),
    "differ": Bad(
        lambda root: write(
            root / "a.csv", "img,class,split", "ant/0.png,a,train", "ant/0.png,b,val"
        ),
        "photographs.other-classes",
        {"parts": ["train", "val"], "classes": ["a", "b"]},
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_a_line(name: str, tmp_path: Path):
    bad = BAD[name]
    with refused(bad.code, key="dataset.root", **bad.facts) as caught:
        datasets.check(image_options(bad.make(fill(tmp_path / "root"))))
    sentence = caught.value.message.sentence
    assert sentence.startswith(f"dataset.root={tmp_path}") and "\n" not in sentence
    assert bad.why in caught.value.facts.get("why", "")
    assert not bad.reason or caught.value.facts["reason"].code == bad.reason


@pytest.mark.parametrize(("share", "lacking"), [("0.01", "test"), ("0.99", "train")])
def test_a_share_that_leaves_a_class_out_is_refused(share: str, lacking: str, tmp_path: Path):
    left_out = {"name": "ant", "images": 5, "lacking": lacking}
    with refused("photographs.split-leaves-none", key="dataset.split", **left_out):
        datasets.check(image_options(fill(tmp_path / "root"), f"dataset.split={share}"))


def test_a_share_of_what_is_split_already_is_refused_and_one_of_all(tmp_path: Path):
    with pytest.raises(ValueError, match=r"dataset\.split"):
        datasets.check(image_options(fill(tmp_path / "root"), "dataset.split=1"))
    shutil.copytree(fill(tmp_path / "a" / "train"), tmp_path / "a" / "val")
    with refused("photographs.split-already", key="dataset.split", parts=["val"]):
        datasets.check(image_options(tmp_path / "a", "dataset.split=0.5"))


@pytest.mark.parametrize("target", [None, "/dev/zero", ".", "../cow"])
def test_pipes_devices_and_circles_of_links_are_refused_and_not_read(
    target: str | None, tmp_path: Path
):
    path = fill(tmp_path / "root") / "bee" / "x.png"
    (tmp_path / "root" / "cow" / "back").symlink_to("../bee")
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    code = "photographs.circle" if target in (".", "../cow") else "photographs.no-file"
    with refused(code) as refusal:
        datasets.check(image_options(tmp_path / "root", "dataset.split=0.4"))
    assert (
        refusal.value.facts["path"].startswith(str(path))
        and "\n" not in refusal.value.message.sentence
    )


# ---- public layouts


def flat(root: Path, folder: str = "train_images") -> list[tuple[str, str]]:
    """Images in one folder; by number without its ending, the class of each."""
    (root / folder).mkdir(parents=True)
    found = []
    for number in range(10):
        picture(number % 2, number).save(root / folder / f"{number:04d}.PNG")
        found.append((f"{number:04d}", ["NA", "null"][number % 2]))
    return found


TABLES: dict[str, Callable[[list[tuple[str, str]]], bytes]] = {
    "ids": lambda rows: "\n".join(["id_code,diagnosis", *(f"{a},{b}" for a, b in rows)]).encode(),
    "names": lambda rows: "\n".join(["image,label", *(f"{a}.PNG,{b}" for a, b in rows)]).encode(),
    "backslashes": (
        lambda rows: "\n".join(
            ["path,label", *(f"train_images\\{a}.PNG,{b}" for a, b in rows)]
        ).encode()
    ),
    "excel": (
        lambda rows: "\r\n".join(["sep=;", "image;label", *(f'"{a}";{b}' for a, b in rows)]).encode(
            "utf-8-sig"
        )
    ),
    "unicode": (
        lambda rows: "\r\n".join(["image\tlabel", *(f"{a}\t{b}" for a, b in rows)]).encode("utf-16")
    ),
}


@pytest.mark.parametrize("form", TABLES)
def test_a_table_of_ids_beside_a_folder_of_images_is_read(form: str, tmp_path: Path):
    (tmp_path / "train.csv").write_bytes(TABLES[form](flat(tmp_path)))
    data = loaded(tmp_path / "train.csv", "dataset.split=0.4")
    assert data.facts["classes"] == ["NA", "null"] and len(data.train) + len(data.test) == 10
    assert sorted(seen(data.train) + seen(data.test))[0] == ((0, 0, 9), 0)


def test_images_that_no_row_names_are_counted(tmp_path: Path):
    (tmp_path / "train.csv").write_bytes(TABLES["ids"](flat(tmp_path)[:7]))
    assert (
        Ignored("images that no row names", 3)
        in loaded(tmp_path / "train.csv", "dataset.split=0.4").ignored
    )


def test_a_name_of_two_images_is_refused(tmp_path: Path):
    (tmp_path / "all.csv").write_bytes(TABLES["ids"](flat(tmp_path)))
    flat(tmp_path, "test_images")
    with refused("photographs.bad-rows", row=1, rows=10):
        loaded(tmp_path / "all.csv", "dataset.split=0.4")


def test_the_folder_of_such_a_table_names_the_table(tmp_path: Path):
    (tmp_path / "train.csv").write_bytes(TABLES["ids"](flat(tmp_path)))
    (tmp_path / "sample_submission.csv").write_text("id_code,diagnosis\n9999,0\n")
    with refused("photographs.table-beside", table=str(tmp_path / "train.csv")) as caught:
        loaded(tmp_path)
    (words,) = caught.value.message.remedies
    root, split = words.split()
    assert len(loaded(Path(root.removeprefix("dataset.root=")), split).train) == 8


def test_a_table_in_a_code_page_is_told_so(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes("image,label\na.png,f\xfcr\n".encode("cp1252"))
    with refused("photographs.table-encoding", key="dataset.root"):
        loaded(tmp_path / "a.csv", "dataset.split=0.4")


def test_masks_beside_the_images_of_a_class_are_no_samples(tmp_path: Path):
    for part in ("train", "val"):
        for number, name in enumerate(CLASSES):
            for folder in ("images", "masks"):
                (tmp_path / part / name / folder).mkdir(parents=True)
                picture(number, 0).save(tmp_path / part / name / folder / "0.png")
    both = loaded(tmp_path)
    assert len(both.train) == len(both.test) == 3 and Ignored("masks/", 6) in both.ignored
    assert len(sample_sources.find_parts(tmp_path / "train").parts[0].read().images) == 3


def cub(root: Path) -> Path:
    fill(root / "images")
    (root / "attributes").mkdir()
    (root / "attributes" / "a.txt").write_text("x")
    paths = sorted((root / "images").rglob("*.png"))
    lists = {
        "images.txt": [path.relative_to(root / "images").as_posix() for path in paths],
        "image_class_labels.txt": [CLASSES.index(path.parent.name) + 1 for path in paths],
        "train_test_split.txt": [int(path.stem != "0") for path in paths],
    }
    for name, values in lists.items():
        write(root / name, *(f"{number} {value}" for number, value in enumerate(values, 1)))
    write(root / "classes.txt", *(f"{number} {name}" for number, name in enumerate(CLASSES, 1)))
    return root


def test_the_lists_of_cub_are_read(tmp_path: Path):
    data = loaded(cub(tmp_path))
    assert (len(data.train), len(data.test), data.facts["classes"]) == (12, 3, [*CLASSES])
    assert data.ignored == [Ignored("attributes/", 1)]
    (tmp_path / "images" / "bee" / "0.png").unlink()
    with refused("photographs.bad-list", path="bee/0.png"):
        loaded(tmp_path)


def test_the_lists_of_cub_are_found_in_the_folder_of_its_archive(tmp_path: Path):
    cub(tmp_path / "CUB_200_2011")
    write(tmp_path / "attributes.txt", "1 has_bill_shape::curved")
    fill(tmp_path / "segmentations")
    data = loaded(tmp_path)
    assert (len(data.train), len(data.test), data.facts["classes"]) == (12, 3, [*CLASSES])
    assert {*map(str, data.ignored)} == {
        str(Ignored(what, count))
        for what, count in (("attributes/", 1), (".txt", 1), ("segmentations/", 15))
    }


def test_images_of_several_classes_and_archives_are_called_so(tmp_path: Path):
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / "kit" / "VOC2012" / name).mkdir(parents=True)
    picture(0, 0).save(tmp_path / "kit" / "VOC2012" / "JPEGImages" / "0.jpg")
    with refused("photographs.boxes", root=str(tmp_path / "kit" / "VOC2012")):
        loaded(tmp_path / "kit")
    for part in ("train", "valid"):
        (tmp_path / "rob" / part).mkdir(parents=True)
        picture(0, 0).save(tmp_path / "rob" / part / "0.jpg")
        (tmp_path / "rob" / part / "_classes.csv").write_text("filename, cat, dog\n0.jpg, 1, 1\n")
    with refused("photographs.one-hot"):
        loaded(tmp_path / "rob")
    (tmp_path / "web").mkdir()
    for name in ("train-0.tar", "pets.zip", "pets.tar.gz"):
        (tmp_path / "web" / name).write_bytes(b"x")
        with refused("photographs.packed", file=str(tmp_path / "web" / name)):
            loaded(tmp_path / "web" / name)
    with refused("photographs.packed"):
        loaded(tmp_path / "web")


def test_columns_without_a_name_are_counted_and_columns_of_one_name_refused(tmp_path: Path):
    names = flat(tmp_path)
    write(tmp_path / "a.csv", ",image,label", *((str(n), *row) for n, row in enumerate(names)))
    assert loaded(tmp_path / "a.csv", "dataset.split=0.4").ignored == [
        Ignored("column without a name", 10)
    ]
    write(tmp_path / "b.csv", "image,label, Label", *((*row, "x") for row in names))
    with refused("photographs.column-twice", column="label"):
        loaded(tmp_path / "b.csv", "dataset.split=0.4")
