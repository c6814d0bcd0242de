"""What the loaders hand over: pixels, labels, types, order and bytes; the same from all of them."""

import os
import signal
import traceback
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from multicard.measure import memory
from multicard.measure.memory import DeviceMemory
from multicard.ranks.process import Rank
from multicard.vision.data.device_loader import Resident
from multicard.vision.data.host_loader import FromHost, _start_worker
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.preprocess import Preparation, bands_of, cut_out, windows
from multicard.vision.data.splits import Remaining, Shuffled, Split
from multicard.vision.precision import PRECISIONS
from multicard.vision.train import rank_test_samples
from tests.conftest import has_dali, typed
from tests.helpers.loader_sources import DALI, noise, pixels, read, source, split
from tests.helpers.messages import refused

NAMES = ["torch", "batched", "device", DALI]
OTHERS = NAMES[1:]
GREY = ("dataset.mean=[0.5,0.5,0.5]", "dataset.std=[0.25,0.5,1.0]")
PLAIN = ("dataset.mean=[0,0,0]", "dataset.std=[1,1,1]")


@pytest.mark.parametrize(
    "transfer", [*dict.fromkeys(each.transfer_dtype for each in PRECISIONS.values())], ids=str
)
@pytest.mark.parametrize("loader", NAMES)
def test_pixels_are_scaled_normalised_and_converted(loader: str, transfer: torch.dtype):
    asked = source(split([0, 255, 51]), range(3), *GREY, f"loader={loader}")
    (batch,) = read(replace(asked, transfer=transfer))
    assert batch.images.shape == (3, 3, 32, 32) and batch.images.dtype == transfer
    assert batch.labels.tolist() == [0, 1, 2] and batch.labels.dtype == torch.int64
    tolerance = 1e-15 if transfer is torch.float64 else 8e-3
    for channel, std in zip(batch.images[2], (0.25, 0.5, 1.0), strict=True):
        assert torch.allclose(
            channel.double(), torch.tensor((0.2 - 0.5) / std, dtype=torch.float64), atol=tolerance
        )


