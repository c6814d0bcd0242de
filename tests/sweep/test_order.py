"""The order in which cells are measured: shuffled within a round, by a seed that is recorded."""

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from multicard.config import strict_yaml
from multicard.records import run_folder
from multicard.sweep.cells import Cell
from multicard.sweep.order import Turn, numbered_turns, shuffled_turns
from tests.conftest import Called
from tests.helpers.messages import find, says
from tests.sweep.conftest import DryRun, Measure

GRID = ("precision=fp32,bf16,fp16", "batch_size=4,8,16")
THREE = "precision=fp32,bf16,fp16"


def settings(cells: list[Cell]) -> list[tuple[int, str, int]]:
    """Repetition, precision and batch size of each cell."""
    return [(cell.cfg.repetition, cell.cfg.precision.name, cell.cfg.batch_size) for cell in cells]


def test_each_round_has_an_order_of_its_own(dry: DryRun):
    found = dry(*GRID, "repeat=3")
    (measured,) = found.groups
    typed = settings(found.cells)
    assert typed == [
        (r, p, b) for r in (1, 2, 3) for p in ("fp32", "bf16", "fp16") for b in (4, 8, 16)
    ]
    in_order = settings(measured)
    assert (
        sorted(in_order) == sorted(typed)
        and [each[0] for each in in_order] == [1] * 9 + [2] * 9 + [3] * 9
    )
    rounds = [[each[1:] for each in in_order[first : first + 9]] for first in (0, 9, 18)]
    assert len({str(each) for each in [*rounds, [each[1:] for each in typed[:9]]]}) == 4
    assert [cell.label for cell in measured] == [f"[{turn}/27] " for turn in range(1, 28)]


def test_a_sweep_of_one_run_each_is_shuffled_and_says_how_to_have_that_order_again(dry: DryRun):
    found = dry(*GRID)
    seed = find(found.printed, "sweep.order").facts["order"]
    assert found.groups[0] != found.cells
    again = dry(*GRID, f"order={seed}", "rerun=true")
    assert settings(again.groups[0]) == settings(found.groups[0])
    other = dry(*GRID, "order=1")
    assert settings(other.groups[0]) != settings(found.groups[0])
    typed = dry(*GRID, "order=typed")
    assert settings(typed.groups[0]) == settings(typed.cells) and not says(
        typed.printed, "sweep.order"
    )
    # there is nothing to shuffle
    assert not says(dry("precision=fp32", "repeat=3").printed, "sweep.order")


def test_arrays_of_slurm_are_submitted_in_that_order(dry: DryRun):
    here = dry("gpus=1,2", *GRID, "repeat=2")
    there = dry("gpus=1,2", *GRID, "repeat=2", "hydra/launcher=submitit_slurm")
    assert len(there.groups) == 2  # jobs that ask for one GPU, and for two
    for own in there.groups:
        gpus = own[0].cfg.gpus
        assert settings(own) == settings([cell for cell in here.groups[0] if cell.cfg.gpus == gpus])
        assert settings(own) != settings(sorted(own, key=lambda cell: cell.number))


def test_what_is_measured_follows_the_recorded_order_and_tables_the_typed_one(
    sweep: Measure, dry: DryRun, tmp_path: Path
):
    shown = [cell.cfg.precision.name for cell in dry(THREE, "order=2").groups[0]]
    _, printed, first = sweep(THREE, "order=2", most=1)
    assert says(printed, "sweep.left", left=2, cells=3)
    assert strict_yaml.read_yaml(tmp_path / "s" / "multirun.yaml")["order"] == "2"
    _, printed, rest = sweep(THREE)  # as an interrupted command is typed again, or in other words
    assert [precision for precision, _, _ in [*first, *rest]] == shown != ["fp32", "bf16", "fp16"]
    rows = [line.split()[0] for line in printed.splitlines() if re.match("fp32|bf16|fp16", line)]
    assert rows == ["fp32", "bf16", "fp16"]
    _, printed, _ = sweep(THREE)
    before = re.findall(r"\[(\d)/3\] precision=(\w+)", printed)
    assert before == [(str(turn), precision) for turn, precision in enumerate(shown, 1)]
    results = [run_folder.read_json(path) or {} for path in tmp_path.glob("s/*/result.json")]
    assert {result["config"]["order"] for result in results} == {"2"}
    _, _, more = sweep(THREE, "repeat=2", "order=typed")
    assert [precision for precision, _, _ in more] == ["fp32", "bf16", "fp16"]


