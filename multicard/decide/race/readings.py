"""What the ranks of a cell have measured, as a race takes it: blocks of steps between two pauses, and full runs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multicard.measure import formulas
from multicard.measure.series import mean_variance
from multicard.ranks.pausing import blocks_file
from multicard.records import run_folder
from multicard.records.figures import FIGURES
from multicard.records.run_folder import Run
from multicard.records.schema import VisionRecord
from multicard.records.steps import COLUMNS

LEAST_STEPS = 4  # measured in a block, however long they take
COUNTER_S = 0.1  # within which a GPU's energy counter is up to date
FEW_STEPS = 2.0  # times the standard error of steps that are too few to tell their correlation
LEAST_ERROR = 1e-4  # of a block whose steps are all equal: clocks tick
SINGLE_ERROR = 0.1  # of a block of a single step
# Figures whose full runs rank the finalists alone: a run's energy has that of evaluation, of which blocks have none,
# and its peak memory is that of all it does.
OTHER_WORK = ("energy_joules", "peak_memory")


class Reading(NamedTuple):
    """A figure: its logarithm, negative where less is better, and the standard error of that."""

    log_figure: float
    error: float


@dataclass(frozen=True)
class Energy:
    """GPU energy of one block, unmeasured steps included."""

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

    def reading(self, figure: str) -> Reading:
        """The race's figure; not finite where the block has none."""
        if figure == "peak_memory":
            return _negative(max(self.peaks_bytes), LEAST_ERROR)  # the same in every step
        if figure == "energy_joules":
            energy, samples = self.energy, float(self.samples.mean())
            if energy is None or energy.joules <= 0 or samples <= 0:
                return Reading(math.nan, math.nan)
            return _negative(energy.joules / (energy.steps * samples), COUNTER_S / energy.seconds)
        # Where samples differ from step to step, the error is by how far the time of each step is from that of its
        # samples at the mean rate.
        samples = float(self.samples.sum())
        expected_s = self.samples * self.seconds / samples
        return rate(self.step_s - expected_s + self.mean_step_s, samples)


def rate(steps_s: np.ndarray, samples: float) -> Reading:
    """Samples a second over consecutive steps (n,), n at least 1; not finite where a step is not, or took no time.

    Args:
        samples: of all steps together.
    """
    total_s, count = float(steps_s.sum()), len(steps_s)
    if not (math.isfinite(total_s) and total_s > 0 and samples > 0):
        return Reading(math.nan, math.nan)
    mean_s = total_s / count
    term = mean_variance(steps_s)
    if term is not None and term.degrees >= 1:
        error = math.sqrt(term.variance) / mean_s
    elif count > 1:
        error = FEW_STEPS * float(steps_s.std(ddof=1)) / math.sqrt(count) / mean_s
    else:
        error = SINGLE_ERROR
    return Reading(math.log(samples / total_s), max(error, LEAST_ERROR))


class BlockReader:
    """The lines of a cell's ranks, as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._taken, self.ranks = folder, 0, 0

    def next(self) -> Measured | None:
        """The next block, once all ranks have written it; else None."""
        lines = [self._line(0)]
        if lines[0] is None:
            return None
        self.ranks = lines[0]["ranks"]
        lines += [self._line(rank) for rank in range(1, self.ranks)]
        whole = [line for line in lines if line is not None]
        if len(whole) < self.ranks:
            return None
        self._taken += 1
        return together(whole)

    def _line(self, rank: int) -> dict[str, Any] | None:
        try:
            lines = blocks_file(self._folder, rank).read_text().split("\n")
        except FileNotFoundError:
            return None
        return json.loads(lines[self._taken]) if len(lines) > self._taken + 1 else None  # a whole line ends


def together(lines: Sequence[dict[str, Any]]) -> Measured:
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


def full_run(run: Run, figure: str) -> Reading | None:
    """The figure of a finished run: rates without the warm-up, and without the first step of each epoch; None where it
    has none.
    """
    record = run.record
    if record.status != "ok":
        return None
    if figure == "peak_memory":
        peak_bytes = FIGURES["peak_memory_bytes"].value(record)
        return _negative(peak_bytes, LEAST_ERROR) if peak_bytes else None
    if figure == "energy_joules":
        joules = FIGURES["joules_per_image" if isinstance(record, VisionRecord) else "joules_per_token"].value(record)
        return _negative(joules, COUNTER_S / (record.total_s or COUNTER_S)) if joules else None
    rate_per_s, table = FIGURES[figure].value(record), run_folder.read_steps(run.folder)
    if not rate_per_s or table is None:
        return None
    columns = {name: table[name].to_numpy() for name in COLUMNS}
    seconds = formulas.step_times_s(*columns.values())
    numbers, config = np.arange(len(seconds)), record.config
    after = numbers >= config.get("warmup_steps" if "skip_steps" not in config else "skip_steps", 0)
    later = after & (numbers % (int(columns["step"].max()) + 1) > 0)
    counted = seconds[later] if later.any() else seconds[after]
    return rate(counted, rate_per_s * float(seconds[after].mean()) * len(counted))


def _negative(value: float, error: float) -> Reading:
    return Reading(-math.log(value), error)


def joined(before: Measured, after: Measured) -> Measured:
    """Two blocks in a row as one, with the energy of the second: what a process does first takes more."""
    step_s = np.concatenate([before.step_s, after.step_s])
    return replace(after, step_s=step_s, samples=np.concatenate([before.samples, after.samples]))


def steps_for(block_s: float, step_s: float, skips: int, steps_per_epoch: int) -> int:
    """Steps to train so that `block_s` seconds are measured: the block, and each epoch, begins with skipped ones."""
    wanted = max(LEAST_STEPS, math.ceil(block_s / step_s))
    epochs = wanted // max(1, steps_per_epoch - 1) if steps_per_epoch > 1 else 0
    return wanted + skips + epochs
