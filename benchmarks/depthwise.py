"""Depthwise convolutions of `model.depthwise=triton`: estimate their time, or measure it on a GPU.

    python -m benchmarks.depthwise [--expected] [--model mobilenet_v2]
        [--image-size 500] [--batch-size 64]

`--expected` needs no GPU. Each pass of each layer is compiled for an H200 (compute capability 9.0).
The instructions in that code are counted and multiplied by the number of warps that run it. The
bytes follow from a formula: each tensor is read and written once, and so are the partial sums of
the weight's gradient. A pass takes as long as the slower of two estimates. The bytes move at 75 %
of the speed of a copy, which BatchNorm's kernels reach on that GPU. The instructions use a share of
the slots in which the schedulers can issue one. This share is not known, so the table has several;
similar kernels that were measured used 25 to 57 %.

Without `--expected`, the passes run on a GPU. Their errors against float64 are in units of the
type's epsilon times the sum of the absolute products. The times of the kernels, as means of five
launches, are compared with PyTorch's convolution. The rows are also printed as JSON.
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

COPY_BYTES_PER_S = 4.291e12  # the speed of a copy within an H200
SHARE_OF_COPY = 0.75  # the share of that speed that elementwise kernels reach
# Multiprocessors, schedulers of each, and clock: a scheduler issues one warp's instruction a cycle.
SLOTS_PER_S = 132 * 4 * 1.755e9
SLOT_SHARES = (0.25, 0.40, 0.60, 0.70)
H200_CAPABILITY = 90
LAUNCHES = 5
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Layer:
    """A depthwise convolution of images (channels, side, side).

    Attributes:
        count: the number of such layers in the model.
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
    """Return the layers of a model that `model.depthwise=triton` computes, equal layers as one."""
    counts: dict[Layer, int] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, DepthwiseTriton)
        side = inputs[0].shape[-1]
        kernel, _ = module.kernel_size
        stride, _ = module.stride
        layer = Layer(module.in_channels, side, kernel, stride)
        counts[layer] = counts.get(layer, 0) + 1

    with torch.device("meta"):
        model = models.build(ModelConfig(name, depthwise=Depthwise.triton), 10, size).eval()
        for module in model.modules():
            if isinstance(module, DepthwiseTriton):
                module.register_forward_pre_hook(note)
        model(torch.empty(1, 3, size, size))
    return [replace(layer, count=count) for layer, count in counts.items()]


# ---- estimates from counts


@dataclass(frozen=True)
class PassCost:
    """The cost of a pass of a layer.

    Attributes:
        registers, stack_bytes: the registers and the stack of a thread.
        bytes: the bytes that the pass moves.
        instructions: the instructions of all warps.
        values: the number of values that the pass computes.
    """

    layer: Layer
    kind: str
    registers: int
    stack_bytes: int
    bytes: int
    instructions: int
    values: int

    def ms(self, share: float) -> float:
        """Return milliseconds, if instructions are issued in this share of the slots."""
        by_bytes = self.bytes / (COPY_BYTES_PER_S * SHARE_OF_COPY)
        return 1000 * max(by_bytes, self.instructions / (SLOTS_PER_S * share))


def expected_cost(
    layer: Layer, kind: str, batch: int, dtype: torch.dtype = torch.float16
) -> PassCost:
    """Count the cost of a pass of a layer in its code for an H200."""
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
    code = ahead_of_time.compile_kernel(kernel, tensors, constants, launch.options, H200_CAPABILITY)
    instructions = (
        launch.programs * launch.options["num_warps"] * (code.rest + constants["ROWS"] * code.loop)
    )
    values = outputs if kind == "forward" else images.numel()
    return PassCost(layer, kind, code.registers, code.stack_bytes, moved, instructions, values)


