"""How often a claim at its bound is decided, and two runs that are the same are told apart, in simulation."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.claims import measures
from analysis.claims.comparison import Readings
from analysis.runs import load
from analysis.stats.between_runs import RepeatedRuns
from tests.helpers import records


def test_ranks_of_one_run_are_not_independent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Eight ranks that differ by 1 %, in runs that differ by 3 %: two that are the same."""
    for seed in range(3):
        for pinned in (True, False):
            records.write(tmp_path / f"{seed}{pinned}", records.vision(seed=seed, pin_memory=pinned, gpus=8))
    runs = load.read([tmp_path]).runs
    top, bottom = ([run for run in runs if run["pin_memory"] is pinned] for pinned in (True, False))
    random, wrong = np.random.default_rng(6), 0
    ranks: dict[Path, list[Any]] = {}
    monkeypatch.setattr(Readings, "profile", lambda _, run: SimpleNamespace(ranks=ranks[run.folder]))
    communicating = measures.MEASURES["time_communicating"].interval
    for _ in range(300):
        for run in runs:
            seconds = np.exp(0.03 * random.normal() + 0.01 * random.normal(size=8)).tolist()
            derived = [SimpleNamespace(communication_s=second) for second in seconds]
            ranks[run.folder] = [SimpleNamespace(steps=10, derived=of_rank) for of_rank in derived]
        interval = communicating(measures.Sides(top, bottom, 0.95, Readings(runs)))
        assert interval.low is not None and interval.high is not None and interval.basis == "3 runs"
        wrong += not interval.low <= 1 <= interval.high
    assert wrong / 300 <= 0.07


@pytest.mark.parametrize("seeds", [1, 3])
def test_runs_of_one_seed_are_one_accuracy(tmp_path: Path, seeds: int):
    """Each seed three times, with the same accuracy each time: seeds alone show how trainings differ (0.2 points)."""
    for pinned in (True, False):
        for seed in range(seeds):
            for repetition in (1, 2, 3):
                record = records.vision(seed=seed, pin_memory=pinned, repetition=repetition)
                records.write(tmp_path / f"{pinned}{seed}{repetition}", record)
    runs = load.read([tmp_path]).runs
    sides = [[run for run in runs if run["pin_memory"] is pinned] for pinned in (True, False)]
    random, wrong = np.random.default_rng(6), {"claims": 0, "best": 0}
    for _ in range(200):
        right: dict[tuple[bool, int], int] = {}
        for run in runs:
            share = float(np.clip(0.99 + 0.002 * random.normal(), 0, 1))
            count = right.setdefault((run["pin_memory"], run["seed"]), int(random.binomial(10_000, share)))
            run.columns.update(test_samples=10_000, test_accuracy=count / 10_000)
        interval = measures.accuracy(measures.Sides(*sides, 0.95, Readings(runs)))
        assert (interval.low is None) == (seeds == 1)
        if interval.low is not None and interval.high is not None:
            wrong["claims"] += not interval.low <= 0 <= interval.high
        repeated = RepeatedRuns(runs)
        wrong["best"] += repeated.more_accurate(*sides) or repeated.more_accurate(*reversed(sides))
    assert max(wrong.values()) / 200 <= 0.06, wrong
