"""Convolutions of NHWC images in other ways than cuDNN's.

`model.pointwise=linear`: 1 x 1 convolutions as matrix products over the channels. `model.depthwise=triton`: the forward
pass of depthwise 3 x 3 convolutions of large images. cuDNN has no fast kernel for it where images have 250 pixels a
side: on an H200, MobileNetV2's first two (64 images of 500 px, fp16) take 10.9 ms of a compiled step's 38, and 0.6 by
this kernel. Their bytes take 0.3. Of images of 125 pixels it has one, and its backward passes are as fast as kernels
like this.
"""

from contextlib import nullcontext
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn.functional import linear

LEAST_SIDE = 128  # pixels: below, cuDNN's forward pass is the faster one
COLUMNS, ROWS, CHANNELS = 32, 16, 32  # of the output, a program's
WARPS = 4


@triton.jit
def _row(x, row, column, channel, height, width, channels, total: tl.constexpr):
    """The values (columns, block) of a row of x (H, W, C) left of a column, in it and right of it; 0 outside."""
    inside, start = (row >= 0) & (row < height) & (channel < channels), x + row * width * channels + channel
    left = tl.load(start + (column - 1) * channels, inside & (column > 0) & (column <= width), 0)
    here = tl.load(start + column * channels, inside & (column < width), 0)
    right = tl.load(start + (column + 1) * channels, inside & (column + 1 < width), 0)
    return left.to(total), here.to(total), right.to(total)


@triton.jit
def _forward(x, weight, y, height, width, out_height, out_width, channels, stride: tl.constexpr, total: tl.constexpr,
             rows: tl.constexpr, columns: tl.constexpr, block: tl.constexpr):  # fmt: skip
    """A tile of y (N, H', W', C), from x (N, H, W, C), padded by 1, and weight (9, C): row by row, downwards, so that
    each value is read three times, and not nine."""
    strips = tl.cdiv(out_height, rows)
    image, first = (tl.program_id(0) // strips).to(tl.int64), tl.program_id(0) % strips * rows
    column = tl.program_id(1) * columns + tl.arange(0, columns)[:, None]
    channel = tl.program_id(2) * block + tl.arange(0, block)[None, :]
    x, y = x + image * height * width * channels, y + image * out_height * out_width * channels
    taps = ()
    for tap in tl.static_range(9):
        value = tl.load(weight + tap * channels + channel, channel < channels, 0).to(total)
        taps = taps + (value,)  # noqa: RUF005 - Triton knows no other way
    source = column * stride
    above = _row(x, first * stride - 1, source, channel, height, width, channels, total)
    here = _row(x, first * stride, source, channel, height, width, channels, total)
    for number in range(rows):
        out_row = first + number
        below = _row(x, out_row * stride + 1, source, channel, height, width, channels, total)
        sums = above[0] * taps[0] + above[1] * taps[1] + above[2] * taps[2]
        sums += here[0] * taps[3] + here[1] * taps[4] + here[2] * taps[5]
        sums += below[0] * taps[6] + below[1] * taps[7] + below[2] * taps[8]
        stored = (out_row < out_height) & (column < out_width) & (channel < channels)
        tl.store(y + (out_row * out_width + column) * channels + channel, sums.to(y.dtype.element_ty), stored)
        if stride == 1:
            above, here = here, below
        else:
            above = below
            here = _row(x, out_row * stride + 2, source, channel, height, width, channels, total)


@torch.library.custom_op("multicard::depthwise", mutates_args=())
def depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The convolution of x (N, C, H, W) with weight (C, 1, 3, 3), padded by 1: (N, C, H', W'), H' = ceil(H / stride).

    Sums are float32, or float64 of float64; both tensors have one type, and x and the output are channels-last.
    """
    x, y = x.contiguous(memory_format=torch.channels_last), _output(x, weight, stride)
    count, channels, height, width = y.shape
    grid = count * -(-height // ROWS), -(-width // COLUMNS), -(-channels // CHANNELS)
    total = tl.float64 if x.dtype == torch.float64 else tl.float32
    by_tap = weight.reshape(-1, 9).T.contiguous()  # neighbouring threads, of neighbouring channels, read neighbours
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        sizes, launch = (*x.shape[2:], height, width, channels), cast("Any", _forward[grid])
        launch(x, by_tap, y, *sizes, stride, total, ROWS, COLUMNS, CHANNELS, num_warps=WARPS)
    return y


@depthwise.register_fake
def _output(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
    shape = (*x.shape[:2], height, width)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    """By the convolution's own backward pass."""
    (x, weight), both, wanted = ctx.saved_tensors, [ctx.stride] * 2, [*ctx.needs_input_grad[:2], False]
    shape = both, [1, 1], [1, 1], False, [0, 0], x.shape[1]  # stride, padding, dilation, transposed, of outputs, groups
    dx, dweight, _ = torch.ops.aten.convolution_backward(gradient, x, weight, None, *shape, wanted)
    return dx, dweight, None


depthwise.register_autograd(_gradients, setup_context=_keep)


class DepthwiseTriton(nn.Conv2d):
    """A depthwise convolution, by the kernel above of large channels-last images on CUDA."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the convolution's name
        large = min(input.shape[2:]) >= LEAST_SIDE and input.is_contiguous(memory_format=torch.channels_last)
        if not (input.is_cuda and large):
            return super().forward(input)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else input.dtype
        return depthwise(input.to(dtype), self.weight.to(dtype), self.stride[0])

    @staticmethod
    def computes(layer: nn.Conv2d) -> bool:
        by_channel = layer.groups == layer.in_channels == layer.out_channels > 1 and layer.bias is None
        shape = layer.kernel_size, layer.padding, layer.dilation, layer.padding_mode
        return by_channel and shape == ((3, 3), (1, 1), (1, 1), "zeros") and layer.stride in ((1, 1), (2, 2))


class PointwiseLinear(nn.Conv2d):
    """A 1 x 1 convolution of stride 1: the channels of a channels-last image are the rows of a matrix, without a copy.

    All of its passes are matrix products, which Inductor can fuse with what is around them; it has the backward pass
    of a convolution computed by cuDNN.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the convolution's name
        """(N, C, H, W) to (N, out, H, W), both channels-last in memory."""
        return linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)

    @staticmethod
    def computes(layer: nn.Conv2d) -> bool:
        ones = {*layer.kernel_size, *layer.stride, layer.groups} == {1}
        return ones and layer.padding in ((0, 0), "valid", "same")
