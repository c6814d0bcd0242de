"""Read the figures of a race's cells: from blocks of steps between two pauses, and from full runs.

A figure is read as the logarithm of samples per second, with its standard error.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from multicard.decide.race.outcome import NORMAL_95, Standing
from multicard.measure.series import mean_variance
from multicard.ranks.gates import blocks_file
from multicard.records import steps
from multicard.records.figures import Figure
from multicard.records.run_folder import RecordedRun
from multicard.records.trained_weights import ApartBy, Held, apart_by, compared

LEAST_STEPS = 4  # A block measures at least this many steps, however long they take.
# With few steps, their correlation cannot be estimated. Their standard error gets this factor.
FEW_STEPS = 2.0
LEAST_ERROR = 1e-4  # The error of a block whose steps are all equal: clocks tick.
SINGLE_ERROR = 0.1  # The error of a block with a single step.
# Slow spells of a full run are found by comparing stretches of its steps. A run has at most
# STRETCHES of them, each with at least STRETCH_STEPS steps. A slow stretch is slower than the calm
# ones by at least SLOW_SHARE and by SLOW_ERRORS standard errors.
STRETCHES = 30
STRETCH_STEPS = 5
SLOW_SHARE = 0.4
SLOW_ERRORS = 6.0
SLOW_STRETCHES = 3  # A run counts as slowed from this number of slow stretches on.

Reading = tuple[float, float]  # The logarithm of a figure, and its standard error.


def figure_text(log_figure: float) -> str:
    return f"{math.exp(log_figure):,.4g}"


def interval_text(standing: Standing) -> str:
    """Return the 95 % interval of a cell's figure as text."""
    half = NORMAL_95 * standing.error
    return f"{figure_text(standing.log_figure - half)} to {figure_text(standing.log_figure + half)}"


def in_words(figure: Figure, standing: Standing) -> str:
    """Return a cell's figure as text, with its unit and interval."""
    return (
        f"{figure_text(standing.log_figure)} {figure.head or figure.title}"
        f" ({interval_text(standing)})"
    )


@dataclass(frozen=True)
class MeasuredBlock:
    """Consecutive steps that all ranks of a cell measured.

    Attributes:
        step_s: seconds of each step (n,), as a mean over the ranks.
        samples: samples of each step (n,), summed over the ranks.
        peaks_bytes: peak memory of each rank since the start of its process.
        apart_by: the evidence that the ranks train apart, or None if there is none.
    """

    step: int
    skips: int
    steps_per_epoch: int
    step_s: np.ndarray
    samples: np.ndarray
    peaks_bytes: list[int]
    diverged: bool
    apart_by: ApartBy | None = None

    @property
    def seconds(self) -> float:
        return float(self.step_s.sum())

    @property
    def mean_step_s(self) -> float:
        return self.seconds / len(self.step_s)

    def reading(self) -> Reading:
        """Return the log rate of samples per second, which is not finite if the block has none.

        If the number of samples differs between steps, a longer step is no sign of noise. The error
        then compares each step with the time that its samples take at the mean rate.
        """
        samples = float(self.samples.sum())
        expected_s = self.samples * self.seconds / samples
        return log_rate(self.step_s - expected_s + self.mean_step_s, samples)


def log_rate(steps_s: np.ndarray, samples: float) -> Reading:
    """Return the logarithm of samples per second over consecutive steps, and its standard error.

    Neither is finite if a step is not finite, or if the steps took no time.

    Args:
        steps_s: seconds of each step (n,), with n at least 1.
        samples: samples of all these steps together.
    """
    total_s = float(steps_s.sum())
    count = len(steps_s)
    if not (math.isfinite(total_s) and total_s > 0 and samples > 0):
        return math.nan, math.nan
    mean_s = total_s / count
    term = mean_variance(steps_s)
    if term is not None and term.degrees >= 1:
        error = math.sqrt(term.variance) / mean_s
    elif count > 1:
        error = FEW_STEPS * float(steps_s.std(ddof=1)) / math.sqrt(count) / mean_s
    else:
        error = SINGLE_ERROR
    return math.log(samples / total_s), max(error, LEAST_ERROR)


