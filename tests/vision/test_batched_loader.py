"""`loader=batched`: batches made by threads, their memory, and the side stream on which they are copied."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from multicard.vision.data import batched_loader, preprocess, side_stream
from multicard.vision.data.batch import Batch, Source
from multicard.vision.data.batched_loader import Batched, Buffers
from multicard.vision.data.samplers import Remaining, Shuffled, Strided
from multicard.vision.data.side_stream import Making, sent_ahead
from multicard.vision.data.splits import Split
from tests.conftest import PATIENCE_S, typed
from tests.vision.test_loaders import noise, read, source

CPU = torch.device("cpu")


def batched(content: Split, *words: str, workers: int = 2, **options: Any) -> Source:
    return source(content, Strided(len(content), 0, 1), "loader=batched", *words, workers=workers, **options)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.mark.parametrize("words", [(), ("dataset.augment=true", "dataset.crop=0.6"), ("dataset.std=[0.2,0.3,0.4]",)])
@pytest.mark.parametrize("shape", [(28, 28), (9, 14), (28, 28, 3), (70, 70, 3)])
@pytest.mark.parametrize("transfer", [torch.float32, torch.float64, torch.bfloat16])
def test_pieces_are_the_whole_to_the_last_bit(
    words: tuple[str, ...], shape: tuple[int, ...], transfer: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """By threads of one core each, as a thread of one core makes the batch in one piece."""
    monkeypatch.setattr(batched_loader, "PIECE_BYTES", 1)
    content, sampler, cores = noise(45, *shape), Remaining(Shuffled(45, 2), 45), torch.get_num_threads()
    sampler.set_epoch(1, skip=3)
    asked = replace(source(content, sampler, "loader=batched", *words, batch_size=27), transfer=transfer)
    torch.set_num_threads(1)
    try:
        whole = []
        draws = np.array(list(sampler))
        for part in (draws[:27], draws[27:]):
            raw, windows = torch.from_numpy(content.images[part % 45]), asked.windows(part)  # pyright: ignore[reportArgumentType, reportCallIssue]
            prepare = preprocess.Preparation(asked.config.dataset, transfer)
            whole.append(prepare(raw if windows is None else preprocess.cut_out(windows, raw)))
        for workers in (0, 1, 3):
            made = read(replace(asked, workers=workers))
            for expected, batch in zip(whole, made, strict=True):
                assert torch.equal(batch.images, expected) and batch.images.stride() == expected.stride()
                assert batch.images_bytes == expected.nbytes
            assert torch.cat([batch.labels for batch in made]).tolist() == (draws % 45).tolist()
    finally:
        torch.set_num_threads(cores)


def test_memory_is_used_again_only_when_nothing_refers_to_it():
    batches, layer, addresses = iter(Batched(batched(noise(80, 8, 8), "loader.ahead=2"))), torch.nn.Conv2d(1, 2, 3), []
    for number in range(20):
        batch = next(batches)
        addresses.append(batch.images.data_ptr())
        if number == 3:
            (expected,) = torch.autograd.grad(layer(batch.images.clone()).sum(), layer.weight)
            loss = layer(batch.images).sum()  # holds its input until its backward pass
        del batch
    (gradient,) = torch.autograd.grad(loss, layer.weight)
    assert torch.equal(gradient, expected)
    assert addresses.count(addresses[3]) == 1
    # Two ahead, one being made, the step's, the graph's, and what each of two threads has yet to let go
    assert len(set(addresses)) <= 2 + 1 + 1 + 1 + 2


def test_a_buffer_outlives_its_views_alone():
    buffers = Buffers(64, pin=False)
    first = buffers.take()
    part = first[8:16].view(torch.float32)
    del first
    assert buffers.free.empty() and buffers.take().data_ptr() != part.data_ptr()
    address = part.data_ptr() - 8
    del part
    assert address in [buffers.take().data_ptr(), buffers.take().data_ptr()] and buffers.count == 2


def test_each_thread_computes_on_one_core_and_the_rank_on_as_many_as_before(monkeypatch: pytest.MonkeyPatch):
    cores, of_loader = torch.get_num_threads(), set()
    real = preprocess.Preparation.__call__

    def spied(self: preprocess.Preparation, raw: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            of_loader.add(torch.get_num_threads())
        return real(self, raw, out)

    torch.set_num_threads(3)
    try:
        loader = Batched(batched(noise(40, 8, 8)))
        monkeypatch.setattr(preprocess.Preparation, "__call__", spied)
        later: list[int] = []
        for _ in loader:
            thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert torch.get_num_threads() == 3
        assert of_loader == {1} and set(later) == {3}
    finally:
        torch.set_num_threads(cores)


def test_threads_end_with_the_epoch_and_there_is_no_process():
    before = {*psutil.Process().children()}  # of other tests; some may end meanwhile
    loader = Batched(batched(noise(40, 8, 8), workers=3))
    for _ in loader:
        assert len(loader_threads()) == 3 and {*psutil.Process().children()} <= before
    assert not loader_threads()
    abandoned = iter(loader)  # as at a stop
    next(abandoned)
    assert len(loader_threads()) == 3
    del abandoned
    assert not loader_threads()


def test_a_broken_photograph_ends_the_threads_and_the_batches_before_it_come(tmp_path: Any):
    for number in range(12):
        Image.new("RGB", (40, 50)).save(tmp_path / f"{number:02}.png")
    (tmp_path / "09.png").write_bytes(b"no image")
    content = Split(sorted(tmp_path.iterdir()), np.arange(12))
    labels: list[int] = []
    with pytest.raises(ValueError, match=r"/09\.png: cannot be decoded"):
        for batch in Batched(batched(content, "loader.ahead=4")):
            labels += batch.labels.tolist()
    assert labels == list(range(8)) and not loader_threads()


def test_batches_are_made_while_the_step_runs_and_no_more_than_asked(monkeypatch: pytest.MonkeyPatch):
    made, real = threading.Semaphore(0), Batched._fill

    def counted(self: Batched, images: torch.Tensor, draws: np.ndarray) -> None:
        real(self, images, draws)
        made.release()

    monkeypatch.setattr(Batched, "_fill", counted)
    batches = iter(Batched(batched(noise(80, 8, 8), "loader.ahead=3")))  # batches of 4, in one piece each
    next(batches)
    for _ in range(1 + 3):  # the step's, and three ahead of it, without another being asked for
        assert made.acquire(timeout=PATIENCE_S)
    assert not made.acquire(timeout=0.2)


def test_a_batch_ahead_at_least():
    with pytest.raises(ValueError, match=r"loader\.ahead=0: must be 1 or more"):
        typed("loader=batched", "loader.ahead=0")


class Stream:
    """A stand-in for a CUDA stream, which writes down what is queued on it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def record_event(self) -> "Event":
        self.events += 1
        self.log.append(f"{self.name} records {self.events}")
        return Event(f"{self.name} {self.events}", self.log)

    def wait_event(self, event: "Event") -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


