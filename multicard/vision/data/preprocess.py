"""Crop, normalise and resize whole batches of uint8 images, on the host or the device.

Images are normalised before they are enlarged. Both operations are linear, so the result is the
same, but there are far fewer pixels. A grey image stays a single channel until it is on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.functional import interpolate

from multicard.config.vision_data import DatasetConfig

MATRIX_RESIZE_SIDE = 64  # Up to this many pixels per side, resizing with matrix products is faster.
BAND_ROWS = range(32, 65)  # Rows of an enlarged image that form a band; see `bands_of`.
BAND_SIDE = 16  # From this many pixels per side, computing in bands is faster.


@dataclass(frozen=True)
class Windows:
    """The window that augmentation cuts out of each image.

    It has `height` x `width` pixels from (`top`, `left`), and is mirrored if `flip`. These three
    arrays are (B,). They depend only on seed, epoch and image. All loaders, ranks and workers, and
    a resumed run, therefore cut the same windows.
    """

    top: np.ndarray
    left: np.ndarray
    flip: np.ndarray
    height: int
    width: int


def windows(
    config: DatasetConfig, draws: np.ndarray, seed: int, height: int, width: int
) -> Windows:
    """Draw random windows that span `config.crop` of each side of the images.

    Args:
        draws: (B,) int64, the epoch times the size of the set, plus the image's index. Each occurs
            once per run.
        height, width: The size of the images in pixels.
    """
    sides = max(1, round(config.crop * height)), max(1, round(config.crop * width))
    top, left = (
        (_uniform(seed, draws, stream) * (whole - part + 1)).astype(np.int64)
        for stream, (whole, part) in enumerate(zip((height, width), sides, strict=True))
    )
    flip = (_uniform(seed, draws, 2) < 0.5) & config.flip
    return Windows(top, left, flip, *sides)


def _uniform(seed: int, draws: np.ndarray, stream: int) -> np.ndarray:
    """Return a number in [0, 1) for each draw.

    The hash is the output function of SplitMix64 (Steele, Lea, Flood 2014).
    """
    state = (seed * 3 + stream + 1) * 0x9E3779B97F4A7C15 % 2**64
    # The multiplication wraps around at 64 bits.
    x = draws.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + np.uint64(state)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def cut_out(windows: Windows, images: torch.Tensor) -> torch.Tensor:
    """Cut the windows out of a batch on its device: (B, H, W, ...) to (B, height, width, ...)."""
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
        transfer: The type of the result. If it is float64, the arithmetic is in float64, otherwise
        in
            float32.
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
        """Normalise and resize a batch.

        Args:
            raw: uint8, grey (B, h, w) or RGB (B, h, w, 3).
            out: Memory for the result, with its shape, type and strides.

        Returns:
            (B, 3, S, S), channels last for RGB images. Grey images whose channels are normalised
            alike stay (B, 1, S, S), to be expanded on the device.
        """
        resizes = tuple(raw.shape[1:3]) != (self.size, self.size)
        # If no conversion follows, the last operation writes directly into `out`.
        direct = out if out is not None and out.dtype is self.arithmetic else None
        unsized = None if resizes else direct
        if raw.dim() == 3:
            mean, scale = (self.mean[:1], self.scale[:1]) if self.alike else (self.mean, self.scale)
            prepared = _normalised(raw[:, None], mean, scale, unsized)
        # Whole rows are normalised at once: three channels are too few for the CPU to vectorise.
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
        """Normalise and resize a batch on a GPU, in one kernel that torch.compile makes per shape.

        The kernel writes (B, 3, S, S) in the given layout, as the model reads it, without
        intermediate results.
        """
        mean = self.mean
        scale = self.scale
        if raw.dim() == 3 and self.alike:
            mean, scale = mean[:1], scale[:1]
        return _compiled()(raw, mean, scale, self.size, self.transfer, layout)

    def _resized(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Resize (B, C, h, w) to (B, C, S, S), bilinearly.

        On the CPU, two matrix products are faster for small images: 4 times from 28 to 500 px, on
        one core.
        """
        height, width = images.shape[2:]
        if images.device.type != "cpu" or max(height, width) > MATRIX_RESIZE_SIDE:
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
    # Enlarging takes over 30 operations, so by default torch.compile would store its result.
    return torch.compile(prepared, dynamic=False, options={"realize_opcount_threshold": 1000})


def prepared(
    raw: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    size: int,
    transfer: torch.dtype,
    layout: torch.memory_format,
) -> torch.Tensor:
    """Normalise and resize images to (B, 3, S, S). `Preparation` compiles this function on a GPU.

    Args:
        raw: uint8, grey (B, h, w) or RGB (B, h, w, 3).
        mean, scale: (1, 1, 1) or (3, 1, 1), in the type of the arithmetic.
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
    """Divide the rows of an enlarged image into N equal bands of R rows.

    Each band is computed from only K rows of the small image, as all other weights are zero. From
    28 to 500 px, that takes a sixth of the arithmetic.

    Returns:
        The K rows for each band (N, K), and their weights (N, R, K). None if bands are not faster.
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
    """Return the weight of each pixel of a row in each pixel of the resized row, (size, side)."""
    identity = torch.eye(side, dtype=dtype)[None, None]
    return interpolate(identity, (size, side), mode="bilinear", antialias=side > size)[0, 0]


def _normalised(
    raw: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return (raw - mean) * scale in the type of `mean`, in two passes over `out` or new memory."""
    shape = torch.broadcast_shapes(raw.shape, mean.shape)
    result = torch.empty(shape, dtype=mean.dtype, device=raw.device) if out is None else out
    return torch.sub(raw, mean, out=result).mul_(scale)
