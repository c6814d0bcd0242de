"""Preprocessing of whole batches of uint8 images, on the host or the device: cropping,
normalising, resizing.

Normalising before upsampling gives the same as after it (both are linear), on a fraction of the
pixels; a grey image stays a single channel until it is on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.functional import interpolate

from multicard.config.vision_data import DatasetConfig

SMALL = 64  # pixels a side, up to which resizing by matrices pays
BAND_ROWS = range(32, 65)  # rows of an enlarged image that are computed together; see `bands_of`
BAND_SIDE = 16  # pixels a side, from which that pays


@dataclass(frozen=True)
class Windows:
    """The part of each image that augmentation cuts out: `height` x `width` pixels from (`top`,
    `left`), mirrored where `flip`.

    The three arrays are (B,). They follow from seed, epoch and image alone: the same in all
    loaders, on any rank, in any worker, and in a resumed run.
    """

    top: np.ndarray
    left: np.ndarray
    flip: np.ndarray
    height: int
    width: int


def windows(
    config: DatasetConfig, draws: np.ndarray, seed: int, height: int, width: int
) -> Windows:
    """Windows of `config.crop` of an image's sides at random places,
    for images of `height` x `width` pixels.

    Args:
        draws: (B,) int64, epoch times the set's size plus
            the image's index: each is drawn once a run.
    """
    sides = max(1, round(config.crop * height)), max(1, round(config.crop * width))
    top, left = (
        (_uniform(seed, draws, stream) * (whole - part + 1)).astype(np.int64)
        for stream, (whole, part) in enumerate(zip((height, width), sides, strict=True))
    )
    flip = (_uniform(seed, draws, 2) < 0.5) & config.flip
    return Windows(top, left, flip, *sides)


def _uniform(seed: int, draws: np.ndarray, stream: int) -> np.ndarray:
    """A number in [0, 1) for each draw: the output function of SplitMix64 (Steele, Lea,
    Flood 2014) as a hash.
    """
    state = (seed * 3 + stream + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = draws.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + np.uint64(state)  # wraps
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def cut_out(windows: Windows, images: torch.Tensor) -> torch.Tensor:
    """The windows of a batch: (B, H, W, ...) in, (B, height, width, ...) out,
    on the batch's device.
    """
    device = images.device
    parts = (windows.top, windows.left, windows.flip)
    top, left, flip = (
        torch.from_numpy(values)[:, None].to(device, non_blocking=True) for values in parts
    )
    columns = torch.arange(windows.width, device=device)
    columns = left + torch.where(flip, windows.width - 1 - columns, columns)  # (B, width)
    rows = top + torch.arange(windows.height, device=device)  # (B, height)
    return images[
        torch.arange(len(images), device=device)[:, None, None],
        rows[:, :, None],
        columns[:, None, :],
    ]


class Preparation:
    """Normalises and resizes uint8 batches.

    Args:
        transfer: the type of the result. The arithmetic is in float64 for float64, else in float32.
    """

    def __init__(
        self, config: DatasetConfig, transfer: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.size = config.image_size
        self.transfer = transfer
        self.arithmetic = torch.float64 if transfer is torch.float64 else torch.float32
        self.alike = config.alike
        mean, std = (
            torch.tensor(v, dtype=self.arithmetic)[:, None, None] for v in (config.mean, config.std)
        )
        self.mean = (255 * mean).to(device)
        self.scale = (1 / (255 * std)).to(device)

    def __call__(self, raw: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            raw: uint8, grey (B, h, w) or RGB (B, h, w, 3).
            out: memory for the result, with its shape, type and strides.

        Returns:
            (B, 3, S, S), channels last for RGB images; (B, 1, S, S) for grey images whose channels
            are normalised
            alike: expand it on the device.
        """
        resizes = tuple(raw.shape[1:3]) != (self.size, self.size)
        # where no conversion follows
        direct = out if out is not None and out.dtype is self.arithmetic else None
        unsized = None if resizes else direct
        if raw.dim() == 3:
            mean, scale = (self.mean[:1], self.scale[:1]) if self.alike else (self.mean, self.scale)
            prepared = _normalised(raw[:, None], mean, scale, unsized)
        # a whole row at a time: over the three channels
        # alone the CPU would have nothing to vectorise
        else:
            batch, height, width, _ = raw.shape
            mean, scale = (values.flatten().repeat(width) for values in (self.mean, self.scale))
            in_rows = (
                None
                if unsized is None
                else unsized.permute(0, 2, 3, 1).view(batch, height, width * 3)
            )
            rows = _normalised(raw.reshape(batch, height, width * 3), mean, scale, in_rows)
            prepared = rows.view(batch, height, width, 3).permute(0, 3, 1, 2)
        if resizes:
            prepared = self._resized(prepared, direct)
        if out is None or prepared.data_ptr() == out.data_ptr():
            return prepared.to(self.transfer)
        return out.copy_(prepared)

    def in_one_kernel(self, raw: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
        """The same for a GPU, in a kernel that torch.compile makes for each shape: it writes what
        the model reads, (B, 3, S, S) in this layout, and nothing between.
        """
        mean = self.mean
        scale = self.scale
        if raw.dim() == 3 and self.alike:
            mean, scale = mean[:1], scale[:1]
        return _compiled()(raw, mean, scale, self.size, self.transfer, layout)

    def _resized(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """(B, C, h, w) to (B, C, S, S), bilinear. On the CPU two products of matrices are faster
        for small images: 4 times from 28 to 500 px, on one core.
        """
        height, width = images.shape[2:]
        if images.device.type != "cpu" or max(height, width) > SMALL:
            antialias = max(height, width) > self.size
            return interpolate(images, (self.size, self.size), mode="bilinear", antialias=antialias)
        bands = bands_of(height, self.size, images.dtype)
        columns = weights_of(width, self.size, images.dtype).T
        if bands is None or (out is not None and not out.is_contiguous()):
            return torch.matmul(
                weights_of(height, self.size, images.dtype), images @ columns, out=out
            )
        rows, weights = bands
        in_bands = (
            None if out is None else out.view(*images.shape[:2], *weights.shape[:2], self.size)
        )
        return torch.matmul(weights, images[:, :, rows] @ columns, out=in_bands).flatten(2, 3)


@cache
def _compiled() -> Callable[..., torch.Tensor]:
    # by default an image is stored once it was enlarged, as that takes more than 30 operations
    return torch.compile(prepared, dynamic=False, options={"realize_opcount_threshold": 1000})


def prepared(
    raw: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    size: int,
    transfer: torch.dtype,
    layout: torch.memory_format,
) -> torch.Tensor:
    """Normalised and resized images (B, 3, S, S), as `Preparation` has them on a GPU.

    Args:
        raw: uint8, grey (B, h, w) or RGB (B, h, w, 3).
        mean, scale: (1, 1, 1) or (3, 1, 1), of the type of the arithmetic.
    """
    channels = raw[:, None] if raw.dim() == 3 else raw.permute(0, 3, 1, 2)
    images = (channels - mean) * scale
    height, width = images.shape[2:]
    if (height, width) != (size, size):
        antialias = max(height, width) > size
        images = interpolate(images, (size, size), mode="bilinear", antialias=antialias)
    return images.to(transfer).expand(-1, 3, -1, -1).contiguous(memory_format=layout)


@cache
def bands_of(side: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The rows of an image enlarged from `side` to `size` in N equal bands of R: the K rows of the
    small one that each is computed from (N, K), and their weights (N, R, K); all other weights are
    zero. From 28 to 500 px that is a sixth of the arithmetic. None where it does not pay.
    """
    fitting = [rows for rows in BAND_ROWS if size % rows == 0 and BAND_SIDE <= side < size > rows]
    if not fitting:
        return None
    weights = weights_of(side, size, dtype).view(-1, max(fitting), side)
    used = (weights != 0).any(1).int()  # (N, h)
    first = used.argmax(1)
    last = side - 1 - used.flip(1).argmax(1)
    count = int((last - first).max()) + 1
    rows = first.clamp(max=side - count)[:, None] + torch.arange(count)
    return rows, weights.gather(2, rows[:, None].expand(-1, max(fitting), -1))


@cache
def weights_of(side: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """(size, side): the weight of each pixel of a row in each pixel of the resized row."""
    each = torch.eye(side, dtype=dtype)[None, None]
    return interpolate(each, (size, side), mode="bilinear", antialias=side > size)[0, 0]


def _normalised(
    raw: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """(raw - mean) * scale in the type of `mean`, in two passes over `out` or new memory."""
    shape = torch.broadcast_shapes(raw.shape, mean.shape)
    result = torch.empty(shape, dtype=mean.dtype, device=raw.device) if out is None else out
    return torch.sub(raw, mean, out=result).mul_(scale)
