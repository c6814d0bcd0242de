"""Held-out losses decide as accuracies do: by differences row by row, by seeds,
and between the same rows alone.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import multicard
from analysis import answers, dashboard, learned, recommended, report
from analysis.answers import Answer
from analysis.claims import conditions
from analysis.claims.comparison import ComparedCell, Readings
from analysis.commands import best, compare, compared_cells
from analysis.figures.effect_charts import what_matters
from analysis.figures.setting_charts import losses
from analysis.figures.trade_off_chart import trade_off
from analysis.report.blocks import SortableTable
from analysis.runs import load
from analysis.stats.between_runs import PRIOR_HELD_OUT_SD, RepeatedRuns
from analysis.stats.held_out import ScoredRows, variance_over_rows
from multicard.records import held_out
from multicard.tracking import run_record
from tests.helpers import records
from tests.helpers.messages import codes, refused, says

DRAW = np.random.default_rng(7)
ROWS = 200
HARD = DRAW.lognormal(0.0, 0.7, ROWS)  # how hard a row is in any setting
TOKENS = DRAW.integers(3, 80, ROWS)
Losses = Sequence[np.ndarray]  # of each seed, the mean nats of a token of each row


def write(
    folder: Path, method: str, total_s: float, losses: Losses, tokens: Any = TOKENS, **changes: Any
) -> None:
    """Runs of a method with these losses, a run for each seed."""
    for seed, own in enumerate(losses):
        record = records.llm(method=method, seed=seed, total_s=total_s + 0.01 * seed, **changes)
        rows = records.held_out_rows(own, np.broadcast_to(tokens, HARD.shape)[: len(own)])
        records.write(folder / f"{method}-{seed}", record, held_out=rows)


def answer(folder: Path) -> Answer:
    (found,) = answers.answers(load.read_runs([folder]).runs)
    return found


def noisy(level: float, sd: float = 0.05) -> np.ndarray:
    """Losses of a setting: each row as hard as it is, but for noise of the training."""
    return level * HARD * (1 + sd * DRAW.standard_normal(ROWS))


def balanced(sd: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Losses of two settings whose differences are 0 in the mean over all tokens."""
    one, other = noisy(2.0, sd), noisy(2.0, sd)
    return one, other + ((one - other) * TOKENS).sum() / TOKENS.sum()


def test_equal_by_rows_the_faster_setting_is_recommended(tmp_path: Path):
    slow, fast = balanced()
    write(tmp_path, "lora", 100.0, [slow])
    write(tmp_path, "qlora", 50.0, [fast])
    found = answer(tmp_path)
    assert found.setting == "method=qlora"
    assert "answer.same-held-out-loss" in codes(found.statement)
    assert not {"answer.quality-not-measured", "answer.quality-hardly-measured"} & {
        *codes(found.statement)
    }


def test_worse_by_rows_is_told_where_the_spread_of_rows_would_hide_it(tmp_path: Path):
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(2.06)])
    means = [run["held_out_loss"] for run in load.read_runs([tmp_path]).runs]
    unpaired = np.sqrt(2) * np.std(2.0 * HARD) / np.sqrt(ROWS)
    assert abs(means[1] - means[0]) < unpaired  # of independent rows nothing would be told
    found = answer(tmp_path)
    assert found.setting == "method=lora" and says(found.statement, "answer.keep", is_fastest=False)
    reason = learned.passed_over(found.ranking.settings[0], found.best)
    assert says(reason, "answer.greater-held-out-loss", loss=pytest.approx(means[1], rel=1e-4))


def test_the_training_loss_decides_nothing_where_rows_were_held_out(tmp_path: Path):
    """Full tuning wins the training loss by memorising."""
    slow, fast = balanced()
    low = {"first": 7.0, "last": 0.1, "mean_of_last_tenth": 0.1}
    write(tmp_path, "full", 100.0, [slow], loss=low)
    write(tmp_path, "lora", 50.0, [fast])
    assert answer(tmp_path).setting == "method=lora"


def test_with_random_weights_rows_that_were_held_out_decide_as_well(tmp_path: Path):
    write(tmp_path, "lora", 50.0, [noisy(2.5)])
    write(tmp_path, "full", 100.0, [noisy(2.0)])
    runs = load.read_runs([tmp_path]).runs
    assert all(run["random_weights"] for run in runs)
    assert answer(tmp_path).setting == "method=full"


