"""The input of a loader (`LoaderInput`), its output (`Input`, `Batch`),
and copies beside the training stream.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from multicard.config.vision import VisionConfig
from multicard.vision.data import preprocess
from multicard.vision.data.splits import RankSampler, Split


class Batch(NamedTuple):
    """Images and labels, on the host or on the device,
    and the bytes that cross to the device for them.

    images: (B, 3, S, S), or (B, 1, S, S) for grey images, expanded on the device; labels: (B,),
    int64.
    ready: the end of their copy to the device, where that
    runs beside the training stream; see `wait`.
    """

    images: torch.Tensor
    labels: torch.Tensor
    images_bytes: int
    labels_bytes: int
    ready: "torch.cuda.Event | None" = None

    def wait(self) -> None:
        """Have the current stream, not the host, wait until the batch is on the device.
        Call it before any use.
        """
        if self.ready is not None:
            self.ready.wait()


class Input(Protocol):
    """A loader's batches. `facts` go into the record;
    `setup_bytes` crossed to the device before the first batch.
    """

    facts: dict[str, Any]
    setup_bytes: int

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class LoaderInput:
    """The input of a loader.

    sampler: yields draws, the epoch times the split's size plus the index of a sample.
    transfer: the type of the images that cross to the device.
    pin: use page-locked host memory.
    training: augment, where that is configured.
    sharded: in an epoch this rank reads its own part of the split alone.
    compiled: code may be compiled, of full batches, for what is prepared on a GPU.
    """

    split: Split
    sampler: RankSampler
    batch_size: int
    workers: int
    config: VisionConfig
    transfer: torch.dtype
    pin: bool = False
    device: torch.device = torch.device("cpu")
    training: bool = True
    sharded: bool = False
    compiled: bool = False

    def batches(self) -> list[np.ndarray]:
        """The draws of the batches of an epoch, (B,) each; the last may be short."""
        draws = np.fromiter(self.sampler, np.int64)
        size = self.batch_size
        return [draws[first : first + size] for first in range(0, len(draws), size)]

    def augmented(self, raw: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
        """The images of these draws, (B, H, W, ...), cut out where augmentation is configured."""
        windows = self.windows(draws)
        return raw if windows is None else preprocess.cut_out(windows, raw)

    def windows(self, draws: np.ndarray) -> preprocess.Windows | None:
        """The windows that augmentation cuts out of these draws; None without augmentation."""
        config = self.config.dataset
        if not (self.training and config.augment):
            return None
        images = self.split.images
        height, width = (
            images.shape[1:3] if isinstance(images, np.ndarray) else (config.image_size,) * 2
        )
        return preprocess.windows(config, draws, self.config.seed, height, width)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for what runs beside training.

    One for all loaders and epochs: the allocator keeps freed memory by stream,
    so a new stream allocates anew.
    """
    return torch.cuda.Stream(device)


@dataclass(frozen=True)
class Making:
    """A batch whose memory is being filled.

    pieces: each makes its part of the batch, or waits until it is made.
    done: True once the batch is complete.
    """

    batch: Batch
    pieces: list[Callable[[], None]] = field(default_factory=list)
    done: Callable[[], bool] = lambda: True

    def finished(self) -> Batch:
        for piece in self.pieces:
            piece()
        return self.batch


def sent_ahead(makings: Iterator[Making], device: torch.device) -> Iterator[Batch]:
    """Copy page-locked batches to the device, each while the step before it runs.

    The host waits for no copy: users of a batch call `Batch.wait`. There are two batches at a time
    on the device, the one of the step and the next, in memory of the training stream.
    """
    training = torch.cuda.current_stream(device)
    side = side_stream(device)
    copying: deque[tuple[Any, Batch]] = deque()  # keeps the host's memory until it was read

    def place(making: Making | None) -> tuple[Making, torch.Tensor, torch.Tensor, Any] | None:
        """Memory on the device for a batch, and the point of
        the training stream from which it is free.
        """
        if making is None:
            return None
        images, labels = (torch.empty_like(part, device=device) for part in making.batch[:2])
        return making, images, labels, training.record_event()

    def send(making: Making, images: torch.Tensor, labels: torch.Tensor, free: Any) -> Batch:
        batch = making.finished()
        side.wait_event(free)
        with torch.cuda.stream(side):
            images.copy_(batch.images, non_blocking=True)
            labels.copy_(batch.labels, non_blocking=True)
            ready = side.record_event()
        copying.append((ready, batch))
        return batch._replace(images=images, labels=labels, ready=ready)

    try:
        placed = place(next(makings, None))
        sent = None
        while placed is not None:
            batch = sent or send(*placed)
            while copying and copying[0][0].query():
                copying.popleft()
            placed = place(next(makings, None))
            sent = send(*placed) if placed is not None and placed[0].done() else None
            yield batch
            batch.wait()  # also where it was not used: its memory is free for training now
            del batch
    finally:
        side.synchronize()
