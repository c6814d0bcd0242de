"""Measure a training step without its input, by precision, layout, compilation and convolution.

    python -m benchmarks.step [--image-size 224] [--batch-size 16] [--rounds 5]
        [--precisions fp16 bf16] [--layouts nhwc] [--compile [MODE ...]]
        [--pointwise convolution linear] [--depthwise convolution triton]

`--compile` also measures compiled steps, in the default mode or in each of these: default,
reduce-overhead, max-autotune, max-autotune-no-cudagraphs. `--only-compiled` leaves the others out.
`linear` and `triton` need nhwc: see multicard.vision.convolutions and multicard.vision.depthwise.

All combinations take turns on one cached batch: forward, loss, backward and optimizer, as in the
training loop. The table has medians over the rounds. On a GPU, it also has the ceiling of images/s
that the memory's bandwidth sets. MobileNetV2 uses each tensor only a few times, so it is limited by
bytes and not by arithmetic. These are the bytes that a step moves for an image, if each tensor is
read and written as a whole. Parameters are small and left out:

    convolution   3 in + 3 out     forward reads and writes; backward reads 3, writes
    BatchNorm     8 out            forward reads twice, writes; backward reads both twice, writes
    ReLU6         5 out            forward reads and writes; backward reads two, writes; fused: none
    residual      3 out            forward reads two and writes; backward passes the gradient on

The bandwidth is measured by a copy within the device, which counts both its reads and its writes
(`multicard.machine.rates`).
"""

import argparse
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torchvision import models

from benchmarks import configuration, device_here, interleaved, machine, parser, quartiles
from multicard.config.compilation import CUDA_GRAPHS, GRAPH_PASSES, MODES
from multicard.config.vision import Depthwise, ModelConfig, Pointwise
from multicard.machine import rates
from multicard.machine.environment import cores
from multicard.measure import timing
from multicard.ranks import os_calls
from multicard.records import text_table
from multicard.vision.compiling import inductor_options
from multicard.vision.models import build
from multicard.vision.optim import optimizer_of
from multicard.vision.precision import PRECISIONS, choose

# no roles: headings
HEADINGS = (
    "precision",
    "layout",
    "compiled",
    "pointwise",
    "depthwise",
    "step, ms",
    "quartiles",
    "images/s",
    "ceiling",
)
STEPS_PER_TURN = 6
# A combination is compiled once for its shape, and again if a global flag changed in between.
GRAPHS_PER_COMBINATION = 4


def bytes_an_image(model: nn.Module, size: int, value_bytes: int, fused: bool) -> int:
    """Sum the formula of the module's docstring over the layers of a model.

    Args:
        model: a model on the device `meta`, which computes nothing.
        size: the side of an image, in pixels.
        value_bytes: the bytes of an element of a tensor.
        fused: whether ReLU6 is fused into BatchNorm.
    """
    moved_values = 0

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        nonlocal moved_values
        if isinstance(module, nn.Conv2d):
            moved_values += 3 * inputs[0].numel() + 3 * out.numel()
        elif isinstance(module, nn.BatchNorm2d):
            moved_values += 8 * out.numel()
        elif isinstance(module, nn.ReLU6):
            moved_values += 0 if fused else 5 * out.numel()
        elif getattr(module, "use_res_connect", False):
            moved_values += 3 * out.numel()

    for module in model.modules():
        module.register_forward_hook(count)
    # Use evaluation mode: in training, BatchNorm refuses a single value per channel.
    model.eval()(torch.zeros(1, 3, size, size, device="meta"))
    return moved_values * value_bytes


class StepVariant(NamedTuple):
    """A combination to measure. `mode` is the mode of torch.compile; None: not compiled."""

    precision: str
    layout: str
    mode: str | None
    pointwise: str
    depthwise: str


def cells(args: argparse.Namespace) -> list[StepVariant]:
    """Return the combinations that the options ask for."""
    modes = [] if args.only_compiled and args.compile is not None else [None]
    modes += (args.compile or ["default"]) if args.compile is not None else []
    combinations = [
        StepVariant(*values)
        for values in product(args.precisions, args.layouts, modes, args.pointwise, args.depthwise)
    ]
    return [
        cell for cell in combinations if cell.layout == "nhwc" or cell[3:] == ("convolution",) * 2
    ]


