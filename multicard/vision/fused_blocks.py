"""`model.blocks=fused`: MobileNetV2's wide early blocks train without storing the expanded tensor.

The kernels are one operator, so that torch.compile takes all of it into its graph. Images are (B, H, W, C) in memory.
Statistics are finished in float64, which autocast leaves alone; they have a value a channel.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.library import custom_op
from torch.nn.functional import pad

from multicard.vision import fused_kernels as kernels

WIDEST_INPUT = 32  # channels: a block's input and weights are in registers
LEAST_EXPANDED = 3_000_000  # values of an image: below, recomputing takes what is saved of the memory's traffic
LEAST_STEM = 1_500_000  # likewise of a stem, whose images need no gradient; estimated, as no GPU has timed it
# Tiles by kernel: P pixels by C channels; LOOPS tiles or ROWS rows a program. of few that were timed on an H200
TILES: dict[str, dict[str, int]] = {
    "moments": {"P": 128, "LOOPS": 32, "num_warps": 4},
    "depthwise": {"P": 64, "C": 16, "ROWS": 16, "num_warps": 4, "num_stages": 2},
    "project": {"P": 128, "C": 32, "num_warps": 4},
    "project_backward": {"P": 64, "C": 16, "LOOPS": 32, "num_warps": 4},
    "expansion_backward": {"P": 16, "C": 32, "ROWS": 16, "num_warps": 4},
}


class Launch(NamedTuple):
    """A kernel's outputs, grid, arguments in order, and constants beside those of `TILES`."""

    outputs: list[Tensor]
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


def padded(channels: int) -> int:
    """Narrow channels as the matrix products take them: a power of two, 16 at least."""
    return max(16, 1 << (channels - 1).bit_length())


