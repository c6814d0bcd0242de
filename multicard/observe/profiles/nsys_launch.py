"""Ranks under Nsight Systems (`profile=nsys`)."""

import shutil
from dataclasses import replace
from pathlib import Path

from multicard.config.base import ProfileName, RunConfig
from multicard.config.keys import require


def check(device: str) -> None:
    """Check that nsys is installed and the ranks use CUDA.

    Raises:
        ValueError: if not, with the remedy.
    """
    remedy = "use profile=kineto"
    require(device == "cuda", f"profile=nsys: profiles CUDA devices, and the ranks are on CPU; {remedy}")
    require(
        installed(), f"profile=nsys: Nsight Systems is not installed (no nsys on the PATH); install it, or {remedy}"
    )


def chosen(config: RunConfig, device: str) -> RunConfig:
    """Replace `profile=auto` by the profiler of these devices."""
    if config.profile.name is not ProfileName.auto:
        return config
    name = ProfileName.nsys if device == "cuda" and installed() else ProfileName.kineto
    return replace(config, profile=replace(config.profile, name=name))


def installed() -> bool:
    return shutil.which("nsys") is not None


def command(folder: Path) -> tuple[str, ...]:
    """The command line to run a rank under, whose number replaces RANK. It records the steps that `Window` brackets."""
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
