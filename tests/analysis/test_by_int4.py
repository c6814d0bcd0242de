"""`best --by int4`: settings are judged by the held-out loss of
their models once they are quantised, row by row.
"""

from pathlib import Path

import numpy as np
import pytest

import multicard
from analysis import train_best
from analysis.answers import Answer, answer_for
from analysis.commands.best import rankings
from analysis.runs import by_int4, load
from multicard.records import held_out
from tests.analysis.conftest import Said
from tests.analysis.test_held_out import HARD, TOKENS, noisy
from tests.helpers import records
from tests.helpers.messages import find, says
from tests.helpers.messages import refused as refused_of

BIN = 256


def write(
    folder: Path,
    method: str,
    total_s: float,
    plain: np.ndarray,
    in_int4: np.ndarray | None,
    **more: int,
) -> None:
    """A run of a method whose rows have these losses, and these in int4."""
    rows = records.held_out_rows(plain, TOKENS)
    record = records.llm(method=method, total_s=total_s, **more) | records.evaluated(rows)
    if in_int4 is not None:
        rows[held_out.INT4_LOSS] = in_int4 * TOKENS
        mean = float((in_int4 * TOKENS).sum() / TOKENS.sum())
        record["held_out"]["in_int4"] = {"loss": mean, "groupsize": BIN, "evaluate_s": 1.0}
    records.write(folder / method, record, held_out=rows)


def recommended(folder: Path) -> Answer:
    (ranking,) = rankings(by_int4.judge_by_int4(load.read_runs([folder]).runs)[0])
    return answer_for(ranking)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Full tuning is faster and has less plain loss, QAT less in int4 by 3 %, row by row."""
    write(tmp_path, "full", 50.0, noisy(1.9), noisy(2.3))
    write(tmp_path, "qat", 100.0, noisy(2.0), noisy(2.23))
    write(tmp_path, "lora", 40.0, noisy(1.9), None)
    return tmp_path


def test_qat_is_kept_where_its_rows_lose_less_in_int4(sweep: Path):
    assert answer_for(rankings(load.read_runs([sweep]).runs)[0]).setting != "method=qat"
    found = recommended(sweep)
    assert found.setting == "method=qat" and says(found.statement, "answer.lower-held-out-loss")
    assert not says(found.statement, "answer.in-int4")


def test_full_tuning_is_recommended_where_rows_do_not_tell(tmp_path: Path):
    same, other = noisy(2.3), noisy(2.3)
    level = (same * TOKENS).sum() / (other * TOKENS).sum()
    write(tmp_path, "full", 50.0, noisy(2.5), same)
    write(tmp_path, "qat", 100.0, noisy(2.0), other * level)
    assert recommended(tmp_path).setting == "method=full"
    assert answer_for(rankings(load.read_runs([tmp_path]).runs)[0]).setting == "method=qat"


def test_the_command_says_by_what_it_judges_and_what_it_leaves_out(sweep: Path, said: Said):
    printed = said("best", "--by", "int4", sweep)
    assert says(printed, "best.by-int4", groupsizes=[BIN]) and says(
        printed, "best.without-int4", runs=1
    )
    assert find(printed, "answer.run", setting="method=qat")
    again = multicard.load(sweep).best(by="int4")
    assert says(str(again), "best.by-int4") and "method=lora" not in str(again)
    assert not says(said("best", sweep), "best.by-int4")


def test_without_such_losses_it_is_refused(tmp_path: Path, refused: Said):
    write(tmp_path, "lora", 40.0, noisy(1.9), None)
    assert says(refused("best", "--by", "int4", tmp_path), "best.no-int4-loss", key="--by", runs=1)
    with refused_of("notebook.by", key="by"):
        multicard.load(tmp_path).best(by="bf16")


def test_rows_whose_losses_are_of_another_evaluation_tell_nothing(sweep: Path):
    (run,) = [run for run in load.read_runs([sweep]).runs if run["method"] == "qat"]
    assert held_out.read_row_losses(run.folder, held_out.INT4_LOSS) is not None
    rows = records.held_out_rows(HARD, TOKENS)
    records.write(sweep / "qat", records.llm(method="qat", total_s=100.0), held_out=rows)
    assert held_out.read_row_losses(run.folder, held_out.INT4_LOSS) is None


def test_what_is_recommended_so_is_trained(
    sweep: Path, said: Said, monkeypatch: pytest.MonkeyPatch
):
    trained: list[list[str]] = []
    monkeypatch.setattr(
        train_best, "train", lambda runs, *_: trained.append([run["method"] for run in runs]) or 0
    )
    printed = said("best", "--train", "--by", "int4", sweep)
    assert says(printed, "best.by-int4") and sorted(trained[0]) == ["full", "qat"]
