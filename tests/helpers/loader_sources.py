"""Images for loaders, and what these make of them."""

from typing import Any

import numpy as np
import pytest
import torch

from multicard.vision.data.batch import Batch, LoaderInput
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.splits import RankSampler, Split
from tests.conftest import has_dali, typed

DALI = pytest.param("dali", marks=pytest.mark.skipif(not has_dali(), reason="no DALI (make dali)"))


def split(values: list[int]) -> Split:
    return Split(
        np.tile(np.array(values, np.uint8)[:, None, None], (1, 8, 8)), np.arange(len(values))
    )


def noise(count: int, *shape: int) -> Split:
    """Smoothed noise, as photographs are smooth, with the samples' numbers for labels."""
    rough = np.random.default_rng(1).random((count, *shape))
    for axis in (1, 2):
        rough = (rough + np.roll(rough, 1, axis) + np.roll(rough, 2, axis)) / 3
    return Split((255 * rough).astype(np.uint8), np.arange(count))


def source(
    content: Split, sampler: RankSampler, *words: str, batch_size: int = 4, **options: Any
) -> LoaderInput:
    config = typed("dataset.image_size=32", *words)
    return LoaderInput(
        content, sampler, batch_size, options.pop("workers", 0), config, torch.float32, **options
    )


def read(asked: LoaderInput) -> list[Batch]:
    return list(LOADERS[asked.config.loader.name].load(asked))


def pixels(batches: list[Batch]) -> torch.Tensor:
    return torch.cat([batch.images.expand(-1, 3, -1, -1) for batch in batches])
