"""Batches that a GPU prepares in one kernel: the pixels are those of several, of any images."""

from typing import Any

import numpy as np
import pytest
import torch

from multicard.vision.data import preprocess
from multicard.vision.data.device_loader import Resident
from multicard.vision.data.preprocess import Preparation
from multicard.vision.data.splits import Split
from tests.conftest import typed
from tests.vision.test_loaders import noise, pixels, source

LAYOUTS = (torch.channels_last, torch.contiguous_format)
UNLIKE = ("dataset.mean=[0.1,0.2,0.3]", "dataset.std=[0.4,0.5,0.6]")
ALIKE = ("dataset.mean=[0.1,0.1,0.1]", "dataset.std=[0.4,0.4,0.4]")
LARGE = 72  # pixels a side: a CPU resizes as a GPU does, and by no matrices


def raw(*shape: int) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(3).integers(0, 256, (4, LARGE, LARGE, *shape), np.uint8)
    )


def preparation(size: int, transfer: torch.dtype, *words: str) -> Preparation:
    return Preparation(typed(f"dataset.image_size={size}", *words).dataset, transfer)


def arguments(made: Preparation, images: torch.Tensor) -> tuple[Any, ...]:
    alike = images.dim() == 3 and made.alike
    mean, scale = (values[:1] if alike else values for values in (made.mean, made.scale))
    return images, mean, scale, made.size, made.transfer


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "transfer", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("size", [96, LARGE, 40])
@pytest.mark.parametrize(("words", "shape"), [(ALIKE, ()), (UNLIKE, ()), (UNLIKE, (3,))])
def test_the_pixels_are_those_of_several_kernels(
    words: tuple[str, ...],
    shape: tuple[int, ...],
    size: int,
    transfer: torch.dtype,
    layout: torch.memory_format,
):
    made, images = preparation(size, transfer, *words), raw(*shape)
    expected = made(images).expand(-1, 3, -1, -1).contiguous(memory_format=layout)
    got = preprocess.prepared(*arguments(made, images), layout)
    assert got.dtype == transfer and got.is_contiguous(memory_format=layout)
    assert got.shape == (4, 3, size, size) and torch.equal(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", [torch.bfloat16, torch.float32], ids=str)
def test_compiled_code_gives_the_same_pixels_to_rounding(transfer: torch.dtype):
    made, images = preparation(96, transfer, *ALIKE), raw()
    expected = made(images).expand(-1, 3, -1, -1)
    with torch._inductor.config.patch(force_disable_caches=True):
        got = made.in_one_kernel(images, torch.channels_last)
    assert got.is_contiguous(memory_format=torch.channels_last)
    apart = (got.double() - expected.double()).abs()
    size = expected.double().abs().clamp_min(1)
    # a pixel is the sum of four products, which compiled code adds in another order
    assert (apart / size).max() <= 2 * torch.finfo(transfer).eps


def test_full_batches_alone_are_prepared_by_compiled_code(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    def prepared(images: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(images))
        return preprocess.prepared(images, *rest)

    monkeypatch.setattr(preprocess, "_compiled", lambda: prepared)
    content = noise(10, LARGE, LARGE)
    plain = Resident(source(content, range(10), "loader=device"))
    compiled = Resident(source(content, range(10), "loader=device", "layout=nhwc", compiled=True))
    assert not compiled.compiled  # on a CPU
    compiled.compiled = True
    batches = list(compiled)
    assert seen == [4, 4]  # of 4, 4 and 2
    assert [batch.images.shape[1] for batch in batches] == [3, 3, 1]
    assert all(
        batch.images.is_contiguous(memory_format=torch.channels_last) for batch in batches[:2]
    )
    assert torch.equal(pixels(batches), pixels(list(plain)))


@pytest.mark.parametrize(("samples", "warmed"), [(10, [4]), (3, [])])
def test_code_is_warm_before_the_first_batch_if_one_is_full(
    samples: int, warmed: list[int], monkeypatch: pytest.MonkeyPatch
):
    seen: list[int] = []
    monkeypatch.setattr(
        preprocess, "_compiled", lambda: lambda images, *_: seen.append(len(images))
    )
    content: Split = noise(samples, 8, 8)
    loader = Resident(source(content, range(samples), "loader=device", "dataset.augment=true"))
    loader.warm()
    assert seen == []  # nothing is compiled
    loader.compiled = True
    loader.warm()
    assert seen == warmed