class Event:
    over = False

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def query(self) -> bool:
        return Event.over

    def wait(self) -> None:
        self.log.append(f"training waits for {self.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    entries: list[str] = []
    training, side = Stream("training", entries), Stream("side", entries)
    cuda = SimpleNamespace(current_stream=lambda _: training, stream=lambda _: nullcontext())
    monkeypatch.setattr(side_stream.torch, "cuda", cuda)
    monkeypatch.setattr(side_stream, "side_stream", lambda _: side)
    monkeypatch.setattr(Event, "over", False)
    return entries


def makings(count: int, done: bool, buffers: Buffers) -> Iterator[Making]:
    for number in range(count):
        images = buffers.take().view(torch.float32)
        batch = Batch(images, torch.full((1,), number), images.nbytes, 8)
        yield Making(batch, [lambda images=images, number=number: images.fill_(number)], lambda: done)


def test_a_batch_is_copied_while_the_step_before_it_runs(log: list[str]):
    batches = sent_ahead(makings(3, True, Buffers(16, pin=False)), CPU)
    first = next(batches)
    # the second batch is on its way too, into memory that is free before the first step
    for number in (1, 2):
        queued = [f"training records {number}", f"side waits for training {number}", f"side records {number}"]
        assert log[3 * number - 3 : 3 * number] == queued
    first.wait()
    assert log[-1] == "training waits for side 1"
    second = next(batches)
    assert first.images.tolist() == [0.0] * 4 and second.images.tolist() == [1.0] * 4
    assert second.ready is not None and [batch.labels.item() for batch in batches] == [2]
    assert log[-1] == "host waits for side"


def test_a_step_does_not_wait_until_the_next_batch_is_made(log: list[str]):
    batches = sent_ahead(makings(2, False, Buffers(16, pin=False)), CPU)
    next(batches)
    assert log[-1] == "training records 2"  # the second has a place, and is not waited for
    next(batches)
    assert log[-2:] == ["side waits for training 2", "side records 2"]


def test_memory_of_a_copy_under_way_is_not_used_again(log: list[str], monkeypatch: pytest.MonkeyPatch):
    buffers = Buffers(16, pin=False)
    for batch in sent_ahead(makings(8, True, buffers), CPU):
        del batch
    assert buffers.count == 8  # no copy was over
    buffers = Buffers(16, pin=False)
    monkeypatch.setattr(Event, "over", True)
    for batch in sent_ahead(makings(8, True, buffers), CPU):
        del batch
    assert buffers.count <= 3
    assert "training waits for side 8" in log  # also for batches that nobody used


def test_there_is_one_side_stream_a_device(monkeypatch: pytest.MonkeyPatch):
    opened: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: opened.append(device) or object())
    side_stream.side_stream.cache_clear()
    devices = [torch.device("cuda", index) for index in (0, 0, 1, 0)]
    assert len({id(side_stream.side_stream(device)) for device in devices}) == 2 and len(opened) == 2
    side_stream.side_stream.cache_clear()
