"""MobileNetV2's convolutions made otherwise, with the same numbers: pointwise ones as matrix products, depthwise ones
by Triton, here in its interpreter."""

import json
import math
import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict
from hashlib import sha256
from json import dumps

import pytest
import torch
import triton.language as tl
from torch import nn
from torch.nn.functional import conv2d
from triton.compiler import ASTSource

from multicard.config import schema
from multicard.config.keys import flat
from multicard.config.vision import Depthwise, ModelConfig, Pointwise
from multicard.vision import convolutions, models
from multicard.vision.convolutions import DepthwiseTriton, PointwiseLinear
from tests.conftest import ROOT, typed
from tests.helpers.ahead_of_time import compiled


def mobilenet(pointwise: Pointwise = Pointwise.convolution) -> nn.Module:
    return models.build(ModelConfig("mobilenet_v2", 0.35, pointwise), 10, 32)


CASES = {
    "with a bias": (lambda: nn.Sequential(nn.Conv2d(5, 7, 1)), (2, 5, 3, 4)),
    "without a bias": (lambda: nn.Sequential(nn.Conv2d(5, 7, 1, bias=False)), (2, 5, 3, 4)),
    "MobileNet": (lambda: mobilenet().eval(), (2, 3, 32, 32)),  # no dropout
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_the_convolutions(case: str):
    torch.manual_seed(0)
    build, shape = CASES[case]
    plain, results = build().double(), []
    turned = deepcopy(plain)
    models.turn_into(PointwiseLinear, turned)
    for model in (plain, turned):
        model.to(memory_format=torch.channels_last)
        images = torch.arange(float(math.prod(shape))).sin().reshape(shape).double()
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        outputs = model(images)
        outputs.square().sum().backward()
        assert outputs.dim() == 2 or outputs.is_contiguous(memory_format=torch.channels_last)
        assert images.grad is not None and images.grad.is_contiguous(memory_format=torch.channels_last)
        results.append([outputs, images.grad, *(parameter.grad for parameter in model.parameters())])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-13)


def test_only_pointwise_convolutions_of_mobilenet_are_turned():
    others = [{"kernel_size": 3}, {"kernel_size": 1, "stride": 2}, {"kernel_size": 1, "groups": 2}]
    for options in [*others, {"kernel_size": 1, "padding": 1}]:
        assert not PointwiseLinear.computes(nn.Conv2d(4, 4, **options))
    turned = mobilenet(Pointwise.linear)
    assert [*turned.state_dict()] == [*mobilenet().state_dict()]
    assert sum(isinstance(module, PointwiseLinear) for module in turned.modules()) == 34


def test_it_is_an_option_of_its_own():
    linear = typed("layout=nhwc", "model.pointwise=linear")
    assert linear.identity() != typed("layout=nhwc").identity()
    measured = {key: value for key, value in asdict(typed()).items() if key not in schema.beside()}
    own = flat(measured)
    for later, came_after in schema.since().items():  # as before they were there
        if later == "stop_at_target" or not any(before in own for before, _ in came_after):
            continue  # images always had the target; other keys are of other commands
        group, _, key = later.rpartition(".")
        (measured.get(group, {}) if group else measured).pop(key, None)
    assert typed().identity() == sha256(dumps(measured, sort_keys=True).encode()).hexdigest()[:8]


SHAPES = [(2, 32, 5, 7, 1), (1, 48, 4, 35, 2), (1, 64, 3, 3, 1), (1, 36, 1, 1, 2)]
EPSILON = {"float64": 2.2e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.8e-3}
TYPES_AND_SHAPES = [*(("float64", shape) for shape in SHAPES), *zip([*EPSILON][1:], SHAPES, strict=False)]
CHECK = """
import json, torch
from torch.library import opcheck
from multicard.vision.convolutions import depthwise
from tests.vision.test_convolutions import TYPES_AND_SHAPES, errors
images = torch.randn(2, 32, 6, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
opcheck(depthwise, (images, torch.randn(32, 1, 3, 3, requires_grad=True), 2))
print(json.dumps([[kind, *errors(getattr(torch, kind), *shape)] for kind, shape in TYPES_AND_SHAPES]))
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
    assert len(rows) == len(TYPES_AND_SHAPES)
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
