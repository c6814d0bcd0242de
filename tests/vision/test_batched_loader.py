"""`loader=batched`: batches made by threads, their memory,
and the side stream on which they are copied.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from multicard.vision.data import batch, batched_loader, preprocess
from multicard.vision.data.batch import Batch, LoaderInput, PendingBatch, copy_ahead
from multicard.vision.data.batched_loader import Batched, Buffers
from multicard.vision.data.splits import Remaining, Shuffled, Split, gather
from tests.conftest import PATIENCE_S
from tests.helpers.loader_sources import noise, read, source
from tests.helpers.messages import refused


def batched(content: Split, *words: str, workers: int = 2, **options: Any) -> LoaderInput:
    return source(
        content, range(len(content)), "loader=batched", *words, workers=workers, **options
    )


@contextmanager
def computing_on(cores: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    yield
    torch.set_num_threads(before)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.mark.parametrize(
    ("words", "transfer"),
    [
        ((), torch.float32),
        (("dataset.augment=true", "dataset.crop=0.6"), torch.float64),
        (("dataset.std=[0.2,0.3,0.4]",), torch.bfloat16),
    ],
)
@pytest.mark.parametrize("shape", [(28, 28), (9, 14), (28, 28, 3), (70, 70, 3)])
def test_pieces_are_the_whole_to_the_last_bit(
    words: tuple[str, ...],
    shape: tuple[int, ...],
    transfer: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
):
    """By threads of one core each, as a thread of one core makes the batch in one piece."""
    monkeypatch.setattr(batched_loader, "PIECE_BYTES", 1)
    content, sampler = noise(45, *shape), Remaining(Shuffled(45, 2), 45)
    sampler.set_epoch(1, skip=3)
    asked = replace(
        source(content, sampler, "loader=batched", *words, batch_size=27), transfer=transfer
    )
    prepare, parts = preprocess.Preparation(asked.config.dataset, transfer), asked.batches()
    with computing_on(1):
        whole = [
            prepare(asked.augmented(torch.from_numpy(gather(content, part % 45, 32)), part))
            for part in parts
        ]
        for workers in (0, 1, 3):
            for part, expected, batch in zip(
                parts, whole, read(replace(asked, workers=workers)), strict=True
            ):
                assert (
                    torch.equal(batch.images, expected)
                    and batch.images.stride() == expected.stride()
                )
                assert (
                    batch.images_bytes == expected.nbytes
                    and batch.labels.tolist() == (part % 45).tolist()
                )


def test_memory_is_used_again_only_when_nothing_refers_to_it():
    buffers = Buffers(64, pin=False)
    part = buffers.take()[8:16].view(torch.float32)
    assert buffers.free.empty() and buffers.take().data_ptr() != part.data_ptr() - 8
    batches, layer, addresses = (
        iter(Batched(batched(noise(80, 8, 8), "loader.ahead=2"))),
        torch.nn.Conv2d(1, 2, 3),
        [],
    )
    for number in range(20):
        made = next(batches)
        addresses.append(made.images.data_ptr())
        if number == 3:
            (expected,) = torch.autograd.grad(layer(made.images.clone()).sum(), layer.weight)
            loss = layer(made.images).sum()  # holds its input until its backward pass
        del made
    (gradient,) = torch.autograd.grad(loss, layer.weight)
    assert torch.equal(gradient, expected)
    assert addresses.count(addresses[3]) == 1
    # Two ahead, one being made, the step's, the graph's,
    # and what each of two threads has yet to let go
    assert len(set(addresses)) <= 2 + 1 + 1 + 1 + 2


def test_each_thread_computes_on_one_core_and_the_rank_on_as_many_as_before(
    monkeypatch: pytest.MonkeyPatch,
):
    of_loader, later, real = set(), set(), Batched._fill

    def spied(*arguments: Any) -> None:
        of_loader.add(torch.get_num_threads())
        real(*arguments)

    monkeypatch.setattr(Batched, "_fill", spied)
    with computing_on(3):
        for _ in Batched(batched(noise(40, 8, 8))):
            thread = threading.Thread(target=lambda: later.add(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert torch.get_num_threads() == 3
    assert (of_loader, later) == ({1}, {3})


def test_threads_end_with_the_epoch_and_there_is_no_process():
    before = {*psutil.Process().children()}  # of other tests; some may end meanwhile
    loader = Batched(batched(noise(40, 8, 8), workers=3))
    for _ in loader:
        assert len(loader_threads()) == 3 and {*psutil.Process().children()} <= before
    assert not loader_threads()
    abandoned = iter(loader)  # as at a stop
    next(abandoned)
    del abandoned
    assert not loader_threads()


def test_a_broken_photograph_ends_the_threads_and_the_batches_before_it_come(tmp_path: Any):
    for number in range(12):
        Image.new("RGB", (40, 50)).save(tmp_path / f"{number:02}.png")
    (tmp_path / "09.png").write_bytes(b"no image")
    content = Split(sorted(tmp_path.iterdir()), np.arange(12))
    labels: list[int] = []
    with refused("photographs.broken", image=str(tmp_path / "09.png")):
        for batch in Batched(batched(content, "loader.ahead=4")):
            labels += batch.labels.tolist()
    assert labels == list(range(8)) and not loader_threads()


def test_batches_are_made_while_the_step_runs_and_no_more_than_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    made, real = threading.Semaphore(0), Batched._fill

    def counted(self: Batched, images: torch.Tensor, draws: np.ndarray) -> None:
        real(self, images, draws)
        made.release()

    monkeypatch.setattr(Batched, "_fill", counted)
    # batches of 4, in one piece each
    batches = iter(Batched(batched(noise(80, 8, 8), "loader.ahead=3")))
    next(batches)
    for _ in range(1 + 3):  # the step's, and three ahead of it, without another being asked for
        assert made.acquire(timeout=PATIENCE_S)
    assert not made.acquire(timeout=0.2)


class Cuda:
    """A training stream and a side stream that stand in for CUDA's,
    and write down what is queued on them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
        self.log: list[str] = []
        self.over = over  # copies are, as soon as they are asked
        cuda = SimpleNamespace(
            current_stream=lambda _: self.stream("training"), stream=lambda _: nullcontext()
        )
        monkeypatch.setattr(batch.torch, "cuda", cuda)
        monkeypatch.setattr(batch, "side_stream", lambda _: self.stream("side"))

    def stream(self, name: str) -> Any:
        numbers, log = count(1), self.log

        def record_event() -> Any:
            event = f"{name} {next(numbers)}"
            log.append(f"{name} records {event.split()[1]}")
            waits = f"training waits for {event}"
            return SimpleNamespace(
                name=event, query=lambda: self.over, wait=lambda: log.append(waits)
            )

        return SimpleNamespace(
            record_event=record_event,
            wait_event=lambda event: log.append(f"{name} waits for {event.name}"),
            synchronize=lambda: log.append(f"host waits for {name}"),
        )


