"""A limit that is written into a record changes what everybody says of the run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import multicard
from analysis import answers, claims
from analysis.commands import best, compared_cells, list_runs, predictions, share
from analysis.commands.ranking import Limits
from analysis.figures import captions, draw
from analysis.report import build
from analysis.runs import load
from analysis.runs.load import Run
from analysis.stats.between_runs import RepeatedRuns
from multicard.estimate.history import PastRun
from multicard.messages import Message
from multicard.records import limits, table
from multicard.records.limits import Forbids
from multicard.tracking import run_record
from tests.helpers import claim_runs, claim_worlds, records
from tests.helpers.messages import find, refused, says

NEW = limits.made(Message("limit.of-tomorrow", "the moon was full"), Forbids.verdict)
Sweep = Callable[..., list[Run]]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Runs on 1 and 2 GPUs, three of each; those on 2 with these limits,
    or the first of them alone.
    """

    def written(
        *own: Any, first: bool = False, slow: Sequence[Sequence[int]] = ((), (), ())
    ) -> list[Run]:
        folder = tmp_path / f"{len([*tmp_path.iterdir()])}"
        for index, (gpus, seed) in enumerate((gpus, seed) for gpus in (1, 2) for seed in range(3)):
            steps_s = [
                (0.1 + 0.0001 * seed) / gpus * (1 + 0.02 * (number % 3)) for number in range(100)
            ]
            limited = own if gpus == 2 and (seed == 0 or not first) else ()
            record = records.vision(
                gpus=gpus,
                seed=seed,
                total_s=sum(steps_s),
                test_accuracy=0.99,
                step_s=records.formulas.statistics(steps_s, 1)
                | {"slow_steps": slow[seed] if gpus == 2 else []},
                limits=[msgspec.to_builtins(limit) for limit in limited],
                prediction=records.prediction(error=0.01 * index),
            )
            records.write(folder / f"{index}", record, records.steps(steps_s))
        return load.read_runs([folder]).runs

    return written


def text(lines: Any) -> str:
    return "\n".join(map(str, lines))


def ranked(runs: list[Run]) -> str:
    return text(best.output(runs, None, Limits(), False, answers.sentences).lines(None))


def test_a_run_tells_its_limits_by_code_in_python_and_in_tables(sweep: Sweep):
    runs = sweep(NEW)
    assert [run["limits"] for run in runs] == [""] * 3 + ["of-tomorrow"] * 3
    assert [run["marks"] for run in runs] == [""] * 3 + [limits.UNKNOWN_SIGN] * 3
    assert list(multicard.load(runs[0].folder.parent).to_pandas(True)["limits"]) == [
        run["limits"] for run in runs
    ]
    found = load.FoundRuns(runs, [])
    assert says(text(list_runs.output(found, runs, None).lines(None)), "limit.of-tomorrow")


def test_best_and_effects_rank_no_run_of_which_nothing_may_be_said(sweep: Sweep):
    assert says(ranked(sweep()), "answer.run", setting="gpus=2")
    limited = ranked(sweep(NEW))
    assert not says(limited, "answer.run")
    assert find(limited, "best.not-ranked").facts["untold"] == 3
    (ranking,) = best.rankings(sweep(NEW))
    # and so effects and charts of settings have one level
    assert [one.gpus for one in ranking.settings] == [1]


def test_a_speed_up_is_not_said_where_it_is_forbidden(sweep: Sweep):
    limited = ranked(sweep(limits.APART.limit()))
    assert not says(limited, "answer.run") and find(limited, "best.not-ranked").facts["untold"] == 3


def test_a_run_whose_rate_is_not_the_settings_is_left_out_where_there_are_others(sweep: Sweep):
    (ranking,) = best.rankings(sweep(limits.STALLED.limit(), first=True))
    assert sorted(len(one.counted) for one in ranking.settings) == [2, 3]
    assert says(ranked(sweep(limits.STALLED.limit(), first=True)), "runs.left-out", runs=1, of=6)
    # all of them: there is nothing better to go by
    (ranking,) = best.rankings(sweep(limits.STALLED.limit()))
    assert sorted(len(one.counted) for one in ranking.settings) == [3, 3]
    spreads = RepeatedRuns(sweep(limits.STALLED.limit(), first=True))
    assert sorted(map(len, spreads.settings)) == [2, 3]