@pytest.mark.parametrize("loader", NAMES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_the_samplers_order_and_the_last_is_short(loader: str, workers: int):
    sampler = Remaining(Shuffled(10, seed=3), 10)
    batches = LOADERS[loader].load(
        source(split(list(range(10))), sampler, f"loader={loader}", workers=workers)
    )
    # the loop takes as many as there are and does not ask for one more
    for epoch, taken in enumerate((3, 1, 3)):
        sampler.set_epoch(epoch)
        labels = [batch.labels.tolist() for batch in islice(iter(batches), taken)]
        assert [len(part) for part in labels] == [4, 4, 2][:taken]
        assert [*chain(*labels)] == [draw % 10 for draw in sampler][: 4 * taken]


@pytest.mark.parametrize("loader", OTHERS)
def test_a_batch_stays_as_it_is_while_later_ones_are_made(loader: str):
    batches = iter(
        LOADERS[loader].load(
            source(split(list(range(200))), range(200), f"loader={loader}", workers=2)
        )
    )
    first = next(batches).images
    before = first.clone()
    assert all(torch.equal(first, before) for _ in islice(batches, 40))


@pytest.mark.parametrize("loader", OTHERS)
@pytest.mark.parametrize("size", [32, 333])  # smaller and larger
@pytest.mark.parametrize(
    "words", [(), ("dataset.augment=true", "dataset.flip=true", "dataset.crop=0.7")]
)
@pytest.mark.parametrize("shape", [(28, 28), (48, 48, 3)])
def test_all_loaders_give_the_same_pixels(
    loader: str, size: int, words: tuple[str, ...], shape: tuple[int, ...]
):
    """torch's loader resizes to whole levels of 255, by torchvision's fixed-point weights; the
    others keep fractions: a level at most. DALI, where it shrinks an image, repeats the border for
    its antialiasing filter, where torch
    leaves out what lies beyond: up to 8 levels in the outermost pixels.
    """
    content, sampler = noise(5, *shape), Remaining(Shuffled(5, seed=2), 5)
    sampler.set_epoch(3)
    theirs, ours = (
        source(content, sampler, *words, f"dataset.image_size={size}", f"loader={name}")
        for name in ("torch", loader)
    )
    levels = (pixels(read(ours)) - pixels(read(theirs))).abs() * 255 * ours.config.dataset.std[0]
    if loader == "dali" and max(shape[:2]) * (0.7 if words else 1) > size:
        assert levels.max().item() <= 8 and levels.mean().item() <= 0.5
        levels = levels[..., 1:-1, 1:-1]
    assert levels.max().item() <= 1.0 + 1e-3


@pytest.mark.parametrize("loader", OTHERS)
def test_photographs_of_the_right_size_are_the_same_to_rounding(loader: str):
    content = noise(5, 32, 32, 3)
    words = ("dataset.mean=[0.4,0.5,0.6]", "dataset.std=[0.2,0.3,0.4]", "layout=nhwc")
    expected = pixels(read(source(content, range(5), *words)))
    mine = read(source(content, range(5), *words, f"loader={loader}"))
    assert torch.allclose(pixels(mine), expected, atol=1e-6)
    assert mine[0].images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("loader", NAMES)
def test_augmentation_follows_from_seed_and_epoch_alone(loader: str):
    content = noise(6, 16, 16)

    def epoch(number: int, seed: int = 0, skip: int = 0, **options: Any) -> torch.Tensor:
        sampler = Remaining(range(6), 6)  # pyright: ignore[reportArgumentType]
        sampler.epoch, sampler.skip = number, skip
        words = ("dataset.augment=true", "dataset.flip=true", f"seed={seed}", f"loader={loader}")
        return pixels(read(source(content, sampler, *words, **options)))

    assert torch.equal(epoch(1), epoch(1)) and torch.equal(epoch(1)[4:], epoch(1, skip=4))
    assert torch.equal(epoch(1), epoch(1, workers=2)) and torch.equal(
        epoch(1), epoch(1, batch_size=6)
    )
    assert not torch.equal(epoch(1), epoch(2)) and not torch.equal(epoch(1), epoch(1, seed=1))
    # the test set is left alone
    assert torch.equal(epoch(1, training=False), epoch(2, training=False))


def test_each_test_sample_is_on_one_rank_and_a_race_reads_a_batch_of_them():
    """The loop takes one batch of a race's test set;
    DALI would read what is left of it before the next epoch.
    """
    ranks = [Rank(number, number, 3, torch.device("cpu"), "gloo", 1) for number in range(3)]
    raced = typed("probe.enabled=true", "race.figure=images_per_s")
    whole, batches = (
        [[*rank_test_samples(config, 20, 4, rank)] for rank in ranks] for config in (typed(), raced)
    )
    assert sorted(chain(*whole)) == [*range(20)] and {len(mine) for mine in whole} == {6, 7}
    assert batches == [mine[:4] for mine in whole]


def test_a_worker_whose_rank_has_ended_before_it_starts_ends_too():
    loader = LOADERS["torch"].load(source(split([1, 2, 3, 4]), range(4), workers=1))
    assert isinstance(loader, FromHost)
    codes = []
    for start in (loader.loader.worker_init_fn, partial(_start_worker, os.getppid())):
        process = get_context("fork").Process(target=start, args=(0,))
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [0, -signal.SIGKILL]


def test_windows_lie_in_the_image_and_half_are_mirrored():
    config = typed("dataset.flip=true", "dataset.crop=0.5").dataset
    many = windows(config, np.arange(4000), 0, 20, 10)
    assert (many.height, many.width) == (10, 5)
    assert set(many.top) == set(range(11)) and set(many.left) == set(range(6))
    assert (
        many.flip.mean() == pytest.approx(0.5, abs=0.03)
        and np.bincount(many.top).min() > 4000 / 11 * 0.8
    )
    image, window = torch.arange(200).reshape(1, 20, 10), windows(config, np.array([7]), 0, 20, 10)
    (top,), (left,), (flip,) = window.top, window.left, window.flip
    expected = image[0, top : top + 10, left : left + 5]
    assert torch.equal(cut_out(window, image)[0], expected.flip(1) if flip else expected)


def test_bytes_are_those_of_what_crosses():
    content = split(list(range(10)))  # 8 x 8, so 64 bytes an image; 8 a label

    def crossed(loader: str, *words: str, **options: Any) -> tuple[list[tuple[int, int]], int]:
        batches = LOADERS[loader].load(
            source(content, range(1, 10, 2), f"loader={loader}", *words, **options)
        )
        return [(batch.images_bytes, batch.labels_bytes) for batch in batches], batches.setup_bytes

    image = 32 * 32 * 4
    assert crossed("torch") == ([(4 * 3 * image, 32), (3 * image, 8)], 0)
    assert crossed("batched") == ([(4 * image, 32), (image, 8)], 0)
    # channels that differ
    assert crossed("batched", *GREY)[0] == [(4 * 3 * image, 32), (3 * image, 8)]
    if has_dali():
        assert crossed("dali") == ([(4 * 64, 32), (64, 8)], 0)
    # the set, then an epoch's order
    assert crossed("device") == ([(5 * 8, 0), (0, 0)], 10 * (64 + 8))
    assert crossed("device", training=False) == ([(5 * 8, 0), (0, 0)], 5 * (64 + 8))
    assert crossed("device", sharded=True) == ([(5 * 64, 40), (0, 0)], 0)
    assert crossed("device", "dataset.device_budget_bytes=319", sharded=True) == (
        [(4 * 64, 32), (64, 8)],
        0,
    )


def test_what_does_not_fit_the_device_crosses_batch_by_batch(monkeypatch: pytest.MonkeyPatch):
    content, sampler, words = (
        noise(10, 8, 8),
        Shuffled(10, seed=1),
        ("loader=device", "dataset.device_budget_bytes="),
    )
    # a race has its cells keep to a share of all memory: what is
    # free depends on the cells that wait meanwhile
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 400)
    monkeypatch.setattr(memory, "device_memory", lambda kind: DeviceMemory(400, 4000, 0))
    raced = ("probe.enabled=true", "race.figure=images_per_s")
    alone, in_a_race = (Resident(source(content, sampler, words[0], *more)) for more in ((), raced))
    assert (alone.facts["budget_bytes"], in_a_race.facts["budget_bytes"]) == (100, 1000)
    fits, does_not = (
        Resident(source(content, sampler, words[0], f"{words[1]}{budget}")) for budget in (640, 639)
    )
    assert fits.facts == {"mode": "resident", "bytes": 640, "budget_bytes": 640}
    assert does_not.facts == {"mode": "streamed", "bytes": 640, "budget_bytes": 639}
    assert torch.equal(pixels(list(fits)), pixels(list(does_not)))


