"""The kernels of `model.blocks=fused`: resources, bytes, and on a GPU seconds, beside eager blocks and Inductor's.

python -m benchmarks.fused [--image-size 500] [--batch-size 64]
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from multicard.vision.fused import kernels, ops

# MobileNetV2's first blocks that expand: channels in, expanded and out, stride
BLOCKS = {"features.2": (16, 96, 24, 2), "features.3": (24, 144, 24, 1), "features.4": (24, 144, 32, 2)}
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
OPTIONS = ("num_warps", "num_stages", "maxnreg")  # of the compiler; the rest of a tile are the kernel's constants


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
