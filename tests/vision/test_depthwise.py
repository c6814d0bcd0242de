"""Depthwise convolutions by Triton: the same numbers, in Triton's interpreter; kernels that keep within registers."""

import json
import subprocess
import sys

import pytest
import torch
import triton.language as tl
from torch import nn
from torch.nn.functional import conv2d
from triton.compiler import ASTSource

from multicard.config.vision import Depthwise, ModelConfig
from multicard.vision import convolutions, models
from multicard.vision.convolutions import DepthwiseTriton
from tests.conftest import ROOT
from tests.vision.test_fused import compiled

SHAPES = [(2, 32, 5, 7, 1), (1, 48, 4, 35, 2), (1, 64, 3, 3, 1), (1, 36, 1, 1, 2)]
EPSILON = {"float64": 2.2e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.8e-3}
CASES = [*(("float64", shape) for shape in SHAPES), *zip([*EPSILON][1:], SHAPES, strict=False)]
CHECK = """
import json, torch
from torch.library import opcheck
from multicard.vision.convolutions import depthwise
from tests.vision.test_depthwise import CASES, errors
images = torch.randn(2, 32, 6, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
opcheck(depthwise, (images, torch.randn(32, 1, 3, 3, requires_grad=True), 2))
print(json.dumps([[kind, *errors(getattr(torch, kind), *shape)] for kind, shape in CASES]))
"""


def errors(kind: torch.dtype, count: int, channels: int, height: int, width: int, stride: int) -> list[float]:
    """Relative errors of the output and both gradients, against the convolution in float64."""
    random = torch.Generator().manual_seed(height * width)
    images = torch.randn(count, channels, height, width, generator=random, dtype=torch.float64).to(kind)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    weights = torch.randn(channels, 1, 3, 3, generator=random, dtype=torch.float64).to(kind)
    output = convolutions.depthwise(images, weights.requires_grad_(), stride)
    assert output.dtype == kind and output.is_contiguous(memory_format=torch.channels_last)
    upstream = torch.randn(output.shape, generator=random, dtype=torch.float64).to(kind)
    output.backward(upstream)
    exact = [tensor.detach().double().requires_grad_() for tensor in (images, weights)]
    expected = conv2d(*exact, stride=stride, padding=1, groups=channels)
    expected.backward(upstream.double())
    pairs = (output, expected), (images.grad, exact[0].grad), (weights.grad, exact[1].grad)
    return [((got.double() - wanted).norm() / wanted.norm()).item() for got, wanted in pairs]  # pyright: ignore


@pytest.mark.usefixtures("processes")
def test_all_passes_are_the_convolutions():
    line, variables = [sys.executable, "-c", CHECK], {"TRITON_INTERPRET": "1", "PATH": ""}
    ran = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)
    assert len(rows) == len(CASES)
    for kind, *found in rows:
        assert max(found) < 2 * EPSILON[kind]


def test_depthwise_convolutions_alone_are_turned():
    options = [{}, {"groups": 2}, {"groups": 4, "bias": True}, {"groups": 4, "dilation": 2}, {"groups": 4, "stride": 3}]
    for other in options:
        assert not DepthwiseTriton.computes(nn.Conv2d(4, 4, 3, **{"padding": 1, "bias": False} | other))
    turned = models.build(ModelConfig("mobilenet_v2", 0.35, depthwise=Depthwise.triton), 10, 32)
    plain = models.build(ModelConfig("mobilenet_v2", 0.35), 10, 32)
    assert [*turned.state_dict()] == [*plain.state_dict()]
    assert sum(isinstance(module, DepthwiseTriton) for module in turned.modules()) == 17


def test_cpu_ranks_have_a_convolution():
    layer, images = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), torch.randn(2, 4, 5, 6)
    model, expected = nn.Sequential(layer), layer(images)
    models.turn_into(DepthwiseTriton, model)
    assert type(model[0]) is DepthwiseTriton
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize("stride", [1, 2])
def test_kernels_fit_a_gpus_registers(stride: int):
    kinds = dict.fromkeys(("x", "y", "weight"), "*fp16")
    kernel, options = convolutions._forward, {"num_warps": convolutions.WARPS}
    constants = {"stride": stride, "total": tl.float32, "rows": convolutions.ROWS, "columns": convolutions.COLUMNS}
    constants |= {"block": convolutions.CHANNELS}
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in kernel.arg_names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(signature) if name in {*kinds, "channels"}}
    for capability in (80, 90, 100):
        source = ASTSource(kernel, signature, constants, aligned)
        result, usage = compiled(source, capability, options)
        assert "ld.global.v4" in result.asm["ptx"]  # 16 bytes at once
        assert " LOCAL:0 " in usage  # bytes of spilled registers