def test_the_order_follows_from_seed_stream_and_epoch():
    orders = []
    for seed, stream, epoch in ((0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)):
        sampler = Shuffled(50, seed, stream)
        sampler.set_epoch(epoch)
        orders.append(tuple(sampler))
    assert orders[0] == orders[1] and len({*orders}) == 5


def end_workers(error: BaseException | None) -> None:
    """Free the loader that the frames of an error hold, and so end its workers.

    As garbage, it would wait 5 s for each of them.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["torch", "batched", DALI])
def test_a_broken_photograph_is_named_whoever_decodes_it(
    loader: str, workers: int, tmp_path: Path, monkeypatch
):
    for number in range(7):
        Image.new("RGB", (40, 50)).save(tmp_path / f"{number}.png")
    content, huge = Split(sorted(tmp_path.iterdir()), np.arange(7)), BytesIO()
    Image.new("L", (400, 400)).save(huge, "png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    kinds = [b"no image", b"", (tmp_path / "0.png").read_bytes()[:60]]
    if loader != "dali":  # the limit of pixels is Pillow's
        kinds.append(huge.getvalue())
    for broken in kinds[: 1 if workers else None]:
        (tmp_path / "5.png").write_bytes(broken)
        with refused("photographs.broken", image=str(tmp_path / "5.png")) as caught:
            read(source(content, range(7), f"loader={loader}", batch_size=2, workers=workers))
        assert caught.value.message.sentence.startswith(f"{tmp_path / '5.png'}: cannot be decoded")
        end_workers(caught.value)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((28, 28), 500),
        ((28, 28), 64),
        ((33, 20), 224),
        ((28, 28), 127),
        ((8, 20), 64),
        ((60, 60), 32),
        ((64, 30), 48),
    ],
)
@pytest.mark.parametrize("transfer", [torch.float32, torch.float64])
def test_resizing_by_matrices_is_torchs_bilinear(
    shape: tuple[int, int], size: int, transfer: torch.dtype
):
    prepare = Preparation(typed(f"dataset.image_size={size}").dataset, transfer)
    images = torch.randn(3, 2, *shape, dtype=transfer)
    smaller = max(shape) > size
    expected = torch.nn.functional.interpolate(
        images, (size, size), mode="bilinear", antialias=smaller
    )
    places = [
        torch.empty(3, 2, size, size, dtype=transfer),
        torch.empty(3, size, size, 2, dtype=transfer),
    ]
    for out in (None, places[0], places[1].permute(0, 3, 1, 2)):
        resized = prepare._resized(images, out)
        assert torch.allclose(resized, expected, atol=5e-6)
        assert out is None or resized.data_ptr() == out.data_ptr()


def test_rows_are_computed_from_those_that_matter_where_that_pays():
    for side, size, shape in (
        (28, 500, (10, 50, 5)),
        (27, 512, (8, 64, 6)),
        (8, 500, None),
        (28, 127, None),
    ):
        bands = bands_of(side, size, torch.float32)
        assert (bands and bands[1].shape) == shape
