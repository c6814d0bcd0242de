"""Decoded photographs: a cache that is built once, shared and checked,
or a copy in each process.
"""

import os
import shutil
import time
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from multicard.config.placement import Placement
from multicard.measure import memory
from multicard.records import run_folder
from multicard.vision import workload
from multicard.vision.data import datasets, decoding
from multicard.vision.data.batch import LoaderInput
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.splits import DataSplits
from tests.conftest import awaited, typed
from tests.helpers.messages import refused, remedies
from tests.vision.test_data import image_options, make_photographs

COUNT = 6


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    return make_photographs(tmp_path / "photographs", COUNT // 2, COUNT // 2)


def loaded(root: Path, *words: str, seed: int = 0) -> DataSplits:
    return datasets.load(image_options(root, *words), seed)


def built(content: DataSplits) -> list[bool]:
    return [content.facts["decoded"][part]["built_s"] is not None for part in ("train", "test")]


def whole(content: DataSplits, root: Path) -> bool:
    mapped = content.train.images
    decoded = np.stack(
        [decoding.decode(path, 32) for path in sorted((root / "train").rglob("*.png"))]
    )
    return isinstance(mapped, np.memmap) and np.array_equal(mapped, decoded)


def cache_file(root: Path, suffix: str = "u8") -> Path:
    (path,) = (root / ".multicard").glob(f"train_*.{suffix}")
    return path


def test_each_size_and_part_is_built_once_and_then_mapped(photographs: Path):
    first, second = loaded(photographs), loaded(photographs)
    assert whole(first, photographs) and whole(second, photographs)
    assert (built(first), built(second)) == ([True, True], [False, False])
    assert first.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    suffixes = sorted(
        path.suffix for path in (photographs / ".multicard").iterdir() if path.name[0] != "."
    )
    assert suffixes == [".json", ".json", ".u8", ".u8"]
    assert first.facts["decoded"]["train"]["bytes"] == COUNT * 32 * 32 * 3
    assert built(loaded(photographs, "dataset.image_size=48")) == [True, True]
    part = loaded(photographs, "dataset.train_limit=2")
    assert built(part) == [True, False] and len(part.train) == len(part.train.images) == 2
    # another two
    assert built(loaded(photographs, "dataset.train_limit=2", seed=1)) == [True, False]
    assert built(loaded(photographs)) == [False, False]


def draw(root: Path, name: str) -> None:
    Image.new("RGB", (50, 50), (99, 99, 99)).save(root / "train" / "cat" / name)
    os.utime(root / "train" / "cat" / name, (1, 1))


HARMS = {
    "an image changed": lambda root: draw(root, "1.png"),
    "an image added": lambda root: draw(root, "3.png"),
    "cache cut off": lambda root: cache_file(root).write_bytes(cache_file(root).read_bytes()[:-1]),
    "cache written to": (
        lambda root: cache_file(root).write_bytes(bytes(cache_file(root).stat().st_size))
    ),
    "cache lost": lambda root: cache_file(root).unlink(),
    "half an entry": lambda root: cache_file(root, "json").write_text('{"of":'),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_stale_or_damaged_cache_is_rebuilt(photographs: Path, harm: str):
    loaded(photographs)
    HARMS[harm](photographs)
    again = loaded(photographs)
    assert built(again) == [True, False] and whole(again, photographs)
    assert len(list((photographs / ".multicard").glob("train_*.u8"))) == 1


def test_data_sets_share_a_folder_of_caches(photographs: Path, tmp_path: Path):
    other, where = tmp_path / "other" / "photographs", f"dataset.cache_dir={tmp_path}/cache"
    shutil.copytree(photographs, other)  # the same names, sizes and times
    assert [built(loaded(root, where)) for root in (photographs, other)] == [[True, True]] * 2
    assert built(loaded(photographs, where)) == [False, False]
    assert not (photographs / ".multicard").exists()


def _open(root: Path) -> tuple[list[bool], bool]:
    data = loaded(root)
    return built(data), whole(data, root)


def test_one_of_several_processes_builds(photographs: Path):
    with get_context("fork").Pool(4) as pool:
        results = pool.map(_open, [photographs] * 4, chunksize=1)
    assert all(is_whole for _, is_whole in results)
    assert [sum(parts) for parts in zip(*(parts for parts, _ in results), strict=True)] == [1, 1]


def _build_slowly(root: Path) -> None:
    decode = decoding.decode
    decoding.decode = lambda path, size: (
        time.sleep(600) if path.name == "2.png" else decode(path, size)
    )
    loaded(root)


def test_a_killed_build_leaves_no_partial_cache(photographs: Path):
    builder = get_context("fork").Process(target=_build_slowly, args=(photographs,))
    builder.start()
    folder = photographs / ".multicard"
    awaited(lambda: list(folder.glob(".train_*.u8.*")))
    builder.kill()
    builder.join()
    assert list(folder.glob(".train_*.u8.*")) and not list(folder.glob("*.json"))
    again = loaded(photographs)
    assert built(again) == [True, True] and whole(again, photographs)
    assert not list(folder.glob(".train_*.u8.*"))


def test_a_broken_image_is_named_or_left_out_and_counted(photographs: Path):
    cats = photographs / "train" / "cat"
    (cats / "1.png").write_bytes(b"no image")
    with refused("cache.broken", image=str(cats / "1.png"), broken=1):
        loaded(photographs)
    data = loaded(photographs, "dataset.skip_broken=true")
    assert len(data.train.images) == COUNT - 1 and data.train.labels.tolist() == [0, 0, 1, 1, 1]
    facts = data.facts["decoded"]["train"]
    assert (facts["skipped"], [Path(path).name for path in facts["skipped_paths"]]) == (
        1,
        ["1.png"],
    )
    # the cache is there, but not asked for so
    with refused("cache.broken", image=str(cats / "1.png")):
        loaded(photographs)
    for path in sorted((photographs / "train").rglob("*.png"))[:-1]:
        path.write_bytes(b"no image")
    with refused("cache.broken", image=str(cats / "0.png"), broken=5, images=6):
        loaded(photographs)
    path.with_name("2.png").write_bytes(b"no image")
    with refused("cache.nothing-decoded", split="train_32px", image=str(cats / "0.png")):
        loaded(photographs, "dataset.skip_broken=true")


@pytest.mark.parametrize(("part", "split"), [("train", "train"), ("validation", "test")])
def test_broken_images_leave_no_class_empty(part: str, split: str, photographs: Path):
    folder = photographs / part
    (name, *_) = sorted(path.name for path in folder.iterdir())
    images = sorted((folder / name).iterdir())
    for image in images:
        image.write_bytes(b"no image")
    with refused("cache.class-broken", split=split, classes=[name], images=len(images)):
        loaded(photographs, "dataset.skip_broken=true")


def test_a_folder_that_cannot_be_written_is_refused(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        patched.setattr(
            run_folder, "replacing", mock.Mock(side_effect=OSError(28, "No space left on device"))
        )
        with refused("cache.not-written", key="dataset.cache", why="No space left on device"):
            loaded(photographs)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with refused("cache.unwritable", key="dataset.root"):
        datasets.check(image_options(photographs))
    datasets.check(image_options(photographs, "dataset.cache=none"))
    loaded(photographs)
    datasets.check(image_options(photographs))  # it is there: nothing is to be written


def test_each_process_may_hold_a_copy_of_its_own_as_tensors(photographs: Path):
    words = (
        "dataset=images",
        f"dataset.root={photographs}",
        "dataset.image_size=32",
        "batch_size=4",
    )
    copied, mapped = (loaded(photographs, f"dataset.cache={mode}") for mode in ("process", "mmap"))
    pixels = copied.train.images
    assert (
        isinstance(pixels, np.ndarray)
        and not isinstance(pixels, np.memmap)
        and pixels.dtype == np.float32
    )
    assert pixels.transpose(0, 3, 1, 2).flags.c_contiguous  # by channels, as ToTensor has them
    assert (
        copied.facts["process_bytes"] == 2 * COUNT * 3 * 32 * 32 * 4 and copied.facts["read_s"] > 0
    )
    assert copied.train.labels.tolist() == mapped.train.labels.tolist()

    def batches(content: DataSplits, *more: str) -> list[torch.Tensor]:
        sampler, config = range(len(content.train)), typed("loader=torch", *words, *more)
        return [
            b.images
            for b in LOADERS["torch"].load(
                LoaderInput(content.train, sampler, 4, 0, config, torch.float32)
            )
        ]

    for augment in ("false", "true"):
        expected = batches(mapped, f"dataset.augment={augment}", "dataset.cache=mmap")
        mine = batches(copied, f"dataset.augment={augment}", "dataset.cache=process")
        for a, b in zip(expected, mine, strict=True):
            # a window is enlarged from floats, not from whole levels: at most half a level,
            # by the smallest deviation
            assert torch.allclose(
                a, b, rtol=0, atol=0 if augment == "false" else 0.51 / 255 / 0.224
            )


def test_copies_that_do_not_fit_or_that_the_loader_cannot_read_are_refused(
    photographs: Path, monkeypatch
):
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 2 * 2 * COUNT * 3 * 32 * 32 * 4)
    words = (
        "dataset=images",
        f"dataset.root={photographs}",
        "dataset.image_size=32",
        "dataset.cache=process",
    )
    two, three = (Placement("cpu", "gloo", ranks, False) for ranks in (2, 3))
    workload.has_room(typed(*words), two)
    copies = {"ranks": 3, "images": 2 * COUNT, "image_size": 32}
    needed_bytes = 3 * 2 * COUNT * 3 * 32 * 32 * 4
    sizes = {"needed_bytes": needed_bytes, "available_bytes": needed_bytes * 2 // 3}
    with refused("photographs.no-room", key="dataset.cache", **copies, **sizes) as refusal:
        workload.has_room(typed(*words), three)
    assert remedies(refusal.value) == ["dataset.cache=mmap"]
    workload.has_room(typed(*words, "dataset.train_limit=2"), three)
    for loader in ("batched", "device", "dali"):
        with refused("loader.tensors", key="loader", loader=loader):
            workload.refuse(typed(*words, f"loader={loader}"))


def test_memory_is_that_which_the_control_group_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = {
        "job/memory.max": 900,
        "job/memory.current": 300,
        "job/memory.stat": "anon 200\nfile 100\ninactive_file 50",
        "job/step/memory.max": "max",
        "job/step/memory.current": 100,
        "memory/job/memory.limit_in_bytes": 800,
        "memory/job/memory.usage_in_bytes": 500,
        "memory/job/memory.stat": "inactive_file 10\ntotal_inactive_file 40",
        "full/memory.max": 900,
        "full/memory.current": 950,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "PROCESS_CGROUPS", tmp_path / "own")
    left_bytes = {
        "0::/job/step": 900 - 300 + 50,  # version 2
        "4:memory:/job": 800 - 500 + 40,  # version 1
        "0::/full": 0,
    }
    for own, left in left_bytes.items():
        (tmp_path / "own").write_text(f"{own}\n")
        assert memory.available_memory_bytes() == left
    (tmp_path / "own").write_text("0::/\n")
    assert memory.available_memory_bytes() > 1_000_000


@pytest.mark.parametrize("words", [(), ("dataset.train_limit=4",)])
def test_a_folder_whose_name_is_not_text_has_a_cache_elsewhere(
    words: tuple[str, ...], photographs: Path, tmp_path: Path
):
    """As one that a link of another name leads to: the command line takes text alone."""
    photographs.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    photographs.symlink_to(os.fsdecode(b"caf\xe9"))
    words = (*words, f"dataset.cache_dir={tmp_path / 'cache'}")
    assert (built(loaded(photographs, *words)), built(loaded(photographs, *words))) == (
        [True] * 2,
        [False] * 2,
    )
