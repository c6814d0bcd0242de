"""The cache of decoded photographs: built once, shared, noticed when it is not of what it should be."""

import fcntl
import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from multicard.config.placement import Placement
from multicard.config.vision import ImagesConfig
from multicard.measure import memory
from multicard.records import run_folder
from multicard.vision import workload
from multicard.vision.data import datasets, decoded_cache, decoding
from multicard.vision.data.batch import Source
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.samplers import Strided
from multicard.vision.data.splits import Data
from tests.conftest import PATIENCE_S, ROOT, awaited, composed, typed
from tests.vision.test_data import make_photographs

COUNT = 6


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    return make_photographs(tmp_path / "photographs", COUNT // 2, COUNT // 2)


def images(root: Path, *words: str) -> ImagesConfig:
    config = typed("dataset=images", f"dataset.root={root}", "dataset.image_size=32", *words).dataset
    assert isinstance(config, ImagesConfig)
    return config


def built(content: Data) -> list[bool]:
    return [content.facts["decoded"][part]["built_s"] is not None for part in ("train", "test")]


def decoded(root: Path) -> np.ndarray:
    return np.stack([decoding.decode(path, 32) for path in sorted((root / "train").rglob("*.png"))])


def whole(content: Data, root: Path) -> bool:
    mapped = content.train.images
    return isinstance(mapped, np.memmap) and np.array_equal(mapped, decoded(root))


def cache_file(root: Path) -> Path:
    (path,) = (root / ".multicard").glob("train_*.u8")
    return path


def test_it_is_built_once_and_then_mapped(photographs: Path):
    first, second = datasets.load(images(photographs), 0), datasets.load(images(photographs), 0)
    assert whole(first, photographs) and whole(second, photographs)
    assert (built(first), built(second)) == ([True, True], [False, False])
    assert first.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    suffixes = sorted(path.suffix for path in (photographs / ".multicard").iterdir() if path.name[0] != ".")
    assert suffixes == [".json", ".json", ".u8", ".u8"]
    assert first.facts["decoded"]["train"]["bytes"] == COUNT * 32 * 32 * 3


def test_each_size_and_part_has_its_own_cache(photographs: Path):
    datasets.load(images(photographs), 0)
    assert built(datasets.load(images(photographs, "dataset.image_size=48"), 0)) == [True, True]
    part = datasets.load(images(photographs, "dataset.train_limit=2"), 0)
    assert built(part) == [True, False]
    assert len(part.train) == len(part.train.images) == 2
    assert built(datasets.load(images(photographs, "dataset.train_limit=2"), 1)) == [True, False]  # another two
    assert built(datasets.load(images(photographs), 0)) == [False, False]


def change(root: Path) -> None:
    path = root / "train" / "cat" / "1.png"
    Image.new("RGB", (50, 50), (99, 99, 99)).save(path)
    os.utime(path, (1, 1))


def add(root: Path) -> None:
    Image.new("RGB", (50, 50), (99, 99, 99)).save(root / "train" / "cat" / "3.png")


def cut(root: Path) -> None:
    path = cache_file(root)
    path.write_bytes(path.read_bytes()[:-1])


def flip(root: Path) -> None:
    path = cache_file(root)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def lose(root: Path) -> None:
    cache_file(root).unlink()


def half_an_entry(root: Path) -> None:
    (entry,) = (root / ".multicard").glob("train_*.json")
    entry.write_text('{"of":')


@pytest.mark.parametrize("harm", [change, add, cut, flip, lose, half_an_entry])
def test_a_stale_or_damaged_cache_is_rebuilt(photographs: Path, harm: Any):
    datasets.load(images(photographs), 0)
    harm(photographs)
    again = datasets.load(images(photographs), 0)
    assert built(again) == [True, False] and whole(again, photographs)
    assert len(list((photographs / ".multicard").glob("train_*.u8"))) == 1


def test_a_copied_cache_is_verified_and_reused(photographs: Path):
    datasets.load(images(photographs), 0)
    os.utime(cache_file(photographs), (1, 1))
    assert built(datasets.load(images(photographs), 0)) == [False, False]


def test_data_sets_share_a_folder_of_caches(photographs: Path, tmp_path: Path):
    other = tmp_path / "other" / "photographs"
    (tmp_path / "other").mkdir()
    subprocess.run(["cp", "-rp", photographs, other], check=True)  # the same names, sizes and times
    where = f"dataset.cache_dir={tmp_path}/cache"
    assert built(datasets.load(images(photographs, where), 0)) == [True, True]
    assert built(datasets.load(images(other, where), 0)) == [True, True]
    assert built(datasets.load(images(photographs, where), 0)) == [False, False]
    assert not (photographs / ".multicard").exists()


def _open(root: str, cache_dir: str, out: Any) -> None:
    composed()  # registers the schemas
    data = datasets.load(images(Path(root), f"dataset.cache_dir={cache_dir}"), 0)
    out.put((built(data), whole(data, Path(root))))


def test_one_of_several_processes_builds(photographs: Path, tmp_path: Path):
    context = get_context("fork")
    out = context.Queue()
    processes = [context.Process(target=_open, args=(photographs, tmp_path / "cache", out)) for _ in range(4)]
    for process in processes:
        process.start()
    results = [out.get(timeout=PATIENCE_S) for _ in processes]
    for process in processes:
        process.join()
    assert all(is_whole for _, is_whole in results)
    assert [sum(parts) for parts in zip(*(parts for parts, _ in results), strict=True)] == [1, 1]


SLOW = """
import sys, time
from multicard.vision.data import datasets, decoded_cache, decoding
from tests.vision.test_cache import images
from pathlib import Path
decode = decoding.decode
def slowly(path, size):
    if path.name == "2.png":
        time.sleep(600)
    return decode(path, size)
decoding.decode = slowly
datasets.load(images(Path(sys.argv[1])), 0)
"""


@pytest.mark.usefixtures("processes")
def test_a_killed_build_leaves_no_partial_cache(photographs: Path):
    builder = subprocess.Popen([sys.executable, "-c", SLOW, str(photographs)], cwd=ROOT)
    folder = photographs / ".multicard"
    awaited(lambda: list(folder.glob(".train_*.u8.*")))
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert list(folder.glob(".train_*.u8.*")) and not list(folder.glob("*.json"))
    again = datasets.load(images(photographs), 0)
    assert built(again) == [True, True] and whole(again, photographs)
    assert not list(folder.glob(".train_*.u8.*"))


def test_a_broken_image_is_named_or_left_out_and_counted(photographs: Path):
    (photographs / "train" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cat/1\.png: cannot be decoded .* dataset.skip_broken=true"):
        datasets.load(images(photographs), 0)
    assert not list((photographs / ".multicard").glob("train_*"))
    data = datasets.load(images(photographs, "dataset.skip_broken=true"), 0)
    assert len(data.train) == len(data.train.images) == COUNT - 1
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    facts = data.facts["decoded"]["train"]
    assert (facts["skipped"], [Path(path).name for path in facts["skipped_paths"]]) == (1, ["1.png"])
    with pytest.raises(ValueError, match=r"cat/1\.png: cannot be decoded"):  # the cache is there, but not asked for so
        datasets.load(images(photographs), 0)


def test_a_set_without_a_whole_image_is_refused(photographs: Path):
    for path in (photographs / "train").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="no image of train_32px can be decoded"):
        datasets.load(images(photographs, "dataset.skip_broken=true"), 0)


def test_shared_memory_is_released(photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(decoded_cache, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    config = images(photographs, "dataset.cache=ram")
    first, second = datasets.load(config, 0), datasets.load(config, 0)
    assert (built(first), built(second)) == ([True, True], [False, False])
    decoded_cache.forget(first)
    assert not list((tmp_path / "shm").iterdir())
    assert whole(first, photographs) and whole(second, photographs)
    assert not (photographs / ".multicard").exists()


def test_shared_memory_of_another_user_is_refused(photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(decoded_cache, "SHARED_MEMORY", tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"multicard-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"belongs to another user, or is a link; use dataset\.cache=mmap or none"):
        datasets.load(images(photographs, "dataset.cache=ram"), 0)


def test_shared_memory_is_left_to_a_run_that_is_building(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(decoded_cache, "SHARED_MEMORY", tmp_path / "shm")
    config = images(photographs, "dataset.cache=ram")
    data = datasets.load(config, 0)
    (lock_file,) = (tmp_path / "shm").glob("*/.*train*.lock")
    with lock_file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        decoded_cache.forget(data)
        assert lock_file.exists() and not list(lock_file.parent.glob("*test*"))
        # without the lock's name, a third run would build too, and remove this one's half
        assert [path.name for path in lock_file.parent.glob("*train*.u8")]
    decoded_cache.forget(data)
    assert not lock_file.parent.exists()


def test_a_folder_that_cannot_be_written_is_refused(photographs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"^dataset\.root=.*; set dataset\.cache_dir to a folder"):
        datasets.check(images(photographs))
    datasets.check(images(photographs, "dataset.cache=none"))
    datasets.load(images(photographs), 0)
    datasets.check(images(photographs))  # it is there: nothing is to be written


def test_a_full_disk_is_reported(photographs: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "replacing", full)
    with pytest.raises(ValueError, match=r"^dataset\.cache=mmap: cannot write to .* \(No space left on device\)"):
        datasets.load(images(photographs), 0)


def test_each_process_may_hold_a_copy_of_its_own_as_tensors(photographs: Path):
    copied, mapped = (datasets.load(images(photographs, f"dataset.cache={mode}"), 0) for mode in ("process", "mmap"))
    pixels = copied.train.images
    assert isinstance(pixels, np.ndarray) and not isinstance(pixels, np.memmap) and pixels.dtype == np.float32
    assert pixels.transpose(0, 3, 1, 2).flags.c_contiguous  # by channels, as ToTensor has them
    assert copied.facts["process_bytes"] == 2 * COUNT * 3 * 32 * 32 * 4 and copied.facts["read_s"] > 0
    assert copied.train.labels.tolist() == mapped.train.labels.tolist()
    words = ("dataset=images", f"dataset.root={photographs}", "dataset.image_size=32", "batch_size=4")
    for augment in ("false", "true"):
        expected, mine = (
            loaded(content, *words, f"dataset.augment={augment}", f"dataset.cache={mode}")
            for mode, content in (("mmap", mapped), ("process", copied))
        )
        for a, b in zip(expected, mine, strict=True):
            # a window is enlarged from floats, not from whole levels: at most half a level, by the smallest deviation
            assert torch.allclose(a, b, rtol=0, atol=0 if augment == "false" else 0.51 / 255 / 0.224)


def loaded(content: Data, *words: str) -> list[torch.Tensor]:
    """The images of an epoch in order, by `loader=torch`."""
    sampler = Strided(len(content.train), 0, 1)
    source = Source(content.train, sampler, 4, 0, typed("loader=torch", *words), torch.float32)
    return [batch.images for batch in LOADERS["torch"].load(source)]


def test_copies_that_do_not_fit_are_refused(photographs: Path, monkeypatch: pytest.MonkeyPatch):
    one_bytes = 2 * COUNT * 3 * 32 * 32 * 4
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 2 * one_bytes)
    config = typed("dataset=images", f"dataset.root={photographs}", "dataset.image_size=32", "dataset.cache=process")
    workload.has_room(config, Placement("cpu", "gloo", 2, False))
    with pytest.raises(ValueError) as refusal:
        workload.has_room(config, Placement("cpu", "gloo", 3, False))
    message = str(refusal.value)
    assert message.startswith("dataset.cache=process: 3 ranks, each with 12 images of 32 px as float32, need 442 kB")
    assert "of which 295 kB are available" in message and "dataset.cache=mmap" in message and "\n" not in message
    workload.has_room(typed(*SMALLER, f"dataset.root={photographs}"), Placement("cpu", "gloo", 3, False))


SMALLER = ("dataset=images", "dataset.image_size=32", "dataset.cache=process", "dataset.train_limit=2")


@pytest.mark.parametrize("loader", ["batched", "device", "dali"])
def test_tensors_are_for_the_dataloader_alone(photographs: Path, loader: str):
    config = typed(*SMALLER, f"dataset.root={photographs}", f"loader={loader}")
    with pytest.raises(
        ValueError, match=rf"^loader={loader}: does not go with dataset.cache=process.*use loader=torch"
    ):
        workload.refuse(config)


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/job/step\n", {"job/memory.max": "900", "job/step/memory.max": "max"}, 900),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "800"}, 800),
        ("0::/\n", {}, None),
    ],
)
def test_memory_is_that_which_the_control_group_leaves(
    own: str, files: dict[str, str], limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUPS", tmp_path / "own")
    available_bytes = memory.available_memory_bytes()
    assert available_bytes == limit if limit else available_bytes > 1_000_000
