"""Fused inverted residuals: the numbers of the plain ones, by kernels whose values GPUs hold in their registers."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from multicard.config.placement import Placement
from multicard.config.vision import Blocks, ModelConfig
from multicard.records import run_folder
from multicard.vision import fused_blocks, models, workload
from multicard.vision import fused_kernels as kernels
from multicard.vision.fused_blocks import FusedResidual, GreyFeatures, fuse
from tests.conftest import ROOT, Measuring, typed
from tests.helpers.messages import refused

FUSED = ("layout=nhwc", "model.blocks=fused")
CASES = {  # dtype, autocast, stride, channels in and out (equal: a residual is added), batch, height, width
    "fp32": ("float32", False, 2, 12, 8, 2, 5, 6),
    "fp16": ("float16", True, 1, 8, 8, 2, 5, 7),
    "fp16, stride 2": ("float16", True, 2, 24, 12, 1, 7, 5),
    "bf16": ("bfloat16", True, 1, 8, 12, 1, 6, 5),
}


def interpreted(*words: object) -> dict[str, Any]:
    """What the helper prints: relative errors by name, or of a run."""
    line = [sys.executable, "-m", "tests.helpers.fused_blocks", *map(str, words)]
    run = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_outputs_gradients_and_statistics_are_the_plain_blocks(processes: None, case: str):
    errors = interpreted("block", *CASES[case])
    epsilon = torch.finfo(getattr(torch, CASES[case][0])).eps
    assert len(errors) == 2 + 9 + 9 + 1  # output and input, parameters, buffers, evaluation
    # a few roundings to the type
    assert {name: error for name, error in errors.items() if not error < 16 * epsilon} == {}
    assert errors["conv.0.1.running_mean"] < 1e-6  # of the expansion, which no type has rounded
    assert errors["evaluation"] < epsilon  # the same layers, whose threads may add up in another order


STEMS = {  # dtype, autocast, channels out of the stem and of its block, batch, height, width
    "fp32": ("float32", False, 16, 8, 2, 9, 12),
    "fp16, one image": ("float16", True, 32, 16, 1, 14, 11),
    "bf16": ("bfloat16", True, 24, 8, 3, 8, 9),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STEMS)
def test_the_stem_of_grey_images_is_the_plain_one(processes: None, case: str):
    """Beside a further layer, which runs as it is. The sums of three rounded weights are rounded once."""
    errors = interpreted("stem", *STEMS[case])
    epsilon = torch.finfo(getattr(torch, STEMS[case][0])).eps
    assert len(errors) == 1 + 11 + 9 + 1  # output, parameters, buffers, evaluation
    assert {name: error for name, error in errors.items() if not error < 16 * epsilon} == {}
    assert errors["evaluation"] < epsilon  # the same layers, whose threads may add up in another order


@pytest.mark.slow
@pytest.mark.parametrize("grey", [False, True])
def test_training_under_ddp_is_the_plain_models(processes: None, grey: bool):
    """Weights and statistics after two steps, the second with a smaller batch. Rounding of float32 reaches 4e-4 of the
    smallest in 12 layers; steps of 0.1 have moved them by a hundred times that. Each rank has its own statistics."""
    first, second = interpreted("ranks", grey)
    assert max(*first.values(), *second.values()) < 2e-3
    assert any(name.endswith("conv.1.1.running_var") for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["torch", "device"])
def test_a_run_fuses_the_stem_of_grey_images_alone(processes: None, loader: str):
    runs = interpreted("runs", loader)
    assert {name: run["fused_blocks"] for name, run in runs.items()} == {"plain": 0, "grey": 1, "coloured": 0}
    assert runs["grey"]["losses"] == pytest.approx(runs["plain"]["losses"], rel=1e-6)
    # each loader's one channel has the same strides; the last batch is short
    assert runs["grey"]["read"] == [[[size, 1, 32, 32], [32 * 32, 32 * 32, 32, 1]] for size in (2, 4)]
    assert runs["coloured"]["read"] == []


STEM = "features.0 and .1"
# MobileNetV2's stem of grey patches, and its first blocks that expand: channels in, expanded and out, stride
BLOCKS = {
    STEM: (16, 32, 16, 1),
    "features.2": (16, 96, 24, 2),
    "features.3": (24, 144, 24, 1),
    "features.4": (24, 144, 32, 2),
}
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
OPTIONS = ("num_warps", "num_stages")  # of the compiler; the rest of a tile are the kernel's constants


class Call(NamedTuple):
    """A launch of a kernel in a step of a block. use: forward, or which part of backward."""

    block: str
    kernel: str
    use: str
    inputs: list[Tensor]
    stride: int


def calls(size: int, batch: int) -> Iterator[Call]:
    """The launches of a step in fp16, whose values are not there."""

    def values(*shape: int, like: torch.dtype = torch.float16) -> Tensor:
        return torch.empty(shape, device="meta", dtype=like)

    side = -(-size // 2)
    none = torch.empty(0, device="meta")
    for name, (cin, wide, cout, stride) in BLOCKS.items():
        less = -(-side // stride)
        x, d, dp = values(batch, side, side, cin), values(batch, less, less, wide), values(batch, less, less, cout)
        w1, taps, w2 = values(wide, cin), values(9, wide), values(cout, wide)
        each = values(wide, like=torch.float32)
        dx, narrow = values(*x.shape, like=torch.float32), values(cin, like=torch.float32)
        factors = values(3, wide, like=torch.float32)
        yield Call(name, "moments", "forward", [x, narrow], stride)
        yield Call(name, "depthwise", "forward", [x, w1, each, each, taps], stride)
        yield Call(name, "project", "forward", [d, each, each, w2, none, none], stride)
        yield Call(name, "project_backward", "sums", [dp, d, w2, each, each, each, none], stride)
        yield Call(name, "project_backward", "dd", [dp, d, w2, each, each, each, factors], stride)
        if name == STEM:
            yield Call(name, "expansion_backward", "sums", [x, w1, each, each, taps, none, d], stride)
        else:
            yield Call(name, "expansion_backward", "sums and dx", [x, w1, each, each, taps, w1, d], stride)
            yield Call(name, "project", "dx", [x, none, none, values(cin, cin), dx, narrow], stride)
        side = less


def compiled(source: ASTSource, capability: int, options: dict[str, int]) -> tuple[CompiledKernel, str]:
    """A kernel for GPUs of a compute capability, as 90, compiled without one; and cuobjdump's words of it."""
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        line = [Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump", "-res-usage", file.name]
        return kernel, subprocess.run(line, capture_output=True, text=True, check=True).stdout


def resources(call: Call, capability: int) -> tuple[int, int]:
    """What the kernel of a call takes: bytes of stack of a thread, where registers spill, and bytes of shared memory of
    a program."""
    launch = fused_blocks.LAUNCHES[call.kernel](*call.inputs, call.stride)
    kernel = getattr(kernels, f"{call.kernel}_kernel")
    tile = fused_blocks.TILES[call.kernel]
    constants = launch.constants | {key: tile[key] for key in tile if key not in OPTIONS} | {"PRECISION": "ieee"}
    names, signature, hints = kernel.arg_names, dict.fromkeys(kernel.arg_names, "constexpr"), {}
    for i, value in enumerate(launch.arguments):
        signature[names[i]] = TYPES[value.dtype] if isinstance(value, Tensor) else "i32"
        if isinstance(value, Tensor) or value % 16 == 0:
            hints[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(names.index(key),): value for key, value in constants.items()}, hints)
    result, words = compiled(source, capability, {key: tile[key] for key in OPTIONS if key in tile})
    found = re.search(r"STACK:(\d+)", words)
    assert found, words
    return int(found[1]), result.metadata.shared


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("call", [*calls(500, 64)], ids=lambda call: f"{call.block} {call.use}")
def test_no_kernel_spills_registers(call: Call, capability: int):
    stack_bytes, shared_bytes = resources(call, capability)
    assert stack_bytes == 0
    assert shared_bytes < 99 * 1024  # of the smallest of these GPUs, for a program


