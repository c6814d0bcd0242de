"""Cells that are measured several times: in which order, in which folders,
and what a later command finds.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

from multicard.measure import repeated_runs
from multicard.measure.noise import GPU_SD, Noise
from multicard.records import run_folder
from multicard.sweep.order import Turn
from multicard.sweep.until_sure import Setting, UntilSure
from tests.helpers import records
from tests.helpers.messages import find, says, told
from tests.sweep.conftest import Measure, Planned


@pytest.mark.parametrize("launcher", ["local", "submitit_slurm"])
def test_all_cells_are_measured_before_any_is_measured_again(launcher: str, planned: Planned):
    axes = ["precision=fp32,bf16", "seed=0,1"]  # however they are typed, seeds are outside
    words = [
        *(axes[::-1] if launcher == "local" else axes),
        "repeat=2",
        f"hydra/launcher={launcher}",
    ]
    cells = planned(*words, "order=typed")
    settings = [(cell.cfg.repetition, cell.cfg.seed, cell.cfg.precision.name) for cell in cells]
    assert settings == [(r, s, p) for r in (1, 2) for s in (0, 1) for p in ("fp32", "bf16")]
    assert len({cell.folder for cell in cells}) == 8
    assert len({cell.config.identity() for cell in cells}) == 4


def test_only_repetitions_that_are_missing_are_measured(sweep: Measure, tmp_path: Path):
    _, _, first = sweep("precision=fp32,bf16", "order=typed")
    assert first == [("fp32", 0, 1), ("bf16", 0, 1)]
    # a cell that is measured once has the folder that it always had
    assert not list(tmp_path.glob("s/*-r*"))
    _, printed, more = sweep("precision=fp32,bf16", "repeat=3")
    assert more == [("fp32", 0, 2), ("bf16", 0, 2), ("fp32", 0, 3), ("bf16", 0, 3)]
    assert printed.count("measured before: ok") == 2
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith(("fp32", "bf16"))]
    alike = find(printed, "table.alike").facts["values"]
    assert rows == ["fp32", "bf16"] and (alike["gpus"], alike["n"], alike["status"]) == (
        "1",
        "3",
        "ok",
    )
    results = {
        path.parent.name: run_folder.read_json(path) or {}
        for path in tmp_path.glob("s/*/result.json")
    }
    assert all(
        name.endswith(f"-r{r['repetition']}") == (r["repetition"] > 1)
        for name, r in results.items()
    )
    _, printed, none = sweep("precision=fp32,bf16", "repeat=3", "dry_run=true")
    assert none == [] and says(printed, "sweep.counts", measured=6, queued=0, refused=0)
    _, _, again = sweep("precision=fp32", "repetition=2", "rerun=true")
    assert again == [("fp32", 0, 2)]


def steps_of(sd: float, slower: float = 1.0) -> Callable[[str, int], float]:
    """Runs that differ by `sd`, with a seed of their own each;
    those of bf16 take `slower` times as long.
    """

    def step_s(precision: str, repetition: int) -> float:
        random = np.random.default_rng([repetition, len(precision), ord(precision[0])])
        return 0.1 * math.exp(sd * random.normal()) * (slower if precision == "bf16" else 1.0)

    return step_s


def test_auto_repeats_what_is_not_sure_enough_and_goes_on_where_it_was(sweep: Measure):
    words = ["precision=fp32,bf16,fp64", "repeat=auto", "repeat_max=4", "order=typed"]
    steady = steps_of(0.0001)
    code, printed, runs = sweep(
        *words, "repeat_error=4%", step_s=lambda p, r: math.inf if p == "fp64" else steady(p, r)
    )
    assert code == 0 and runs[:6] == [(p, 0, r) for r in (1, 2) for p in ("fp32", "bf16", "fp64")]
    more_of_two = [(p, 0, r) for r in range(3, runs[-1][2] + 1) for p in ("fp32", "bf16")]
    assert runs[6:] == more_of_two  # what ran out of memory would do so again
    assert says(printed, "repeat.ended", runs=len(runs), cells=3, sure=2) and not says(
        printed, "repeat.undecided"
    )
    assert find(printed, "repeat.unusable").facts["cell"].startswith("device=cpu,precision=fp64")
    _, printed, more = sweep(*words, "repeat_error=0.0001%", step_s=steps_of(0.05))
    assert more == [(p, 0, r) for r in range(runs[-1][2] + 1, 5) for p in ("fp32", "bf16")]
    undecided = [message for message in told(printed) if message.code == "repeat.undecided"]
    reasons = [message.facts["reason"].facts for message in undecided if message.facts["runs"] == 4]
    assert len(reasons) == 2 and all(reason["half"] > 0 for reason in reasons)
    assert all(reason["cell"].startswith("device=cpu,precision=") for reason in reasons)
    _, printed, none = sweep(*words, "repeat_error=0.0001%", "dry_run=true")
    assert none == [] and printed.count("measured before: ok") == 8


def test_a_dry_run_of_auto_says_that_more_follows(sweep: Measure):
    _, printed, none = sweep("precision=fp32,bf16", "repeat=auto", "dry_run=true", "seed=7")
    assert none == [] and says(printed, "sweep.dry-run", cells=4)
    assert says(printed, "launch.until-sure", most=10)


def until_sure(random: np.random.Generator, sd: float) -> UntilSure:
    """All rounds of three cells, in two values of the precision."""
    keys = {"repeat_error": "1%", "repeat_max": 10, "order": "typed"}
    rounds = UntilSure(DictConfig(keys), [])
    for gpus in "123":
        for precision in ("fp32", "bf16"):
            name = gpus + precision
            rounds.settings[name] = Setting(name, [Turn(1, [name])])
    rounds.batch = [Turn(1, [name, ""]) for _ in range(2) for name in rounds.settings]
    while rounds.batch:
        for name in [turn.words[0] for turn in rounds.batch]:
            seconds = 0.1 * math.exp(sd * random.normal())
            rounds.settings[name].add(
                records.as_record(
                    {"step_s": {"mean": seconds, "definition": "wall"}, "hardware": "x"}
                )
            )
        rounds.take([])
    return rounds


def apart(rounds: UntilSure) -> list[bool]:
    """Whether `compare`, which does not know that the sweep looked several times,
    would tell the cells apart.
    """
    steps = {name: setting.step_s["x"] for name, setting in rounds.settings.items()}
    logs = {name: [(math.log(seconds), 0.0) for seconds in runs] for name, runs in steps.items()}
    known = Noise.learnt(logs.values(), GPU_SD)
    verdicts = []
    for a, b in [(f"{gpus}fp32", f"{gpus}bf16") for gpus in "123"]:
        spreads = known.of(logs[a]), known.of(logs[b])
        verdicts.append(repeated_runs.of_values(steps[a], steps[b], spreads).verdict())
    return [verdict in (repeated_runs.ABOVE, repeated_runs.BELOW) for verdict in verdicts]


@pytest.mark.parametrize("sd", [0.01, 0.03])
def test_looking_after_every_repetition_calls_equal_cells_different_no_oftener(sd: float):
    random = np.random.default_rng(1)
    sweeps = [until_sure(random, sd) for _ in range(200)]
    assert np.mean([apart(rounds) for rounds in sweeps]) <= 0.06
    settings = [(setting, rounds) for rounds in sweeps for setting in rounds.settings.values()]
    right = [
        abs(np.log(setting.step_s["x"]).mean() - math.log(0.1))
        <= rounds.half_width(setting, rounds.noises())
        for setting, rounds in settings
    ]
    assert np.mean(right) >= 0.93


def test_an_undecided_mean_has_its_interval_in_percent_of_it():
    """Of the mean, not of its logarithm, as `repeat_error` is: 79 % of it are 120 %."""
    rounds = until_sure(np.random.default_rng(4), 0.5)
    half = rounds.half_width(rounds.settings["1fp32"], rounds.noises())
    unsure = rounds.unsure()["1fp32"]
    assert half > 0.2 and unsure.facts == {"cell": "1fp32", "half": math.expm1(half)}
    assert f"±{math.expm1(half):.1%}" in unsure.sentence


def test_the_record_of_another_cell_is_not_taken(sweep: Measure, tmp_path: Path):
    sweep("precision=fp32")
    (result,) = tmp_path.glob("s/*/result.json")
    run_folder.write_json(result, (run_folder.read_json(result) or {}) | {"identity": "of another"})
    code, printed, measured = sweep("precision=fp32", "seed=0,1")
    assert (code, measured) == (1, [("fp32", 1, 1)])
    assert says(printed, "cells.other-record", key="name", cell=result.parent.name)
