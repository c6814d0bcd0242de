"""`loader=torch`: torch's DataLoader over single samples. Its workers do all work on the host."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torchvision.transforms import v2

from multicard.config.vision import WorkersConfig
from multicard.messages import Refusal
from multicard.ranks.os_calls import die_with_parent
from multicard.vision.data import decoding
from multicard.vision.data.batch import Batch, LoaderInput


class TransformedSamples(Dataset[tuple[torch.Tensor, int]]):
    """Passes one sample at a time through torchvision's v2 transforms, as the papers did."""

    def __init__(self, source: LoaderInput) -> None:
        self.source = source
        self.split = source.split
        config = source.config.dataset
        size = [config.image_size, config.image_size]
        self.transform = v2.Compose(
            [
                v2.ToImage(),
                v2.RGB(),  # Repeats a grey image three times.
                v2.Resize(size, antialias=True),
                v2.ToDtype(
                    torch.float64 if source.transfer is torch.float64 else torch.float32, scale=True
                ),
                v2.Normalize(config.mean, config.std),
                v2.ToDtype(source.transfer),
            ]
        )

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, draw: int) -> tuple[torch.Tensor, int]:
        try:
            return self.sample(draw)
        except Refusal as error:
            # From a worker, torch passes on only the text of the traceback, not the error itself.
            if get_worker_info() is not None:
                error.note()
            raise

    def sample(self, draw: int) -> tuple[torch.Tensor, int]:
        index = draw % len(self.split)
        image = self.split.images[index]
        if not isinstance(image, np.ndarray):
            image = decoding.decode(image, self.source.config.dataset.image_size)  # (S, S, 3)
        channels_first = torch.from_numpy(image if image.ndim == 3 else image[..., None]).permute(
            2, 0, 1
        )
        window = self.source.windows(np.array([draw]))
        if window is not None:
            (top,) = window.top
            (left,) = window.left
            (flip,) = window.flip
            channels_first = channels_first[
                :, top : top + window.height, left : left + window.width
            ]
            channels_first = channels_first.flip(2) if flip else channels_first
        return self.transform(channels_first).as_subclass(torch.Tensor), int(
            self.split.labels[index]
        )


class FromHost:
    """The batches of a DataLoader over single samples. They are made on the host."""

    setup_bytes = 0

    def __init__(self, source: LoaderInput) -> None:
        options = source.config.loader
        workers = source.workers
        assert isinstance(options, WorkersConfig)
        self.facts: dict[str, Any] = {"workers": workers}
        self.loader = DataLoader(
            TransformedSamples(source),
            batch_size=source.batch_size,
            sampler=source.sampler,
            num_workers=workers,
            # This is torch's default on Linux, but a forked rank loses it.
            multiprocessing_context="fork" if workers else None,
            pin_memory=source.pin,
            prefetch_factor=options.prefetch_factor if workers else None,
            persistent_workers=options.persistent_workers and workers > 0,
            worker_init_fn=partial(_start_worker, os.getpid()),
            # Starting workers draws a seed. It must not come from dropout's generator, because a
            # resumed run starts its workers again.
            generator=torch.Generator().manual_seed(source.config.seed),
        )

    def __iter__(self) -> Iterator[Batch]:
        return _batches(iter(self.loader))  # The workers start here.


def _batches(loaded: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[Batch]:
    """Yield the batches, and turn a refusal in a worker back into a refusal."""
    try:
        for images, labels in loaded:
            yield Batch(images, labels, images.nbytes, labels.nbytes)
    except RuntimeError as error:
        refusal = Refusal.noted(str(error))
        if refusal is None:
            raise
        raise refusal from error


def _start_worker(parent: int, _: int) -> None:
    die_with_parent(parent)  # torch's watchdog misses a parent that died before it started.
