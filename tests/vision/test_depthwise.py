"""Depthwise convolutions by Triton: the numbers of the convolution, here in Triton's interpreter,
by kernels whose values GPUs hold in their registers.
"""

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import ahead_of_time
from benchmarks import depthwise as benchmark
from benchmarks.depthwise import Layer
from multicard.config.vision import Depthwise, ModelConfig
from multicard.vision import depthwise, depthwise_kernels, models
from multicard.vision.depthwise import DepthwiseTriton, launch_of
from tests.helpers.convolved import interpreted

# kind, images, channels, height, width, side of the taps, stride
CASES: list[tuple[str, int, int, int, int, int, int]] = [
    ("float64", 2, 5, 7, 9, 3, 1),
    ("float64", 1, 33, 8, 35, 3, 2),
    ("float64", 1, 2, 9, 8, 7, 2),
    ("float32", 1, 1, 1, 1, 3, 1),
    ("float32", 1, 48, 34, 3, 3, 1),  # two strips, and 16 channels a block
    ("float32", 1, 3, 9, 11, 5, 2),
    ("float32", 1, 2, 9, 10, 3, 4),  # of inputs that no output reads
    ("float16", 1, 7, 5, 67, 3, 1),  # three tiles
    ("float16", 2, 4, 6, 37, 5, 1),
    ("float16", 1, 2, 9, 8, 7, 1),
    ("bfloat16", 1, 12, 7, 8, 3, 2),
    ("bfloat16", 2, 2, 3, 2, 5, 3),
]
ERRORS = """
import json, torch
from tests.helpers.convolved import errors
from tests.vision.test_depthwise import CASES
print(json.dumps([errors(*case) for case in CASES]))
"""
CONTRACT = """
import json, torch
from torch.library import opcheck
from multicard.vision.depthwise import depthwise, depthwise_backward
images = torch.randn(2, 20, 6, 7).contiguous(memory_format=torch.channels_last)
taps, gradient = torch.randn(20, 1, 3, 3), torch.randn(2, 20, 3, 4)
for own in (True, False):
    leaves = images.clone().requires_grad_(), taps.clone().requires_grad_()
    opcheck(depthwise, (*leaves, 2, True, own))
    opcheck(depthwise, (*leaves, 2, False, own))
for of_x, of_taps in ((True, True), (True, False), (False, True)):
    opcheck(depthwise_backward, (gradient, images, taps, 2, of_x, of_taps))
"""
BEHAVIOUR = """
import json, torch
from torch.library import opcheck
from multicard.vision.depthwise import depthwise, depthwise_backward
torch.manual_seed(0)
images = torch.randn(2, 20, 6, 7).contiguous(memory_format=torch.channels_last)
taps, gradient = torch.randn(20, 1, 3, 3), torch.randn(2, 20, 3, 4)
both = depthwise_backward(gradient, images, taps, 2)
scattered = torch.randn(2, 20, 3, 8)[..., ::2].copy_(gradient)
again = depthwise_backward(scattered, images.contiguous(), taps, 2)
found = {"repeated": all(torch.equal(one, other) for one, other in zip(both, again))}
of_taps = depthwise_backward(gradient, images, taps, 2, False)[1]
of_images = depthwise_backward(gradient, images, taps, 2, True, False)[0]
found["alone"] = torch.equal(of_images, both[0]) and torch.equal(of_taps, both[1])
frozen = images.clone(), taps.clone().requires_grad_()
depthwise(*frozen, 2).backward(gradient)
found["needed"] = frozen[0].grad is None and torch.equal(frozen[1].grad, both[1])
leaf = images.clone().requires_grad_()
(first,) = torch.autograd.grad(depthwise(leaf, taps, 2), leaf, gradient.requires_grad_(), create_graph=True)
try:
    first.sum().backward()
    found["twice"] = "computed"
except Exception as error:
    found["twice"] = type(error).__name__
layers = torch.nn.Sequential(torch.nn.Conv2d(3, 20, 1), torch.nn.ReLU())

def step(run):
    for leaf in (*layers.parameters(), taps):
        leaf.grad = None
    loss = run(torch.ones(2, 3, 6, 7)).square().sum()
    loss.backward()
    return [loss.detach(), taps.grad.clone(), *(each.grad.clone() for each in layers.parameters())]

taps.requires_grad_()
model = lambda x: depthwise(layers(x), taps, 2)
plain, compiled = step(model), step(torch.compile(model, backend="aot_eager", fullgraph=True))
found["compiled"] = all(torch.allclose(one, other, rtol=1e-5) for one, other in zip(plain, compiled))
print(json.dumps(found))
"""
FAR = """
import json, torch
from torch.nn.functional import conv2d
from triton.runtime.interpreter import GridExecutor, interpreter_builder as builder
from multicard.vision import depthwise_kernels as kernels
from multicard.vision.depthwise import launch_of
shape = 16, 64, 64
count = 2**31 // (16 * 64 * 64) + 2
x, y, gradient, dx = (
    torch.empty(count, *shape, dtype=torch.float16, memory_format=torch.channels_last) for _ in range(4)
)  # the pages of all but the last image are never touched
taps, launch = torch.randn(16, 1, 3, 3).half(), launch_of(x, 3, 1)
each, place, span = launch.programs // count, builder.set_grid_idx, builder.set_grid_dim
builder.set_grid_dim = lambda *_: span(launch.programs, 1, 1)
GridExecutor._restore_args_dev = lambda *_: None  # which would copy all images onto themselves
builder.set_grid_idx = lambda number, *others: place(launch.programs - each + number, *others)
for images in (x, gradient):
    images[-1] = torch.randn(shape)
sums = torch.zeros(launch.parts, 9, 16)
kernels.forward[(each,)](x, taps, y, *launch.sizes, **launch.constants, **launch.options)
wanted = {"GIVES_DX": True, "GIVES_SUMS": True}
kernels.backward[(each,)](x, gradient, taps, dx, sums, *launch.sizes, **launch.constants, **wanted, **launch.options)
last = x[-1:].float().requires_grad_(), taps.float().requires_grad_()
output = conv2d(*last, padding=1, groups=16)
output.backward(gradient[-1:].float())
pairs = (y[-1], output[0]), (dx[-1], last[0].grad[0]), (sums.sum(0).t().reshape(taps.shape), last[1].grad)
print(json.dumps([((own.float() - other).norm() / other.norm()).item() for own, other in pairs]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_all_passes_are_the_convolutions():
    found = interpreted(ERRORS)
    assert len(found) == len(CASES)
    for case, each in zip(CASES, found, strict=True):
        assert max(each) < 16, case


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_operators_keep_torchs_contract():
    """Schema, fake tensors, autograd and AOTAutograd, of all ways to compute."""
    interpreted(CONTRACT)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_gradients_are_the_same_bits_whatever_the_layout_and_whichever_are_asked_for():
    found = interpreted(BEHAVIOUR)
    assert found == {
        "repeated": True,
        "alone": True,
        "needed": True,
        "twice": "RuntimeError",
        "compiled": True,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_images_beyond_2_to_the_31_values_are_reached():
    assert max(interpreted(FAR)) < 1e-3


def test_depthwise_convolutions_alone_are_turned():
    plain: dict[str, Any] = {"kernel_size": 3, "padding": 1, "groups": 4}
    others: list[dict[str, Any]] = [
        {"groups": 2},
        {"dilation": 2},
        {"stride": (1, 2)},
        {"padding": 0},
        {"padding_mode": "circular"},
        {"kernel_size": 2},
        {"kernel_size": (3, 5)},
        {"kernel_size": 9, "padding": 4},
    ]
    for other in others:
        assert not DepthwiseTriton.computes(nn.Conv2d(4, 4, **plain | other)), other
    assert not DepthwiseTriton.computes(nn.Conv2d(1, 1, 3, padding=1))
    assert not DepthwiseTriton.computes(nn.Conv2d(4, 8, **plain))
    for same in (
        {},
        {"bias": False},
        {"stride": 3},
        {"padding": "same"},
        {"kernel_size": 7, "padding": 3},
    ):
        assert DepthwiseTriton.computes(nn.Conv2d(4, 4, **plain | same)), same
    turned = models.build(ModelConfig("mobilenet_v2", 0.35, depthwise=Depthwise.triton), 10, 32)
    plain_model = models.build(ModelConfig("mobilenet_v2", 0.35), 10, 32)
    assert [*turned.state_dict()] == [*plain_model.state_dict()]
    assert sum(isinstance(module, DepthwiseTriton) for module in turned.modules()) == 17


class OnCuda(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize(
    ("side", "kernel", "expected"),
    [
        (250, 3, (True, True)),
        (128, 7, (True, True)),
        (127, 3, (False, True)),
        (16, 5, (False, True)),
        (127, 7, (False, False)),
    ],
)
def test_which_passes_are_the_kernels(side: int, kernel: int, expected: tuple[bool, bool]):
    """What is known of cuDNN decides: see the module. Images that are not channels-last,
    or on the CPU, have none.
    """
    layer = nn.Conv2d(4, 4, kernel, padding=kernel // 2, groups=4)
    models.turn_into(DepthwiseTriton, nn.Sequential(layer))
    assert isinstance(layer, DepthwiseTriton)
    images = torch.empty(2, 4, side, side).as_subclass(OnCuda)
    assert layer.own_passes(images) == (False, False)
    channels_last = torch.empty(2, 4, side, side, memory_format=torch.channels_last)
    assert layer.own_passes(channels_last.as_subclass(OnCuda)) == expected
    with torch.no_grad():  # compilers know more of a convolution than of an operator here
        assert layer.own_passes(channels_last.as_subclass(OnCuda)) == (expected[0], False)
    assert layer.own_passes(channels_last) == (False, False)
    # offsets have 32 bits
    huge = torch.empty(1, 4, 2**14, 2**15, device="meta", memory_format=torch.channels_last)
    assert layer.own_passes(huge.as_subclass(OnCuda)) == (False, False)
    assert layer.own_passes(huge[:, :, :-1].as_subclass(OnCuda)) == (True, True)


@pytest.mark.parametrize("bias", [False, True])
def test_cpu_ranks_have_a_convolution(bias: bool):
    layer, images = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=bias), torch.randn(2, 4, 5, 6)
    model, expected = nn.Sequential(layer), layer(images)
    models.turn_into(DepthwiseTriton, model)
    assert type(model[0]) is DepthwiseTriton
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


# ---- compiled for GPUs that are not there

QUICK = [Layer(32, 250, 3, 1), Layer(96, 250, 3, 2)]
LAYERS = [
    Layer(144, 125, 3, 1),
    Layer(960, 16, 3, 1),
    Layer(96, 64, 3, 3),
    Layer(96, 125, 5, 1),
    Layer(96, 125, 5, 2),
    Layer(96, 56, 7, 1),
    Layer(96, 56, 7, 2),
]


def code_of(
    layer: Layer, kind: str, dtype: torch.dtype, capability: int
) -> ahead_of_time.CompiledKernel:
    images = layer.images(64, dtype, "meta")
    launch = launch_of(images, layer.kernel, layer.stride)
    tensors, constants = [images] * 3, launch.constants
    if kind == "backward":
        tensors = [images] * 4 + [images.new_empty(0, dtype=torch.float32)]
        constants = constants | {"GIVES_DX": True, "GIVES_SUMS": True}
    kernel = getattr(depthwise_kernels, kind)
    return ahead_of_time.compile_kernel(kernel, tensors, constants, launch.options, capability)


@pytest.mark.parametrize("layer", QUICK, ids=lambda layer: layer.name)
def test_kernels_fit_a_gpus_registers(layer: Layer):
    code = code_of(layer, "backward", torch.float16, 90)
    assert code.stack_bytes == 0 and code.registers <= depthwise.REGISTERS
    # two values at once in the loop
    assert "ld.global.b16" not in code.ptx.rpartition("$L__BB0_1:")[2]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("kind", benchmark.PASSES)
def test_no_kernel_spills_registers(kind: str, capability: int):
    cases = [(layer, torch.float16) for layer in (*QUICK, *LAYERS)]
    cases += [
        (layer, dtype) for layer in (*QUICK, LAYERS[3]) for dtype in (torch.bfloat16, torch.float32)
    ]
    spilled = [
        (layer.name, dtype)
        for layer, dtype in cases
        if code_of(layer, kind, dtype, capability).stack_bytes > 0
    ]
    assert spilled == []
