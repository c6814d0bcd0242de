"""Worlds of race replays: made grids whose truth is known, and grids that were measured in full."""

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
# of steps that follow one another as they were measured: longer than a machine's slow spells
STRETCH_S = 5.0
AXES: dict[str, tuple[object, ...]] = {
    "precision": ("fp32", "bf16", "fp16"),
    "gpus": (1, 2),
    "layout": ("nchw", "nhwc"),
    "loader": ("batched", "device"),
    "compile": (True, False),
    "fused": (True, False),
}
FULL_S = 60.0  # a full run of a cell of middling speed, without its start
STEP_S = 0.1  # a step of it
SAMPLES = 32.0  # of a step
BLOCK_S = 2.0
PREDICTION_SD = 0.08
# seconds of a burst, and between two in the mean
BURST_S = 20.0
BETWEEN_S = 30.0
BUSY_LOOKS = 20  # at the load, in a block or a run
# Slow spells of single cells: one of so many cells has them, seconds of one, seconds between two in
# the mean, and the factor on its steps
SPELL_CELLS = 5
SPELL_S = 4.0
BETWEEN_SPELLS_S = 8.0
SPELL_FACTOR = 1.6


@dataclass(frozen=True)
class WorldKind:
    """Properties of a made grid.

    interaction, between_runs, between_steps: standard deviations of logarithms. correlation: of
    neighbouring steps.
    drift: standard deviation of the logarithm of all cells' speed, after 100 s. equal: number of
    best cells that are
    made equal. slowed: share of steps that take twice as long. predicted: cells have predictions.
    uneven: as between_runs, of cells with gpus=2 alone. burst: factor on the time of all steps in
    bursts of BURST_S;
    is_seen: their load is seen, as of other programs; else they are a hypervisor's.
    has_spells: some cells have slow spells of their own, in each of their processes at other times.
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
    """A grid of 96 cells: axes that matter by 1 % to 70 %, and interactions.

    settings: of each cell. predictions: priors of `Race`. truth: log figures (cells,). samples: of
    a step (cells,).
    start_s: of a process; sweep_start_s: of a cell in a sweep, whose cells may share a process.
    block_s: of a block.
    full_s: of a full run after its start (cells,).
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
        drawn = np.random.default_rng((seed, 1)).integers(SPELL_CELLS, size=len(self.truth))
        self._with_spells = (drawn == 0) & kind.has_spells
        order = np.argsort(-self.truth)
        self.truth[order[: kind.equal]] = self.truth[order[0]]
        self.truth += math.log(SAMPLES / STEP_S) - self.truth.mean()
        in_spells = SPELL_S / (SPELL_S + BETWEEN_SPELLS_S)  # share of the time
        mean_speed = 1 - in_spells * (1 - 1 / SPELL_FACTOR)  # of that between spells
        self._calm = self.truth - np.where(self._with_spells, math.log(mean_speed), 0.0)
        self.start_s = self.sweep_start_s = kind.start_s
        self.block_s = BLOCK_S
        self.full_s = FULL_S * np.exp(-self.truth) / np.exp(-self.truth).mean()
        walk = rng.normal(0, kind.drift / 10, 10_000)  # a second each
        self._drift = np.cumsum(walk)
        gaps_s = rng.exponential(BETWEEN_S, 2_000) if kind.burst > 1 else np.zeros(0)
        self._begins_s = np.cumsum(gaps_s + BURST_S) - BURST_S
        predicted = self.truth + rng.normal(0, PREDICTION_SD, len(self.truth))
        priors = [Prior(float(figure), PREDICTION_SD, "scaled") for figure in predicted]
        self.predictions: list[Prior | None] = [*priors] if kind.predicted else [None] * len(priors)

    def steps_s(self, cell: int, process: int, seconds: float, now_s: float) -> np.ndarray:
        """Consecutive steps of a process that take about `seconds`, at a time of the race."""
        kind = self._kind
        between = (
            kind.uneven if kind.uneven and self.settings[cell]["gpus"] == 2 else kind.between_runs
        )
        own = np.random.default_rng((self._seed, cell, process)).normal(0, between)
        rng = np.random.default_rng((self._seed, cell, process, int(now_s * 1000)))
        speed = self._calm[cell] + own + self._drift[min(int(now_s), len(self._drift) - 1)]
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
        """Steps as bursts slow them; those that begin within one."""
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
        """The share of the cores that others are seen to have, from a time on."""
        if not self._kind.is_seen:
            return 0.0
        times_s = now_s + seconds * (np.arange(BUSY_LOOKS) + 0.5) / BUSY_LOOKS
        in_burst = np.mean([self._is_in_burst(float(time_s)) for time_s in times_s])
        return float(in_burst) * (1 - 1 / self._kind.burst)


def _in_spells(steps_s: np.ndarray, rng: np.random.Generator, now_s: float) -> np.ndarray:
    """Steps as slow spells of their own process slow them; those that begin within one."""
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

    start_s: of a process of a race, the mean of the starts in a race of it on two cores.
    block_s: of a block.
    """

    path: Path
    axes: tuple[str, ...]
    start_s: float
    block_s: float


# no roles: columns of a file of measured steps
REST = ("layout", "loader", "gpus", "malloc", "optimizer.fused")
SHORT = RecordedGrid(HERE / "race_grid_short.parquet", ("precision", *REST), 6.5, 1.0)
LONG = RecordedGrid(HERE / "race_grid_long.parquet", ("batch_size", *REST), 9.0, 2.0)
GRIDS = {"short": SHORT, "long": LONG}


class MeasuredGrid:
    """A measured grid for replays, with the attributes of `MadeGrid`.

    A process runs the measured steps of its cell, in stretches of STRETCH_S from a step drawn at
    random: within them steps keep their correlation, stalls and slow spells (the circular block
    bootstrap of Politis and Romano 1992). The truth is the mean of the measured run.
    That processes differ is added.

    Args:
        times: of its epochs that a full run has; the measured ones stand for all of them.
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
        own = np.random.default_rng((self._seed, cell, process)).normal(0, self._between_runs)
        series = self._steps_s[cell]
        count, stretch = (max(3, round(span_s / series.mean())) for span_s in (seconds, STRETCH_S))
        rng = np.random.default_rng((self._seed, cell, process, int(now_s * 1000)))
        firsts = rng.integers(len(series), size=-(-count // stretch))
        places = (firsts[:, None] + np.arange(stretch)).ravel()[:count] % len(series)
        return series[places] * np.exp(-own)

    def busy(self, now_s: float, seconds: float) -> float:
        """That of a machine of one's own."""
        return 0.0


World = MadeGrid | MeasuredGrid


def correlated(normals: np.ndarray, correlation: float) -> np.ndarray:
    """A first-order process (n,) of a variance of 1."""
    if not correlation:
        return normals
    normals[1:] *= math.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], normals))
