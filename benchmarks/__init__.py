"""Measurements of multicard itself. Ratios come from interleaved rounds: machines are noisy."""

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
Name = TypeVar("Name")
Figure = TypeVar("Figure")


def parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring, with `--rounds` if there is a default for it."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        result.add_argument("--rounds", type=int, default=rounds)
    return result


def device_here() -> "torch.device":
    """The first GPU, or the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def machine(device: "torch.device | None" = None) -> str:
    """The hardware, a GPU instead of the CPU where one is measured, and its present load."""
    name = cpu_model()
    if device is not None and device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    return f"{name}, {cores()} cores, load {os.getloadavg()[0]:.1f}"


def interleaved(
    turns: Mapping[Name, Callable[[], Figure]], rounds: int
) -> dict[Name, list[Figure]]:
    """Take all turns once per round, forwards and backwards by turns; the figures of each,
    by round.
    """
    figures: dict[Name, list[Figure]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in turns if number % 2 == 0 else reversed([*turns]):
            figures[name].append(turns[name]())
    return figures


def ratios(tops: Sequence[float], bottoms: Sequence[float]) -> list[float]:
    """Ratios round by round."""
    return [top / bottom for top, bottom in zip(tops, bottoms, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of at least two rounds."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def python(*arguments: str) -> str:
    """Run `python ARGUMENTS` at the root of the repository. Returns its output;
    exits with all of it if it fails.
    """
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def measured(entry: str, *words: str) -> "tuple[dict[str, Any], pa.Table]":
    """The record of a run of an entry, and its steps as steps.parquet has them."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        python(entry, *words, f"hydra.run.dir={folder}")
        (path,) = Path(folder).glob("**/result.json")
        return json.loads(path.read_text()), pq.read_table(path.with_name("steps.parquet"))


def configuration(entry: str, *overrides: str) -> Any:
    """The configuration of an entry as its dataclass."""
    workloads.register()
    return OmegaConf.to_object(task_of(workloads.composed(entry, overrides)))
