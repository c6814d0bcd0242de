"""What the loaders hand over: pixels, labels, types, order."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from multicard.vision.data import Split, load
from multicard.vision.loaders import LOADERS, Samples, decode
from multicard.vision.precision import PRECISIONS
from multicard.vision.strategy import Shuffled, Strided
from tests.conftest import typed

GREY = ("dataset.mean=[0.5,0.5,0.5]", "dataset.std=[0.25,0.5,1.0]")


def split(values: list[int], size: int = 8) -> Split:
    images = np.stack([np.full((size, size), value, np.uint8) for value in values])
    return Split(images, np.arange(len(values)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_pixels_are_scaled_normalised_and_converted(precision: str):
    config = typed(*GREY, "dataset.image_size=32")
    transfer = PRECISIONS[precision].transfer
    image, label = Samples(split([0, 255, 51]), config.dataset, transfer)[2]
    assert image.shape == (3, 32, 32) and image.dtype == transfer and label == 2
    expected = [(0.2 - 0.5) / s for s in (0.25, 0.5, 1.0)]
    for channel, value in zip(image, expected, strict=True):
        assert torch.allclose(channel.double(), torch.tensor(value, dtype=torch.float64), atol=8e-3)


def test_fp64_pixels_have_fp64_precision():
    image, _ = Samples(split([51]), typed(*GREY).dataset, torch.float64)[0]
    assert abs(image[2, 0, 0].item() - (0.2 - 0.5)) < 1e-15


def test_upsampling_is_bilinear_with_aligned_edges_left_free():
    ramp = Split(np.tile(np.array([0, 255], np.uint8), (2, 1))[None], np.zeros(1, np.int64))
    config = typed("dataset.image_size=32", "dataset.mean=[0,0,0]", "dataset.std=[1,1,1]")
    row = Samples(ramp, config.dataset, torch.float32)[0][0][0, 0]
    centres = (torch.arange(32) + 0.5) / 16 - 0.5  # of the large pixels, in small ones
    assert torch.allclose(row, centres.clamp(0, 1), atol=2 / 255)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_the_samplers_order_and_the_last_is_short(loader: str, workers: int):
    config = typed("dataset.image_size=32", f"loader={loader}")
    content, sampler = split(list(range(10))), Shuffled(10, seed=3)
    batches = list(LOADERS[loader](content, sampler, 4, workers, config, torch.float16, pin=False))
    assert [tuple(images.shape) for images, _ in batches] == [(4, 3, 32, 32), (4, 3, 32, 32), (2, 3, 32, 32)]
    assert torch.cat([labels for _, labels in batches]).tolist() == list(sampler)
    assert all(images.dtype == torch.float16 and labels.dtype == torch.int64 for images, labels in batches)


def test_the_order_follows_from_seed_stream_and_epoch():
    def order(seed: int, stream: int = 0, epoch: int = 0) -> list[int]:
        sampler = Shuffled(50, seed, stream)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0) == order(0) and sorted(order(0)) == list(range(50))
    assert len({tuple(order(*which)) for which in [(0,), (1,), (0, 1), (0, 0, 1), (0, 1, 1)]}) == 5


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_strides_share_without_a_rest(world: int):
    parts = [list(Strided(10, rank, world)) for rank in range(world)]
    assert sorted(i for part in parts for i in part) == list(range(10))
    assert [len(Strided(10, rank, world)) for rank in range(world)] == [len(part) for part in parts]


def test_photographs_of_any_mode_become_rgb(tmp_path: Path):
    Image.new("L", (10, 6), 7).save(tmp_path / "grey.png")
    Image.new("RGBA", (10, 6), (1, 2, 3, 4)).save(tmp_path / "alpha.png")
    assert decode(tmp_path / "grey.png").unique().tolist() == [7]
    assert decode(tmp_path / "alpha.png").shape == (3, 6, 10)


def test_a_broken_photograph_is_named(tmp_path: Path):
    Image.new("RGB", (50, 50)).save(tmp_path / "whole.png")
    broken = {"none.jpg": b"", "text.jpg": b"no image", "cut.png": (tmp_path / "whole.png").read_bytes()[:60]}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            decode(tmp_path / name)


def test_digits_survive_the_way_through_the_loader():
    config = typed("dataset.image_size=32", "dataset.mean=[0,0,0]", "dataset.std=[1,1,1]")
    content = load(config.dataset, 0).test
    image, label = Samples(content, config.dataset, torch.float32)[5]
    small = torch.nn.functional.avg_pool2d(image, 4)[0]
    assert label == content.labels[5]
    assert (
        torch.corrcoef(torch.stack([small.flatten(), torch.from_numpy(content.images[5] / 255.0).float().flatten()]))[
            0, 1
        ]
        > 0.95
    )
