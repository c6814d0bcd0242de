"""How far depthwise convolutions by Triton are from torch's own in float64,
also in Triton's interpreter.
"""

import json
import os
import subprocess
import sys
from typing import Any

import torch
from torch import nn

from multicard.vision.depthwise import depthwise
from tests.conftest import ROOT


def errors(
    kind: str,
    count: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    device: str = "cpu",
) -> list[float]:
    """The largest errors against the convolution in float64: of the output,
    and of the gradients of images and taps.

    They are in units of the type's epsilon, and relative to
    the sum of the absolute products of a value.
    """
    dtype = getattr(torch, kind)
    random = torch.Generator(device).manual_seed(height * width)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64, device=device).to(dtype)

    images = (
        drawn(count, channels, height, width)
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )
    taps = drawn(channels, 1, kernel, kernel).requires_grad_()
    output = depthwise(images, taps, stride)
    assert output.dtype == dtype and output.is_contiguous(memory_format=torch.channels_last)
    upstream = drawn(*output.shape)
    output.backward(upstream)
    assert images.grad is not None and images.grad.is_contiguous(memory_format=torch.channels_last)
    exact, sizes = (
        passes(change(images.detach()), change(taps.detach()), change(upstream), stride)
        for change in (torch.Tensor.double, lambda tensor: tensor.double().abs())
    )
    found = []
    for own, other, size in zip((output, images.grad, taps.grad), exact, sizes, strict=True):
        assert own is not None and own.dtype == dtype
        apart = (own.detach().double() - other).abs() / size.clamp_min(1e-300)
        found.append(apart.max().item() / torch.finfo(dtype).eps)
    return found


def passes(
    images: torch.Tensor, taps: torch.Tensor, upstream: torch.Tensor, stride: int
) -> list[Any]:
    """Output and gradients of torch's own convolution."""
    leaves = images.requires_grad_(), taps.requires_grad_()
    output = nn.functional.conv2d(
        *leaves, stride=stride, padding=taps.shape[-1] // 2, groups=len(taps)
    )
    output.backward(upstream)
    return [output.detach(), images.grad, taps.grad]


def interpreted(program: str) -> Any:
    """What a program prints as JSON. Triton's interpreter runs its kernels,
    which has to be chosen before its start.
    """
    variables = os.environ | {"TRITON_INTERPRET": "1"}
    line = [sys.executable, "-c", program]
    ran = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]) if ran.stdout.strip() else None