def test_slow_steps_are_named_where_one_run_has_them_and_counted_where_several_do(sweep: Sweep):
    steps = list(range(20, 70, 5))
    alone = sweep(slow=[steps, (), ()])
    (limit,) = alone[3].limits
    assert find(limit.says, "limit.slow-steps-named", steps=steps)
    assert not [run for run in alone if run.limits and run is not alone[3]]
    said = ranked(alone)  # the run is left out of the times of its setting, as others have none
    assert says(said, "runs.left-out", runs=1) and says(said, "limit.slow-steps")
    every = sweep(slow=[[7], [8], [9]])
    assert says(ranked(every), "limit.slow-steps")
    assert [
        limit.says for limit in limits.in_order(limit for run in every for limit in run.limits)
    ] == [str(limits.SLOW_STEPS.says)]
    (everywhere,) = limits.notes([run.record() for run in every])
    assert find(everywhere, "notes.mark", mark="slow_steps", runs=3)


def test_accuracies_are_not_compared_where_that_is_forbidden(sweep: Sweep):
    unlike = limits.made(Message("limit.unlike", "it learned something else"), Forbids.learning)
    (ranking,) = best.rankings(sweep(unlike))
    assert {one.gpus: one.accuracy for one in ranking.settings} == {1: pytest.approx(0.99), 2: None}


def test_compare_says_nothing_of_such_cells(sweep: Sweep):
    (fair,) = compared_cells.compare(sweep(), sweep(), ["gpus"], common=False, mix=False)[:1]
    assert fair.step is not None
    compared = compared_cells.compare(sweep(NEW), sweep(), [], common=False, mix=False)
    assert [one.step is None for one in compared] == [False, True]
    assert find(str(compared[1].verdict), "compare.untold").facts["limit"] == "of-tomorrow"


def test_a_claim_is_not_decided_by_such_runs(tmp_path: Path):
    case = claim_worlds.CASES["fp16-over-fp64"]
    claim_runs.write(tmp_path, "table2", *case.at(case.holds))
    runs = load.read_runs([tmp_path]).runs
    claim = [one for one in claims.CLAIMS if one.name == "fp16-over-fp64"]
    (fair,) = claims.judge(runs, claims=claim)
    (limited,) = claims.judge([records.limited(run, NEW) for run in runs], claims=claim)
    assert (fair.verdict, limited.in_words) == ("holds", "illustrated: holds")
    assert says(text(limited.unlike), "limit.of-tomorrow") and limited.marks == limits.UNKNOWN_SIGN


def test_predictions_do_not_learn_from_such_runs_nor_does_a_plan(sweep: Sweep):
    (*_, run) = sweep(NEW)
    assert says(str(PastRun(run.record()).left_out), "limit.of-tomorrow")
    assert PastRun(sweep()[0].record()).left_out is None
    compared = predictions.output(sweep(NEW), "")
    assert says(text(compared.lines(None)), "limit.of-tomorrow")


def test_charts_and_the_page_say_it(sweep: Sweep):
    runs = sweep(NEW)
    assert says(text(captions.marks(runs)[1]), "figure.marks-at-points", signs=limits.UNKNOWN_SIGN)
    (figure,), _ = draw.make("efficiency", sweep(limits.STALLED.limit()))
    assert limits.STALLED.sign in figure.marks
    with refused("figure.nothing-to-show"):
        draw.make("efficiency", sweep(limits.APART.limit()))
    page = build(load.FoundRuns(runs, []), "a title", mix=False)
    assert page.legend[limits.UNKNOWN_SIGN] == NEW.says
    assert [sign for sign, _ in page.warnings] == [limits.UNKNOWN_SIGN]


def test_wandb_gets_the_codes(sweep: Sweep):
    record = sweep(NEW)[-1].record()
    assert run_record.summary(record)["limits"] == "of-tomorrow"
    assert "of-tomorrow" in run_record.tags(record)


def test_the_table_of_a_sweep_says_it(sweep: Sweep):
    runs = [records.as_run(msgspec.to_builtins(run.record())) for run in sweep(NEW)]
    printed = text(table.lines(runs, None))
    assert f"ok{limits.UNKNOWN_SIGN}" in printed
    assert says(printed, "notes.mark", mark="of-tomorrow", runs=3)


def test_nothing_of_such_runs_is_shared(sweep: Sweep, tmp_path: Path):
    with refused("export.nothing"):
        share.export(sweep(NEW)[3:], tmp_path / "rows.json")
