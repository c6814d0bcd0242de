"""`model.depthwise=triton`: depthwise 3 x 3 convolutions of NHWC images, each of their passes near the memory's speed.

cuDNN has no fast kernel for large ones: on an H200, the forward passes of MobileNetV2's first two (64 images of 500 px,
fp16) take 10.9 ms of a step's 43 ms, where the bytes that they read and write take 0.3 ms.

All tensors are read as (N, H, W, C); sums are taken in float32, in float64 for float64. Each program goes over the
taps of a tile: `columns` of a row by `block` channels. The taps of a tile read neighbours, which the caches hold.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

COLUMNS = 32  # of a tile
PARTS = 1056  # programs that share the rows for the weight's gradient: 8 for each multiprocessor of an H100


@triton.jit
def _forward(x, weight, y, height, width, out_height, out_width, channels,
             stride: tl.constexpr, total: tl.constexpr, columns: tl.constexpr, block: tl.constexpr):  # fmt: skip
    """A tile of y, from x, padded by 1, and weight (9, C)."""
    image, out_row = (tl.program_id(0) // out_height).to(tl.int64), tl.program_id(0) % out_height
    out_column = tl.program_id(1) * columns + tl.arange(0, columns)[:, None]
    channel = tl.program_id(2) * block + tl.arange(0, block)[None, :]
    known, sums = channel < channels, tl.zeros((columns, block), total)
    for tap in tl.static_range(9):
        row, column = out_row * stride + tap // 3 - 1, out_column * stride + tap % 3 - 1
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & known
        start = x + (image * height + row) * width * channels
        value = tl.load(start + column * channels + channel, inside, 0).to(total)
        sums += value * tl.load(weight + tap * channels + channel, known, 0).to(total)
    start = y + (image * out_height + out_row) * out_width * channels
    tl.store(start + out_column * channels + channel, sums.to(y.dtype.element_ty), (out_column < out_width) & known)


@triton.jit
def _input_gradient(dy, weight, dx, height, width, out_height, out_width, channels,
                    stride: tl.constexpr, total: tl.constexpr, columns: tl.constexpr, block: tl.constexpr):  # fmt: skip
    """A tile of dx, from the places of dy that each of its places had a part in."""
    image, row = (tl.program_id(0) // height).to(tl.int64), tl.program_id(0) % height
    column = tl.program_id(1) * columns + tl.arange(0, columns)[:, None]
    channel = tl.program_id(2) * block + tl.arange(0, block)[None, :]
    known, sums = channel < channels, tl.zeros((columns, block), total)
    for tap in tl.static_range(9):
        down, right = row + 1 - tap // 3, column + 1 - tap % 3  # `stride` times the place in dy
        out_row, out_column = down // stride, right // stride
        meets = (down >= 0) & (right >= 0) & (out_row * stride == down) & (out_column * stride == right)
        inside = meets & (out_row < out_height) & (out_column < out_width) & known
        start = dy + (image * out_height + out_row) * out_width * channels
        value = tl.load(start + out_column * channels + channel, inside, 0).to(total)
        sums += value * tl.load(weight + tap * channels + channel, known, 0).to(total)
    start = dx + (image * height + row) * width * channels
    tl.store(start + column * channels + channel, sums.to(dx.dtype.element_ty), (column < width) & known)


@triton.jit
def _weight_gradient(x, dy, parts, rows, height, width, out_height, out_width, channels, stride: tl.constexpr,
                     total: tl.constexpr, columns: tl.constexpr, block: tl.constexpr, tiles: tl.constexpr):  # fmt: skip
    """A part of the weight's gradient, (9, C) of `parts`, from `tiles` of dy's tiles: every n-th, of n programs."""
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    known, zeros, across = channel < channels, tl.zeros((columns, block), total), tl.cdiv(out_width, columns)
    sums = (zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros)
    for number in range(tiles):
        tile = tl.program_id(0) + number * tl.num_programs(0)
        of_all = (tile // across).to(tl.int64)
        image, out_row = of_all // out_height, (of_all % out_height).to(tl.int32)
        out_column = (tile % across) * columns + tl.arange(0, columns)[:, None]
        there = (of_all < rows) & (out_column < out_width) & known
        start = dy + of_all * out_width * channels
        gradient = tl.load(start + out_column * channels + channel, there, 0).to(total)
        added = ()
        for tap in tl.static_range(9):
            row, column = out_row * stride + tap // 3 - 1, out_column * stride + tap % 3 - 1
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & there
            start = x + (image * height + row) * width * channels
            value = tl.load(start + column * channels + channel, inside, 0).to(total)
            added = added + (sums[tap] + gradient * value,)  # noqa: RUF005 - Triton knows no other way
        sums = added
    for tap in tl.static_range(9):
        place = parts + (tl.program_id(0) * 9 + tap) * channels + channel
        tl.store(place, tl.sum(sums[tap], 0)[None, :], known)


def _run(kernel: Any, grid: tuple[int, ...], tensors: Sequence[Tensor | int], x: Tensor, y: Tensor, *more: int) -> None:
    """Run a kernel over a grid, and all channels, of x (N, C, H, W) and y (N, C, H', W'), or of their gradients."""
    channels, total = x.shape[1], tl.float64 if x.dtype == torch.float64 else tl.float32
    block = 64 if channels % 64 == 0 else 32
    sizes, stride = (*x.shape[2:], *y.shape[2:], channels), 1 if x.shape[2:] == y.shape[2:] else 2
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        run = kernel[(*grid, -(-channels // block))]
        run(*tensors, *sizes, stride, total, COLUMNS, block, *more, num_warps=block // 8)  # 8 values a thread


def _by_tap(weight: Tensor) -> Tensor:
    """(9, C) of a weight (C, 1, 3, 3): neighbouring threads, which have neighbouring channels, read neighbours."""
    return weight.reshape(-1, 9).T.contiguous()


def _nhwc(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _output(x: Tensor, stride: int) -> Tensor:
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
    shape = (*x.shape[:2], height, width)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("multicard::depthwise", mutates_args=())
def depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The convolution of x (N, C, H, W) with weight (C, 1, 3, 3), padded by 1: (N, C, H', W'), H' = ceil(H / stride).

    The weight may have another type than x, and is not rounded to it.
    """
    x, y = _nhwc(x), _output(x, stride)
    grid = y.shape[0] * y.shape[2], -(-y.shape[3] // COLUMNS)
    _run(_forward, grid, (x, _by_tap(weight), y), x, y)
    return y


@torch.library.custom_op("multicard::depthwise_input_gradient", mutates_args=())
def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    dy, dx = _nhwc(dy), torch.empty_like(x, memory_format=torch.channels_last)
    grid = x.shape[0] * x.shape[2], -(-x.shape[3] // COLUMNS)
    _run(_input_gradient, grid, (dy, _by_tap(weight), dx), dx, dy)
    return dx


@torch.library.custom_op("multicard::depthwise_weight_gradient", mutates_args=())
def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    dy, x, rows = _nhwc(dy), _nhwc(x), dy.shape[0] * dy.shape[2]
    tiles, total = rows * -(-dy.shape[3] // COLUMNS), torch.promote_types(x.dtype, torch.float32)
    parts = torch.empty(min(PARTS, tiles), 9, x.shape[1], dtype=total, device=x.device)
    _run(_weight_gradient, parts.shape[:1], (x, dy, parts, rows), x, dy, -(-tiles // len(parts)))
    return parts.sum(0).T.reshape(weight.shape).to(weight.dtype)


@depthwise.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _output(x, stride)


@input_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@weight_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    passes = zip((input_gradient, weight_gradient), ctx.needs_input_grad, strict=False)
    dx, dweight = (each(dy, *ctx.saved_tensors, ctx.stride) if wanted else None for each, wanted in passes)
    return dx, dweight, None


depthwise.register_autograd(_gradients, setup_context=_keep)


class DepthwiseTriton(nn.Conv2d):
    """A depthwise convolution by the kernels above; a convolution as any other on CPU ranks and of NCHW images."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the convolution's name
        if not (input.is_cuda and input.is_contiguous(memory_format=torch.channels_last)):
            return super().forward(input)
        if torch.is_autocast_enabled("cuda"):
            input = input.to(torch.get_autocast_dtype("cuda"))  # noqa: A001
        return depthwise(input, self.weight, self.stride[0])


def with_kernels(model: nn.Module) -> nn.Module:
    """The model, its depthwise convolutions turned in place; parameters and their names stay."""
    for module in model.modules():
        if type(module) is nn.Conv2d and is_depthwise(module):
            module.__class__ = DepthwiseTriton
    return model


def is_depthwise(layer: nn.Conv2d) -> bool:
    """True for what the kernels compute."""
    by_channel = layer.groups == layer.in_channels == layer.out_channels > 1 and layer.bias is None
    shape = layer.kernel_size, layer.padding, layer.dilation, layer.padding_mode
    return by_channel and shape == ((3, 3), (1, 1), (1, 1), "zeros") and layer.stride in ((1, 1), (2, 2))