def test_batches_of_a_sweep_are_shuffled_together(sweep: Measure, dry: DryRun):
    shown = [cell.cfg.precision.name for cell in dry(THREE, "order=2").groups[0]]
    _, printed, measured = sweep(THREE, "order=2", "hydra.sweeper.max_batch_size=1")
    assert [precision for precision, _, _ in measured] == shown
    rows = [line.split()[0] for line in printed.splitlines() if re.match("fp32|bf16|fp16", line)]
    assert rows == ["fp32", "bf16", "fp16"]


def test_rounds_of_auto_are_shuffled_too(sweep: Measure):
    noisy = Random(1)
    words = ["repeat=auto", "repeat_max=6", "repeat_error=0.01%", "order=5"]
    _, _, measured = sweep(THREE, *words, step_s=lambda *_: noisy.uniform(1, 2))
    rounds = [[p for p, _, r in measured if r == number] for number in range(1, 7)]
    assert [r for _, _, r in measured] == sorted(r for _, _, r in measured)
    assert all(sorted(own) == sorted(["fp32", "bf16", "fp16"]) for own in rounds)
    assert len({str(own) for own in rounds}) > 2


def test_cells_of_a_race_keep_their_order(called: Called, tmp_path: Path):
    words = [
        "-m",
        *GRID,
        "race=images_per_s",
        "device=cpu",
        f"hydra.sweep.dir={tmp_path}/s",
        "dry_run=true",
    ]
    code, printed = called(*words)
    assert code == 0, printed
    found = re.findall(r"precision=(\w+) +batch_size=(\d+)", printed)
    assert found == [(p, b) for p in ("fp32", "bf16", "fp16") for b in ("4", "8", "16")]
    assert not says(printed, "sweep.order")


@pytest.mark.parametrize("order", ["first", "-1", "1.5", "''"])
def test_an_order_that_is_none_is_refused(order: str, called: Called, tmp_path: Path):
    code, printed = called("-m", *GRID, f"order={order}", f"hydra.sweep.dir={tmp_path}/s")
    assert code == 1 and says(printed, "config.order", key="order", value=order.strip("'"))


def test_the_order_of_cells_depends_on_what_they_measure_alone():
    cells = [
        [f"gpus={gpus}", f"layout={layout}"] for gpus in (1, 2, 4) for layout in ("nchw", "nhwc")
    ]
    order = [turn.words for turn in shuffled_turns(numbered_turns(cells), "7")]
    beside = [
        "name=x",
        "rerun=true",
        "hydra/launcher=submitit_slurm",
        "order=7",
        "tracker.mode=disabled",
    ]
    again = shuffled_turns(numbered_turns([[*beside, *words] for words in cells]), "7")
    assert [turn.words[len(beside) :] for turn in again] == order
    more = shuffled_turns(numbered_turns([*cells, ["gpus=8", "layout=nchw"]]), "7")
    assert [turn.words for turn in more if turn.words in cells] == order


def test_experiments_and_seeds_follow_one_another():
    cells = [
        [f"experiment={name}", f"seed={seed}", f"gpus={n}"]
        for name in "ab"
        for seed in (0, 1)
        for n in (1, 2, 4)
    ]
    found = [turn.words[:2] for turn in shuffled_turns(numbered_turns(cells), "3")]
    assert found == [words[:2] for words in cells]


def test_drift_falls_on_no_setting():
    """A machine that gets slower from cell to cell: over seeds, no axis is slower for it."""
    turns = [Turn(number, [f"a={number % 2}", f"b={number // 2}"]) for number in range(12)]
    typed = [turn.number for turn in turns]
    assert typed == sorted(typed)
    places = np.zeros((300, 12))
    for seed in range(300):
        for place, turn in enumerate(shuffled_turns(turns, str(seed))):
            places[seed, turn.number] = place
    assert np.abs(places.mean(axis=0) - 5.5).max() < 0.9  # 4.5 standard errors
    halves = places[:, :6].mean(axis=1) - places[:, 6:].mean(axis=1)
    assert abs(halves.mean()) < 0.6 and halves.std() > 1


@pytest.mark.parametrize("order", ["7", "typed"])
def test_a_race_takes_no_order(order: str, called: Called, tmp_path: Path):
    words = (
        "-m",
        "lr=0.1,0.2",
        "race=images_per_s",
        f"order={order}",
        f"hydra.sweep.dir={tmp_path / 'race'}",
    )
    code, printed = called(*words)
    assert (
        code == 1 and says(printed, "race.order", value=order) and not (tmp_path / "race").exists()
    )
