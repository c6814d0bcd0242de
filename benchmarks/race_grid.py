"""Grids measured in full on CPU ranks, kept for the replays of `benchmarks.race`; one of them is that of its live race.

A row a cell: its axes, the seconds of its steps after the warm-up, samples a step, seconds of training, and of its
whole attempt.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import python
from multicard.decide.race.posterior import Prior
from multicard.records import steps, validate
from multicard.records.run_folder import RESULT

HERE = Path(__file__).parent
COMMON = "dataset=digits model.width=0.35 dataset.image_size=48 device=cpu"
REST: dict[str, tuple[object, ...]] = {
    "layout": ("nchw", "nhwc"),
    "loader": ("torch", "batched", "device"),
    "gpus": (1, 2),
    "malloc": ("tuned", "system"),
    "optimizer.fused": (False, True),
}
STRETCH_S = 5.0  # of steps that follow one another as they were measured: longer than a machine's slow spells


@dataclass(frozen=True)
class Grid:
    """A grid that is measured in full.

    path: where it is kept. words: of the command that measures it, beside its axes.
    start_s: of a process of a race, the mean `used_s` of the starts in a race of it on two cores. block_s: of a block.
    """

    path: Path
    words: str
    axes: Mapping[str, tuple[object, ...]]
    start_s: float
    block_s: float

    def sweep(self, folder: Path, *words: str) -> None:
        """Run the cells that `folder` does not have yet, or what `words` make of the sweep."""
        axes = (f"{axis}={','.join(str(value).lower() for value in values)}" for axis, values in self.axes.items())
        given = [*COMMON.split(), *self.words.split(), f"race.block={self.block_s:g}"]
        python("train_vision.py", "-m", *given, *axes, f"hydra.sweep.dir={folder}", *words)

    def write(self, folder: Path) -> int:
        """Keep the records of `folder`; how many cells there are.

        Raises:
            ValueError: a cell of the grid has no record that ended ok.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows: dict[tuple[object, ...], dict[str, Any]] = {}
        for path in sorted(folder.glob(f"*/{RESULT}")):
            record = json.loads(path.read_text())
            if record["status"] == "ok" and record["probe"] is None:
                row = self._row(path.parent, record)
                rows[tuple(row[axis] for axis in self.axes)] = row
        cells = [*itertools.product(*self.axes.values())]
        absent = [cell for cell in cells if cell not in rows]
        if absent:
            raise ValueError(f"{folder}: {len(absent)} of {len(cells)} cells have no finished run, {absent[0]} first")
        table = pa.Table.from_pylist([rows[cell] for cell in cells])
        pq.write_table(table, self.path, compression="zstd")
        return len(cells)

    def _row(self, folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
        (attempt,) = record["segments"]
        started, ended = (datetime.fromisoformat(attempt[name]) for name in ("started_at", "ended_at"))
        seconds = steps.measured_s(folder, validate.decode((folder / RESULT).read_bytes()))
        trained = sum(epoch["samples_trained"] for epoch in record["epochs"])
        figures = {"total_s": record["total_s"], "wall_s": (ended - started).total_seconds()}
        figures |= {"samples": trained / attempt["steps"], "steps_s": seconds.astype(np.float32)}
        return {axis: _setting(record, axis) for axis in self.axes} | figures


SHORT = Grid(HERE / "race_grid_short.parquet", "epochs=4", {"precision": ("fp32", "bf16"), **REST}, 6.5, 1.0)
LONG = Grid(HERE / "race_grid_long.parquet", "epochs=10", {"batch_size": (16, 32), **REST}, 9.0, 2.0)
GRIDS = {"short": SHORT, "long": LONG}


def _setting(record: Mapping[str, Any], axis: str) -> object:
    if axis in record["axes"]:
        return record["axes"][axis]
    value = record["config"]
    for key in axis.split("."):
        value = value[key]
    return value


class MeasuredGrid:
    """A measured grid as a world of replays (`race_replays.World`).

    A process runs the measured steps of its cell, in stretches of STRETCH_S from a step drawn at random: within them
    steps keep their correlation, stalls and slow spells (the circular block bootstrap of Politis and Romano 1992). The
    truth is the mean of the measured run. That processes differ is added.

    Args:
        times: of its epochs that a full run has; the measured ones stand for all of them.

    Raises:
        FileNotFoundError: the grid was not measured.
    """

    def __init__(self, grid: Grid, seed: int, between_runs: float = 0.01, times: int = 1) -> None:
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(grid.path).to_pylist()
        self._seed, self._between_runs = seed, between_runs
        self._steps_s = [np.array(row["steps_s"], float) for row in rows]
        self.settings: list[Mapping[str, object]] = [{axis: row[axis] for axis in grid.axes} for row in rows]
        self.samples = np.array([row["samples"] for row in rows])
        self.truth = np.log(self.samples / [steps_s.mean() for steps_s in self._steps_s])
        self.full_s = np.array([row["total_s"] for row in rows]) * times
        self.start_s, self.block_s = grid.start_s, grid.block_s
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
