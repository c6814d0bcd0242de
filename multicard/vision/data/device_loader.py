"""`loader=device`: images cross to the device as uint8 and are preprocessed there.

If the data set fits into the budget of memory, it crosses only once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from multicard.config.sweeps import pauses
from multicard.config.vision import LayoutName
from multicard.measure import memory
from multicard.vision.data import preprocess
from multicard.vision.data.batch import Batch, LoaderInput, side_stream

WINDOW_BYTES = 8 + 8 + 1  # The top, left and flip of one image.
# The budget, unless `dataset.device_budget_bytes` sets it, as a share of free GPU memory.
BUDGET_SHARE = 0.25


class Resident:
    """Batches of uint8 images on the device.

    If all images fit into the budget, they cross before the first batch (`resident`). If ranks read
    shards, each rank's shard crosses at the start of every epoch instead (`shard`). Otherwise every
    batch crosses as uint8 (`streamed`).

    Gathering, resizing and normalising run on the device. On CUDA, they use the side stream to
    overlap with the step before. On CPU ranks nothing crosses, and all ranks of a node share the
    images. The bytes that would cross are counted nevertheless.
    """

    def __init__(self, source: LoaderInput) -> None:
        images = source.split.images
        self.source = source
        assert isinstance(images, np.ndarray), "refused by the controller"
        self.images = images
        self.labels = source.split.labels
        # In testing, this rank reads the same rows every time.
        self.rows = (
            None if source.training else np.fromiter(source.sampler, np.int64) % len(source.split)
        )
        images_read = (
            len(source.sampler) if source.sharded or self.rows is not None else len(images)
        )  # pyright: ignore[reportArgumentType]
        image_bytes = images[0].nbytes
        budget = source.config.dataset.device_budget_bytes
        if budget is None:
            # In a race, paused cells occupy memory that is free again for the winner's final run.
            # The budget is therefore a share of all memory.
            race_memory = (
                memory.device_memory(source.device.type) if pauses(source.config) else None
            )
            if race_memory:
                memory_bytes = race_memory.total_bytes
            else:
                memory_bytes = memory.free_memory_bytes(source.device)
            budget = int(BUDGET_SHARE * memory_bytes)
        self.mode = (
            "streamed"
            if images_read * image_bytes > budget
            else "shard"
            if source.sharded
            else "resident"
        )
        self.facts: dict[str, Any] = {
            "mode": self.mode,
            "bytes": images_read * image_bytes,
            "budget_bytes": budget,
        }
        self.setup_bytes = 0
        self.prepare = preprocess.Preparation(source.config.dataset, source.transfer, source.device)
        self.on_cuda = source.device.type == "cuda"
        self.compiled = source.compiled and self.on_cuda
        if self.mode == "resident":
            if self.rows is not None and self.on_cuda:
                self.images = images[self.rows]
                self.labels = self.labels[self.rows]
                self.rows = np.arange(len(self.rows))
            self.setup_bytes = images_read * (image_bytes + self.labels.itemsize)
            self.raw = self._send(self.images)
            self.targets = self._send(self.labels)

    def __iter__(self) -> Iterator[Batch]:
        source = self.source
        image_bytes = self.images[0].nbytes
        draws = np.fromiter(source.sampler, np.int64)
        sample_order = draws % len(source.split) if self.rows is None else self.rows
        batch_slices = [
            slice(first, first + source.batch_size)
            for first in range(0, len(sample_order), source.batch_size)
        ]
        if self.mode == "shard":
            self._send_shard(sample_order)
        elif self.mode == "resident":
            self.order = self._send(sample_order)
        # Bytes that cross for the whole epoch count with its first batch.
        epoch_bytes = {
            "resident": sample_order.nbytes,
            "shard": len(sample_order) * image_bytes,
            "streamed": 0,
        }[self.mode]
        label_bytes = sample_order.nbytes if self.mode == "shard" else 0
        batches = (self._batch(part, sample_order, draws) for part in batch_slices)
        for images, labels in self._prepare_ahead(batches) if self.on_cuda else batches:
            window_bytes = (
                WINDOW_BYTES * len(labels)
                if source.training and source.config.dataset.augment
                else 0
            )
            if self.mode == "streamed":
                yield Batch(images, labels, window_bytes + len(labels) * image_bytes, labels.nbytes)
            else:
                yield Batch(images, labels, window_bytes + epoch_bytes, label_bytes)
                epoch_bytes = label_bytes = 0

    def _send_shard(self, sample_order: np.ndarray) -> None:
        """Send this epoch's images in the order of their use. On CPU, they stay in place."""
        if not self.on_cuda:
            self.raw, self.targets, self.order = map(
                torch.from_numpy, (self.images, self.labels, sample_order)
            )
            return
        self.raw = self.targets = torch.empty(0)  # Frees the last epoch's images and labels.
        self.raw = self._send(self.images[sample_order])
        self.targets = self._send(self.labels[sample_order])
        self.order = torch.arange(len(sample_order), device=self.source.device)

    def _batch(
        self, part: slice, sample_order: np.ndarray, draws: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels on the device for a part of the epoch's order."""
        if self.mode == "streamed":
            raw, labels = (
                self._send(values[sample_order[part]], self.source.pin)
                for values in (self.images, self.labels)
            )
        else:
            raw, labels = (
                values.index_select(0, self.order[part]) for values in (self.raw, self.targets)
            )
        return self._prepared(self.source.augmented(raw, draws[part])), labels

    def _prepared(self, raw: torch.Tensor) -> torch.Tensor:
        """Prepare images for the model. As in the model, a smaller last batch is not compiled."""
        if not self.compiled or len(raw) != self.source.batch_size:
            return self.prepare(raw)
        nhwc = self.source.config.layout.name is LayoutName.nhwc
        return self.prepare.in_one_kernel(
            raw, torch.channels_last if nhwc else torch.contiguous_format
        )

    def warm(self) -> None:
        """Compile the preparation of batches ahead of training with a batch that is thrown away."""
        if not self.compiled or len(self.labels) < self.source.batch_size:
            return
        raw = torch.zeros(self.source.batch_size, *self.images.shape[1:], dtype=torch.uint8)
        draws = np.zeros(self.source.batch_size, np.int64)
        self._prepared(self.source.augmented(raw.to(self.source.device), draws))

    def _send(self, values: np.ndarray, pin: bool = False) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return (tensor.pin_memory() if pin else tensor).to(self.source.device, non_blocking=True)

    def _prepare_ahead(
        self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Prepare each batch on the side stream while the step before it runs."""
        training = torch.cuda.current_stream(self.source.device)
        preparing = side_stream(self.source.device)
        preparing.wait_stream(training)  # The epoch's data were sent on the training stream.

        def prepare_next() -> tuple[tuple[torch.Tensor, torch.Tensor], Any] | None:
            with torch.cuda.stream(preparing):
                batch = next(batches, None)
                return None if batch is None else (batch, preparing.record_event())

        ready = prepare_next()
        while ready is not None:
            (images, labels), event = ready
            ready = prepare_next()
            training.wait_event(event)
            # Allocated on one stream and used on another: reuse of the memory must wait for both.
            images.record_stream(training)
            labels.record_stream(training)
            yield images, labels