def sent(number: int, done: bool, buffers: Buffers) -> Iterator[Batch]:
    """Batches of four equal images on their way to the device."""

    def makings() -> Iterator[PendingBatch]:
        for value in range(number):
            images = buffers.take().view(torch.float32)
            made = Batch(images, torch.full((1,), value), images.nbytes, 8)
            yield PendingBatch(
                made, [lambda images=images, value=value: images.fill_(value)], lambda: done
            )

    return copy_ahead(makings(), torch.device("cpu"))


def test_a_batch_is_copied_while_the_step_before_it_runs(monkeypatch: pytest.MonkeyPatch):
    log = Cuda(monkeypatch, over=False).log
    batches = sent(3, True, Buffers(16, pin=False))
    first = next(batches)
    # the second batch is on its way too, into memory that is free before the first step
    for number in (1, 2):
        queued = [
            f"training records {number}",
            f"side waits for training {number}",
            f"side records {number}",
        ]
        assert log[3 * number - 3 : 3 * number] == queued
    first.wait()
    assert log[-1] == "training waits for side 1"
    second = next(batches)
    assert first.images.tolist() == [0.0] * 4 and second.images.tolist() == [1.0] * 4
    assert [rest.labels.item() for rest in batches] == [2] and log[-1] == "host waits for side"
    batches = sent(2, False, Buffers(16, pin=False))
    next(batches)
    # the second has a place, and no step waits until it is made
    assert log[-1] == "training records 2"


@pytest.mark.parametrize(("over", "fewest", "most"), [(False, 8, 8), (True, 1, 3)])
def test_memory_of_a_copy_under_way_is_not_used_again(
    over: bool, fewest: int, most: int, monkeypatch
):
    cuda, buffers = Cuda(monkeypatch, over), Buffers(16, pin=False)
    for one in sent(8, True, buffers):
        del one
    assert fewest <= buffers.count <= most
    assert "training waits for side 8" in cuda.log  # also for batches that nobody used