def test_a_difference_that_seeds_make_too_is_not_told(tmp_path: Path):
    """Of one seed a difference of 2 % in all rows is told; not where seeds differ by as much."""
    seeds = (0.97, 1.0, 1.03)
    level = 2.04
    write(tmp_path / "one", "lora", 100.0, [2.0 * HARD])
    write(tmp_path / "one", "qlora", 50.0, [level * HARD])
    assert answer(tmp_path / "one").setting == "method=lora"
    write(tmp_path / "many", "lora", 100.0, [2.0 * seed * HARD for seed in seeds])
    write(tmp_path / "many", "qlora", 50.0, [level * seed * HARD for seed in seeds])
    assert answer(tmp_path / "many").setting == "method=qlora"


def test_a_difference_that_any_seed_may_make_is_not_told_by_rows_that_all_share_it(tmp_path: Path):
    """Rounding moves all rows alike: by rows alone a difference of 0.02 % would be sure."""
    write(tmp_path, "lora", 100.0, [2.0 * HARD])
    write(tmp_path, "qlora", 50.0, [2.0004 * HARD])
    assert answer(tmp_path).setting == "method=qlora"


def test_other_rows_are_not_compared(tmp_path: Path):
    for name, rows, tokens in (("other", 150, TOKENS), ("shorter", ROWS, TOKENS // 2 + 1)):
        write(tmp_path / name, "lora", 100.0, [noisy(2.0)])
        write(tmp_path / name, "qlora", 50.0, [noisy(3.0)[:rows]], tokens)
        found = answer(tmp_path / name)
        assert found.setting == "method=qlora" and "answer.other-held-out-rows" in codes(
            found.statement
        )


def test_the_best_reached_is_of_those_that_can_be_compared(tmp_path: Path):
    """The lowest loss is of other rows; of the others one is worse than its like."""
    write(tmp_path, "full", 200.0, [0.1 * HARD[:50]])
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(2.5)])
    assert answer(tmp_path).setting == "method=lora"


def test_rows_of_another_evaluation_count_for_none(tmp_path: Path):
    """As of a run that was cut off between its file and its record."""
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    stale = records.held_out_rows(noisy(3.0), TOKENS)
    write(tmp_path, "qlora", 50.0, [noisy(2.5)])
    pq.write_table(pa.table(stale), tmp_path / "qlora-0" / held_out.FILE)
    assert "answer.other-held-out-rows" in codes(answer(tmp_path).statement)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"PAR1"),
        lambda file: pq.write_table(pq.read_table(file).drop(["tokens"]), file),
        lambda file: pq.write_table(pa.concat_tables([pq.read_table(file)] * 2), file),
    ],
)
def test_without_sound_rows_held_out_losses_are_not_compared(
    tmp_path: Path, damage: Callable[[Path], Any]
):
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(3.0)])
    damage(tmp_path / "lora-0" / held_out.FILE)
    found = answer(tmp_path)
    assert held_out.read_row_losses(tmp_path / "lora-0") is None
    assert found.setting == "method=qlora" and "answer.other-held-out-rows" in codes(
        found.statement
    )


@pytest.mark.parametrize(("rows", "hardly"), [(49, True), (50, False)])
def test_below_fifty_rows_quality_was_hardly_measured(tmp_path: Path, rows: int, hardly: bool):
    write(tmp_path, "lora", 100.0, [noisy(2.0)[:rows]])
    write(tmp_path, "qlora", 50.0, [noisy(2.0)[:rows]])
    assert says(answer(tmp_path).statement, "answer.quality-hardly-measured", rows=rows) == hardly


def test_without_held_out_rows_quality_was_not_measured(tmp_path: Path):
    for method, total_s in (("lora", 100.0), ("qlora", 50.0)):
        records.write(tmp_path / method, records.llm(method=method, total_s=total_s))
    found = codes(answer(tmp_path).statement)
    assert "answer.quality-not-measured" in found and not any("held-out" in code for code in found)


@pytest.mark.parametrize(
    ("groups", "are_compared"), [((256, 256), True), ((256, 64), False), ((None, 256), False)]
)
def test_the_quantised_models_stand_beside_each_other(
    tmp_path: Path, groups: tuple[int | None, int | None], are_compared: bool
):
    own = noisy(2.0)
    for method, total_s, groupsize, loss in zip(
        ("full", "qat"), (100.0, 90.0), groups, (2.4, 2.1), strict=True
    ):
        simulated = 15 if method == "qat" else 0
        write(tmp_path, method, total_s, [own], fake_quantised_linears=simulated)
        path = tmp_path / f"{method}-0" / "result.json"
        record = json.loads(path.read_text())
        record["held_out"]["in_int4"] = groupsize and {
            "loss": loss,
            "groupsize": groupsize,
            "evaluate_s": 1.0,
        }
        path.write_text(json.dumps(record))
    assert says(answer(tmp_path).statement, "answer.in-int4", loss=2.1, other=2.4) == are_compared


