"""`model.blocks=fused`: MobileNetV2's wide early blocks train without storing the expanded tensor."""

from typing import Any

import torch
from torch import Tensor, nn

from multicard.vision.fused.ops import Fused

WIDEST_INPUT = 32  # channels: a block's input and weights are in registers
LEAST_EXPANDED = 3_000_000  # values of an image: below, recomputing takes what is saved of the memory's traffic


class FusedResidual(nn.Sequential):
    """The layers of an inverted residual as `torchvision` has them; in evaluation they run one by one."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the container's name
        """(B, CIN, H, W) to (B, COUT, H', W'), channels-last in memory."""
        layers: Any = self
        (expand, norm1, _), (depthwise, norm2, _), project, norm3 = layers
        if not (norm1.training and norm2.training):
            return super().forward(input)
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        images = input.to(dtype).permute(0, 2, 3, 1).contiguous()
        parameters = expand.weight, norm1.weight, norm1.bias, depthwise.weight, norm2.weight, norm2.bias, project.weight
        flat = [each.flatten(1) if each.dim() > 1 else each for each in parameters]
        stride = depthwise.stride[0]
        out, *statistics = Fused.apply(images, *flat, (norm1.eps, norm2.eps), stride)
        counts = images.shape[:3].numel(), out.shape[:3].numel()
        for norm, count, mean, variance in zip((norm1, norm2), counts, statistics[::2], statistics[1::2], strict=True):
            track(norm, mean, variance * (count / (count - 1)))
        return norm3(out.permute(0, 3, 1, 2))


@torch.no_grad()
def track(norm: Any, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics as BatchNorm does in training; `variance` is unbiased."""
    norm.num_batches_tracked.add_(1)
    share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    for running, batch in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.mul_(1 - share).add_(batch.to(running.dtype) * share)


def fuse(model: Any, image_size: int, least: int = LEAST_EXPANDED) -> nn.Module:
    """The MobileNetV2, with those of its blocks fused in place that gain by it on images of that side, in pixels; their
    number is its `fused_blocks`."""
    side, model.fused_blocks = -(-image_size // 2), 0
    for block in model.features[1:-1]:
        layers = block.conv
        expands = len(layers) == 4 and layers[0][0].in_channels <= WIDEST_INPUT
        if expands and layers[0][0].out_channels * side**2 >= least:
            layers.__class__ = FusedResidual
            model.fused_blocks += 1
        side = -(-side // block.stride)
    return model
