"""`model.depthwise=triton`: compute depthwise convolutions by Triton where cuDNN is slower.

Measured on an H200: cuDNN has no fast forward pass for images with 250 pixels a side. The first two
layers of MobileNetV2 (64 images of 500 px, fp16, 3 x 3) took 10.9 ms of the 38 ms of a compiled
step. An earlier version of the kernel here took 0.6 ms. For sides of 125 pixels and less, cuDNN's
forward pass is fast and is used. In all 17 layers, cuDNN's backward passes took 4.9 ms. All of its
depthwise kernels together took 5.8 ms, of which the forward passes of 15 layers took 0.9 ms.

Expected, but not measured (`python -m benchmarks.depthwise --expected` counts instructions and
bytes; on a GPU it measures both variants):

- The backward pass here reads and writes each tensor once, while cuDNN has one kernel for each
  gradient. All 17 layers take 2.0 to 2.7 ms at 70 and at 40 % of the GPU's issue slots, and 4.1 ms
  at 25 %. It is used for 3 x 3 taps, and for 5 x 5 taps, which take three times the instructions.
- 7 x 7 taps take over six times the instructions of 3 x 3 taps. The kernels here compute them if
  the images are large, for which cuDNN may have no fast kernels either. Otherwise cuDNN does.
"""

import math
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
import triton.language as tl
from torch import Tensor, nn

from multicard.vision import depthwise_kernels as kernels

MIN_SIDE = 128  # Pixels. For smaller images cuDNN's forward pass is faster.
KERNEL_SIDES = (3, 5, 7)  # Sides of the taps, as in 3 x 3.
# A program computes at most this number of rows. Rows around them are read by several programs.
MAX_ROWS = 32
MAX_TENSOR_VALUES = 256  # A tensor of a program has at most this number of values.
REGISTERS = 128  # With this number per thread, 16 warps fit on a multiprocessor.
MAX_IMAGE_VALUES = 2**31  # Offsets within an image have 32 bits.


class Tile(NamedTuple):
    """The part of the output that a program computes: `columns` x `across` columns of `channels`.

    Attributes:
        values: Values of a thread in each tensor (columns, channels).
        registers: Registers of a thread; None if the compiler chooses.
    """

    columns: int
    across: int
    channels: int
    values: int
    registers: int | None

    @property
    def warps(self) -> int:
        return self.columns * self.channels // (32 * self.values)


def tile_of(kernel: int, stride: int, out_width: int, channels: int, dtype: torch.dtype) -> Tile:
    """Choose a tile that fits into registers and has few columns and channels off the image."""
    across = {(3, 1): 4, (3, 2): 2, (5, 1): 2, (5, 2): 2}.get((kernel, stride), 1)
    if dtype.itemsize > 2:
        across = min(across, 2)  # The values that are loaded ahead take twice the registers.
    values = 2 if kernel == 3 else 1
    block = 16 if 0 < channels % 32 <= 16 else 32
    columns = 32 * values // block  # Columns of one warp.
    while columns * across < out_width and columns * block < MAX_TENSOR_VALUES:
        columns *= 2
    has_room = kernel < 7 and dtype != torch.float64
    return Tile(columns, across, block, values, REGISTERS if has_room else None)


class KernelLaunch(NamedTuple):
    """How a pass is launched.

    Attributes:
        programs: Number of programs.
        parts: Number of parts that the images are cut into, each for all channels.
        sizes: Arguments of the kernel after its tensors.
        constants: The kernel's constants.
        options: Options of Triton's compiler.
    """

    programs: int
    parts: int
    sizes: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


