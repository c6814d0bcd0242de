"""Nsight Systems around each rank (`profile=nsys`)."""

import shutil
from pathlib import Path

from multicard.config.job import require


def check(device: str) -> None:
    """See that it is installed, and has something to look at.

    Raises:
        ValueError: where it is not.
    """
    remedy = "use profile=kineto"
    require(device == "cuda", f"profile=nsys: looks at CUDA devices, and the ranks are on CPU; {remedy}")
    there = shutil.which("nsys") is not None
    require(there, f"profile=nsys: Nsight Systems is not here (no nsys on the PATH); install it, or {remedy}")


def command(folder: Path) -> tuple[str, ...]:
    """Its command line for a rank, whose number takes the place of RANK. It records what `Window` brackets."""
    return (
        "nsys",
        "profile",
        f"--output={folder / 'profile' / 'rRANK'}",
        "--force-overwrite=true",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
    )
