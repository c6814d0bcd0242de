"""Compile Triton kernels for GPUs that are absent, and count their registers and instructions.

The compiler and the disassembler come with Triton. The counts are machine instructions (SASS) that
a warp issues.
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

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
}
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")  # its address, and its text
BRANCH = re.compile(r"BRA.*?0x([0-9a-f]+)")


class CompiledKernel(NamedTuple):
    """The code of a kernel.

    Attributes:
        registers: the registers of a thread.
        stack_bytes: the stack of a thread, to which registers are spilled.
        loop: the number of instructions in the longest loop.
        rest: the number of instructions outside that loop.
        ptx: the code before it was assembled.
    """

    registers: int
    stack_bytes: int
    loop: int
    rest: int
    ptx: str


def compile_kernel(
    kernel: Any,
    tensors: Iterable[Tensor],
    constants: dict[str, Any],
    options: dict[str, Any],
    capability: int,
) -> CompiledKernel:
    """Compile a kernel.

    Args:
        tensors: the first arguments of the kernel.
        constants: the values of other arguments. Arguments without a value are 32-bit integers.
        capability: the compute capability of the GPU, such as 90.
    """
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else "i32" for name in names}
    signature |= dict(zip(names, (TYPES[tensor.dtype] for tensor in tensors), strict=False))
    # torch aligns the memory of tensors.
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
        usage, code = (_disassemble(option, file.name) for option in ("-res-usage", "-sass"))
    registers = re.search(r"REG:(\d+)", usage)
    stack = re.search(r"STACK:(\d+)", usage)
    assert registers and stack, usage
    addresses = [(int(match[1], 16), match[2]) for match in INSTRUCTION.finditer(code)]
    loop = max(_loops(addresses), default=0)
    return CompiledKernel(
        int(registers[1]), int(stack[1]), loop, len(addresses) - loop, built.asm["ptx"]
    )


def _disassemble(option: str, file: str) -> str:
    return subprocess.run(
        [CUOBJDUMP, option, file], capture_output=True, text=True, check=True
    ).stdout


def _loops(code: list[tuple[int, str]]) -> Iterator[int]:
    """Yield the number of instructions in each loop, from the target of a branch to the branch."""
    for address, instruction in code:
        back = BRANCH.search(instruction)
        # The very last instruction jumps to itself, which is not a loop.
        if back and int(back[1], 16) < address:
            yield sum(int(back[1], 16) <= other <= address for other, _ in code)
