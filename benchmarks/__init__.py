"""Measurements of multicard itself. Ratios come from interleaved rounds: machines are noisy."""

import argparse
import os
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from multicard import workloads
from multicard.machine.environment import cores, cpu_model
from multicard.sweep.cells import task_of

ROOT = Path(__file__).parent.parent


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def machine(name: str = "") -> str:
    """The hardware, by default the CPU, and its present load."""
    return f"{name or cpu_model()}, {cores()} cores, load {os.getloadavg()[0]:.1f}"


def configuration(entry: str, *overrides: str) -> Any:
    """The configuration of an entry as its dataclass."""
    workloads.register()
    return OmegaConf.to_object(task_of(workloads.composed(entry, overrides)))
