"""`loader=batched`: whole batches, made on the host by threads of the rank.

Resizing, copying and decoding leave the interpreter lock, so the threads run beside the training
step. The result goes into memory that is used again, page-locked where `pin_memory` says so: no
batch pays page faults, and none is copied between processes.
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
from multicard.vision.data.batch import Batch, LoaderInput, Making, sent_ahead

# A batch is made in pieces, whose intermediate results stay in the caches;
# each is made by one thread
PIECE_BYTES = 8 << 20
# or a multiple: a product of matrices rounds the last rows of an odd number differently
PIECE_IMAGES = 8
PIECE_FILES = 4  # photographs that are decoded: that takes longer than all else


class Buffers:
    """Host memory for batches, each used again as soon as no tensor refers to it.

    There are as many as batches in use at the same time: nothing waits for one, and what keeps a
    batch (the autograd graph, a copy under way, the steps of `diagnose`) keeps its memory.
    """

    def __init__(self, size_bytes: int, pin: bool) -> None:
        self.size_bytes = size_bytes
        self.pin = pin
        self.count = 0
        self.free: SimpleQueue[np.ndarray] = SimpleQueue()

    def take(self) -> torch.Tensor:
        """(size_bytes,) uint8, uninitialised."""
        try:
            buffer = self.free.get_nowait()
        except Empty:
            buffer = torch.empty(self.size_bytes, dtype=torch.uint8, pin_memory=self.pin).numpy()
            self.count += 1
        view = buffer[:]  # held by the storage of all tensors made from it, and by nothing else
        weakref.finalize(view, self.free.put, buffer).atexit = False
        return torch.from_numpy(view)


class Batched:
    """Batches in the sampler's order, made ahead of the step by `workers` threads; without workers,
    in the rank's own thread when the step asks for them.

    On CUDA page-locked batches are copied on the side stream while the step before them runs;
    others are copied in the step. Of grey images whose channels are normalised alike,
    one channel crosses.
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
        self.stored = example.permute(1, 2, 0).shape if self.channels_last else example.shape
        self.image_bytes = example.nbytes
        in_bytes = PIECE_BYTES // self.image_bytes // PIECE_IMAGES * PIECE_IMAGES
        self.piece = PIECE_FILES if isinstance(images, list) else max(PIECE_IMAGES, in_bytes)
        self.facts: dict[str, Any] = {
            "workers": source.workers,
            "ahead": self.ahead if source.workers else 0,
        }

    def __iter__(self) -> Iterator[Batch]:
        source = self.source
        with _threads(source.workers) as pool:
            makings = self._ahead(source.batches(), pool)
            yield from (
                sent_ahead(makings, source.device)
                if source.pin
                else (one.finished() for one in makings)
            )

    def _ahead(self, parts: list[np.ndarray], pool: ThreadPoolExecutor | None) -> Iterator[Making]:
        """The batches; `ahead` more are being made when one is handed out."""
        buffers = Buffers(self.source.batch_size * self.image_bytes, self.source.pin)
        ahead: deque[Making] = deque()
        for draws in parts:
            ahead.append(self._making(draws, buffers.take(), pool))
            if len(ahead) > (self.ahead if pool else 0):
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def _making(
        self, draws: np.ndarray, buffer: torch.Tensor, pool: ThreadPoolExecutor | None
    ) -> Making:
        source = self.source
        count = len(draws)
        used = buffer[: count * self.image_bytes].view(source.transfer).view(count, *self.stored)
        images = used.permute(0, 3, 1, 2) if self.channels_last else used
        labels = torch.from_numpy(source.split.labels[draws % len(source.split)])
        batch = Batch(
            images, labels.pin_memory() if source.pin else labels, images.nbytes, labels.nbytes
        )
        pieces = zip(
            images.split(self.piece),
            np.split(draws, range(self.piece, count, self.piece)),
            strict=True,
        )
        if pool is None:
            return Making(batch, [partial(self._fill, *piece) for piece in pieces], lambda: False)
        futures = [pool.submit(self._fill, *piece) for piece in pieces]
        return Making(
            batch, [future.result for future in futures], lambda: all(f.done() for f in futures)
        )

    def _fill(self, images: torch.Tensor, draws: np.ndarray) -> None:
        """Make these images, in their place in the batch."""
        split = self.source.split
        size = self.source.config.dataset.image_size
        self._prepared(draws, splits.gather(split, draws % len(split), size), images)

    def _prepared(
        self, draws: np.ndarray, stored: np.ndarray, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Images as the model takes them, of those in the data set."""
        return self.preparation(self.source.augmented(torch.from_numpy(stored), draws), out)


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor | None]:
    """A pool of `count` threads, each computing on one core, which end with the context;
    None for no threads.
    """
    if not count:
        yield None
        return
    rank_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "loader")
    all_started = Barrier(count)

    def compute_alone() -> None:
        torch.get_num_threads()  # the first call in a thread gives it the process's number
        all_started.wait()  # each thread runs this once
        torch.set_num_threads(1)

    try:
        for started in [pool.submit(compute_alone) for _ in range(count)]:
            started.result()
        # the threads changed what later ones, as autograd's, get
        torch.set_num_threads(rank_threads)
        yield pool
    finally:
        all_started.abort()  # where not all could be started
        pool.shutdown(cancel_futures=True)
