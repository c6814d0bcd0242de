"""A grid measured in full on CPU ranks, kept as `race_grid.parquet` for the replays of `benchmarks.race`.

A row a cell: its axes, the seconds of its steps after the warm-up, samples a step, seconds of training, and of its
whole attempt.
"""

import itertools
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import python
from multicard.records import steps, validate
from multicard.records.run_folder import RESULT

GRID = Path(__file__).with_name("race_grid.parquet")
COMMON = "dataset=digits model.width=0.35 dataset.image_size=48 epochs=4 device=cpu"
BLOCK_S = 1.0  # runs are short
START_S = 6.5  # of a process of a race: `used_s` of the starts in a race of `benchmarks.race --live` on two cores
AXES: dict[str, tuple[object, ...]] = {
    "precision": ("fp32", "bf16"),
    "layout": ("nchw", "nhwc"),
    "loader": ("torch", "batched", "device"),
    "gpus": (1, 2),
    "malloc": ("tuned", "system"),
    "optimizer.fused": (False, True),
}


def measure(folder: Path) -> int:
    """Run the cells that `folder` does not have yet, and write GRID; how many cells there are.

    Raises:
        ValueError: a cell of the grid has no record that ended ok.
    """
    axes = (f"{axis}={','.join(str(value).lower() for value in values)}" for axis, values in AXES.items())
    python("train_vision.py", "-m", *COMMON.split(), *axes, f"hydra.sweep.dir={folder}")
    return write(folder)


def write(folder: Path) -> int:
    """GRID from the records of `folder`; see `measure`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        record = json.loads(path.read_text())
        if record["status"] == "ok":
            row = _row(path.parent, record)
            rows[tuple(row[axis] for axis in AXES)] = row
    cells = [*itertools.product(*AXES.values())]
    absent = [cell for cell in cells if cell not in rows]
    if absent:
        raise ValueError(f"{folder}: {len(absent)} of {len(cells)} cells have no finished run, {absent[0]} first")
    table = pa.Table.from_pylist([rows[cell] for cell in cells])
    pq.write_table(table, GRID, compression="zstd")
    return len(cells)


def _row(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    config, axes, (attempt,) = record["config"], record["axes"], record["segments"]
    started, ended = (datetime.fromisoformat(attempt[name]) for name in ("started_at", "ended_at"))
    setting = {name: axes[name] for name in ("precision", "layout", "loader", "gpus")}
    setting |= {"malloc": config["malloc"], "optimizer.fused": config["optimizer"]["fused"]}
    seconds = steps.measured_s(folder, validate.decode((folder / RESULT).read_bytes()))
    trained = sum(epoch["samples_trained"] for epoch in record["epochs"])
    figures = {"total_s": record["total_s"], "wall_s": (ended - started).total_seconds()}
    return setting | figures | {"samples": trained / attempt["steps"], "steps_s": seconds.astype(np.float32)}


class MeasuredGrid:
    """The measured grid as a world of replays (`race_replays.World`).

    A process is the cell's own run, as often around as is needed, from a step drawn at random: stretches of steps that
    follow one another keep their correlation, stalls and slow spells. The truth is the mean of the run. That processes
    differ is added.

    Args:
        times: of its epochs that a full run has; the measured ones stand for all of them.

    Raises:
        FileNotFoundError: GRID was not measured.
    """

    def __init__(self, seed: int, between_runs: float = 0.01, times: int = 1) -> None:
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(GRID).to_pylist()
        self._seed, self._between_runs = seed, between_runs
        self._steps_s = [np.array(row["steps_s"], float) for row in rows]
        self.settings: list[Mapping[str, object]] = [{axis: row[axis] for axis in AXES} for row in rows]
        self.samples = np.array([row["samples"] for row in rows])
        self.truth = np.log(self.samples / [steps_s.mean() for steps_s in self._steps_s])
        self.full_s = np.array([row["total_s"] for row in rows]) * times
        self.start_s = START_S
        self.sweep_start_s = float(np.mean([row["wall_s"] - row["total_s"] for row in rows]))
        self.block_s = BLOCK_S
        self.predictions: list[tuple[float, float] | None] = [None] * len(rows)

    def steps_s(self, cell: int, process: int, seconds: float, now_s: float) -> np.ndarray:
        own = np.random.default_rng((self._seed, cell, process)).normal(0, self._between_runs)
        series = self._steps_s[cell]
        first = np.random.default_rng((self._seed, cell, process, int(now_s * 1000))).integers(len(series))
        count = max(3, round(seconds / series.mean()))
        return np.resize(np.roll(series, -first), count) * np.exp(-own)
