"""Triton's kernels compiled for GPUs that are not there: their registers,
and the instructions that they issue.

The compiler and the disassembler come with Triton.
Counts are of the machine's instructions (SASS), by warp.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
}
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")  # its address, and what it does
BRANCH = re.compile(r"BRA.*?0x([0-9a-f]+)")


class Compiled(NamedTuple):
    """A kernel's code. registers, stack_bytes: of a thread; a stack is where registers are spilled
    to.
    loop: instructions of the longest loop. rest: those outside of it.
    ptx: the code before it was assembled.
    """

    registers: int
    stack_bytes: int
    loop: int
    rest: int
    ptx: str


def compiled(
    kernel: Any,
    tensors: Iterable[Tensor],
    constants: dict[str, Any],
    options: dict[str, Any],
    capability: int,
) -> Compiled:
    """A kernel whose first arguments are these tensors and whose others are constants,
    or integers of 32 bits.

    Args:
        capability: of the GPU, as 90.
    """
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else "i32" for name in names}
    signature |= dict(zip(names, (TYPES[tensor.dtype] for tensor in tensors), strict=False))
    # torch's memory is aligned
    hints = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(names)
        if signature[name].startswith("*")
    }
    source = ASTSource(
        kernel, signature, {(names.index(key),): value for key, value in constants.items()}, hints
    )
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage, code = (_said(option, file.name) for option in ("-res-usage", "-sass"))
    registers = re.search(r"REG:(\d+)", usage)
    stack = re.search(r"STACK:(\d+)", usage)
    assert registers and stack, usage
    addresses = [(int(match[1], 16), match[2]) for match in INSTRUCTION.finditer(code)]
    loop = max(_loops(addresses), default=0)
    return Compiled(int(registers[1]), int(stack[1]), loop, len(addresses) - loop, built.asm["ptx"])


def _said(option: str, file: str) -> str:
    return subprocess.run([TOOL, option, file], capture_output=True, text=True, check=True).stdout


def _loops(code: list[tuple[int, str]]) -> Iterator[int]:
    """The instructions of each loop: from where a branch leads back to, up to the branch."""
    for address, instruction in code:
        back = BRANCH.search(instruction)
        if back and int(back[1], 16) < address:  # the last instruction of all jumps to itself
            yield sum(int(back[1], 16) <= other <= address for other, _ in code)
