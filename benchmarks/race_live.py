"""A race of a grid of `race_grid` on this machine, and then its whole sweep: what the race took of the sweep's time,
and how far its winner is from the sweep's best."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.race_grid import LONG
from multicard.decide.race.grid import FOLDER
from multicard.measure.timing import clock_s
from multicard.records.run_folder import RESULT

FIGURE = "images_per_s"


@dataclass(frozen=True)
class Live:
    """race_s, sweep_s: of the commands, from their start to their end. loss: by which the winner's cell is behind the
    best one in the sweep, where both ran once."""

    cells: int
    started: int
    race_s: float
    sweep_s: float
    loss: float


def measure(folder: Path) -> Live:
    """Run the race and the sweep in `folder`, as far as they have not run there yet."""
    for name, words in (("race", [f"race={FIGURE}"]), ("sweep", [])):
        began_s = clock_s()
        LONG.sweep(folder / name, *words)
        with (folder / f"{name}.seconds").open("a") as file:  # a line for each time that it went on
            file.write(f"{clock_s() - began_s:.1f}\n")
    return read(folder)


def read(folder: Path) -> Live:
    """
    Raises:
        ValueError: the race has no winner, or its cell has no result in the sweep.
    """
    path = folder / "race" / FOLDER / f"{FIGURE}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    finals, sweep = _results(folder / "race"), _results(folder / "sweep")
    if not finals or not sweep:
        raise ValueError(f"{folder}: the race or the sweep has no result")
    means = {cell: float(np.mean([record[FIGURE] for record in records])) for cell, records in finals.items()}
    winner = max(means, key=lambda cell: means[cell])
    if winner not in sweep:
        raise ValueError(f"{folder}: the sweep has not measured {winner}, which won the race")
    figures = {cell: records[0][FIGURE] for cell, records in sweep.items()}
    return Live(
        cells=len(sweep),
        started=len({line["cell"] for line in lines if "log_figure" in line}),
        race_s=_seconds(folder, "race"),
        sweep_s=_seconds(folder, "sweep"),
        loss=1 - figures[winner] / max(figures.values()),
    )


def _results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Finished runs of each cell, by its identity."""
    results: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        record = json.loads(path.read_text())
        if record["status"] == "ok" and record["probe"] is None:
            results.setdefault(record["identity"], []).append(record)
    return results


def _seconds(folder: Path, name: str) -> float:
    return sum(map(float, (folder / f"{name}.seconds").read_text().split()))