def log_slowdown(steps_s: np.ndarray) -> float:
    """Return by how much slow spells lowered the logarithm of the rate of consecutive steps (n,).

    0 if there were none. Bursts of other load last for seconds, so they slow down whole stretches
    of steps rather than single steps.
    """
    stretch_count = min(STRETCHES, len(steps_s) // STRETCH_STEPS)
    if stretch_count <= SLOW_STRETCHES or not np.isfinite(steps_s).all():
        return 0.0
    stretches = np.array_split(steps_s, stretch_count)
    medians_s = np.array([np.median(stretch) for stretch in stretches])
    calm_s = float(np.quantile(medians_s, 0.25))
    noise_s = float(np.median([stretch.std() for stretch in stretches])) / math.sqrt(
        len(steps_s) / stretch_count
    )
    slow = medians_s > calm_s + max(SLOW_SHARE * calm_s, SLOW_ERRORS * noise_s)
    if slow.sum() < SLOW_STRETCHES:
        return 0.0
    rest_s = np.concatenate(
        [stretch for stretch, is_slow in zip(stretches, slow, strict=True) if not is_slow]
    )
    return max(math.log(float(steps_s.mean() / rest_s.mean())), 0.0)


class BlockReader:
    """Reads the blocks of a cell's ranks while the ranks write them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blocks_read = 0
        self.ranks = 0

    def next(self) -> MeasuredBlock | None:
        """Return the next block once all ranks have written it, or None before."""
        first_line = self._read_line(0)
        if first_line is None:
            return None
        self.ranks = first_line["ranks"]
        lines = [first_line, *(self._read_line(rank) for rank in range(1, self.ranks))]
        rank_lines = [line for line in lines if line is not None]
        if len(rank_lines) < self.ranks:
            return None
        self._blocks_read += 1
        return MeasuredBlock(
            step=first_line["step"],
            skips=first_line["skips"],
            steps_per_epoch=first_line["steps_per_epoch"],
            # Ranks step together, so they differ only by noise.
            step_s=np.mean([line["step_s"] for line in rank_lines], axis=0),
            samples=np.sum([line["samples"] for line in rank_lines], axis=0),
            peaks_bytes=[line["peak_memory_bytes"] for line in rank_lines],
            diverged=first_line["step"] > 0 and first_line["loss"] is None,
            apart_by=_apart_by(rank_lines),
        )

    def _read_line(self, rank: int) -> dict[str, Any] | None:
        try:
            lines = blocks_file(self._folder, rank).read_text().split("\n")
        except FileNotFoundError:
            return None
        # A line that is still being written has no line break yet.
        return json.loads(lines[self._blocks_read]) if len(lines) > self._blocks_read + 1 else None


def _apart_by(lines: Sequence[dict[str, Any]]) -> ApartBy | None:
    """Return the evidence in the ranks' lines of one block that they train apart, or None."""
    if len(lines) == 1:
        return None
    ranks_held = [msgspec.convert(line.get("held", {}), Held) for line in lines]
    relation = compared([held.weights for held in ranks_held])
    return apart_by(relation, all(held.grouped for held in ranks_held), steps=[], is_stopped=True)


def full_run_reading(run: RecordedRun, figure: Figure) -> Reading | None:
    """Return the figure of a run that ended ok, or None if it has none.

    The error comes from its measured steps, except for the first step of each epoch.
    """
    record = run.record
    value = figure.value(record) if record.status == "ok" else None
    counted_steps = _counted_steps(run) if value else None
    if not value or counted_steps is None:
        return None
    measured_s, rated_s = counted_steps
    return log_rate(rated_s, value * float(measured_s.mean()) * len(rated_s))


def run_log_slowdown(run: RecordedRun) -> float:
    """Return by how much slow spells lowered the logarithm of a run's figure.

    0 if the run's steps are not known.
    """
    counted_steps = _counted_steps(run)
    return 0.0 if counted_steps is None else log_slowdown(counted_steps[1])


def _counted_steps(run: RecordedRun) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the seconds of a run's measured steps, with and without the first step of each epoch.

    None if the run has no steps on disk.
    """
    record = run.record
    try:
        counted_steps = steps.counted(run.folder, record)
    except ValueError:
        return None
    seconds = counted_steps.steps_s
    is_measured = ~(counted_steps.warmup | counted_steps.stalls)
    per_epoch = record.epochs[0].steps if record.epochs else None
    is_later = is_measured & (np.arange(len(seconds)) % (per_epoch or len(seconds)) > 0)
    return seconds[is_measured], seconds[is_later] if is_later.any() else seconds[is_measured]


def steps_for(block_s: float, step_s: float, skips: int, steps_per_epoch: int) -> int:
    """Return how many steps to train so that about `block_s` seconds are measured.

    The first steps of the block and the first step of each epoch are not measured, so these are
    added.
    """
    wanted = max(LEAST_STEPS, math.ceil(block_s / step_s))
    epochs = wanted // max(1, steps_per_epoch - 1) if steps_per_epoch > 1 else 0
    return wanted + skips + epochs
