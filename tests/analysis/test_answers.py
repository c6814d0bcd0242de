"""What to run: the recommendation, what it is compared with, how sure it is,
and when there is none; main effects.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import rerun_commands
from analysis.answers import Answer, answers
from analysis.commands.best import known_rankings
from analysis.figures.effect_charts import UNREPEATED, what_matters
from analysis.figures.trade_off_chart import trade_off_of
from analysis.report.blocks import Paragraph, Plot
from analysis.report.sections import NO_GAIN, effects_section
from analysis.runs import circumstances, load
from analysis.stats import intervals
from analysis.stats.effects import Point, interactions, main_effects
from multicard.measure.repeated_runs import Spread
from multicard.messages import Message
from multicard.records.limits import KINDS
from tests.helpers import records
from tests.helpers.messages import Told, codes, find, says, told
from tests.helpers.records import write_all as write


def run(
    share: float = 0.99, steps: int = 100, images: int = 10_000, **changes: Any
) -> dict[str, Any]:
    record = records.vision(**changes) | records.accurate(share, images=images)
    return record | {"step_s": record["step_s"] | {"count": steps}}


def answer(folder: Path, *each: dict[str, Any]) -> Answer:
    (only,) = answers(load.read_runs([write(folder / "s", *each)]).runs)
    return only


DEFAULT, TWO, FAST = (
    {"gpus": 1, "total_s": 100.0},
    {"gpus": 2, "total_s": 60.0},
    {"gpus": 4, "total_s": 40.0},
)

MISSED: dict[str, Any] = {"target_accuracy": 0.9, "stop_at_target": True}
AT_TARGET = MISSED | {"time_to_target_s": 39.0}


Said = tuple[str, dict[str, Any]]  # a message's code, and some of its facts


def said(code: str, **facts: Any) -> Said:
    return code, facts


def run_two(**facts: Any) -> Said:
    """That gpus=2 is faster than one GPU, of single runs."""
    about = {
        "setting": "gpus=2",
        "against": "gpus=1",
        "ratio": 1.66667,
        "low": None,
        "high": None,
        "n": [1, 1],
    }
    return said("answer.run", **about | facts)


SAME = said("answer.same-accuracy", accuracy=0.99)
ALONE = (said("answer.one-setting", time=100.0), said("answer.accuracy", accuracy=0.99))


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ([run(**DEFAULT), run(**TWO)], [run_two(cpu_ranks=False), SAME]),
        (
            [run(**DEFAULT, layout="nchw"), run(**TWO, layout="nhwc")],
            [
                run_two(
                    setting="gpus=2 layout=nhwc", against="gpus=1 layout=nchw", is_default=True
                ),
                SAME,
            ],
        ),
        (
            [run(**DEFAULT), run(gpus=2, total_s=130.0)],
            [
                said("answer.keep", setting="gpus=1", settings=2, time=100.0, is_fastest=True),
                ALONE[1],
            ],
        ),
        (
            [run(**DEFAULT), run(gpus=2, total_s=99.5)],
            [
                said("answer.one-run-each", setting="gpus=2", against="gpus=1", ratio=1.00503),
                SAME,
                said("answer.repetitions"),
            ],
        ),
        (
            [run(**DEFAULT, compile_s=65.0)],
            [ALONE[0], said("answer.compilation", compile_s=65.0), ALONE[1]],
        ),
        # the fastest setting is less accurate, at chance, or too short to tell
        ([run(**DEFAULT), run(**TWO), run(0.9, **FAST)], [run_two(), SAME]),
        ([run(**DEFAULT), run(**TWO), run(0.1, **FAST)], [run_two(), SAME]),
        ([run(**DEFAULT), run(**TWO), run(steps=3, **FAST)], [run_two(), SAME]),
        (
            [run(0.1, **DEFAULT), run(**TWO)],
            [
                said("answer.only-one", setting="gpus=2", time=60.0),
                said("answer.accuracy", accuracy=0.99),
            ],
        ),
        (
            [run(0.1, **DEFAULT), run(0.1, **TWO)],
            [
                said("answer.none", setting="gpus=2", ratio=1.66667, n=[1, 1]),
                said("answer.same-accuracy", accuracy=0.1),
                said("answer.at-chance", accuracy=0.1),
            ],
        ),
        ([run(**DEFAULT)], [*ALONE]),
        ([run(**DEFAULT), run(gpus=2, total_s=0.0)], [*ALONE]),
        # what it costs
        (
            [run(**DEFAULT) | {"peak_memory_bytes": {"max": 10, "source": "x"}}, run(**TWO)],
            [run_two(), SAME, said("answer.times-as-much", of="memory", ratio=5e8)],
        ),
        ([run(device="cpu", **DEFAULT), run(device="cpu", **TWO)], [run_two(cpu_ranks=True), SAME]),
        ([run(**DEFAULT), run(gpus=2, total_s=25.0)], [run_two(ratio=4.0), SAME]),
        (
            [run(0.1, **DEFAULT), run(0.1, gpus=2, total_s=130.0)],
            [
                said("answer.none-but-fastest", setting="gpus=1", settings=2, time=100.0),
                said("answer.accuracy", accuracy=0.1),
                said("answer.at-chance", accuracy=0.1),
            ],
        ),
        (
            [run(0.1, **TWO), run(0.1, **FAST)],
            [
                said("answer.none", setting="gpus=4", against="gpus=2", ratio=1.5),
                said("answer.same-accuracy", accuracy=0.1),
                said("answer.at-chance", accuracy=0.1),
            ],
        ),
        # whatever is passed over, nothing is called faster unless it is clearly so
        (
            [run(**DEFAULT), run(gpus=2, total_s=99.5), run(0.1, **FAST)],
            [said("answer.one-run-each", setting="gpus=2"), SAME, said("answer.repetitions")],
        ),
        (
            [run(0.9, **DEFAULT), run(gpus=2, total_s=99.5)],
            [run_two(ratio=1.00503), said("answer.more-accurate", accuracy=0.99, other=0.9)],
        ),
        # fewer images tell accuracies apart less: that is not the same accuracy
        (
            [run(0.9, images=50, **DEFAULT), run(0.8, images=50, **TWO)],
            [run_two(), said("answer.accuracy-within-noise", accuracy=0.8, other=0.9)],
        ),
        # where runs stop at a target, more than it is not asked for,
        # and a run that missed it is of no use
        (
            [
                run(0.99, **AT_TARGET, **DEFAULT),
                run(0.91, **AT_TARGET, **TWO),
                run(0.89, **MISSED, **FAST),
            ],
            [run_two(), said("answer.less-accurate", accuracy=0.91, other=0.99)],
        ),
        # slower, but more accurate than the defaults
        (
            [run(0.9, **TWO, precision="fp32"), run(0.99, gpus=2, total_s=80.0, precision="fp64")],
            [
                said(
                    "answer.run",
                    setting="precision=fp64",
                    against="precision=fp32",
                    is_default=True,
                    ratio=0.75,
                ),
                said("answer.more-accurate", accuracy=0.99, other=0.9),
            ],
        ),
    ],
)
def test_the_sentence(tmp_path: Path, each: list[dict[str, Any]], expected: list[Said]):
    found = told(answer(tmp_path, *each).statement)
    assert [one.code for one in found] == [code for code, _ in expected]
    for message, (_, facts) in zip(found, expected, strict=True):
        assert {name: message.facts[name] for name in facts} == facts


def test_marks_of_the_runs_and_what_cannot_be_stand_beside_the_sentence(tmp_path: Path):
    on_cpu = answer(tmp_path / "cpu", run(device="cpu", **DEFAULT), run(device="cpu", **TWO))
    assert on_cpu.marks == [str(mark.says) for mark in KINDS if mark.column == "cpu_ranks"]
    doubtful = answer(tmp_path / "doubtful", run(**DEFAULT), run(gpus=2, total_s=25.0))
    assert [told(mark) for mark in doubtful.marks] == [
        [Told("answer.impossible", None, {"efficiency": 2.0})]
    ]
    assert doubtful.sentence == f"{doubtful.statement} [{doubtful.marks[0]}]."


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0030, "1.003x"),
        (1.01, "1.01x"),
        (5 / 3, "1.67x"),
        (1 / 0.75, "1.33x"),
        (12.3, "12x"),
        (1e4, ">1000x"),
    ],
)
def test_a_ratio_has_as_many_digits_as_can_be_told(ratio: float, text: str):
    assert intervals.times(ratio) == text
    assert intervals.faster(ratio).startswith(text) and intervals.faster(1 / ratio).startswith(text)
    assert intervals.faster(ratio) != intervals.faster(1 / ratio)


def test_repeated_runs_give_an_interval(tmp_path: Path):
    times = [(1, 100.0), (1, 102.0), (1, 101.0), (2, 60.0), (2, 61.0), (2, 60.5)]
    each = [
        run(gpus=gpus, total_s=time_s, repetition=n % 3 + 1)
        for n, (gpus, time_s) in enumerate(times)
    ]
    found = answer(tmp_path, *each)
    assert found.comparison.is_clearly_faster
    facts = found.comparison.lead.facts
    assert facts["n"] == [3, 3] and 1.6 < facts["low"] < 101 / 60.5 < facts["high"] < 1.75
    assert f"{facts['low']:.2f} to {facts['high']:.2f}" in found.comparison.evidence
    wild = [run(gpus=1, total_s=0.01 * 100.0**n, repetition=n) for n in (1, 2, 3)]
    widest = answer(tmp_path / "wild", *wild, run(gpus=2))
    assert " to >1000" in widest.comparison.evidence and widest.comparison.lead.facts["n"] == [1, 3]


def test_the_best_of_many_alike_settings_is_rarely_called_faster(tmp_path: Path):
    random, wrong = np.random.default_rng(0), 0
    cells = [(gpus, size) for gpus in (1, 2, 4, 8) for size in (8, 16, 32)]
    each = [run(gpus=gpus, batch_size=size, repetition=n) for gpus, size in cells for n in (1, 2)]
    runs = load.read_runs([write(tmp_path / "s", *each)]).runs
    for _ in range(60):
        times = np.exp(random.normal(4, 0.04, len(runs)))
        (found,) = answers(
            [
                replace(one, columns=one.columns | {"total_s": t})
                for one, t in zip(runs, times, strict=True)
            ]
        )
        wrong += found.comparison.is_clearly_faster
    assert wrong <= 4  # 5 % of the sweeps, not of the settings


def test_the_workload_that_was_measured_last_comes_first(tmp_path: Path):
    old = run(**DEFAULT, dataset="mnist") | {"started_at": "2026-01-01T00:00:00Z"}
    new = run(**DEFAULT) | {"started_at": "2026-02-01T00:00:00Z"}
    first, second = answers(load.read_runs([write(tmp_path / "s", old, new)]).runs)
    assert ("digits" in first.work, "mnist" in second.work) == (True, True)


def test_tuning_whose_loss_does_not_fall_is_not_recommended(tmp_path: Path):
    loss = {"loss": {"first": 2.0, "last": 2.0, "mean_of_last_tenth": 2.0}}
    found = answer(
        tmp_path, records.llm(total_s=9.0) | loss, records.llm(gpus=2, total_s=5.0) | loss
    )
    assert says(found.sentence, "answer.loss-did-not-fall", first=2.0, last=2.0)
    assert found.next.sentence.code == "answer.train-longer"


def test_settings_that_did_not_learn_are_to_be_trained_longer(tmp_path: Path):
    found = answer(tmp_path, run(**DEFAULT), run(0.1, **FAST))
    assert found.failings == []
    assert found.next.sentence.code == "answer.compare-longer"
    assert found.next.sentence.facts["settings"] == 1


def test_faster_settings_that_are_passed_over_and_fewer_gpus_that_are_not_told_slower_are_named(
    tmp_path: Path,
):
    found = answer(tmp_path / "faster", run(**DEFAULT), run(**TWO), run(0.9, **FAST))
    (passed,) = found.others
    assert passed.code == "answer.passed-over" and [*passed.facts["reasons"]] == ["gpus=4"]
    assert says(passed.facts["reasons"]["gpus=4"], "answer.fewer-points", points=9.0)
    each = [
        run(gpus=1, total_s=62.0, layout="nhwc"),
        run(gpus=1, total_s=99.0, layout="nchw"),
        run(**TWO),
    ]
    found = answer(tmp_path, *each)
    assert [(one.code, one.facts["settings"]) for one in found.others] == [
        ("answer.equals", ["gpus=1 layout=nhwc"])
    ]
    assert says(found.statement, "answer.fewer-ranks", setting="gpus=1 layout=nhwc")


def test_a_number_of_steps_on_several_gpus_is_compared_by_the_time_of_as_much_work(tmp_path: Path):
    each = [records.llm(gpus=gpus, max_steps=50, total_s=100.0 * gpus) for gpus in (1, 2)]
    for gpus, record in zip((1, 2), each, strict=True):
        record["epochs"][0]["samples"] = 100 * gpus
        record["tokens_per_s"] = {"non_padding": 500.0 * gpus**0.5}
    found = answer(tmp_path, *each)
    assert says(
        found.statement, "answer.run", setting="gpus=2", against="gpus=1", ratio=1.41421, n=[1, 1]
    )
    assert says(found.statement, "answer.other-amounts", trained="200 rows", other="100 rows")
    assert codes(found.statement) == [
        "answer.run",
        "answer.other-amounts",
        "answer.quality-not-measured",
    ]
    assert find(found.takes, "answer.takes").facts["time"] == pytest.approx(1414.2, abs=0.1)
    assert says(found.takes, "answer.takes", column="pace_s", gpus=2)
    assert found.ranking.time(found.best).startswith("1,414 s ")
    (time,) = [one for one in what_matters([found.ranking]) if one.measure == "total_s"]
    assert math.exp(time.by_axis[0][0].gain.estimate) == pytest.approx(2**0.5)
    assert {column.name for column in found.ranking.columns()} > {"pace_s", "pace_s_low"}


def test_rows_that_make_no_whole_step_are_no_speed_up(tmp_path: Path):
    """Batches of 128 leave 104 of 1,000 rows out, at the same pace."""
    whole, part = (
        records.llm(batch_size=size, total_s=rows / 10) for size, rows in ((2, 1000), (128, 896))
    )
    for rows, record in ((1000, whole), (896, part)):
        record["epochs"][0]["samples"], record["text_rows"]["read"] = rows, 1000
    found = answer(tmp_path, whole, part)
    assert found.ranking.is_at_pace and not found.comparison.is_clearly_faster
    part["epochs"][0]["samples"] = 992  # of batches of 32
    assert not answer(tmp_path, whole, part).ranking.is_at_pace


def test_times_of_sentence_and_chart_have_one_unit(tmp_path: Path):
    for factor, unit, took in ((1, "s", ["60 s", "100 s"]), (400, "h", ["6.67 h", "11.1 h"])):
        each = [run(**one | {"total_s": factor * one["total_s"]}) for one in (DEFAULT, TWO)]
        found = answer(tmp_path / str(factor), *each)
        chart = trade_off_of(found.ranking, "trade_off")
        assert says(
            found.takes, "answer.takes", time=60.0 * factor, other=100.0 * factor, unit=unit, gpus=2
        )
        assert (
            found.against is not None
            and [*map(found.ranking.time, (found.best, found.against))] == took
        )
        assert f"({unit})" in json.dumps(chart and chart.chart)


def test_losses_of_random_weights_and_of_dpo_with_several_betas_are_not_compared(tmp_path: Path):
    lower = {"loss": {"first": 7.0, "last": 1.0, "mean_of_last_tenth": 1.0}}
    each = [records.llm(total_s=50.0), records.llm(method="full", total_s=90.0) | lower]
    assert says(
        answer(tmp_path / "a", *each).sentence, "answer.keep", setting="method=lora", settings=2
    )
    each = [
        records.llm(method="dpo", method__beta=beta, weights="pretrained", total_s=time_s)
        | {"loss": {"first": 0.69, "last": loss, "mean_of_last_tenth": loss}}
        for beta, time_s, loss in [(0.1, 60.0, 0.6), (0.5, 90.0, 0.3)]
    ]
    found = told(answer(tmp_path, *each).sentence)
    assert (
        not [one for one in found if "loss" in one.facts]
        and "method.beta=0.1" in found[0].facts["setting"]
    )


@pytest.mark.parametrize(
    ("words", "word", "sweeps", "expected"),
    [
        ("-m name=s gpus=1,2 repeat=2", "repeat=3", True, "-m name=s gpus=1,2 repeat=3"),
        ("name=s gpus=1", "repeat=3", True, "-m name=s gpus=1 repeat=3"),  # a sweep of one cell
        ("gpus=2 batch_size=16", "diagnose=true", False, "gpus=2 batch_size=16 diagnose=true"),
    ],
)
def test_a_word_takes_the_place_of_its_key(words: str, word: str, sweeps: bool, expected: str):
    entry = "python train_vision.py"
    assert rerun_commands.with_word(f"{entry} {words}", word, sweeps) == f"{entry} {expected}"


def test_what_to_sweep_next_has_the_value_of_the_runs(tmp_path: Path):
    each = [
        run(**DEFAULT, repetition=n, phases_s={"forward": 0.1}, precision="fp16") for n in (1, 2)
    ]
    write(tmp_path / "s", *each)
    task = {
        "hydra": {
            "overrides": {"task": ["precision=fp16", "name=s"]},
            "job": {"config_name": "train_vision"},
        }
    }
    (tmp_path / "s" / "multirun.yaml").write_text(json.dumps(task))
    (only,) = answers(load.read_runs([tmp_path]).runs)
    assert only.next.command == "python train_vision.py -m precision=fp16,fp32,bf16"


def test_a_diagnosis_says_what_limits_and_what_to_try(tmp_path: Path):
    sentence = (
        "bound by input: waiting for input is 62% of a step of 30.0 ms. To try next: loader=device"
    )
    found = answer(
        tmp_path, run(**DEFAULT) | {"diagnosis": {"bound": "input", "sentence": sentence}}
    )
    assert found.limit.sentence.code == "answer.diagnosed"
    assert found.limit.sentence.facts == {"limit": "waiting for input is 62% of a step of 30.0 ms"}
    assert (found.next.sentence.code, found.next.sentence.facts) == (
        "answer.try",
        {"advice": "loader=device"},
    )


BASES = {"a": 0, "b": 0}
KNOWN = Spread(0.01, 10, 10)


def grid(
    values: dict[tuple[int, int], float], spread: Spread = KNOWN, runs: int = 2
) -> list[Point]:
    return [Point({"a": a, "b": b}, value, runs, spread) for (a, b), value in values.items()]


def test_an_effect_is_the_mean_over_blocks_with_the_variance_of_a_contrast():
    points = grid({(0, 0): 0.0, (1, 0): 0.4, (0, 1): 0.1, (1, 1): 0.9})
    (a,), (b,) = main_effects(points, BASES)
    assert (a.axis, a.gain.estimate, a.blocks) == ("a", pytest.approx(0.6), 2)
    # t of 10 degrees of freedom; four means of two runs
    half = 2.2281389 * math.sqrt(0.01 * 4 * (1 / 2) ** 2 / 2)
    assert (a.gain.low, a.gain.high) == pytest.approx(
        (0.6 - half, 0.6 + half)
    ) and a.gain.excludes_zero
    assert b.gain.estimate == pytest.approx(0.3)
    machines = [
        *points[:2],
        *(Point(each.levels, each.value, 2, Spread(0.04, 5, 5)) for each in points[2:]),
    ]
    gain = main_effects(machines, {"a": 0})[0][0].gain
    parts = [(0.01 / 4, 10), (0.04 / 4, 5)]  # Satterthwaite
    degrees = sum(v for v, _ in parts) ** 2 / sum(v**2 / d for v, d in parts)
    assert degrees == pytest.approx(7.5758, abs=1e-4)
    assert gain.high is not None and gain.high - 0.6 == pytest.approx(
        2.3287 * math.sqrt(0.0125), rel=1e-3
    )


def test_a_grid_with_holes_uses_the_blocks_there_are_and_the_best_of_several_levels_has_a_wider_interval():
    points = grid({(0, 0): 0.0, (1, 0): 0.4, (2, 0): 0.2, (0, 1): 0.1, (2, 1): 0.3, (3, 2): 9.0})
    (one, two), (b,) = main_effects(points, BASES)
    assert [(one.level, one.blocks), (two.level, two.blocks)] == [(1, 1), (2, 2)]
    assert one.gain.high is not None and one.gain.high - 0.4 == pytest.approx(
        2.6338 * math.sqrt(0.01), rel=1e-4
    )
    assert (b.level, b.blocks) == (1, 2)  # b=2 differs from all others in a too
    assert main_effects(grid({(0, 0): 0.0, (1, 1): 1.0}), BASES) == []


def test_without_repetitions_noise_is_what_blocks_differ_by():
    """The paired t interval of two blocks, which differ by 0.4, has one degree of freedom."""
    values = {(0, 0): 0.0, (1, 0): 0.4, (0, 1): 0.1, (1, 1): 0.9}
    points = grid(values, Spread(), runs=1)
    (a,), _ = main_effects(points, BASES)
    assert a.gain.high is not None and a.gain.high - 0.6 == pytest.approx(
        12.7062 * 0.4 / 2, rel=1e-4
    )
    assert not a.gain.excludes_zero and interactions(points, [a]) == []
    single = main_effects(grid({(0, 0): 0.0, (1, 0): 0.4}, Spread()), {"a": 0})
    assert single[0][0].gain.low is None


def test_effects_and_interactions_of_noise_are_called_so_in_5_percent_of_the_sweeps():
    random, wrong = np.random.default_rng(3), {"effects": 0, "interactions": 0}
    for _ in range(400):
        cells = list(product((0, 1, 2), (0, 1)))
        logs = random.normal(0, 0.03, (len(cells), 3))
        spread = Spread(float(logs.var(axis=1, ddof=1).mean()), 2 * len(cells), 2 * len(cells))
        points = grid(dict(zip(cells, logs.mean(axis=1).tolist(), strict=True)), spread, runs=3)
        by_axis = main_effects(points, BASES)
        wrong["effects"] += any(
            one.gain.excludes_zero for own in by_axis for one in own if own[0].axis == "a"
        )
        wrong["interactions"] += bool(interactions(points, [own[0] for own in by_axis]))
    assert max(wrong.values()) <= 0.07 * 400 and min(wrong.values()) > 0


def test_gains_and_what_they_depend_on_are_found(tmp_path: Path):
    times_s = {("nchw", 1): 100.0, ("nchw", 2): 90.0, ("nhwc", 1): 80.0, ("nhwc", 2): 45.0}
    for (layout, gpus), time_s in times_s.items():
        for repetition, drift in enumerate((0.99, 1.01)):
            record = records.vision(layout=layout, gpus=gpus, total_s=time_s * drift)
            records.write(tmp_path / f"{layout}{gpus}{repetition}", record)
    runs = load.read_runs([tmp_path]).runs
    time, accuracy = what_matters(known_rankings(runs))
    (layout,), (gpus,) = time.by_axis
    assert [(one.axis, one.level, one.base) for one in (layout, gpus)] == [
        ("layout", "nhwc", "nchw"),
        ("gpus", 2, 1),
    ]
    for effect, factor in ((layout, (1.25 * 2) ** 0.5), (gpus, (10 / 9 * 16 / 9) ** 0.5)):
        assert (
            math.exp(effect.gain.estimate) == pytest.approx(factor, rel=1e-3)
            and effect.gain.excludes_zero
        )
    (depends,) = interactions(time.points, [layout, gpus])
    assert (depends.effect, depends.axis) == (layout, "gpus") and len(time.interactions) == 1
    gains = {gpus: math.exp(gain) for gpus, gain in depends.gains.items()}
    assert gains == {1: pytest.approx(1.25), 2: pytest.approx(2.0)}
    same = accuracy.by_axis[0][0].gain
    assert (same.estimate, same.excludes_zero) == (0.0, False)
    blocks = effects_section(known_rankings(runs)).blocks
    assert [block.figure.name for block in blocks if isinstance(block, Plot)] == ["effects"]
    single = effects_section(known_rankings(runs[::2])).blocks
    assert any(isinstance(block, Paragraph) and UNREPEATED in block.text for block in single)
    assert not any(isinstance(block, Paragraph) and UNREPEATED in block.text for block in blocks)
    assert Paragraph(NO_GAIN, quiet=True) in blocks


def test_a_script_that_told_no_loss_may_learn_worse(tmp_path: Path):
    each = [records.script(**one) for one in (DEFAULT, TWO)]
    untold = answer(tmp_path / "untold", *each)
    assert says(untold.sentence, "answer.run", setting="gpus=2")
    assert says(untold.sentence, "answer.learning-unknown")
    loss = {"first": 7.0, "last": 2.0, "mean_of_last_tenth": 2.5}
    told = answer(tmp_path / "told", *(one | {"loss": loss} for one in each))
    assert not says(told.sentence, "answer.learning-unknown")


@pytest.mark.parametrize(("steps", "step"), [(100, None), (50, 20.0)])
def test_another_batch_is_said(tmp_path: Path, steps: int, step: float | None):
    each = [records.script(**one) for one in (DEFAULT, TWO)]
    each[1]["epochs"][0]["steps"] = steps
    sentence = answer(tmp_path, *each).sentence
    assert says(sentence, "answer.other-batch") is (step is not None)
    if step is not None:
        assert says(sentence, "answer.other-batch", step=step, other=10.0)


@pytest.mark.parametrize(
    ("record", "unit"),
    [(records.vision, "images"), (records.llm, "tokens"), (records.script, "samples")],
)
def test_what_a_step_trains_is_counted_in_the_unit_of_its_kind(
    record: Callable[..., dict[str, Any]], unit: str, tmp_path: Path
):
    each = [record(**one) for one in (DEFAULT, TWO)]
    each[1]["epochs"][0]["steps"] *= 2
    assert says(answer(tmp_path, *each).sentence, "answer.other-batch", unit=unit)


def test_steps_that_are_counted_in_different_units_have_no_unit_of_their_own(tmp_path: Path):
    each = [records.script(**one) for one in (DEFAULT, TWO)]
    each[1]["tokens"] = {"all": 500, "non_padding": 500}
    runs = load.read_runs([write(tmp_path, *each)]).runs
    assert circumstances.step_work_unit(runs) == "samples or tokens"


@pytest.mark.parametrize(
    ("calm", "disturbed", "others", "repetitions"),
    [(1, 0, 1, 3), (1, 0, 3, 3), (1, 1, 2, 3), (1, 3, 2, 5), (2, 1, 2, None)],
)
def test_repetitions_are_advised_where_a_setting_has_one_undisturbed_run(
    calm: int, disturbed: int, others: int, repetitions: int | None, tmp_path: Path
):
    """The command measures what is missing: a sweep that has three repetitions gets a fourth."""
    quiet = [run(**DEFAULT, seed=seed) for seed in range(others)]
    quiet += [run(**TWO, seed=seed) for seed in range(calm)]
    slow = [
        run(**TWO | {"total_s": 300.0}, seed=9 + n, load=records.load(12.0))
        for n in range(disturbed)
    ]
    write(tmp_path / "s", *quiet, *slow)
    task = {
        "hydra": {
            "overrides": {"task": ["gpus=1,2", "name=s"]},
            "job": {"config_name": "train_vision"},
        }
    }
    (tmp_path / "s" / "multirun.yaml").write_text(json.dumps(task))
    (only,) = answers(load.read_runs([tmp_path]).runs)
    assert only.setting == "gpus=2"
    if repetitions is None:
        assert only.next.sentence.code != "answer.repeat"
        return
    assert says(only.next.sentence, "answer.repeat", runs=calm + disturbed, disturbed=disturbed)
    assert only.next.command == f"python train_vision.py -m gpus=1,2 name=s repeat={repetitions}"


def test_the_command_repeats_as_often_as_the_headline_says(tmp_path: Path):
    write(tmp_path / "s", run(**DEFAULT), run(**TWO | {"total_s": 98.0}))
    task = {
        "hydra": {
            "overrides": {"task": ["gpus=1,2", "name=s"]},
            "job": {"config_name": "train_vision"},
        }
    }
    (tmp_path / "s" / "multirun.yaml").write_text(json.dumps(task))
    (only,) = answers(load.read_runs([tmp_path]).runs)
    needed = find(only.sentence, "answer.one-run-each").facts["needed"]
    assert needed > 3
    assert only.next.command == f"python train_vision.py -m gpus=1,2 name=s repeat={needed}"


@pytest.mark.parametrize(("counts", "is_unequal"), [((640, 1920), True), ((1910, 1920), False)])
def test_a_script_whose_repetitions_did_unequal_work_is_not_ranked_by_their_mean(
    tmp_path: Path, counts: tuple[int, int], is_unequal: bool
):
    """As one that goes on from a file that its first run left."""
    each = [records.script(**DEFAULT, repetition=n, steps=None) for n in (1, 2)]
    for one, number in zip(each, counts, strict=True):
        one["epochs"] = [one["epochs"][0] | {"samples": number}]
    found = answer(tmp_path, *each)
    codes_of_failings = [message.code for message in found.failings]
    assert ("amounts.unequal-repetitions" in codes_of_failings) is is_unequal
    if is_unequal:
        facts = found.failings[0].facts
        assert facts == {"unit": "samples", "least": 640, "most": 1920}
        assert found.recommended is None and found.ranking.column == "pace_s"
        assert says(found.next.sentence, "answer.train-as-much")


def test_a_slower_setting_has_the_interval_of_how_much_slower(tmp_path: Path):
    """It is recommended as it is more accurate, and is called slower only if runs show that."""
    for spread, is_told in ((0.01, True), (0.6, False)):
        times = [(1, 60.0), (1, 60.0 * (1 + spread)), (2, 100.0), (2, 100.0 * (1 + spread))]
        each = [
            run(0.9 if gpus == 1 else 0.99, gpus=gpus, total_s=time_s, repetition=n % 2 + 1)
            for n, (gpus, time_s) in enumerate(times)
        ]
        found = answer(tmp_path / str(spread), *each)
        facts = found.comparison.lead.facts
        assert found.comparison.lead.code == "answer.run" and facts["ratio"] == pytest.approx(0.6)
        assert (
            f"interval {1 / facts['high']:.2f} to {1 / facts['low']:.2f}"
            in found.comparison.evidence
        )
        assert ("not clearly" not in found.comparison.lead.sentence) is is_told


def at(day: int) -> dict[str, str]:
    """The times of a run on a day."""
    return {"started_at": f"2026-11-{day}T09:00:00Z", "ended_at": f"2026-11-{day}T09:02:00Z"}


@pytest.mark.parametrize(
    ("first", "second", "codes_of_doubts"),
    [
        (at(21), at(21), []),
        (at(21), at(22), ["doubt.other-times"]),
        # of 16 cores: under a tenth
        ({"load": records.load(0.1)}, {"load": records.load(1.4)}, []),
        ({"load": records.load(0.1)}, {"load": records.load(3.1)}, ["doubt.other-load"]),
    ],
)
def test_what_differs_beside_the_settings_is_said_by_sentence_page_and_effects(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], codes_of_doubts: list[str]
):
    """As `compare` warns of it: a day later, or under other load."""
    found = answer(tmp_path, run(**DEFAULT, **first), run(**TWO, **second))
    doubts = [
        mark for mark in found.marks if isinstance(mark, Message) and mark.code.startswith("doubt.")
    ]
    assert [doubt.code for doubt in doubts] == codes_of_doubts
    assert all(says(found.sentence, code) for code in codes_of_doubts)
    (effects,) = [one for one in what_matters([found.ranking]) if one.measure == "total_s"]
    assert {*codes(" ".join(effects.doubts))} == {*codes_of_doubts}
    texts = [
        str(block.text)
        for block in effects_section([found.ranking]).blocks
        if isinstance(block, Paragraph)
    ]
    assert any(says(text, "report.effects-doubted") for text in texts) is bool(codes_of_doubts)


def test_a_script_that_trained_on_other_amounts_says_so(tmp_path: Path):
    each = [records.script(**one, steps=None) for one in (DEFAULT, TWO)]
    same = answer(tmp_path / "same", *each)
    assert not says(same.sentence, "answer.other-amounts")
    (epoch,) = each[1]["epochs"]
    each[1]["epochs"] = [epoch | {"samples": epoch["samples"] // 3, "steps": epoch["steps"] // 3}]
    each[1]["samples_per_s"] *= 1.5
    other = answer(tmp_path / "other", *each)
    assert says(other.sentence, "answer.other-amounts") and other.ranking.is_at_pace
    (effects,) = [one for one in what_matters([other.ranking]) if one.measure == "total_s"]
    assert "doubt.other-amounts" not in codes(" ".join(effects.doubts))


def test_other_options_are_compared_all_else_equal(tmp_path: Path):
    """A sweep over two questions: the recommendation compares shardings, this line the methods."""
    each = [
        records.llm(method=method, sharding=sharding, total_s=total_s, batch_size=batch_size)
        for method, sharding, batch_size, total_s in (
            ("lora", "fsdp", 2, 100.0),  # the default
            ("lora", "ddp", 2, 50.0),
            ("qlora", "fsdp", 2, 130.0),
            ("qlora", "ddp", 2, 75.0),
            ("lora", "ddp", 4, 60.0),
        )
    ]
    found = answer(tmp_path, *each)
    assert found.comparison.differing_keys == ["sharding"]
    (option,) = found.other_options
    assert option.code == "answer.other-option" and option.facts["option"] == "method=qlora"
    assert option.facts["ratio"] == pytest.approx(50 / 75)
    assert [clause.code for clause in option.facts["clauses"]] == ["answer.same-loss"]
    assert option in found.others and option.facts["marks"] == []


def test_an_option_that_was_measured_otherwise_says_so(tmp_path: Path):
    quiet, busy = {"load": records.load(0.1)}, {"load": records.load(3.1)}
    each = [
        run(gpus=1, total_s=100.0, layout="nchw", precision="fp32") | quiet,
        run(gpus=1, total_s=50.0, layout="nhwc", precision="fp32") | quiet,
        run(gpus=1, total_s=90.0, layout="nhwc", precision="fp16") | busy,
    ]
    found = answer(tmp_path, *each)
    (option,) = found.other_options
    assert any(says(mark, "doubt.other-load") for mark in option.facts["marks"])
    assert found.marks == []


def test_an_option_that_did_not_learn_says_so_and_without_a_recommendation_none_is_compared(
    tmp_path: Path,
):
    each = [
        run(gpus=1, total_s=total_s, layout=layout, precision=precision, share=share)
        for layout, precision, total_s, share in (
            ("nchw", "fp32", 100.0, 0.99),
            ("nhwc", "fp32", 50.0, 0.99),
            ("nhwc", "fp16", 90.0, 0.1),
        )
    ]
    (option,) = answer(tmp_path, *each).other_options
    (failing,) = option.facts["failings"]
    assert says(failing, "answer.at-chance", accuracy=0.1)
    at_chance = [one | records.accurate(0.1) for one in each]
    assert answer(tmp_path / "chance", *at_chance).other_options == []
