"""Runs whose losses are not finite: status, cause and count; what goes on after one,
and what does not.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicard.llm import summary
from multicard.measure import formulas
from multicard.records import run_folder
from multicard.records.schema_parts import Divergence
from multicard.run import controller as run
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, as_dict, composed, warm_up
from tests.helpers.messages import says

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("by_rank", "count", "place"),
    [
        ([[1.0, 1.0, 1.0, 1.0]], 0, None),
        ([[NAN, 1.0, INF, 1.0]], 2, None),  # it got over them
        ([[1.0, NAN, 1.0, NAN]], 2, (1, 1, 0)),
        ([[NAN, NAN, NAN, NAN]], 4, (0, 0, 0)),
        ([[1.0, 1.0, NAN, -INF], [1.0, 1.0, 1.0, 1.0]], 2, (1, 0, 0)),
        ([[1.0, 1.0, NAN, NAN], [NAN, NAN, NAN, NAN]], 6, (0, 0, 1)),  # the first of all ranks
        ([[1.0, NAN, NAN, NAN], [1.0, NAN, NAN, NAN]], 6, (0, 1, 0)),
    ],
)
def test_a_run_diverged_where_its_last_losses_are_not_finite(by_rank: Any, count: int, place: Any):
    loss = np.array(by_rank)
    rank, number = np.indices(loss.shape)
    order = np.random.default_rng(0).permutation(loss.size)  # rows come in any order
    table = {"rank": rank, "epoch": number // 2, "step": number % 2, "loss": loss}
    table = {name: column.ravel()[order] for name, column in table.items()}
    assert formulas.count_non_finite(table, np.isfinite(table["loss"])) == (count, place)


def test_infinite_rewards_are_a_divergence_of_dpo():
    columns = {"rank": [0, 0], "epoch": [0, 0], "step": [0, 1], "loss": [0.7, 0.0]}
    rewards = {"rewards_chosen": [0.1, 5.0], "rewards_rejected": [0.1, -INF]}
    logged = {name: np.array(values) for name, values in (columns | rewards).items()}  # by rank 0
    assert summary._non_finite_losses(logged, ranks=2, pairs=False) == (0, None)
    assert summary._non_finite_losses(logged, ranks=2, pairs=True) == (
        1,
        Divergence(epoch=0, step=1, rank=None),
    )


def trained(folder: Path, *words: str, bad: list[tuple[int, int]]) -> dict[str, Any]:
    """Two epochs of three steps on two ranks, with NaN in place of
    the losses of `bad`: rank and step of the run.
    """
    warm_up()

    def arguments(*given: Any) -> tuple[Any, ...]:
        return *WORKLOAD.arguments(*given), bad

    workload = replace(
        WORKLOAD, work="tests.helpers.rank_work:train_with_bad_losses", arguments=arguments
    )
    cfg = composed(*SMALL, "gpus=2", "epochs=2", *words)
    return as_dict(run.measure(workload, cfg, folder / "sweep" / "1", keep_refused=True))


@pytest.mark.usefixtures("processes")
def test_all_ranks_stop_after_the_epoch_in_which_one_diverged(tmp_path: Path):
    record = trained(tmp_path, "diagnose=true", "profile=kineto", bad=[(0, 0), (1, 2)])
    assert (record["status"], len(record["epochs"]), record["non_finite_losses"]) == (
        "diverged",
        1,
        2,
    )
    assert record["divergence"] == {"epoch": 0, "step": 2, "rank": 1}
    cause = record["cause"]
    assert (cause["kind"], cause["rank"], cause["code"]) == ("diverged", 1, "run.diverged")
    assert cause["facts"] == {"epoch": 1, "epochs": 2, "step": 3, "rank": 1}
    assert record["profile"] is None and record["diagnosis"] is None
    assert record["segments"][-1]["end"] == "diverged" and record["total_s"] > 0
    folder = Path(record["folder"])
    assert run_folder.finished(folder) is not None  # not measured again
    assert len(run_folder.read_steps(folder)) == 2 * 3
    assert run_folder.read_json(folder / "result.json")["status"] == "diverged"  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.usefixtures("processes")
def test_a_diverged_run_can_train_on_for_its_timing(tmp_path: Path):
    bad = [(1, 2), (1, 3), (1, 4), (1, 5), (0, 4)]
    record = trained(
        tmp_path, "stop_on_divergence=false", "profile=kineto", "profile.steps=1", bad=bad
    )
    assert (record["status"], len(record["epochs"]), record["non_finite_losses"]) == (
        "diverged",
        2,
        5,
    )
    assert record["divergence"] == {"epoch": 0, "step": 2, "rank": 1}
    assert record["step_s"]["mean"] > 0 and record["profile"]["steps"] == 1


@pytest.mark.usefixtures("processes")
def test_a_sweep_goes_on_after_a_divergence_and_ends_well(
    called: Callable[..., tuple[int, str]], tmp_path: Path
):
    words = (
        "-m",
        *SMALL,
        "epochs=2",
        "lr=1e30,0.01",
        "model.width=0.35",
        "name=s",
        f"hydra.sweep.dir={tmp_path}/s",
    )
    code, printed = called(*words, "order=typed")
    assert code == 0 and says(printed, "run.diverged", epoch=1, epochs=2, step=2, rank=0)
    assert "\n[1/2] lr=1e+30   diverged: " in printed
    code, again = called(*words)
    assert code == 0 and "measured before: diverged" in again and "measured before: ok" in again
    (record,) = (run_folder.finished(path) for path in (tmp_path / "s").glob("*lr=1e+30*"))
    assert record is not None and [epoch.train_loss for epoch in record.record.epochs] == [None]


@pytest.mark.parametrize(
    ("words", "epochs", "rank"),
    [
        (["method=full"], 1, 0),
        (["method=dpo", "gpus=2"], 1, None),
        (["method=full", "stop_on_divergence=false"], 2, 0),  # goes on for its timing
    ],
    ids=str,
)
def test_tuning_stops_at_a_divergence_unless_it_is_to_go_on(
    tuned, words: list[str], epochs: int, rank: int | None
):
    record = tuned(
        *words, "lr=1e30", "warmup_steps=0", "epochs=2", "dataset.rows=40", "diagnose=true"
    )
    assert (record["status"], len(record["epochs"])) == ("diverged", epochs), record["cause"]
    assert record["divergence"]["epoch"] == 0 and record["divergence"]["rank"] == rank
    assert record["cause"]["rank"] == rank and record["non_finite_losses"] > 0
    assert (record["diagnosis"] is None) is (epochs == 1)
