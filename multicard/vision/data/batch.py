"""The input and output of loaders, and copies to the device on a stream beside the training stream.

A loader takes a `LoaderInput`. It gives an `Input`, an iterable of `Batch`.
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
    """Images and labels, on the host or the device, and how many bytes cross to the device.

    Attributes:
        images: (B, 3, S, S). Grey images may be (B, 1, S, S) and are expanded on the device.
        labels: (B,), int64. ready: The end of their copy to the device if it runs beside the
        training stream; see `wait`.
    """

    images: torch.Tensor
    labels: torch.Tensor
    images_bytes: int
    labels_bytes: int
    ready: "torch.cuda.Event | None" = None

    def wait(self) -> None:
        """Make the current stream, not the host, wait until the batch is on the device.

        Call it before any use of the batch.
        """
        if self.ready is not None:
            self.ready.wait()


class Input(Protocol):
    """The batches of a loader.

    Attributes:
        facts: What the record says about the loader.
        setup_bytes: How many bytes cross to the device before the first batch.
    """

    facts: dict[str, Any]
    setup_bytes: int

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class LoaderInput:
    """The input of a loader.

    Attributes:
        sampler: Yields draws: the epoch times the size of the split, plus the index of a sample.
        transfer: The type of the images that cross to the device.
        pin: Use page-locked host memory.
        training: Augment the images, if configured.
        sharded: In each epoch, this rank reads only its own part of the split.
        compiled: The preparation of full batches on a GPU may be compiled.
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
        """Return the draws of each batch of an epoch, (B,) each. The last batch may be smaller."""
        draws = np.fromiter(self.sampler, np.int64)
        size = self.batch_size
        return [draws[first : first + size] for first in range(0, len(draws), size)]

    def augmented(self, raw: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
        """Augment the images of these draws, (B, H, W, ...), if configured."""
        windows = self.windows(draws)
        return raw if windows is None else preprocess.cut_out(windows, raw)

    def windows(self, draws: np.ndarray) -> preprocess.Windows | None:
        """Return the windows that augmentation cuts out for these draws, or None if it is off."""
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
    """Return the stream for work that runs beside training.

    All loaders and epochs share it: the allocator keeps freed memory per stream, so a new stream
    would allocate its memory anew.
    """
    return torch.cuda.Stream(device)


@dataclass(frozen=True)
class PendingBatch:
    """A batch whose memory is still being filled.

    Attributes:
        pieces: Each call makes its part of the batch, or waits until it is made.
        done: Tells whether the batch is complete.
    """

    batch: Batch
    pieces: list[Callable[[], None]] = field(default_factory=list)
    done: Callable[[], bool] = lambda: True

    def complete(self) -> Batch:
        for piece in self.pieces:
            piece()
        return self.batch


def copy_ahead(pending_batches: Iterator[PendingBatch], device: torch.device) -> Iterator[Batch]:
    """Copy page-locked batches to the device, each while the step before it runs.

    The host waits for no copy: users of a batch call `Batch.wait`. Two batches are on the device at
    a time, the current one and the next, in memory of the training stream.
    """
    training = torch.cuda.current_stream(device)
    side = side_stream(device)
    copying: deque[tuple[Any, Batch]] = deque()  # Keeps host memory alive until it was copied.

    def place(
        pending: PendingBatch | None,
    ) -> tuple[PendingBatch, torch.Tensor, torch.Tensor, Any] | None:
        """Allocate a batch on the device, and record when the training stream freed its memory."""
        if pending is None:
            return None
        images, labels = (torch.empty_like(part, device=device) for part in pending.batch[:2])
        return pending, images, labels, training.record_event()

    def send(pending: PendingBatch, images: torch.Tensor, labels: torch.Tensor, free: Any) -> Batch:
        batch = pending.complete()
        side.wait_event(free)
        with torch.cuda.stream(side):
            images.copy_(batch.images, non_blocking=True)
            labels.copy_(batch.labels, non_blocking=True)
            ready = side.record_event()
        copying.append((ready, batch))
        return batch._replace(images=images, labels=labels, ready=ready)

    try:
        placed = place(next(pending_batches, None))
        next_sent = None
        while placed is not None:
            batch = next_sent or send(*placed)
            while copying and copying[0][0].query():
                copying.popleft()
            placed = place(next(pending_batches, None))
            next_sent = send(*placed) if placed is not None and placed[0].done() else None
            yield batch
            batch.wait()  # Even if the batch was not used, training may now reuse its memory.
            del batch
    finally:
        side.synchronize()
