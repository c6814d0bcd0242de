"""A data set split for training and testing, and the order in which a rank reads a split.

The samplers yield indices like torch's samplers, and torch's DataLoader accepts them. This module
does not import torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from multicard.messages import Message
from multicard.records.schema_data import Ignored
from multicard.vision.data import decoding
from multicard.vision.data.stored_images import EncodedImage

if TYPE_CHECKING:
    from torch.utils.data import DistributedSampler


@dataclass
class Split:
    """One part of a data set.

    The images are uint8, grey (N, H, W) or color (N, S, S, 3), or photographs that are still
    encoded.
    """

    images: np.ndarray | list[EncodedImage]
    labels: np.ndarray  # (N,), int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def grey(self) -> bool:
        return isinstance(self.images, np.ndarray) and self.images.ndim == 3

    @property
    def largest_class_share(self) -> float | None:
        """The accuracy of always predicting the most frequent class. None without samples."""
        return float(np.bincount(self.labels).max() / len(self)) if len(self) else None

    def take(self, limit: int | None, seed: int) -> "Split":
        """Return the first `limit` samples of a seeded shuffle.

        If there are no more samples than that, or `limit` is None, return all in their own order.
        """
        if limit is None or limit >= len(self):
            return self
        return self.part(np.random.default_rng(seed).permutation(len(self))[:limit])

    def part(self, indices: np.ndarray) -> "Split":
        """Return the samples with these indices."""
        images = (
            self.images[indices]
            if isinstance(self.images, np.ndarray)
            else [self.images[i] for i in indices]
        )
        return Split(images, self.labels[indices])


@dataclass
class DataSplits:
    """Both parts of a data set. `facts` and `ignored` go into the record.

    Attributes:
        classes: The number of classes.
        names: The classes' names in the order of their numbers. Empty if the numbers are the names.
        notices: What was assumed without being configured. It is printed before the start.
    """

    train: Split
    test: Split
    classes: int
    facts: dict[str, Any] = field(default_factory=dict)
    ignored: list[Ignored] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    notices: list[Message] = field(default_factory=list)

    @property
    def class_names(self) -> list[str]:
        return self.names or [str(number) for number in range(self.classes)]


def held_out(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Mark the samples to test on (N,). A seeded shuffle draws the share of each class, rounded."""
    shuffle = np.random.default_rng(seed)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in range(labels.max() + 1):
        members = shuffle.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(share * len(members))]] = True
    return is_test


def gather(split: Split, indices: np.ndarray, image_size: int) -> np.ndarray:
    """Return the images of a batch as uint8, (B, H, W) or (B, S, S, 3)."""
    if isinstance(split.images, np.ndarray):
        return split.images[indices]
    return np.stack([decoding.decode(split.images[index], image_size) for index in indices])


class RankSampler(Protocol):
    """Yields the samples that a rank reads, in order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class Shuffled:
    """Yields every sample once per epoch, in an order that depends on seed, stream and epoch."""

    def __init__(self, samples: int, seed: int, stream: int = 0) -> None:
        self.samples = samples
        self.seed = seed
        self.stream = stream
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        shuffle = np.random.default_rng([self.seed, self.stream, self.epoch])
        return iter(shuffle.permutation(self.samples).tolist())


class Remaining:
    """Yields the rest of an epoch of `sampler`, without loading its first `skip` samples.

    It yields draws: the epoch times `samples`, plus the index of a sample. The augmentation depends
    only on the draw, so it is the same in any process.
    """

    def __init__(self, sampler: "Shuffled | DistributedSampler[int]", samples: int) -> None:
        self.sampler = sampler
        self.samples = samples
        self.epoch = 0
        self.skip = 0

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        self.sampler.set_epoch(epoch)
        self.epoch = epoch
        self.skip = skip

    def __len__(self) -> int:
        # The last step may have fewer samples than `skip` counts for it.
        return max(0, len(self.sampler) - self.skip)

    def __iter__(self) -> Iterator[int]:
        return (
            self.epoch * self.samples + index for index in islice(self.sampler, self.skip, None)
        )