def step(cell: StepVariant, size: int, batch: int, device: torch.device) -> Callable[[], float]:
    """Return a function that trains a few steps on a cached batch and returns seconds per step."""
    precision = choose(cell.precision, device)
    order = torch.channels_last if cell.layout == "nhwc" else torch.contiguous_format
    layers = {"pointwise": Pointwise(cell.pointwise), "depthwise": Depthwise(cell.depthwise)}
    model = build(ModelConfig("mobilenet_v2", **layers), 10, size)
    model = model.to(device, precision.model_dtype).to(memory_format=order)  # pyright: ignore[reportCallIssue]
    if cell.mode is not None:
        model.compile(
            dynamic=False, options=inductor_options(model, cell.mode, cell.layout, device.type)
        )
    graphs = device.type == "cuda" and cell.mode in CUDA_GRAPHS
    options = configuration("train_vision", "preset=fast")
    optimizer = optimizer_of(model, options.lr, options.optimizer)
    scaler = GradScaler(device.type, enabled=precision.scale_loss)
    values = torch.randn(batch, 3, size, size, device=device)
    images = values.to(precision.transfer_dtype).contiguous(memory_format=order)
    labels = torch.randint(0, 10, (batch,), device=device)

    def turn(steps: int = STEPS_PER_TURN) -> float:
        precision.set_flags()
        timing.synchronize(device)
        started_s = timing.clock_s()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            if graphs:
                torch.compiler.cudagraph_mark_step_begin()
            with precision.arithmetic(device):
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        timing.synchronize(device)
        return (timing.clock_s() - started_s) / steps

    turn(GRAPH_PASSES)  # This compiles, records CUDA graphs, and allocates every buffer.
    return turn


def options() -> argparse.ArgumentParser:
    result = parser(__doc__, rounds=5)
    result.add_argument("--image-size", type=int, default=224)
    result.add_argument("--batch-size", type=int, default=16)
    result.add_argument(
        "--precisions",
        nargs="+",
        default=["fp64", "fp32", "fp16", "bf16"],
        choices=list(PRECISIONS),
    )
    result.add_argument("--layouts", nargs="+", default=["nchw", "nhwc"], choices=["nchw", "nhwc"])
    result.add_argument(
        "--compile", nargs="*", choices=MODES, metavar="MODE", help="measure compiled steps too"
    )
    result.add_argument(
        "--only-compiled", action="store_true", help="leave out the steps that are not compiled"
    )
    for option, kinds in (("--pointwise", Pointwise), ("--depthwise", Depthwise)):
        needs_nhwc = "the second choice needs nhwc"
        result.add_argument(
            option, nargs="+", default=["convolution"], choices=list(kinds), help=needs_nhwc
        )
    return result


def main() -> None:
    args = options().parse_args()
    os_calls.tune_malloc()
    torch.set_num_threads(cores())
    device = device_here()
    # Each combination compiles the same code anew. Beyond the default limit of 8 graphs, torch
    # would silently go on without compilation.
    torch._dynamo.config.recompile_limit = GRAPHS_PER_COMBINATION * len(cells(args))
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    rate = rates.within_bytes_per_s(device)
    print(
        f"{machine(device)}; {args.image_size} px, batch {args.batch_size}; {rate / 1e9:,.1f} GB/s"
    )
    turns = {cell: step(cell, args.image_size, args.batch_size, device) for cell in cells(args)}
    rows = []
    for cell, seconds in interleaved(turns, args.rounds).items():
        low, middle, high = quartiles([1000 * s for s in seconds])
        precision = choose(cell.precision, device)
        value_bytes = getattr(torch, precision.autocast or precision.model).itemsize
        meta = models.mobilenet_v2(num_classes=10).to("meta")
        ceiling = rate / bytes_an_image(
            meta, args.image_size, value_bytes, fused=cell.mode is not None
        )
        images = args.batch_size / (middle / 1000)
        figures = f"{middle:.1f}", f"{low:.1f} to {high:.1f}", f"{images:,.1f}", f"{ceiling:,.0f}"
        rows.append((cell.precision, cell.layout, cell.mode or "no", *cell[3:], *figures))
    print("\n".join(text_table.text(HEADINGS, rows)))


if __name__ == "__main__":
    main()
