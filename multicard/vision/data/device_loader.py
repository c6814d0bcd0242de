"""`loader=device`: the data set crosses once, as the bytes that it has, and becomes batches on the device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from multicard.measure import memory
from multicard.vision.data import preprocess
from multicard.vision.data.batch import Batch, Source

WINDOW_BYTES = 8 + 8 + 1  # what says which part of an image is shown
BUDGET_SHARE = 0.25  # of the memory that is free on a GPU before training, unless dataset.device_budget_bytes says


class Resident:
    """Batches from uint8 images on the device.

    Where all fit the budget, the set crosses before the first batch (`resident`), or a rank's shard of it at the start
    of every epoch (`shard`); else every batch crosses as uint8 (`streamed`). Gathering, resizing and normalising happen
    on the device in any case, on CUDA on a stream of its own, so that they overlap with the step before. On CPU ranks
    nothing crosses, and the images stay where all ranks of the node share them; what would cross is counted.
    """

    def __init__(self, source: Source) -> None:
        images, self.source = source.split.images, source
        assert isinstance(images, np.ndarray), "refused by VisionConfig"
        self.images, self.labels = images, source.split.labels
        # of a test set this rank reads the same rows every time
        self.rows = None if source.training else np.fromiter(source.sampler, np.int64) % len(source.split)
        read = len(source.sampler) if source.sharded or self.rows is not None else len(images)  # pyright: ignore[reportArgumentType]
        image_bytes = images[0].nbytes
        budget = budget_bytes(source)
        self.mode = "streamed" if read * image_bytes > budget else "shard" if source.sharded else "resident"
        self.facts: dict[str, Any] = {"mode": self.mode, "bytes": read * image_bytes, "budget_bytes": budget}
        self.setup_bytes = 0
        self.prepare = preprocess.Preparation(source.config.dataset, source.transfer, source.device)
        self.on_cuda = source.device.type == "cuda"
        if self.mode == "resident":
            if self.rows is not None and self.on_cuda:
                self.images, self.labels = images[self.rows], self.labels[self.rows]
                self.rows = np.arange(len(self.rows))
            self.setup_bytes = read * (image_bytes + self.labels.itemsize)
            self.raw = self._send(torch.from_numpy(self.images))
            self.targets = self._send(torch.from_numpy(self.labels))

    def __iter__(self) -> Iterator[Batch]:
        source = self.source
        draws = np.fromiter(source.sampler, np.int64)
        order = draws % len(source.split) if self.rows is None else self.rows
        pieces = [slice(i, i + source.batch_size) for i in range(0, len(order), source.batch_size)]
        if self.mode == "shard":
            self._send_shard(order)
        elif self.mode == "resident":
            self.order = self._send(torch.from_numpy(order))
        crossed = {"resident": order.nbytes, "shard": len(order) * self.images[0].nbytes, "streamed": 0}[self.mode]
        made = (self._make(piece, order, draws) for piece in pieces)
        for images, labels in self._ahead(made) if self.on_cuda else made:
            each = WINDOW_BYTES * len(labels) if source.training and source.config.dataset.augment else 0
            if self.mode == "streamed":
                yield Batch(images, labels, each + len(labels) * self.images[0].nbytes, labels.nbytes)
                continue
            first, crossed = crossed, 0  # what crossed for the whole epoch counts with its first batch
            yield Batch(images, labels, each + first, order.nbytes if first and self.mode == "shard" else 0)

    def _send_shard(self, order: np.ndarray) -> None:
        """Bring this epoch's images over in the order of their use; on CPU they stay where they are."""
        if not self.on_cuda:
            self.raw, self.targets, self.order = (torch.from_numpy(v) for v in (self.images, self.labels, order))
            return
        self.raw = self.targets = torch.empty(0)  # the last epoch's make room
        self.raw = self._send(torch.from_numpy(self.images[order]))
        self.targets = self._send(torch.from_numpy(self.labels[order]))
        self.order = torch.arange(len(order), device=self.source.device)

    def _make(self, piece: slice, order: np.ndarray, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch on the device, of what is at `piece` of the epoch's order."""
        if self.mode == "streamed":
            mine = order[piece]
            pin, both = self.source.pin, (self.images, self.labels)
            raw, labels = (self._send(torch.from_numpy(values[mine]), pin) for values in both)
        else:
            mine = self.order[piece]
            raw, labels = self.raw.index_select(0, mine), self.targets.index_select(0, mine)
        shown = self.source.windows(draws[piece])
        return self.prepare(raw if shown is None else preprocess.show(raw, shown)), labels

    def _send(self, values: torch.Tensor, pin: bool = False) -> torch.Tensor:
        return (values.pin_memory() if pin else values).to(self.source.device, non_blocking=True)

    def _ahead(self, made: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Have each batch made while the one before it is trained on."""
        training, aside = torch.cuda.current_stream(self.source.device), torch.cuda.Stream(self.source.device)
        aside.wait_stream(training)  # what crossed for the epoch was sent there

        def following() -> tuple[tuple[torch.Tensor, torch.Tensor], Any] | None:
            with torch.cuda.stream(aside):
                batch = next(made, None)
                return None if batch is None else (batch, aside.record_event())

        ready = following()
        while ready is not None:
            (images, labels), event = ready
            ready = following()
            training.wait_event(event)
            images.record_stream(training)  # made on one stream, used on another: their memory waits for both
            labels.record_stream(training)
            yield images, labels


def budget_bytes(source: Source) -> int:
    """How many bytes of images may stay on the device: as configured, else a share of what is free."""
    set_by_user = source.config.dataset.device_budget_bytes
    if set_by_user is not None:
        return set_by_user
    return int(BUDGET_SHARE * memory.free_memory_bytes(source.device))
