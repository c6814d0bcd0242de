"""The worlds of replayed races: made grids with known figures, and grids that were measured."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.signal import lfilter

from multicard.decide.race.posterior import Prior

HERE = Path(__file__).parent
# A replayed stretch of consecutive measured steps is longer than a slow spell of the machine.
STRETCH_S = 5.0
AXES: dict[str, tuple[object, ...]] = {
    "precision": ("fp32", "bf16", "fp16"),
    "gpus": (1, 2),
    "layout": ("nchw", "nhwc"),
    "loader": ("batched", "device"),
    "compile": (True, False),
    "fused": (True, False),
}
FULL_S = 60.0  # A full run of an average cell, without its start.
STEP_S = 0.1  # A step of an average cell.
SAMPLES = 32.0  # The number of samples in a step.
BLOCK_S = 2.0
PREDICTION_SD = 0.08
# The length of a burst of load, and the mean time between two bursts.
BURST_S = 20.0
BETWEEN_S = 30.0
BUSY_LOOKS = 20  # How often the load is sampled in a block or a run.
# On average, one in SPELL_CELLS cells has slow spells of SPELL_S, on average BETWEEN_SPELLS_S
# apart, in which its steps take SPELL_FACTOR times as long.
SPELL_CELLS = 5
SPELL_S = 4.0
BETWEEN_SPELLS_S = 8.0
SPELL_FACTOR = 1.6


@dataclass(frozen=True)
class WorldKind:
    """Properties of a made grid.

    Attributes:
        interaction, between_runs, between_steps: standard deviations of logarithms.
        correlation: the correlation of neighboring steps.
        drift: the standard deviation of the logarithm of all cells' speed after 100 s.
        equal: the number of best cells that are made equal.
        slowed: the share of steps that take twice as long.
        predicted: whether cells have predictions.
        uneven: as `between_runs`, for cells with gpus=2 only.
        burst: a factor on the time of all steps in bursts of BURST_S.
        is_seen: whether the load of a burst is visible, as that of other programs is. The load of
            a hypervisor is not.
        has_spells: whether some cells have slow spells, at other times in each of their processes.
    """

    start_s: float = 10.0
    interaction: float = 0.05
    between_runs: float = 0.01
    between_steps: float = 0.04
    correlation: float = 0.0
    drift: float = 0.0
    equal: int = 1
    slowed: float = 0.0
    predicted: bool = False
    uneven: float = 0.0
    burst: float = 1.0
    is_seen: bool = False
    has_spells: bool = False


class MadeGrid:
    """A grid of 96 cells, with axes that matter by 1 % to 70 %, and interactions.

    Attributes:
        settings: the setting of each cell.
        predictions: the priors for `Race`.
        truth: the logarithm of each cell's true figure, shape (cells,).
        samples: the samples of a step, shape (cells,).
        start_s: the time to start a process.
        sweep_start_s: the time to start a cell in a sweep, whose cells may share a process.
        block_s: the length of a block.
        full_s: the time of a full run after its start, shape (cells,).
    """

    def __init__(self, kind: WorldKind, seed: int) -> None:
        self._kind = kind
        self._seed = seed
        rng = np.random.default_rng(seed)
        cells = itertools.product(*AXES.values())
        self.settings: list[Mapping[str, object]] = [
            dict(zip(AXES, values, strict=True)) for values in cells
        ]
        self.samples = np.full(len(self.settings), SAMPLES)
        self.truth = np.zeros(len(self.settings))
        for axis, values in AXES.items():
            size = math.exp(rng.uniform(math.log(0.01), math.log(0.7)))
            effects = dict(
                zip(values, rng.permutation(np.linspace(0, size, len(values))), strict=True)
            )
            self.truth += [effects[setting[axis]] for setting in self.settings]
        self.truth += rng.normal(0, kind.interaction, len(self.truth))
        spell_draws = np.random.default_rng((seed, 1)).integers(SPELL_CELLS, size=len(self.truth))
        self._with_spells = (spell_draws == 0) & kind.has_spells
        order = np.argsort(-self.truth)
        self.truth[order[: kind.equal]] = self.truth[order[0]]
        self.truth += math.log(SAMPLES / STEP_S) - self.truth.mean()
        spell_share = SPELL_S / (SPELL_S + BETWEEN_SPELLS_S)  # of the time
        mean_speed = 1 - spell_share * (1 - 1 / SPELL_FACTOR)  # The speed between spells is 1.
        self._calm_log_speed = self.truth - np.where(self._with_spells, math.log(mean_speed), 0.0)
        self.start_s = self.sweep_start_s = kind.start_s
        self.block_s = BLOCK_S
        self.full_s = FULL_S * np.exp(-self.truth) / np.exp(-self.truth).mean()
        walk = rng.normal(0, kind.drift / 10, 10_000)  # one step for each second
        self._drift = np.cumsum(walk)
        gaps_s = rng.exponential(BETWEEN_S, 2_000) if kind.burst > 1 else np.zeros(0)
        self._begins_s = np.cumsum(gaps_s + BURST_S) - BURST_S
        predicted = self.truth + rng.normal(0, PREDICTION_SD, len(self.truth))
        priors = [Prior(float(figure), PREDICTION_SD, "scaled") for figure in predicted]
        self.predictions: list[Prior | None] = [*priors] if kind.predicted else [None] * len(priors)

    def steps_s(self, cell: int, process: int, seconds: float, now_s: float) -> np.ndarray:
        """Return the times of consecutive steps, about `seconds` long, of a process at `now_s`."""
        kind = self._kind
        between = (
            kind.uneven if kind.uneven and self.settings[cell]["gpus"] == 2 else kind.between_runs
        )
        process_effect = np.random.default_rng((self._seed, cell, process)).normal(0, between)
        rng = np.random.default_rng((self._seed, cell, process, int(now_s * 1000)))
        speed = (
            self._calm_log_speed[cell]
            + process_effect
            + self._drift[min(int(now_s), len(self._drift) - 1)]
        )
        step_s = SAMPLES * math.exp(-speed)
        count = max(3, round(seconds / step_s))
        noise = correlated(rng.normal(0, 1, count), kind.correlation)
        steps_s = step_s * (1 + kind.between_steps * noise)
        steps_s = steps_s * np.where(rng.random(count) < kind.slowed, 2.0, 1.0)
        if self._with_spells[cell]:
            steps_s = _in_spells(
                steps_s, np.random.default_rng((self._seed, cell, process, 1)), now_s
            )
        return self._in_bursts(steps_s, now_s) if len(self._begins_s) else steps_s

    def _in_bursts(self, steps_s: np.ndarray, now_s: float) -> np.ndarray:
        """Slow down the steps that begin within a burst."""
        slowed_s = steps_s.copy()
        for place, step_s in enumerate(steps_s):
            if self._is_in_burst(now_s):
                slowed_s[place] = step_s * self._kind.burst
            now_s += slowed_s[place]
        return slowed_s

    def _is_in_burst(self, now_s: float) -> bool:
        before = int(np.searchsorted(self._begins_s, now_s, "right")) - 1
        return before >= 0 and now_s < self._begins_s[before] + BURST_S

    def busy(self, now_s: float, seconds: float) -> float:
        """Return the share of the cores that other programs visibly use in the next `seconds`."""
        if not self._kind.is_seen:
            return 0.0
        times_s = now_s + seconds * (np.arange(BUSY_LOOKS) + 0.5) / BUSY_LOOKS
        in_burst = np.mean([self._is_in_burst(float(time_s)) for time_s in times_s])
        return float(in_burst) * (1 - 1 / self._kind.burst)


def _in_spells(steps_s: np.ndarray, rng: np.random.Generator, now_s: float) -> np.ndarray:
    """Slow down the steps that begin within a slow spell of their process."""
    gaps_s = rng.exponential(BETWEEN_SPELLS_S, 1_000)
    begins_s = np.cumsum(gaps_s + SPELL_S) - SPELL_S
    now_s %= float(begins_s[-1])
    slowed_s = steps_s.copy()
    for place, step_s in enumerate(steps_s):
        before = int(np.searchsorted(begins_s, now_s, "right")) - 1
        if before >= 0 and now_s < begins_s[before] + SPELL_S:
            slowed_s[place] = step_s * SPELL_FACTOR
        now_s += slowed_s[place]
    return slowed_s


@dataclass(frozen=True)
class RecordedGrid:
    """A grid that was measured in full.

    Attributes:
        start_s: the time to start a process in a race: the mean of the starts in a race of this
            grid on two cores.
        block_s: the length of a block.
    """

    path: Path
    axes: tuple[str, ...]
    start_s: float
    block_s: float


# no roles: columns of a file of measured steps
COMMON_AXES = ("layout", "loader", "gpus", "malloc", "optimizer.fused")
SHORT = RecordedGrid(HERE / "race_grid_short.parquet", ("precision", *COMMON_AXES), 6.5, 1.0)
LONG = RecordedGrid(HERE / "race_grid_long.parquet", ("batch_size", *COMMON_AXES), 9.0, 2.0)
GRIDS = {"short": SHORT, "long": LONG}


class MeasuredGrid:
    """A measured grid for replays, with the attributes of `MadeGrid`.

    A process runs the measured steps of its cell in stretches of STRETCH_S, each from a step drawn
    at random. Within a stretch, steps keep their correlation, stalls and slow spells. This is the
    circular block bootstrap of Politis and Romano (1992). The true figure is the mean of the
    measured run. Differences between processes are added.

    Args:
        times: a factor on the number of epochs of a full run. The measured epochs stand for all.
    """

    def __init__(
        self, grid: RecordedGrid, seed: int, between_runs: float = 0.01, times: int = 1
    ) -> None:
        rows: list[dict[str, Any]] = pq.read_table(grid.path).to_pylist()
        self._seed = seed
        self._between_runs = between_runs
        self._steps_s = [np.array(row["steps_s"], float) for row in rows]
        self.settings: list[Mapping[str, object]] = [
            {axis: row[axis] for axis in grid.axes} for row in rows
        ]
        self.samples = np.array([row["samples"] for row in rows])
        self.truth = np.log(self.samples / [steps_s.mean() for steps_s in self._steps_s])
        self.full_s = np.array([row["total_s"] for row in rows]) * times
        self.start_s = grid.start_s
        self.block_s = grid.block_s
        self.sweep_start_s = float(np.mean([row["wall_s"] - row["total_s"] for row in rows]))
        self.predictions: list[Prior | None] = [None] * len(rows)

    def steps_s(self, cell: int, process: int, seconds: float, now_s: float) -> np.ndarray:
        process_effect = np.random.default_rng((self._seed, cell, process)).normal(
            0, self._between_runs
        )
        series = self._steps_s[cell]
        count = max(3, round(seconds / series.mean()))
        stretch = max(3, round(STRETCH_S / series.mean()))
        rng = np.random.default_rng((self._seed, cell, process, int(now_s * 1000)))
        firsts = rng.integers(len(series), size=-(-count // stretch))
        places = (firsts[:, None] + np.arange(stretch)).ravel()[:count] % len(series)
        return series[places] * np.exp(-process_effect)

    def busy(self, now_s: float, seconds: float) -> float:
        """Return 0: no other program runs on the machine."""
        return 0.0


World = MadeGrid | MeasuredGrid


def correlated(normals: np.ndarray, correlation: float) -> np.ndarray:
    """Turn independent normals (n,) into a first-order autoregressive process of variance 1."""
    if not correlation:
        return normals
    normals[1:] *= math.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], normals))
