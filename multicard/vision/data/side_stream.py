"""The CUDA stream beside the training stream, one a process, and copies on it."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from multicard.vision.data.batch import Batch


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for what runs beside training.

    One for all loaders and epochs: the allocator keeps freed memory by stream, so a new stream allocates anew.
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

    The host waits for no copy: users of a batch call `Batch.wait`. There are two batches at a time on the device,
    the one of the step and the next, in memory of the training stream.
    """
    training, side = torch.cuda.current_stream(device), side_stream(device)
    copying: deque[tuple[Any, Batch]] = deque()  # keeps the host's memory until it was read

    def place(making: Making | None) -> tuple[Making, torch.Tensor, torch.Tensor, Any] | None:
        """Memory on the device for a batch, and the point of the training stream from which it is free."""
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
        placed, sent = place(next(makings, None)), None
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