def ceil_div(values: int, size: int) -> int:
    return -(-values // size)


def pixels(images: Tensor) -> int:
    return images.numel() // images.shape[-1]


def float32(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def moments(x: Tensor, shift: Tensor, stride: int) -> Launch:
    tile, cin = TILES["moments"], x.shape[-1]
    programs = ceil_div(pixels(x), tile["P"] * tile["LOOPS"])
    sums = float32(x, programs, cin + 1, cin)
    return Launch([sums], (programs,), (x, shift, sums, pixels(x)), {"CIN": cin, "K": padded(cin)})


def depthwise(x: Tensor, w1: Tensor, scale: Tensor, shift: Tensor, taps: Tensor, stride: int) -> Launch:
    tile, (batch, height, width, cin), wide = TILES["depthwise"], x.shape, len(w1)
    rows, columns = -(-height // stride), -(-width // stride)
    strips = ceil_div(rows, tile["ROWS"]) * ceil_div(columns, tile["P"])
    d, sums = x.new_empty((batch, rows, columns, wide)), float32(x, batch * strips, 2, wide)
    arguments = (x, w1, scale, shift, taps, d, sums, height, width, rows, columns)
    constants = {"CIN": cin, "K": padded(cin), "WIDE": wide, "STRIDE": stride}
    return Launch([d, sums], (ceil_div(wide, tile["C"]), strips, batch), arguments, constants)


def project(wide: Tensor, scale: Tensor, shift: Tensor, w: Tensor, base: Tensor, bias: Tensor, stride: int) -> Launch:
    out = wide.new_empty((*wide.shape[:-1], len(w)))
    constants = {"WIDE": wide.shape[-1], "NARROW": len(w), "KO": padded(len(w)), "ADDS": base.numel() > 0}
    grid = (ceil_div(pixels(wide), TILES["project"]["P"]),)
    return Launch([out], grid, (wide, scale, shift, w, base, bias, out, pixels(wide)), constants)


def project_backward(
    dp: Tensor, d: Tensor, w2: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, factors: Tensor, stride: int
) -> Launch:
    tile, (narrow, wide), reduces = TILES["project_backward"], w2.shape, factors.numel() == 0
    programs = ceil_div(pixels(d), tile["P"] * tile["LOOPS"])
    dd = d.new_empty(d.shape if not reduces else 0)
    sums = float32(d, programs if reduces else 0, 2 + narrow, wide)
    arguments = (dp, d, w2, scale, shift, mean, factors, dd, sums, pixels(d))
    constants = {"WIDE": wide, "NARROW": narrow, "KO": padded(narrow), "REDUCES": reduces}
    return Launch([sums if reduces else dd], (ceil_div(wide, tile["C"]), programs), arguments, constants)


def expansion_backward(
    x: Tensor, w1: Tensor, scale: Tensor, shift: Tensor, taps: Tensor, w1_scaled: Tensor, dd: Tensor, stride: int
) -> Launch:
    tile, (batch, height, width, cin), wide = TILES["expansion_backward"], x.shape, len(w1)
    gives_dx = w1_scaled.numel() > 0
    strips = ceil_div(height, stride * tile["ROWS"]) * ceil_div(width, stride * tile["P"])
    dx, sums = float32(x, *(x.shape if gives_dx else [0])), float32(x, batch * strips, 10 + cin, wide)
    arguments = (x, w1, scale, shift, taps, w1_scaled, dd, dx, sums, height, width, dd.shape[1], dd.shape[2])
    k = max(32 if gives_dx else 16, padded(cin))  # other tiles spill registers
    constants = {"CIN": cin, "K": k, "WIDE": wide, "STRIDE": stride, "GIVES_DX": gives_dx}
    return Launch([dx, sums], (strips, batch), arguments, constants)


LAUNCHES = {
    "moments": moments,
    "depthwise": depthwise,
    "project": project,
    "project_backward": project_backward,
    "expansion_backward": expansion_backward,
}


def precision(images: Tensor, kernel: str) -> str:
    """The matrix products' precision: that of convolutions by PyTorch's flags, and for statistics IEEE float32."""
    if images.device.type == "cpu":
        return "interpreted"
    tf32 = images.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 and kernel != "moments"
    return "tf32" if tf32 else "ieee"


@custom_op("multicard::fused", mutates_args=())
def run(kernel: str, inputs: list[Tensor], stride: int) -> list[Tensor]:
    """The outputs of a kernel of `LAUNCHES`."""
    outputs, grid, arguments, constants = LAUNCHES[kernel](*inputs, stride)
    launched = getattr(kernels, f"{kernel}_kernel")[grid]
    launched(*arguments, **constants, **TILES[kernel], PRECISION=precision(inputs[0], kernel))
    return outputs


@run.register_fake
def _(kernel: str, inputs: list[Tensor], stride: int) -> list[Tensor]:
    return LAUNCHES[kernel](*inputs, stride).outputs


class Fused(torch.autograd.Function):
    """Expansion, BatchNorm, ReLU6, depthwise 3 x 3, BatchNorm, ReLU6 and projection, by the batch's statistics.

    The expansion is linear: the statistics of its output follow from the mean and the covariance of its input, and so
    do the terms that they add to the gradients of its weight and its input.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, gamma1: Tensor, beta1: Tensor, taps: Tensor, gamma2: Tensor, beta2: Tensor,
        w2: Tensor, epsilons: tuple[float, float], stride: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """(B, H', W', COUT) of x (B, H, W, CIN), w1 (E, CIN), taps (E, 9) and w2 (COUT, E), which are rounded to x's
        type; and the mean and biased variance of both BatchNorms, float64."""
        w1, taps, w2 = w1.to(x.dtype), taps.to(x.dtype).t().contiguous(), w2.to(x.dtype)
        count, wide, near = pixels(x), w1.double(), x[:1].float().mean((0, 1, 2))
        (sums,) = run("moments", [x, near], stride)
        *products, offset = (sums.sum(0, dtype=torch.float64) / count).unbind()
        x_mean, covariance = near + offset, torch.stack(products) - offset[:, None] * offset
        mean1, var1 = wide @ x_mean, ((wide @ covariance) * wide).sum(1).clamp_min(0)
        rstd1 = (var1 + epsilons[0]).rsqrt()
        scale1 = gamma1 * rstd1
        affine1 = scale1.float(), (beta1 - mean1 * scale1).float()
        d, sums = run("depthwise", [x, w1, *affine1, taps], stride)
        mean2, squares = (sums.sum(0, dtype=torch.float64) / pixels(d)).unbind()
        var2 = (squares - mean2 * mean2).clamp_min(0)
        rstd2 = (var2 + epsilons[1]).rsqrt()
        affine2 = (gamma2 * rstd2).float(), (beta2 - mean2 * gamma2 * rstd2).float()
        none = float32(x, 0)
        (out,) = run("project", [d, *affine2, w2, none, none], stride)
        ctx.stride = stride
        ctx.save_for_backward(
            x, w1, taps, w2, d, *affine1, *affine2, x_mean, covariance, scale1, rstd1, mean2, rstd2
        )  # fmt: skip
        ctx.mark_non_differentiable(mean1, var1, mean2, var2)
        return out, mean1, var1, mean2, var2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, w1, taps, w2, d, *rest = ctx.saved_tensors
        affine1, affine2, (x_mean, covariance, scale1, rstd1, mean2, rstd2) = rest[:2], rest[2:4], rest[4:]
        grad, wide, none = grads[0].to(x.dtype).contiguous(), w1.double(), float32(x, 0)
        needs_dx = ctx.needs_input_grad[0]
        both = [grad, d, w2, *affine2, mean2.float()]
        (sums,) = run("project_backward", [*both, none], ctx.stride)
        beta2, weighted, *w2_grad = sums.sum(0, dtype=torch.float64).unbind()
        gamma2 = weighted * rstd2
        factors = torch.stack([torch.ones_like(rstd2), -rstd2 * gamma2 / pixels(d), -beta2 / pixels(d)]) * affine2[0]
        (dd,) = run("project_backward", [*both, factors.float()], ctx.stride)
        w1_scaled = (wide * scale1[:, None]).to(x.dtype) if needs_dx else none
        dx, sums = run("expansion_backward", [x, w1, *affine1, taps, w1_scaled, dd], ctx.stride)
        *taps_grad, beta1, products = sums.sum(0, dtype=torch.float64).split([1] * 10 + [x.shape[-1]])
        centred = products.t() - beta1.t() * x_mean
        gamma1 = rstd1 * (wide * centred).sum(1)
        w1_grad = scale1[:, None] * (centred - (gamma1 * rstd1)[:, None] * (wide @ covariance))
        if needs_dx:
            along = wide.t() @ ((scale1 * gamma1 * rstd1 / pixels(x))[:, None] * wide)
            bias = x_mean @ along - (scale1 * beta1[0] / pixels(x)) @ wide
            (dx,) = run("project", [x, none, none, (-along).to(x.dtype), dx, bias.float()], ctx.stride)
        parameters = w1_grad, gamma1, beta1[0], torch.cat(taps_grad).t(), gamma2, beta2, torch.stack(w2_grad)
        return dx if needs_dx else None, *(each.float() for each in parameters), None, None


class FusedResidual(nn.Sequential):
    """The layers of an inverted residual as `torchvision` has them; in evaluation they run one by one."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the container's name
        """(B, CIN, H, W) to (B, COUT, H', W'), channels-last in memory."""
        layers: Any = self
        (expand, norm1, _), (depthwise, norm2, _), project, norm3 = layers
        if not (norm1.training and norm2.training):
            return super().forward(input)
        return norm3(projected(input.permute(0, 2, 3, 1), expand.weight, norm1, depthwise, norm2, project))


class GreyFeatures(nn.Sequential):
    """MobileNetV2's layers for grey images, whose stem and first block train as one fused block: of three equal
    channels, the stem is an expansion of the 3 x 3 patch of one, by the sum of their weights."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the container's name
        """(B, 3, H, W), or one of the channels (B, 1, H, W), to (B, C, H', W'), channels-last in memory."""
        layers: Any = self
        (stem, norm1, _), first, *others = layers
        (depthwise, norm2, _), project, norm3 = first.conv
        if not (norm1.training and norm2.training):
            return super().forward(input.expand(-1, 3, -1, -1))
        # 4 x 4, of which the weights use 3 x 3: the kernels load 16 values at once
        patches = pad(input[:, 0], (1, 2, 1, 2)).unfold(1, 4, 2).unfold(2, 4, 2).flatten(3)
        weight = pad(stem.weight.sum(1), (0, 1, 0, 1))
        out = norm3(projected(patches, weight, norm1, depthwise, norm2, project))
        for layer in others:
            out = layer(out)
        return out


def projected(images: Tensor, weight: Tensor, norm1: Any, depthwise: Any, norm2: Any, project: Any) -> Tensor:
    """(B, COUT, H', W'), channels-last in memory, of images (B, H, W, CIN) by fused layers, of which `weight` (E, CIN)
    expands; the running statistics of both BatchNorms are updated."""
    device = images.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype
    images = images.to(dtype).contiguous()
    parameters = weight, norm1.weight, norm1.bias, depthwise.weight, norm2.weight, norm2.bias, project.weight
    flat = [each.flatten(1) if each.dim() > 1 else each for each in parameters]
    out, *statistics = Fused.apply(images, *flat, (norm1.eps, norm2.eps), depthwise.stride[0])
    counts = images.shape[:3].numel(), out.shape[:3].numel()
    for norm, count, mean, variance in zip((norm1, norm2), counts, statistics[::2], statistics[1::2], strict=True):
        track(norm, mean, variance * (count / (count - 1)))
    return out.permute(0, 3, 1, 2)


@torch.no_grad()
def track(norm: Any, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics as BatchNorm does in training; `variance` is unbiased."""
    norm.num_batches_tracked.add_(1)
    share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    for running, batch in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.mul_(1 - share).add_(batch.to(running.dtype) * share)


def fuse(
    model: Any, image_size: int, grey: bool = False, least: int = LEAST_EXPANDED, least_stem: int = LEAST_STEM
) -> nn.Module:
    """The MobileNetV2, with those of its blocks fused in place that gain by it on images of that side, in pixels; their
    number is its `fused_blocks`. Where it `reads_grey`, the stem is among them, which takes images to be grey."""
    side = -(-image_size // 2)
    model.reads_grey = grey and model.features[0][0].out_channels * side**2 >= least_stem
    model.fused_blocks = int(model.reads_grey)
    if model.reads_grey:
        model.features.__class__ = GreyFeatures
    for block in model.features[1:-1]:
        layers = block.conv
        expands = len(layers) == 4 and layers[0][0].in_channels <= WIDEST_INPUT
        if expands and layers[0][0].out_channels * side**2 >= least:
            layers.__class__ = FusedResidual
            model.fused_blocks += 1
        side = -(-side // block.stride)
    return model
