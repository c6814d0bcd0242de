"""Triton's kernels compiled for GPUs that are not there."""

import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel


def compiled(source: ASTSource, capability: int, options: dict[str, int]) -> tuple[CompiledKernel, str]:
    """A kernel for GPUs of a compute capability, as 90, compiled without one; and cuobjdump's words of it."""
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        line = [Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump", "-res-usage", file.name]
        return kernel, subprocess.run(line, capture_output=True, text=True, check=True).stdout