def test_losses_of_pairs_with_another_beta_are_not_compared(tmp_path: Path):
    for at, (beta, loss) in enumerate(((0.1, 0.6), (0.5, 0.3))):
        own = records.llm(method="dpo", method__beta=beta, total_s=100.0 - at)
        records.write(tmp_path / str(beta), own, held_out=records.held_out_rows(loss * HARD, 1))
    found = answer(tmp_path)
    assert found.setting == "method.beta=0.5" and not any(
        "held-out-loss" in code for code in codes(found.statement)
    )


def test_other_amounts_of_work_are_said_and_not_compared(tmp_path: Path):
    for gpus, loss in ((1, 2.0), (2, 2.5)):
        own = records.llm(gpus=gpus, max_steps=50)
        own["epochs"][0]["samples"] = 100 * gpus
        own["tokens_per_s"] = {"non_padding": 500.0 * gpus}
        records.write(
            tmp_path / str(gpus), own, held_out=records.held_out_rows(noisy(loss), TOKENS)
        )
    found = answer(tmp_path)
    assert found.setting == "gpus=2"
    assert says(found.statement, "answer.other-amounts", trained="200 rows", other="100 rows")


def test_of_settings_that_did_as_much_one_that_is_worse_is_not_recommended(tmp_path: Path):
    """Where others did more, and have a lower loss for it."""
    cells = (
        ("lora", 1, 500.0, 2.0),
        ("qlora", 1, 2000.0, 2.5),
        ("lora", 2, 900.0, 1.8),
        ("qlora", 2, 3000.0, 2.2),
    )
    for method, gpus, rate, loss in cells:
        own = records.llm(method=method, gpus=gpus, max_steps=50)
        own["epochs"][0]["samples"] = 100 * gpus
        own["tokens_per_s"] = {"non_padding": rate}
        rows = records.held_out_rows(noisy(loss), TOKENS)
        records.write(tmp_path / f"{method}-{gpus}", own, held_out=rows)
    assert answer(tmp_path).setting == "gpus=2 method=lora"


def test_a_model_learned_whose_held_out_loss_fell(tmp_path: Path):
    """Though the loss of its last batches is no lower than that of the first one."""
    flat = {"first": 2.0, "last": 2.0, "mean_of_last_tenth": 2.0}
    for name, first_loss in (("fell", 3.0), ("rose", 1.0)):
        rows = records.held_out_rows(2.0 * HARD / HARD.mean(), 10)
        own = records.llm(loss=flat) | records.evaluated(rows, first_loss)
        records.write(tmp_path / name, own, held_out=rows)
    codes_of = {name: codes(answer(tmp_path / name).statement) for name in ("fell", "rose")}
    assert (
        "answer.loss-did-not-fall" not in codes_of["fell"]
        and "answer.loss-did-not-fall" in codes_of["rose"]
    )


def test_a_target_loss_that_was_missed_is_a_failing(tmp_path: Path):
    for gpus, time_s in ((1, 60.0), (2, None)):
        own = records.llm(gpus=gpus, total_s=100.0 / gpus, time_to_target_s=time_s)
        own["config"] |= {"stop_at_target": True, "target_loss": 1.5}
        records.write(tmp_path / str(gpus), own, held_out=records.held_out_rows(noisy(2.0), TOKENS))
    found = answer(tmp_path)
    assert found.best.gpus == 1
    missed = next(one for one in found.ranking.settings if one.gpus == 2)
    (failing,) = recommended.failings(found.ranking, missed)
    assert says(failing, "answer.missed-target-loss", target=1.5)


def test_the_error_over_rows_is_that_of_drawing_them_again():
    """Against a bootstrap of the rows."""
    one, other = (ScoredRows("rows", TOKENS, noisy(level) * TOKENS) for level in (2.0, 2.1))
    term = variance_over_rows([(1.0, other), (-1.0, one)])
    drawn = []
    for _ in range(2000):
        chosen = DRAW.integers(0, ROWS, ROWS)
        drawn.append(np.log(other.losses[chosen].sum() / one.losses[chosen].sum()))
    assert term is not None
    assert np.sqrt(term.variance) == pytest.approx(float(np.std(drawn)), rel=0.1)
    assert 1 < term.degrees < ROWS - 1