def launch_of(x: Tensor, kernel: int, stride: int) -> KernelLaunch:
    """Return how to launch either pass over images x (N, C, H, W)."""
    count, channels, height, width = x.shape
    out_height = outputs_of(height, stride)
    out_width = outputs_of(width, stride)
    tile = tile_of(kernel, stride, out_width, channels, x.dtype)
    strips = -(-out_height // MAX_ROWS)
    tiles = -(-out_width // (tile.columns * tile.across))
    parts = count * strips * tiles
    sizes = height, width, out_height, out_width, strips, tiles
    constants = {
        "CHANNELS": channels,
        "KERNEL": kernel,
        "STRIDE": stride,
        "TOTAL": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "ROWS": -(-out_height // strips),
        "P": tile.columns,
        "ACROSS": tile.across,
        "BLOCK": tile.channels,
    }
    options = {"num_warps": tile.warps, "maxnreg": tile.registers}
    return KernelLaunch(parts * -(-channels // tile.channels), parts, sizes, constants, options)


def outputs_of(side: int, stride: int) -> int:
    """Return the number of outputs along a side, with a padding of half a kernel."""
    return (side - 1) // stride + 1


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _current_device(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@torch.library.custom_op("multicard::depthwise", mutates_args=())
def depthwise(
    x: Tensor, weight: Tensor, stride: int, own_forward: bool = True, own_backward: bool = True
) -> Tensor:
    """Convolve x (N, C, H, W) with weight (C, 1, k, k), padded by k // 2. k is in `KERNEL_SIDES`.

    All tensors have one type. Sums are float32, or float64 if the tensors are.

    Args:
        own_forward, own_backward: Compute the pass by the kernels here, not by torch's.

    Returns:
        The outputs (N, C, H', W'), channels-last, with H' = ceil(H / stride).
    """
    kernel = weight.shape[-1]
    if not own_forward:
        return _channels_last(torch.conv2d(x, weight, None, stride, kernel // 2, 1, len(weight)))
    x = _channels_last(x)
    y = _empty_output(x, weight, stride)
    launch = launch_of(x, kernel, stride)
    with _current_device(x.device):
        run = cast("Any", kernels.forward[(launch.programs,)])
        run(x, weight.contiguous(), y, *launch.sizes, **launch.constants, **launch.options)
    return y


@depthwise.register_fake
def _empty_output(
    x: Tensor, weight: Tensor, stride: int, own_forward: bool = True, own_backward: bool = True
) -> Tensor:
    del weight, own_forward, own_backward
    shape = (*x.shape[:2], outputs_of(x.shape[2], stride), outputs_of(x.shape[3], stride))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("multicard::depthwise_backward", mutates_args=())
def depthwise_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    of_x: bool = True,
    of_weight: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of x (N, C, H, W), channels-last, and of weight (C, 1, k, k).

    A gradient that is not asked for is returned without values. Each program sums its part of the
    weight's gradient, and a final sum adds the parts. So the result has the same bits each time.

    Args:
        gradient: The gradient of the outputs.
        of_x, of_weight: Compute this gradient.
    """
    dx, dweight = _empty_gradients(gradient, x, weight, stride, of_x, of_weight)
    kernel = weight.shape[-1]
    channels = len(weight)
    x = _channels_last(x)
    gradient = _channels_last(gradient)
    launch = launch_of(x, kernel, stride)
    total = torch.float64 if x.dtype == torch.float64 else torch.float32
    sums = x.new_empty((launch.parts if of_weight else 0, kernel * kernel, channels), dtype=total)
    gradients_wanted = {"GIVES_DX": of_x, "GIVES_SUMS": of_weight}
    with _current_device(x.device):
        run = cast("Any", kernels.backward[(launch.programs,)])
        tensors = x, gradient, weight.contiguous(), dx, sums
        run(*tensors, *launch.sizes, **launch.constants, **gradients_wanted, **launch.options)
    if of_weight:
        dweight.copy_(sums.sum(0).t().reshape(weight.shape))
    return dx, dweight


@depthwise_backward.register_fake
def _empty_gradients(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    of_x: bool = True,
    of_weight: bool = True,
) -> tuple[Tensor, Tensor]:
    del gradient, stride
    dx = torch.empty_like(x, memory_format=torch.channels_last) if of_x else x.new_empty(0)
    return dx, weight.new_empty(weight.shape if of_weight else 0)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool, bool], output: Tensor) -> None:
    x, weight, ctx.stride, _, ctx.own_backward = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    x, weight = ctx.saved_tensors
    of_x, of_weight = ctx.needs_input_grad[:2]
    if ctx.own_backward:
        dx, dweight = depthwise_backward(gradient, x, weight, ctx.stride, of_x, of_weight)
    else:
        both = [ctx.stride] * 2
        padding = [weight.shape[-1] // 2] * 2
        # The shape ends with: dilation, transposed, output padding, groups.
        shape = both, padding, [1, 1], False, [0, 0], len(weight)
        gradients_wanted = [of_x, of_weight, False]
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, *shape, gradients_wanted
        )
    return dx if of_x else None, dweight if of_weight else None, None, None, None


depthwise.register_autograd(_backward, setup_context=_save_inputs)


class DepthwiseTriton(nn.Conv2d):
    """A depthwise convolution of channels-last images on CUDA.

    Each pass is computed by the faster kernels: those here, or cuDNN's.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Conv2d names it so
        own_forward, own_backward = self.own_passes(input)
        if not (own_forward or own_backward):
            return super().forward(input)
        dtype = (
            torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else input.dtype
        )
        weight = self.weight.to(dtype)
        outputs = depthwise(input.to(dtype), weight, self.stride[0], own_forward, own_backward)
        return outputs if self.bias is None else outputs + self.bias.to(dtype)[:, None, None]

    def own_passes(self, images: Tensor) -> tuple[bool, bool]:
        """Return whether the kernels here compute the forward pass, and the backward pass."""
        has_layout = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
        if not (images.is_cuda and has_layout and math.prod(images.shape[1:]) < MAX_IMAGE_VALUES):
            return False, False
        is_large = min(images.shape[2:]) >= MIN_SIDE
        return is_large, torch.is_grad_enabled() and (is_large or self.kernel_size[0] < 7)

    @staticmethod
    def computes(layer: nn.Conv2d) -> bool:
        """Return True if the kernels here can compute the layer.

        It needs one filter per channel, a square kernel of `KERNEL_SIDES`, one stride, and a
        padding of half the kernel. It may have a bias.
        """
        kernel, other = layer.kernel_size
        stride, other_stride = layer.stride
        by_channel = layer.groups == layer.in_channels == layer.out_channels > 1
        is_square = kernel == other and kernel in KERNEL_SIDES and stride == other_stride
        pads_half = (
            layer.padding in ((kernel // 2, kernel // 2), "same") and layer.padding_mode == "zeros"
        )
        return by_channel and is_square and pads_half and layer.dilation == (1, 1)
