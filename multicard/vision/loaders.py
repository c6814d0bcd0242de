"""The loaders: a split of a data set in, an iterable of batches on the host out.

A batch is `images` (B, 3, S, S) in the precision's transfer type, normalised, and `labels` (B,) int64.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import v2

from multicard.config_vision import DatasetConfig, LoaderName, VisionConfig
from multicard.launch import die_with_parent
from multicard.vision.data import Split

Batch = tuple[torch.Tensor, torch.Tensor]
Batches = Iterable[Batch]


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """One sample at a time through torchvision's v2 transforms, as the papers had it."""

    def __init__(self, split: Split, config: DatasetConfig, transfer: torch.dtype) -> None:
        self.split = split
        size = [config.image_size, config.image_size]
        self.transform = v2.Compose(
            [
                v2.ToImage(),
                v2.RGB(),  # a grey image three times
                v2.Resize(size, antialias=True),
                v2.ToDtype(torch.float64 if transfer is torch.float64 else torch.float32, scale=True),
                v2.Normalize(config.mean, config.std),
                v2.ToDtype(transfer),
            ]
        )

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.split.images[index]
        pixels = decode(image) if isinstance(image, Path) else torch.from_numpy(image[None])  # (1, H, W)
        return self.transform(pixels).as_subclass(torch.Tensor), int(self.split.labels[index])


def decode(path: Path) -> torch.Tensor:
    """The photograph as uint8 (3, H, W).

    Raises:
        ValueError: naming the file, where it is no image or cut off.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (OSError, SyntaxError) as error:  # PIL raises SyntaxError for a broken PNG
        raise ValueError(f"{path}: cannot be decoded ({error}); replace or remove it") from None


def torch_loader(
    split: Split,
    sampler: Sampler[int],
    batch_size: int,
    workers: int,
    config: VisionConfig,
    transfer: torch.dtype,
    pin: bool,
) -> Batches:
    """torch's DataLoader over single samples: decode, resize and normalise in the workers, on the host."""
    return DataLoader(
        Samples(split, config.dataset, transfer),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # torch's default on Linux, which a forked rank loses
        pin_memory=pin,
        prefetch_factor=config.loader.prefetch_factor if workers else None,
        persistent_workers=config.loader.persistent_workers and workers > 0,
        worker_init_fn=_start_worker,
        # its own: else starting workers, which a run that goes on does once more, would draw from dropout's numbers
        generator=torch.Generator().manual_seed(config.seed),
    )


def _start_worker(_: int) -> None:
    die_with_parent()


LOADERS: dict[str, Callable[..., Batches]] = {LoaderName.torch: torch_loader}
