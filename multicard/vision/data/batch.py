"""The input of a loader (`Source`) and its output (`Input`, `Batch`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import Sampler

from multicard.config.vision import VisionConfig
from multicard.vision.data import preprocess
from multicard.vision.data.splits import Split


class Batch(NamedTuple):
    """Images and labels, on the host or on the device, and the bytes that cross to the device for them.

    images: (B, 3, S, S), or (B, 1, S, S) for grey images, expanded on the device; labels: (B,), int64.
    ready: the end of their copy to the device, where that runs beside the training stream; see `wait`.
    """

    images: torch.Tensor
    labels: torch.Tensor
    images_bytes: int
    labels_bytes: int
    ready: "torch.cuda.Event | None" = None

    def wait(self) -> None:
        """Have the current stream, not the host, wait until the batch is on the device. Call it before any use."""
        if self.ready is not None:
            self.ready.wait()


class Input(Protocol):
    """A loader's batches. `facts` go into the record; `setup_bytes` crossed to the device before the first batch."""

    facts: dict[str, Any]
    setup_bytes: int

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class Source:
    """The input of a loader.

    sampler: yields draws, the epoch times the split's size plus the index of a sample.
    transfer: the type of the images that cross to the device.
    pin: use page-locked host memory.
    training: augment, where that is configured.
    sharded: in an epoch this rank reads its own part of the split alone.
    """

    split: Split
    sampler: Sampler[int]
    batch_size: int
    workers: int
    config: VisionConfig
    transfer: torch.dtype
    pin: bool = False
    device: torch.device = torch.device("cpu")
    training: bool = True
    sharded: bool = False

    def windows(self, draws: np.ndarray) -> preprocess.Windows | None:
        """The windows that augmentation cuts out of these draws; None without augmentation."""
        config = self.config.dataset
        if not (self.training and config.augment):
            return None
        images = self.split.images
        height, width = images.shape[1:3] if isinstance(images, np.ndarray) else (config.image_size,) * 2
        return preprocess.windows(config, draws, self.config.seed, height, width)
