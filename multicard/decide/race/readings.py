"""Blocks of steps that the ranks of a cell have measured between two pauses, as a race takes them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multicard.decide.race import blocks
from multicard.measure import formulas
from multicard.ranks.pausing import blocks_file
from multicard.records import run_folder
from multicard.records.steps import COLUMNS

LEAST_STEPS = 4  # measured in a block, however long they take
MISSED = "missed target_accuracy"  # begins the reason why a cell that was measured in full cannot win
COUNTER_S = 0.1  # within which a GPU's energy counter is up to date


@dataclass(frozen=True)
class Energy:
    """Of a block from its start to its pause, with the steps that are not measured: of so many steps, in so many
    seconds."""

    joules: float
    steps: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Steps that all ranks of a cell measured in a row.

    step_s: seconds (n,), the mean over the ranks. samples: (n,), of all ranks. peaks_bytes: of each rank, since the
    start of its process.
    """

    step: int
    skips: int
    steps_per_epoch: int
    step_s: np.ndarray
    samples: np.ndarray
    peaks_bytes: list[int]
    diverged: bool
    energy: Energy | None = None

    @property
    def seconds(self) -> float:
        return float(self.step_s.sum())

    @property
    def mean_step_s(self) -> float:
        return self.seconds / len(self.step_s)

    def log_figure(self, figure: str) -> tuple[float, float]:
        """The logarithm of the race's figure, negative where less is better, and its standard error; not finite where
        it has none."""
        if figure == "peak_memory":
            return -math.log(max(self.peaks_bytes)), blocks.LEAST_ERROR  # the same in every step
        if figure == "energy_joules":
            return self._log_energy()
        return self._log_rate()

    def _log_energy(self) -> tuple[float, float]:
        """Of the joules of a sample."""
        energy, samples = self.energy, float(self.samples.mean())
        if energy is None or energy.joules <= 0 or samples <= 0:
            return math.nan, math.nan
        return -math.log(energy.joules / (energy.steps * samples)), COUNTER_S / energy.seconds

    def _log_rate(self) -> tuple[float, float]:
        """Of samples a second; where samples differ from step to step, its error is by how far the time of each step is
        from that of its samples at the mean rate."""
        samples = float(self.samples.sum())
        expected_s = self.samples * self.seconds / samples
        return blocks.of_steps(self.step_s - expected_s + self.mean_step_s, samples)


class BlockReader:
    """The lines of a cell's ranks, as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._taken, self.ranks = folder, 0, 0

    def next(self) -> Measured | None:
        """The next block, once all ranks have written it; else None."""
        first = self._line(0)
        if first is None:
            return None
        self.ranks = first["ranks"]
        lines = [first, *(self._line(rank) for rank in range(1, self.ranks))]
        if None in lines:
            return None
        self._taken += 1
        return together([line for line in lines if line is not None])

    def _line(self, rank: int) -> dict[str, Any] | None:
        try:
            lines = blocks_file(self._folder, rank).read_text().split("\n")
        except FileNotFoundError:
            return None
        return json.loads(lines[self._taken]) if len(lines) > self._taken + 1 else None  # a whole line ends


def together(lines: list[dict[str, Any]]) -> Measured:
    """One block of all ranks. The mean of their seconds: they step together, but for what each waits at the end."""
    first = lines[0]
    return Measured(
        step=first["step"],
        skips=first["skips"],
        steps_per_epoch=first["steps_per_epoch"],
        step_s=np.mean([line["step_s"] for line in lines], axis=0),
        samples=np.sum([line["samples"] for line in lines], axis=0),
        peaks_bytes=[line["peak_memory_bytes"] for line in lines],
        diverged=first["step"] > 0 and first["loss"] is None,
    )


def of_result(record: dict[str, Any], figure: str) -> tuple[float, float] | None:
    """The logarithm of a finished run's figure and its standard error, as of a block: rates without the warm-up, and
    without the first step of each epoch; None where it has none.

    Args:
        record: with its `folder`.
    """
    if record["status"] != "ok":
        return None
    if figure == "peak_memory":
        return _negative(record["peak_memory_bytes"]["max"], blocks.LEAST_ERROR)
    if figure == "energy_joules":
        joules = record.get("joules_per_image") or record.get("joules_per_token")
        return _negative(joules, COUNTER_S / (record["total_s"] or COUNTER_S))
    value, table = record.get(figure), run_folder.read_steps(Path(record["folder"]))
    rate_per_s = value["non_padding"] if isinstance(value, dict) else value
    if not rate_per_s or table is None:
        return None
    columns = {name: table[name].to_numpy() for name in COLUMNS}
    seconds = formulas.step_times_s(*columns.values())
    numbers, config = np.arange(len(seconds)), record["config"]
    after = numbers >= config.get("warmup_steps" if "skip_steps" not in config else "skip_steps", 0)
    later = after & (numbers % (int(columns["step"].max()) + 1) > 0)
    counted = seconds[later] if later.any() else seconds[after]
    return blocks.of_steps(counted, rate_per_s * float(seconds[after].mean()) * len(counted))


def _negative(value: float | None, error: float) -> tuple[float, float] | None:
    return (-math.log(value), error) if value else None


def joined(before: Measured | None, after: Measured) -> Measured:
    """Two blocks in a row as one."""
    if before is None:
        return after
    return Measured(
        after.step,
        after.skips,
        after.steps_per_epoch,
        np.concatenate([before.step_s, after.step_s]),
        np.concatenate([before.samples, after.samples]),
        after.peaks_bytes,
        after.diverged,
        after.energy,  # what a process does first takes more
    )


def steps_for(block_s: float, step_s: float, skips: int, steps_per_epoch: int) -> int:
    """Steps to train until so many seconds of them are measured: the block, and each epoch, begins with others."""
    wanted = max(LEAST_STEPS, math.ceil(block_s / step_s))
    epochs = wanted // max(1, steps_per_epoch - 1) if steps_per_epoch > 1 else 0
    return wanted + skips + epochs
