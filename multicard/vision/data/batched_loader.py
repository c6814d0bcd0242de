"""`loader=batched`: threads of the rank make whole batches on the host.

Resizing, copying and decoding release the interpreter lock, so the threads run beside the training
step. Buffers are reused, and page-locked if `pin_memory` is set. Batches therefore cause no page
faults, and none is copied between processes.
"""

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Barrier
from typing import Any

import numpy as np
import torch

from multicard.config.vision import BatchedConfig
from multicard.vision.data import preprocess, splits
from multicard.vision.data.batch import Batch, LoaderInput, PendingBatch, copy_ahead

# Each thread makes a piece of a batch, small enough for intermediate results to stay in the caches.
PIECE_BYTES = 8 << 20
# Pieces hold a multiple of this: matrix products round the last rows of an odd number differently.
PIECE_IMAGES = 8
PIECE_FILES = 4  # Decoding photographs takes longer than everything else.


class Buffers:
    """Host memory for batches. Each buffer is reused as soon as no tensor refers to it.

    There are as many buffers as batches in use. Nothing waits for a buffer, and whatever keeps a
    batch keeps its memory: the autograd graph, a running copy, the steps of `diagnose`.
    """

    def __init__(self, size_bytes: int, pin: bool) -> None:
        self.size_bytes = size_bytes
        self.pin = pin
        self.count = 0
        self.free: SimpleQueue[np.ndarray] = SimpleQueue()

    def take(self) -> torch.Tensor:
        """Return an uninitialised uint8 tensor of `size_bytes`."""
        try:
            buffer = self.free.get_nowait()
        except Empty:
            buffer = torch.empty(self.size_bytes, dtype=torch.uint8, pin_memory=self.pin).numpy()
            self.count += 1
        view = buffer[:]  # Only the storage of tensors made from the view keeps it alive.
        weakref.finalize(view, self.free.put, buffer).atexit = False
        return torch.from_numpy(view)


class Batched:
    """Batches in the sampler's order, which `workers` threads make ahead of the step.

    Without workers, the rank's own thread makes each batch when the step asks for it. On CUDA,
    page-locked batches are copied on the side stream while the step before them runs. Other batches
    are copied within the step. If a grey image's channels are normalised alike, one channel
    crosses.
    """

    setup_bytes = 0

    def __init__(self, source: LoaderInput) -> None:
        options = source.config.loader
        images = source.split.images
        size = source.config.dataset.image_size
        assert isinstance(options, BatchedConfig)
        self.source = source
        self.ahead = options.ahead
        self.preparation = preprocess.Preparation(source.config.dataset, source.transfer)
        shape = (1, size, size, 3) if isinstance(images, list) else (1, *images.shape[1:])
        (example,) = self._prepared(np.zeros(1, np.int64), np.zeros(shape, np.uint8))
        self.channels_last = not example.is_contiguous()
        self.stored_shape = example.permute(1, 2, 0).shape if self.channels_last else example.shape
        self.image_bytes = example.nbytes
        in_bytes = PIECE_BYTES // self.image_bytes // PIECE_IMAGES * PIECE_IMAGES
        self.piece_images = PIECE_FILES if isinstance(images, list) else max(PIECE_IMAGES, in_bytes)
        self.facts: dict[str, Any] = {
            "workers": source.workers,
            "ahead": self.ahead if source.workers else 0,
        }

    def __iter__(self) -> Iterator[Batch]:
        source = self.source
        with _threads(source.workers) as pool:
            pending_batches = self._make_ahead(source.batches(), pool)
            yield from (
                copy_ahead(pending_batches, source.device)
                if source.pin
                else (pending.complete() for pending in pending_batches)
            )

    def _make_ahead(
        self, parts: list[np.ndarray], pool: ThreadPoolExecutor | None
    ) -> Iterator[PendingBatch]:
        """Yield the batches. While one is handed out, the next `ahead` batches are being made."""
        buffers = Buffers(self.source.batch_size * self.image_bytes, self.source.pin)
        ahead: deque[PendingBatch] = deque()
        for draws in parts:
            ahead.append(self._start_batch(draws, buffers.take(), pool))
            if len(ahead) > (self.ahead if pool else 0):
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def _start_batch(
        self, draws: np.ndarray, buffer: torch.Tensor, pool: ThreadPoolExecutor | None
    ) -> PendingBatch:
        source = self.source
        count = len(draws)
        used = (
            buffer[: count * self.image_bytes].view(source.transfer).view(count, *self.stored_shape)
        )
        images = used.permute(0, 3, 1, 2) if self.channels_last else used
        labels = torch.from_numpy(source.split.labels[draws % len(source.split)])
        batch = Batch(
            images, labels.pin_memory() if source.pin else labels, images.nbytes, labels.nbytes
        )
        pieces = zip(
            images.split(self.piece_images),
            np.split(draws, range(self.piece_images, count, self.piece_images)),
            strict=True,
        )
        if pool is None:
            return PendingBatch(
                batch, [partial(self._fill, *piece) for piece in pieces], lambda: False
            )
        futures = [pool.submit(self._fill, *piece) for piece in pieces]
        return PendingBatch(
            batch, [future.result for future in futures], lambda: all(f.done() for f in futures)
        )

    def _fill(self, images: torch.Tensor, draws: np.ndarray) -> None:
        """Make these images in their place in the batch."""
        split = self.source.split
        size = self.source.config.dataset.image_size
        self._prepared(draws, splits.gather(split, draws % len(split), size), images)

    def _prepared(
        self, draws: np.ndarray, raw: np.ndarray, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Augment, normalise and resize images of the data set as the model takes them."""
        return self.preparation(self.source.augmented(torch.from_numpy(raw), draws), out)


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor | None]:
    """Yield a pool of `count` threads that each compute on one core, or None for no threads."""
    if not count:
        yield None
        return
    rank_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "loader")
    all_started = Barrier(count)

    def compute_alone() -> None:
        torch.get_num_threads()  # The first call in a thread gives it the process's number.
        all_started.wait()  # Makes sure that each thread runs this function once.
        torch.set_num_threads(1)

    try:
        for started in [pool.submit(compute_alone) for _ in range(count)]:
            started.result()
        # The threads also changed the number that later threads get, such as autograd's.
        torch.set_num_threads(rank_threads)
        yield pool
    finally:
        all_started.abort()  # Releases waiting threads if not all could be started.
        pool.shutdown(cancel_futures=True)
