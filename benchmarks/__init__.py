"""Measure multicard itself.

Machines are noisy, so ratios are taken between turns of the same round (`interleaved`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import OmegaConf

from multicard import workloads
from multicard.machine.environment import cores, cpu_model
from multicard.sweep.compositions import task_of

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

ROOT = Path(__file__).parent.parent
TurnName = TypeVar("TurnName")
Figure = TypeVar("Figure")


def parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser that prints `description` as help, with `--rounds` if it has a default."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        result.add_argument("--rounds", type=int, default=rounds)
    return result


def device_here() -> "torch.device":
    """Return the first GPU, or the CPU if there is none."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def machine(device: "torch.device | None" = None) -> str:
    """Describe the hardware and its present load. The GPU replaces the CPU if it is measured."""
    name = cpu_model()
    if device is not None and device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    return f"{name}, {cores()} cores, load {os.getloadavg()[0]:.1f}"


def interleaved(
    turns: Mapping[TurnName, Callable[[], Figure]], rounds: int
) -> dict[TurnName, list[Figure]]:
    """Take all turns once per round, in an order that alternates between forward and backward.

    Returns:
        The figures of each turn, by round.
    """
    figures: dict[TurnName, list[Figure]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in turns if number % 2 == 0 else reversed([*turns]):
            figures[name].append(turns[name]())
    return figures


def ratios(tops: Sequence[float], bottoms: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [top / bottom for top, bottom in zip(tops, bottoms, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, median and upper quartile of at least two values."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def python(*arguments: str) -> str:
    """Run `python ARGUMENTS` at the root of the repository, and return its output.

    If the command fails, exit with all of its output.
    """
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def measured_run(entry: str, *words: str) -> "tuple[dict[str, Any], pa.Table]":
    """Run an entry, and return its record and the table of its steps."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        python(entry, *words, f"hydra.run.dir={folder}")
        (path,) = Path(folder).glob("**/result.json")
        return json.loads(path.read_text()), pq.read_table(path.with_name("steps.parquet"))


def configuration(entry: str, *overrides: str) -> Any:
    """Compose the configuration of an entry as a dataclass."""
    workloads.register()
    return OmegaConf.to_object(task_of(workloads.composed(entry, overrides)))
