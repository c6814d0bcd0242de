"""Depthwise convolutions of `model.depthwise=triton`: what they would take by count,
and what they take on a GPU.

    python -m benchmarks.depthwise [--expected] [--model mobilenet_v2]
        [--image-size 500] [--batch-size 64]

`--expected` needs no GPU. Each pass of each layer is compiled for an H200 (compute capability 9.0);
its instructions are counted in that code and multiplied by the warps that run it. Its bytes are a
formula: each tensor read and written once, the parts of the taps' gradient too. A pass takes as
long as the slower of the two: the bytes at 75 % of the speed of a copy, as BatchNorm's kernels
reach on that GPU, or the instructions at a share of the slots in which its schedulers can issue
one. Which share is not known; kernels of this kind that were measured used 25 to 57 %.

Without it, on a GPU: the errors of both passes against float64, in units of the type's rounding of
the sum of the absolute products; and the kernels' own times beside those of PyTorch's convolution,
means of five launches. The rows follow once more as JSON.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from benchmarks import ahead_of_time, device_here, machine, parser
from multicard.config.vision import Depthwise, ModelConfig
from multicard.records import text_table
from multicard.vision import depthwise_kernels, models
from multicard.vision.depthwise import (
    DepthwiseTriton,
    depthwise,
    depthwise_backward,
    launch_of,
    outputs_of,
)

# of a copy within an H200, and the share that elementwise kernels reach
BYTES_PER_S = 4.291e12
REACHED = 0.75
SLOTS_PER_S = 132 * 4 * 1.755e9  # multiprocessors, schedulers, clock: an instruction of a warp each
SHARES = (0.25, 0.40, 0.60, 0.70)
H200 = 90
LAUNCHES = 5
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Layer:
    """A depthwise convolution: images (channels, side, side).
    count: of such layers in the model.
    """

    channels: int
    side: int
    kernel: int
    stride: int
    count: int = 1

    @property
    def name(self) -> str:
        return (
            f"{self.channels} x {self.side}^2, {self.kernel} x {self.kernel}, stride {self.stride}"
        )

    def images(self, batch: int, dtype: torch.dtype, device: str) -> Tensor:
        shape = batch, self.channels, self.side, self.side
        return torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)


def layers_of(name: str, size: int) -> list[Layer]:
    """The layers of a model that `model.depthwise=triton` computes, equal ones together."""
    found: dict[Layer, int] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, DepthwiseTriton)
        side = inputs[0].shape[-1]
        kernel, _ = module.kernel_size
        stride, _ = module.stride
        layer = Layer(module.in_channels, side, kernel, stride)
        found[layer] = found.get(layer, 0) + 1

    with torch.device("meta"):
        model = models.build(ModelConfig(name, depthwise=Depthwise.triton), 10, size).eval()
        for module in model.modules():
            if isinstance(module, DepthwiseTriton):
                module.register_forward_pre_hook(note)
        model(torch.empty(1, 3, size, size))
    return [replace(layer, count=count) for layer, count in found.items()]


# ---- by count


@dataclass(frozen=True)
class Expected:
    """A pass of a layer. instructions: of all warps."""

    layer: Layer
    kind: str
    registers: int
    stack_bytes: int
    bytes: int
    instructions: int
    values: int  # that it computes

    def ms(self, share: float) -> float:
        """Milliseconds, where instructions are issued in a share of the slots."""
        by_bytes = self.bytes / (BYTES_PER_S * REACHED)
        return 1000 * max(by_bytes, self.instructions / (SLOTS_PER_S * share))


def expected(layer: Layer, kind: str, batch: int, dtype: torch.dtype = torch.float16) -> Expected:
    """What a pass of a layer would take on an H200, by its code."""
    images = layer.images(batch, dtype, "meta")
    side = outputs_of(layer.side, layer.stride)
    outputs = batch * layer.channels * side**2
    launch = launch_of(images, layer.kernel, layer.stride)
    constants = launch.constants
    tensors = [images] * 3
    moved = (images.numel() + outputs) * images.itemsize
    if kind == "backward":
        total = images.new_empty(
            0, dtype=torch.float64 if dtype == torch.float64 else torch.float32
        )
        tensors = [images] * 4 + [total]
        constants = constants | {"GIVES_DX": True, "GIVES_SUMS": True}
        sums_bytes = launch.parts * layer.kernel**2 * layer.channels * total.itemsize
        moved += images.numel() * images.itemsize + 2 * sums_bytes
    kernel = getattr(depthwise_kernels, kind)
    code = ahead_of_time.compiled(kernel, tensors, constants, launch.options, H200)
    instructions = (
        launch.programs * launch.options["num_warps"] * (code.rest + constants["ROWS"] * code.loop)
    )
    values = outputs if kind == "forward" else images.numel()
    return Expected(layer, kind, code.registers, code.stack_bytes, moved, instructions, values)


def expected_table(layers: list[Layer], batch: int) -> list[str]:
    """A row for each pass of each layer, of all its launches, and the sums."""
    headings = [
        "layer",
        "n",
        "pass",
        "registers",
        "MB",
        "instructions a value",
        *(f"ms at {s:.0%}" for s in SHARES),
    ]
    rows = []
    for kind in PASSES:
        found = [expected(layer, kind, batch) for layer in layers]
        for one in found:
            count = one.layer.count
            each = f"{32 * one.instructions / one.values:.0f}"
            times = [f"{count * one.ms(share):.2f}" for share in SHARES]
            moved = f"{count * one.bytes / 1e6:,.0f}"
            rows.append([one.layer.name, str(count), kind, str(one.registers), moved, each, *times])
        moved = f"{sum(one.layer.count * one.bytes for one in found) / 1e6:,.0f}"
        sums = [f"{sum(one.layer.count * one.ms(share) for one in found):.2f}" for share in SHARES]
        rows.append(["all", str(sum(layer.count for layer in layers)), kind, "", moved, "", *sums])
    return text_table.text(headings, rows)


# ---- on a GPU


@dataclass(frozen=True)
class LayerTimes:
    """A layer on this GPU. errors: of the output, of the input's gradient and of the taps'. Times:
    milliseconds of kernels, of one layer.
    """

    layer: Layer
    errors: tuple[float, float, float]
    own_ms: tuple[float, float]
    torch_ms: tuple[float, float]


def errors(layer: Layer, batch: int, dtype: torch.dtype, device: str) -> tuple[float, float, float]:
    """The largest errors against float64, by the sum of the absolute products,
    in units of the type's epsilon.
    """
    random = torch.Generator(device).manual_seed(layer.side)

    def drawn(like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=random)

    x = drawn(layer.images(batch, dtype, device))
    weight = drawn(x.new_empty(layer.channels, 1, layer.kernel, layer.kernel))
    y = depthwise(x, weight, layer.stride)
    gradient = drawn(y)
    found = y, *depthwise_backward(gradient, x, weight, layer.stride)
    exact = _passes(x.double(), weight.double(), gradient.double(), layer)
    sizes = _passes(x.double().abs(), weight.double().abs(), gradient.double().abs(), layer)
    worst = [
        ((own.double() - other).abs() / size.clamp_min(1e-300)).max().item()
        / torch.finfo(dtype).eps
        for own, other, size in zip(found, exact, sizes, strict=True)
    ]
    return worst[0], worst[1], worst[2]


def _passes(
    x: Tensor, weight: Tensor, gradient: Tensor, layer: Layer
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and gradients by PyTorch's convolution."""
    y = conv2d(x, weight, None, layer.stride, layer.kernel // 2, 1, layer.channels)
    return y, *_gradients(x, weight, gradient, layer)


def _gradients(x: Tensor, weight: Tensor, gradient: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    stride = [layer.stride] * 2
    padding = [layer.kernel // 2] * 2
    shape = stride, padding, [1, 1], False, [0, 0], layer.channels
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, *shape, [True, True, False]
    )
    return dx, dweight


def kernels_ms(call: Callable[[], Any]) -> float:
    """Milliseconds of the kernels of a call, without what lies between them."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(LAUNCHES):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1000 / LAUNCHES


def measured(
    layer: Layer, batch: int, dtype: torch.dtype = torch.float16, device: str = "cuda"
) -> LayerTimes:
    """A layer on the GPU; errors of four of its images."""
    x = layer.images(batch, dtype, device).normal_()
    weight = x.new_empty(layer.channels, 1, layer.kernel, layer.kernel).normal_()
    gradient = depthwise(x, weight, layer.stride).normal_()
    own_ms = (
        kernels_ms(lambda: depthwise(x, weight, layer.stride)),
        kernels_ms(lambda: depthwise_backward(gradient, x, weight, layer.stride)),
    )
    torch_ms = (
        kernels_ms(lambda: depthwise(x, weight, layer.stride, own_forward=False)),
        kernels_ms(lambda: _gradients(x, weight, gradient, layer)),
    )
    return LayerTimes(layer, errors(layer, min(4, batch), dtype, device), own_ms, torch_ms)


def measured_table(rows: list[LayerTimes]) -> list[str]:
    """A row for each layer, with milliseconds of all its launches in a step, and the sums."""
    headings = ["layer", "n", "worst error, eps", *(f"{kind}, ms (own / torch)" for kind in PASSES)]
    lines = []
    for one in rows:
        count = one.layer.count
        times = [
            f"{count * one.own_ms[n]:.2f} / {count * one.torch_ms[n]:.2f}"
            for n in range(len(PASSES))
        ]
        lines.append([one.layer.name, str(count), f"{max(one.errors):.1f}", *times])
    sums = []
    for n in range(len(PASSES)):
        own_ms = sum(one.layer.count * one.own_ms[n] for one in rows)
        torch_ms = sum(one.layer.count * one.torch_ms[n] for one in rows)
        sums.append(f"{own_ms:.2f} / {torch_ms:.2f}")
    lines.append(["all", str(sum(one.layer.count for one in rows)), "", *sums])
    return text_table.text(headings, lines)


def options() -> argparse.ArgumentParser:
    result = parser(__doc__)
    result.add_argument("--expected", action="store_true", help="count, and measure nothing")
    result.add_argument("--model", default="mobilenet_v2")
    result.add_argument("--image-size", type=int, default=500)
    result.add_argument("--batch-size", type=int, default=64)
    return result


def main() -> None:
    args = options().parse_args()
    layers = layers_of(args.model, args.image_size)
    if args.expected or not torch.cuda.is_available():
        print(
            f"{args.model}, {args.batch_size} images of {args.image_size} px, fp16: expected on an"
            " H200"
        )
        print("\n".join(expected_table(layers, args.batch_size)))
        return
    print(
        f"{machine(device_here())}; {args.model}, {args.batch_size} images of {args.image_size} px,"
        " fp16"
    )
    rows = [measured(layer, args.batch_size) for layer in layers]
    print("\n".join(measured_table(rows)))
    for row in rows:
        print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