def expected_table(layers: list[Layer], batch: int) -> list[str]:
    """Make a table with a row for each pass of each layer, over all its launches, and the sums."""
    headings = [
        "layer",
        "n",
        "pass",
        "registers",
        "MB",
        "instructions a value",
        *(f"ms at {s:.0%}" for s in SLOT_SHARES),
    ]
    rows = []
    for kind in PASSES:
        costs = [expected_cost(layer, kind, batch) for layer in layers]
        for cost in costs:
            count = cost.layer.count
            per_value = f"{32 * cost.instructions / cost.values:.0f}"
            times = [f"{count * cost.ms(share):.2f}" for share in SLOT_SHARES]
            moved = f"{count * cost.bytes / 1e6:,.0f}"
            rows.append(
                [cost.layer.name, str(count), kind, str(cost.registers), moved, per_value, *times]
            )
        moved = f"{sum(cost.layer.count * cost.bytes for cost in costs) / 1e6:,.0f}"
        sums = [
            f"{sum(cost.layer.count * cost.ms(share) for cost in costs):.2f}"
            for share in SLOT_SHARES
        ]
        rows.append(["all", str(sum(layer.count for layer in layers)), kind, "", moved, "", *sums])
    return text_table.text(headings, rows)


# ---- measurements on a GPU


@dataclass(frozen=True)
class LayerTimes:
    """Errors and times of one layer on this GPU.

    Attributes:
        errors: the errors of the output, of the input's gradient and of the weight's gradient.
        own_ms: milliseconds of the kernels in both passes of `model.depthwise=triton`.
        torch_ms: milliseconds of the kernels in both passes of PyTorch's convolution.
    """

    layer: Layer
    errors: tuple[float, float, float]
    own_ms: tuple[float, float]
    torch_ms: tuple[float, float]


def errors(layer: Layer, batch: int, dtype: torch.dtype, device: str) -> tuple[float, float, float]:
    """Return the largest errors against float64.

    They are relative to the sum of the absolute products, in units of the type's epsilon.
    """
    random = torch.Generator(device).manual_seed(layer.side)

    def random_like(like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=random)

    x = random_like(layer.images(batch, dtype, device))
    weight = random_like(x.new_empty(layer.channels, 1, layer.kernel, layer.kernel))
    y = depthwise(x, weight, layer.stride)
    gradient = random_like(y)
    results = y, *depthwise_backward(gradient, x, weight, layer.stride)
    references = _passes(x.double(), weight.double(), gradient.double(), layer)
    sizes = _passes(x.double().abs(), weight.double().abs(), gradient.double().abs(), layer)
    worst = [
        ((result.double() - reference).abs() / size.clamp_min(1e-300)).max().item()
        / torch.finfo(dtype).eps
        for result, reference, size in zip(results, references, sizes, strict=True)
    ]
    return worst[0], worst[1], worst[2]


def _passes(
    x: Tensor, weight: Tensor, gradient: Tensor, layer: Layer
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output and gradients of PyTorch's convolution."""
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
    """Return milliseconds of a call's kernels, without the gaps between them."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(LAUNCHES):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1000 / LAUNCHES


def measure_layer(
    layer: Layer, batch: int, dtype: torch.dtype = torch.float16, device: str = "cuda"
) -> LayerTimes:
    """Measure a layer on the GPU. The errors are computed for four images only."""
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
    """Make a table with a row for each layer, over all its launches in a step, and the sums."""
    headings = ["layer", "n", "worst error, eps", *(f"{kind}, ms (own / torch)" for kind in PASSES)]
    lines = []
    for row in rows:
        count = row.layer.count
        times = [
            f"{count * row.own_ms[n]:.2f} / {count * row.torch_ms[n]:.2f}"
            for n in range(len(PASSES))
        ]
        lines.append([row.layer.name, str(count), f"{max(row.errors):.1f}", *times])
    sums = []
    for n in range(len(PASSES)):
        own_ms = sum(row.layer.count * row.own_ms[n] for row in rows)
        torch_ms = sum(row.layer.count * row.torch_ms[n] for row in rows)
        sums.append(f"{own_ms:.2f} / {torch_ms:.2f}")
    lines.append(["all", str(sum(row.layer.count for row in rows)), "", *sums])
    return text_table.text(headings, lines)


def options() -> argparse.ArgumentParser:
    result = parser(__doc__)
    result.add_argument("--expected", action="store_true", help="count instead of measuring")
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
    rows = [measure_layer(layer, args.batch_size) for layer in layers]
    print("\n".join(measured_table(rows)))
    for row in rows:
        print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
