"""A data set split for training and testing, in memory or in files."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from multicard.vision.data import decoding


@dataclass
class Split:
    """One part of a data set: uint8 images, grey (N, H, W) or colour (N, S, S, 3), or the paths of photographs."""

    images: np.ndarray | list[Path]
    labels: np.ndarray  # (N,), int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, limit: int | None, seed: int) -> "Split":
        """The first `limit` samples after a seeded shuffle; all of them, in their order, where it is None."""
        if limit is None or limit >= len(self):
            return self
        indices = np.random.default_rng(seed).permutation(len(self))[:limit]
        images = self.images[indices] if isinstance(self.images, np.ndarray) else [self.images[i] for i in indices]
        return Split(images, self.labels[indices])


@dataclass
class Data:
    """`facts` go into the record; `shared` removes what all ranks of the node must have opened before."""

    train: Split
    test: Split
    classes: int
    facts: dict[str, Any] = field(default_factory=dict)
    shared: list[Callable[[], None]] = field(default_factory=list)


def gather(split: Split, indices: np.ndarray, image_size: int) -> np.ndarray:
    """The images of a batch, uint8 (B, H, W) or (B, S, S, 3)."""
    if isinstance(split.images, np.ndarray):
        return split.images[indices]
    return np.stack([decoding.decode(split.images[index], image_size) for index in indices])