@pytest.mark.parametrize(("size", "expected"), [(800, [2, 3, 4]), (500, [2]), (32, [])])
def test_blocks_are_fused_where_images_are_large(size: int, expected: list[int]):
    grey = size == 500
    with torch.device("meta"):
        plain, model = (models.build(ModelConfig("mobilenet_v2", blocks=value), 10, size, grey) for value in Blocks)
    assert [*model.state_dict()] == [*plain.state_dict()]
    found = [
        i for i, layer in enumerate(model.features) if any(type(part) is FusedResidual for part in layer.modules())
    ]
    assert found == expected and model.fused_blocks == len(expected) + grey
    assert type(plain.features) is nn.Sequential and (type(model.features) is GreyFeatures) == grey


def test_evaluation_and_frozen_statistics_run_layer_by_layer():
    model = fuse(models.build(ModelConfig("mobilenet_v2", width=0.35), 10, 32), 32, True, least=0, least_stem=0)
    for layers, images in (model.features[2].conv, torch.ones(2, 8, 4, 4)), (model.features, torch.ones(2, 3, 64, 64)):
        with pytest.raises(Exception, match=r"driver|device|cuda|pointer|triton"):  # no CUDA, and no interpreter
            layers(images)
        for module in model.modules():
            module.train(not isinstance(module, nn.BatchNorm2d))
        torch.testing.assert_close(layers(images), nn.Sequential(*layers)(images), rtol=0, atol=0)
        model.train()


def test_cpu_ranks_have_no_kernels_but_the_interpreters(monkeypatch: pytest.MonkeyPatch):
    config, cpu = typed(*FUSED), Placement("cpu", "gloo", 1, False)
    with refused("vision.fused-on-cpu", key="model.blocks"):
        workload.fits(config, cpu)
    workload.fits(config, Placement("cuda", "nccl", 1, False))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    workload.fits(config, cpu)


def test_the_record_counts_them(measured: Measuring, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    record = measured(*FUSED)
    assert record["config"]["model"]["blocks"] == "fused"
    environment = run_folder.read_json(Path(record["folder"]) / "environment.json")
    assert environment is not None and environment["flags"]["fused_blocks"] == 0  # images of 32 px are too small
