"""The kernels of `model.blocks=fused`: resources, bytes, and on a GPU seconds, beside eager blocks and Inductor's.

    python -m benchmarks.fused [--image-size 500] [--batch-size 64]

A line of JSON for each kernel, and on a GPU for each block, forward and backward, compared with the plain block.
"""

import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torchvision.models.mobilenetv2 import InvertedResidual
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.common import parser
from multicard.vision.fused import kernels, ops
from multicard.vision.fused.blocks import FusedResidual

# MobileNetV2's first blocks that expand: channels in, expanded and out, stride
BLOCKS = {"features.2": (16, 96, 24, 2), "features.3": (24, 144, 24, 1), "features.4": (24, 144, 32, 2)}
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
BYTES_PER_S = 0.75 * 4.3e12  # of an H200's memory, as kernels that stream reach it
OPTIONS = ("num_warps", "num_stages")  # of the compiler; the rest of a tile are the kernel's constants


class Call(NamedTuple):
    """A launch of a kernel in a step of a block. use: forward, or which part of backward."""

    block: str
    kernel: str
    use: str
    inputs: list[Tensor]
    stride: int

    @property
    def moved_bytes(self) -> int:
        """Each input read and each output written once."""
        outputs = ops.LAUNCHES[self.kernel](*self.inputs, self.stride).outputs
        return sum(each.nbytes for each in (*self.inputs, *outputs))


def calls(size: int, batch: int, dtype: torch.dtype, device: str = "meta") -> Iterator[Call]:
    """The launches of a step, with random values."""

    def values(*shape: int, like: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device=device).to(like)

    side = -(-size // 2)
    for name, (cin, wide, cout, stride) in BLOCKS.items():
        less = -(-side // stride)
        x, d, dp = values(batch, side, side, cin), values(batch, less, less, wide), values(batch, less, less, cout)
        w1, taps, w2 = values(wide, cin), values(9, wide), values(cout, wide)
        each, none = values(wide, like=torch.float32), torch.empty(0, device=device)
        dx, narrow = values(*x.shape, like=torch.float32), values(cin, like=torch.float32)
        factors = values(3, wide, like=torch.float32)
        yield Call(name, "moments", "forward", [x, narrow], stride)
        yield Call(name, "depthwise", "forward", [x, w1, each, each, taps], stride)
        yield Call(name, "project", "forward", [d, each, each, w2, none, none], stride)
        yield Call(name, "project_backward", "sums", [dp, d, w2, each, each, each, none], stride)
        yield Call(name, "project_backward", "dd", [dp, d, w2, each, each, each, factors], stride)
        yield Call(name, "expansion_backward", "sums and dx", [x, w1, each, each, taps, w1, d], stride)
        yield Call(name, "project", "dx", [x, none, none, values(cin, cin), dx, narrow], stride)
        side = less


def compiled(call: Call, capability: int) -> tuple[Any, dict[str, int]]:
    """The kernel of a call for GPUs of a compute capability, as 90, without one; and its resources: registers and
    bytes of stack (where registers spill) of a thread, bytes of shared memory of a program."""
    launch, kernel = ops.LAUNCHES[call.kernel](*call.inputs, call.stride), getattr(kernels, f"{call.kernel}_kernel")
    tile = ops.TILES[call.kernel]
    constants = launch.constants | {key: tile[key] for key in tile if key not in OPTIONS} | {"PRECISION": "ieee"}
    names, signature, hints = kernel.arg_names, dict.fromkeys(kernel.arg_names, "constexpr"), {}
    for i, value in enumerate(launch.arguments):
        signature[names[i]] = TYPES[value.dtype] if isinstance(value, Tensor) else "i32"
        if isinstance(value, Tensor) or value % 16 == 0:
            hints[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(names.index(key),): value for key, value in constants.items()}, hints)
    options = {key: tile[key] for key in OPTIONS if key in tile}
    result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        words = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", words)
    assert found, words
    registers, stack = map(int, found.groups())
    return result, {"registers": registers, "stack_bytes": stack, "shared_bytes": result.metadata.shared}


def programs_at_once(resources: dict[str, int], warps: int) -> int:
    """Programs that a multiprocessor of an H100 or H200 holds, by registers, shared memory and warps."""
    registers = 32 * warps * (-(-resources["registers"] // 8) * 8)
    return min(65536 // registers, 228 * 1024 // (resources["shared_bytes"] + 1024), 64 // warps, 32)


def milliseconds(work: Callable[[], Any], repeats: int = 9) -> float:
    """Median, each time with a cache that holds nothing of it."""
    other, taken = torch.empty(2**28, dtype=torch.uint8, device="cuda"), []
    for i in range(repeats + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        other.zero_()
        start.record()
        work()
        end.record()
        end.synchronize()
        taken += [start.elapsed_time(end)] if i > 1 else []
    return round(statistics.median(taken), 4)


def show(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def time_block(name: str, side: int, batch: int, compiles: bool) -> None:
    """Forward and backward of a block in fp16, plain and fused; `compiles`: by Inductor."""
    cin, wide, cout, stride = BLOCKS[name]
    plain = InvertedResidual(cin, cout, stride, wide // cin).to("cuda", memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    fused, results = deepcopy(plain), []
    fused.conv.__class__ = FusedResidual
    x = torch.randn(batch, cin, side, side, device="cuda", dtype=torch.float16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    slope = torch.randn(batch, cout, -(-side // stride), -(-side // stride), device="cuda", dtype=torch.float16)
    slope = slope.contiguous(memory_format=torch.channels_last)
    for kind, module in {"plain": plain, "fused": fused}.items():
        if compiles:
            module.compile(dynamic=False)

        def step(module: Any = module) -> Tensor:
            x.grad = None
            with torch.autocast("cuda", torch.float16):
                out = module(x)
            out.backward(slope)
            return out

        assert x is not None
        results.append([step().detach().float(), x.grad.float(), plain_grad(module)])  # pyright: ignore[reportOptionalMemberAccess]
        row = {"block": name, "kind": kind, "compiled": compiles, "ms": milliseconds(step)}
        if kind == "fused":
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(results[1], results[0], strict=True)]
            row |= dict(zip(("error_out", "error_x", "error_weights"), errors, strict=True))
        show(**row)


def plain_grad(module: Any) -> Tensor:
    """The gradients of a block's convolutions."""
    return torch.cat([p.grad.flatten().float() for p in module.parameters() if p.dim() > 1])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--image-size", type=int, default=500)
    options.add_argument("--batch-size", type=int, default=64)
    args, on_gpu = options.parse_args(), torch.cuda.is_available()
    every = [*calls(args.image_size, args.batch_size, torch.float16)]
    for call in every:
        tile, resources = ops.TILES[call.kernel], compiled(call, 90)[1]
        row = {"block": call.block, "kernel": call.kernel, "use": call.use, "tile": tile, **resources}
        row |= {"programs_per_sm": programs_at_once(resources, tile["num_warps"]), "mb": call.moved_bytes // 10**6}
        row |= {"bound_ms": round(1e3 * call.moved_bytes / BYTES_PER_S, 3)}
        if on_gpu:
            inputs = [torch.randn_like(each, device="cuda") for each in call.inputs]
            row["ms"] = milliseconds(partial(ops.run, call.kernel, inputs, call.stride))
        show(**row)
    sides = {call.block: call.inputs[0].shape[1] for call in every if call.kernel == "moments"}
    for compiles in (False, True) if on_gpu else ():
        for name, side in sides.items():
            time_block(name, side, args.batch_size, compiles)


if __name__ == "__main__":
    main()