def test_equal_settings_are_told_apart_as_seldom_as_promised(tmp_path: Path):
    """Two settings that are equal but for the draw of rows and of seeds,
    each drawn with what is assumed of seeds.
    """
    told, worlds = 0, 200
    for world in range(worlds):
        folder = tmp_path / str(world)
        for method in ("lora", "qlora"):
            seed_effect = 1 + PRIOR_HELD_OUT_SD * DRAW.standard_normal()
            write(folder, method, 100.0, [noisy(2.0 * seed_effect, sd=0.02)])
        a, b = ([run] for run in load.read_runs([folder]).runs)
        repeated = RepeatedRuns([*a, *b])
        told += repeated.more_accurate(a, b) or repeated.more_accurate(b, a)
    assert told / worlds < 0.09


def test_the_table_of_best_has_the_held_out_loss_for_people_and_programs(tmp_path: Path):
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(2.5)])
    output = best.output(
        load.read_runs([tmp_path]).runs, None, best.Limits(), False, answers.sentences
    )
    assert "held-out loss" in output.tables()[0].headings
    assert [row["held_out_loss"] for row in output.rows] == [
        pytest.approx(2.5, rel=0.2),
        pytest.approx(2.0, rel=0.2),
    ]


def of_grid(folder: Path, seeds: int = 2) -> None:
    """Two methods on one and two GPUs: the method changes the held-out loss by 5 %,
    the GPUs do not.
    """
    for method, loss in (("lora", 2.0), ("qlora", 2.1)):
        for gpus in (1, 2):
            for seed in range(seeds):
                own = records.llm(method=method, gpus=gpus, seed=seed, total_s=100.0 / gpus + seed)
                rows = records.held_out_rows(noisy(loss), TOKENS)
                records.write(folder / f"{method}-{gpus}-{seed}", own, held_out=rows)


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_each_setting_gains_in_held_out_loss_is_told_by_rows(tmp_path: Path, seeds: int):
    of_grid(tmp_path, seeds)
    (ranking,) = best.rankings(load.read_runs([tmp_path]).runs)
    found = {one.measure: one for one in what_matters([ranking])}
    assert [*found] == ["total_s", "held_out_loss"]
    gains = {effects[0].axis: effects[0].gain for effects in found["held_out_loss"].by_axis}
    assert gains["method"].excludes_zero and gains["method"].estimate == pytest.approx(
        -np.log(1.05), abs=0.01
    )
    assert not gains["gpus"].excludes_zero
    assert found["held_out_loss"].figure("effects").rows


def test_effects_compare_settings_of_the_same_rows_alone(tmp_path: Path):
    of_grid(tmp_path)
    write(tmp_path, "full", 300.0, [noisy(1.0)[:50]])
    (ranking,) = best.rankings(load.read_runs([tmp_path]).runs)
    (found,) = [one for one in what_matters([ranking]) if one.measure == "held_out_loss"]
    assert {point.levels["method"] for point in found.points} == {"lora", "qlora"}


def test_charts_have_time_against_held_out_loss_and_its_curve(tmp_path: Path):
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(2.5)])
    runs = load.read_runs([tmp_path]).runs
    (chart,) = trade_off(runs)
    measures = {row["measure"] for row in chart.rows}
    assert "held_out_loss" in measures and "loss_last_tenth" not in measures
    (curves,) = losses(runs)
    points = [row for row in curves.rows if row["measure"] == "held_out_loss"]
    assert [row["step"] for row in points] == [125, 250, 125, 250]
    assert points[1]["mean"] == pytest.approx(runs[0]["held_out_loss"])


def test_the_page_and_wandb_have_the_held_out_loss(tmp_path: Path):
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(2.5)])
    found = load.read_runs([tmp_path])
    page = report.build(found, "a title", mix=False)
    (grid,) = [
        block
        for block in page.blocks()
        if isinstance(block, SortableTable) and block.name == "tuning"
    ]
    (column,) = [one for one in grid.columns if one.name == "held_out_loss"]
    assert column.shown and [*column.values] == [
        found.runs[0]["held_out_loss"],
        found.runs[1]["held_out_loss"],
    ]
    summary = run_record.summary(found.runs[0].record())
    assert (
        summary["held_out.loss"] == found.runs[0]["held_out_loss"]
        and summary["held_out.rows"] == ROWS
    )
    assert not any(key.startswith("held_out.evaluations") for key in summary)
    assert dashboard.summary_keys("held_out_loss") == ["held_out.loss"]


