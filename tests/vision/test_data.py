"""Data sets: what is in them, and that broken ones are noticed before anything starts."""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from multicard.config.vision_data import ImagesConfig
from multicard.vision.data import datasets
from tests.conftest import shared, typed
from tests.helpers.messages import refused, remedies


def test_digits_are_split_by_class_and_alike_for_every_seed():
    config = typed().dataset
    content, again = datasets.load(config, seed=0), datasets.load(config, seed=1)
    assert content.train.images.shape[1:] == (8, 8) and content.train.images.dtype == np.uint8
    train, test = (np.bincount(part.labels) for part in (content.train, content.test))
    assert (train + test).sum() == 1797 and test.tolist() == np.round((train + test) / 5).tolist()
    np.testing.assert_array_equal(again.test.images, content.test.images)
    seen = {image.tobytes() for image in content.train.images}
    # a few people wrote the same pixels
    assert sum(image.tobytes() in seen for image in content.test.images) < 5
    assert (content.train.images / 255).mean() == pytest.approx(config.mean[0], abs=2e-3)
    assert (content.train.images / 255).std() == pytest.approx(config.std[0], abs=2e-3)


def test_limits_take_the_first_after_a_seeded_shuffle():
    whole = datasets.load(typed().dataset, 0)
    config = typed("dataset.train_limit=10", "dataset.test_limit=5000").dataset
    some, same, other = (datasets.load(config, seed) for seed in (0, 0, 1))
    assert len(some.train) == 10 and len(some.test) == len(whole.test)
    np.testing.assert_array_equal(some.train.images, same.train.images)
    assert (some.train.images != other.train.images).any()
    assert len(set(some.train.labels)) > 3  # not the first ten of a sorted file


def mnist_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, count: int = 20, packed: bool = True
) -> Path:
    """A small set in MNIST's form, with its checksums in the module."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    known = {}
    for name in datasets.MNIST_FILES:
        images = "idx3" in name
        header = (
            struct.pack(">4i", 2051, count, 28, 28) if images else struct.pack(">2i", 2049, count)
        )
        content = (
            header
            + random.integers(0, 10, count * (784 if images else 1), dtype=np.uint8).tobytes()
        )
        path = raw / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
        known[name] = (datasets.hashlib.md5(path.read_bytes()).hexdigest(), count)
    monkeypatch.setattr(datasets, "MNIST_FILES", known)
    return raw


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_in_place_plain_or_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
):
    raw = mnist_folder(tmp_path, monkeypatch, packed=packed)
    before = sorted(raw.iterdir())
    config = typed("dataset=mnist", f"dataset.root={tmp_path}").dataset
    datasets.check(config)
    content = datasets.load(config, 0)
    assert content.train.images.shape == (20, 28, 28) and content.test.labels.shape == (20,)
    assert content.train.labels.dtype == np.int64 and content.train.labels.max() < 10
    assert sorted(raw.iterdir()) == before


def check_refused(config: datasets.DatasetConfig, code: str, file: str) -> None:
    with refused(code, key="dataset.root", file=file) as error:
        datasets.check(config)
    assert "\n" not in error.value.message.sentence
    assert "dataset.download=true" in remedies(error.value)


def test_mnist_that_is_absent_cut_off_or_altered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = typed("dataset=mnist", f"dataset.root={tmp_path}").dataset
    check_refused(config, "mnist.absent", "train-images-idx3-ubyte")
    raw = mnist_folder(tmp_path, monkeypatch)
    path, plain = raw / "t10k-labels-idx1-ubyte.gz", raw / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-3])
    check_refused(config, "mnist.altered", "t10k-labels-idx1-ubyte.gz")
    path.unlink()
    check_refused(config, "mnist.absent", "t10k-labels-idx1-ubyte")
    for content in (
        b"",
        b"\0" * 28,
        *(struct.pack(">2i", 2049, count) + bytes(19) for count in (19, 20)),
    ):
        plain.write_bytes(content)
        check_refused(config, "mnist.altered", "t10k-labels-idx1-ubyte")


def test_real_mnist():
    config = typed("dataset=mnist", f"dataset.root={shared('mnist')}").dataset
    datasets.check(config)
    content = datasets.load(config, 0)
    assert (len(content.train), len(content.test)) == (60_000, 10_000)
    assert np.bincount(content.test.labels).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    pixels = content.train.images / 255
    assert pixels.mean() == pytest.approx(config.mean[0], abs=1e-4)
    assert pixels.std() == pytest.approx(config.std[0], abs=1e-4)


def make_photographs(root: Path, train: int, validation: int) -> Path:
    """Two classes of plain colour images in several sizes, in both parts."""
    for part, count in (("train", train), ("validation", validation)):
        for index, name in enumerate(("cat", "dog")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (40 + 9 * i, 60), (index * 200, 10 * i, 7)).save(
                    folder / f"{i}.png"
                )
    return root


def image_options(root: Path, *words: str) -> ImagesConfig:
    config = typed(
        "dataset=images", f"dataset.root={root}", "dataset.image_size=32", *words
    ).dataset
    assert isinstance(config, ImagesConfig)
    return config


def test_photographs_come_in_the_order_of_torchvision_linked_folders_too(tmp_path: Path):
    photographs = make_photographs(tmp_path, 6, 3)
    cat = photographs / "train" / "cat"
    (cat / "10").mkdir()
    for name in ("10/a.png", "10.png", "B.PNG"):
        shutil.copy(photographs / "train" / "dog" / "0.png", cat / name)
    (photographs / "elsewhere").mkdir()
    Image.new("RGB", (40, 40)).save(photographs / "elsewhere" / "y.png")
    (cat / "x.jpg").symlink_to("../../elsewhere")  # a folder that is called an image
    options, expected = (
        image_options(photographs, "dataset.cache=none"),
        ImageFolder(photographs / "train").samples,
    )
    data = datasets.load(options, 0)
    assert (
        list(zip(map(str, data.train.images), data.train.labels.tolist(), strict=True)) == expected
    )
    assert (
        cat / "x.jpg" / "y.png" in data.train.images and not (photographs / ".multicard").exists()
    )


def test_real_photographs():
    config = image_options(shared("clothing"), "dataset.cache=none")
    datasets.check(config)
    content = datasets.load(config, 0)
    assert (len(content.train), len(content.test), content.classes) == (320, 80, 10)
