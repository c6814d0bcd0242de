"""Figures of a race's cells: blocks of steps between two pauses, and full runs."""

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

LEAST_STEPS = 4  # measured in a block, however long they take
FEW_STEPS = 2.0  # factor on the standard error of steps that are too few to tell their correlation
LEAST_ERROR = 1e-4  # of a block whose steps are all equal: clocks tick
SINGLE_ERROR = 0.1  # of a block of a single step
# Slow spells within a full run, in stretches of its steps: most of them, least steps of each, and
# how much slower than the calm ones a slow one is at least, as a share and in standard errors
STRETCHES = 30
STRETCH_STEPS = 5
SLOW_SHARE = 0.4
SLOW_ERRORS = 6.0
SLOW_STRETCHES = 3  # at least, for a run to be slowed

Reading = tuple[float, float]  # the logarithm of a figure, and its standard error


def value(log_figure: float) -> str:
    return f"{math.exp(log_figure):,.4g}"


def interval(standing: Standing) -> str:
    """95 % interval of a cell's figure."""
    half = NORMAL_95 * standing.error
    return f"{value(standing.log_figure - half)} to {value(standing.log_figure + half)}"


def in_words(figure: Figure, standing: Standing) -> str:
    """A cell's figure with its unit and interval."""
    return f"{value(standing.log_figure)} {figure.head or figure.title} ({interval(standing)})"


@dataclass(frozen=True)
class MeasuredBlock:
    """Consecutive steps that all ranks of a cell measured.

    step_s: seconds (n,), the mean over the ranks. samples: (n,), of all ranks. peaks_bytes: of each
    rank, since the start of its process. apart_by: what shows that its ranks train apart; None
    where nothing does.
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
        """Samples per second; not finite where the block has none. Where samples differ from step
        to step, the error is by how far the time of each step is from that of its samples at the
        mean rate.
        """
        samples = float(self.samples.sum())
        expected_s = self.samples * self.seconds / samples
        return rate(self.step_s - expected_s + self.mean_step_s, samples)


def rate(steps_s: np.ndarray, samples: float) -> Reading:
    """Samples per second over consecutive steps (n,), n at least 1, with so many samples in all;
    not finite where a step is not, or took no time.
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


def slowed(steps_s: np.ndarray) -> float:
    """By how much slow spells lowered the logarithm of the rate of consecutive steps (n,);
    0 where there are none.

    Others' bursts last for seconds: whole stretches of steps are slower than the calm ones,
    not single steps.
    """
    count = min(STRETCHES, len(steps_s) // STRETCH_STEPS)
    if count <= SLOW_STRETCHES or not np.isfinite(steps_s).all():
        return 0.0
    stretches = np.array_split(steps_s, count)
    middles_s = np.array([np.median(stretch) for stretch in stretches])
    calm_s = float(np.quantile(middles_s, 0.25))
    noise_s = float(np.median([stretch.std() for stretch in stretches])) / math.sqrt(
        len(steps_s) / count
    )
    slow = middles_s > calm_s + max(SLOW_SHARE * calm_s, SLOW_ERRORS * noise_s)
    if slow.sum() < SLOW_STRETCHES:
        return 0.0
    rest_s = np.concatenate(
        [stretch for stretch, is_slow in zip(stretches, slow, strict=True) if not is_slow]
    )
    return max(math.log(float(steps_s.mean() / rest_s.mean())), 0.0)


class BlockReader:
    """Reads the blocks of a cell's ranks while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = 0
        self.ranks = 0

    def next(self) -> MeasuredBlock | None:
        """The next block, once all ranks have written it; else None."""
        first = self._line(0)
        if first is None:
            return None
        self.ranks = first["ranks"]
        lines = [first, *(self._line(rank) for rank in range(1, self.ranks))]
        whole = [line for line in lines if line is not None]
        if len(whole) < self.ranks:
            return None
        self._taken += 1
        return MeasuredBlock(
            step=first["step"],
            skips=first["skips"],
            steps_per_epoch=first["steps_per_epoch"],
            step_s=np.mean([line["step_s"] for line in whole], axis=0),  # ranks step together
            samples=np.sum([line["samples"] for line in whole], axis=0),
            peaks_bytes=[line["peak_memory_bytes"] for line in whole],
            diverged=first["step"] > 0 and first["loss"] is None,
            apart_by=_apart_by(whole),
        )

    def _line(self, rank: int) -> dict[str, Any] | None:
        try:
            lines = blocks_file(self._folder, rank).read_text().split("\n")
        except FileNotFoundError:
            return None
        # a whole line ends
        return json.loads(lines[self._taken]) if len(lines) > self._taken + 1 else None


def _apart_by(lines: Sequence[dict[str, Any]]) -> ApartBy | None:
    """What shows that ranks with these lines of one block train apart."""
    if len(lines) == 1:
        return None
    held = [msgspec.convert(line.get("held", {}), Held) for line in lines]
    relation = compared([each.weights for each in held])
    return apart_by(relation, all(each.grouped for each in held), steps=[], is_stopped=True)


def full_run(run: RecordedRun, figure: Figure) -> Reading | None:
    """The figure of a run that ended ok, over its measured steps but each epoch's first;
    None where it has none.
    """
    record = run.record
    value = figure.value(record) if record.status == "ok" else None
    counted = _counted(run) if value else None
    if not value or counted is None:
        return None
    measured, rated = counted
    return rate(rated, value * float(measured.mean()) * len(rated))


def slowed_run(run: RecordedRun) -> float:
    """By how much slow spells lowered the logarithm of the figure of a run;
    0 where its steps are not known.
    """
    counted = _counted(run)
    return 0.0 if counted is None else slowed(counted[1])


def _counted(run: RecordedRun) -> tuple[np.ndarray, np.ndarray] | None:
    """The seconds of a run's measured steps, and of these but each epoch's first;
    None without them.
    """
    record = run.record
    try:
        counted = steps.counted(run.folder, record)
    except ValueError:
        return None
    seconds = counted.steps_s
    measured = ~(counted.warmup | counted.stalls)
    per_epoch = record.epochs[0].steps if record.epochs else None
    later = measured & (np.arange(len(seconds)) % (per_epoch or len(seconds)) > 0)
    return seconds[measured], seconds[later] if later.any() else seconds[measured]


def steps_for(block_s: float, step_s: float, skips: int, steps_per_epoch: int) -> int:
    """Steps to train so that `block_s` seconds are measured: the block, and each epoch,
    begins with skipped ones.
    """
    wanted = max(LEAST_STEPS, math.ceil(block_s / step_s))
    epochs = wanted // max(1, steps_per_epoch - 1) if steps_per_epoch > 1 else 0
    return wanted + skips + epochs