VERDICTS = {"higher": 2.1, "lower": 1.9, "no difference": 2.0}


@pytest.mark.parametrize(("verdict", "level"), VERDICTS.items())
def test_compare_has_held_out_losses_row_by_row(tmp_path: Path, verdict: str, level: float):
    steps = records.steps([0.1, 0.11] * 20)
    for side, loss in (("a", 2.0), ("b", level)):
        rows = records.held_out_rows(noisy(loss, sd=0.01), TOKENS)
        records.write(tmp_path / side / "0", records.llm(), steps, held_out=rows)
    (a, b) = (load.read_runs([tmp_path / side]).runs for side in "ab")
    compared = compared_cells.compare(a, b, [], common=False, mix=False)
    (row,) = compare.output(compared).rows
    assert row["held_out_verdict"] == verdict
    assert (row["a_held_out_loss"], row["b_held_out_loss"]) == (
        a[0]["held_out_loss"],
        b[0]["held_out_loss"],
    )
    low, high = row["held_out_ratio_low"], row["held_out_ratio_high"]
    assert low < row["b_held_out_loss"] / row["a_held_out_loss"] < high
    assert says("\n".join(compare.output(compared).lines(None)), "compare.held-out", margin=0.01)


def test_compare_does_not_judge_losses_of_other_rows_or_amounts(tmp_path: Path):
    by_name = {"a": noisy(2.0), "rows": noisy(3.0)[:50], "amount": noisy(3.0)}
    for name, own_losses in by_name.items():
        own = records.llm(max_steps=50)
        own["epochs"][0]["samples"] = 200 if name == "amount" else 100
        scored = records.held_out_rows(own_losses, TOKENS[: len(own_losses)])
        records.write(tmp_path / name / "0", own, records.steps([0.1] * 20), held_out=scored)
    runs = {name: load.read_runs([tmp_path / name]).runs for name in by_name}
    for other, code in (
        ("rows", "compare.other-held-out-rows"),
        ("amount", "compare.other-amounts"),
    ):
        (cell,) = compared_cells.compare(runs["a"], runs[other], [], common=False, mix=False)
        assert (
            cell.held_out is not None
            and cell.held_out.bounds is None
            and says(cell.held_out.verdict, code)
        )


def test_without_held_out_rows_compare_has_no_column_of_them(tmp_path: Path):
    for side in "ab":
        records.write(tmp_path / side / "0", records.llm(), records.steps([0.1] * 20))
    (a, b) = (load.read_runs([tmp_path / side]).runs for side in "ab")
    (row,) = compare.output(compared_cells.compare(a, b, [], common=False, mix=False)).rows
    assert not any("held_out" in name for name in row)


def test_a_limit_of_held_out_loss_leaves_settings_out(tmp_path: Path):
    write(tmp_path, "lora", 100.0, [noisy(2.0)])
    write(tmp_path, "qlora", 50.0, [noisy(3.0)])
    runs = load.read_runs([tmp_path]).runs
    between = (runs[0]["held_out_loss"] + runs[1]["held_out_loss"]) / 2
    (row,) = multicard.load(tmp_path).best(goal="time", loss=between).to_pandas().to_dict("records")
    assert row["held_out_loss"] == runs[0]["held_out_loss"]
    with refused("best.limits"):
        multicard.load(tmp_path).best(loss=0.5)
    with refused("notebook.argument", key="loss"):
        multicard.load(tmp_path).best(loss="low")


def test_a_claim_takes_a_held_out_loss_that_fell_for_learning(tmp_path: Path):
    flat = {"first": 2.0, "last": 2.0, "mean_of_last_tenth": 2.0}
    for name, first_loss in (("fell", 3.0), ("rose", 1.0)):
        rows = records.held_out_rows(2.0 * HARD / HARD.mean(), 10)
        records.write(
            tmp_path / name,
            records.llm(loss=flat) | records.evaluated(rows, first_loss),
            held_out=rows,
        )
        found = load.read_runs([tmp_path / name]).runs
        side = ComparedCell(name, tuple(found))
        doubts = conditions._why_not_learned(side, Readings(found), RepeatedRuns(found))
        assert [doubt.code for doubt in doubts] == (
            [] if name == "fell" else ["claim.losses-did-not-fall"]
        )
