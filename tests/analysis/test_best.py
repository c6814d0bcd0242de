"""`best`: which runs are ranked together, the trade-off front, the sentences,
and what GPU hours cost.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import multicard
from analysis.answers import sentences
from analysis.commands import best
from analysis.commands.ranking import Limits, RankedSetting, front
from analysis.figures.trade_off_chart import trade_off
from analysis.runs import load
from analysis.runs.load import Run
from analysis.runs.works import trained
from analysis.stats.between_runs import REMEDY, RepeatedRuns
from multicard.config import prices
from multicard.config.placement import place
from multicard.records.figures import FIGURES
from tests.analysis.conftest import Said
from tests.conftest import typed
from tests.helpers import messages, records
from tests.helpers.messages import codes, find, says, told
from tests.helpers.records import write_all as write


def ranked(
    folder: Path, goal: str = "time", limits: Limits | None = None, mix: bool = False
) -> list[str]:
    return [
        *best.output(load.read_runs([folder]).runs, goal, limits or Limits(), mix, sentences).lines(
            None
        )
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write(
        tmp_path / "s",
        records.vision(precision="bf16", gpus=4, total_s=96.0) | records.accurate(0.991),
        records.vision(precision="bf16", gpus=2, total_s=163.0) | records.accurate(0.991),
        records.vision(precision="fp32", gpus=4, total_s=150.0) | records.accurate(0.9905),
        records.vision(precision="fp32", gpus=2, total_s=240.0) | records.accurate(0.999),
        records.vision(precision="fp64", gpus=4, total_s=1.0, status="failed"),
    )


def test_the_fastest_setting_is_named_above_all_of_them_with_the_front(sweep: Path):
    first, _, *lines = ranked(sweep)
    assert says(
        first,
        "best.first",
        goal="time",
        setting="gpus=4 precision=bf16",
        figure=96.0,
        accuracy=0.991,
        n=1,
    )
    assert [line.split()[1:3] for line in lines[:4]] == [
        ["4", "bf16"],
        ["4", "fp32"],
        ["2", "bf16"],
        ["2", "fp32"],
    ]
    assert ["yes" in line for line in lines[:4]] == [True, False, True, True]
    assert says(lines[4], "spread.assumed", hardware="NVIDIA H200", kind="vision", prior_sd=0.02)
    assert says(lines[4], "spread.repeat") and REMEDY.remedies[0] == "repeat=3"
    assert says(lines[5], "best.not-ranked", not_ok={"failed": 1}, beyond_limits=0)


@pytest.mark.parametrize(
    ("a", "b", "samples", "told"),
    [
        (0.99, 0.98, 10_000, True),
        (0.99, 0.985, 10_000, False),  # of three seeds it would be told
        (0.99, 0.98, 100, False),
        (0.6, 0.4, 60, True),
        (0.6, 0.4, 40, False),
    ],
)
def test_accuracies_within_the_error_of_the_test_set_are_equal_and_runs_of_a_seed_count_once(
    a: float, b: float, samples: int, told: bool, tmp_path: Path
):
    contents = [
        records.vision(repetition=n) | records.accurate(share, samples)
        for share in (a, b)
        for n in (1, 2, 3)
    ]
    runs, repeated = load.read_runs([write(tmp_path, *contents)]).runs, RepeatedRuns([])
    assert repeated.more_accurate(runs[:3], runs[3:]) == told and not repeated.more_accurate(
        runs[3:], runs[:3]
    )


def test_limits_hold_for_the_mean_of_a_setting(tmp_path: Path):
    """One of three seeds is lucky; another needs more memory."""
    lucky = [
        records.vision(seed=seed, peak_memory_bytes={"max": peak}) | records.accurate(share)
        for seed, (share, peak) in enumerate(
            [(0.9905, 4 * 10**9), (0.985, 4 * 10**9), (0.984, 6 * 10**9)]
        )
    ]
    steady = [
        records.vision(precision="fp16", seed=seed, total_s=150.0) | records.accurate(0.991)
        for seed in range(3)
    ]
    folder = write(tmp_path / "s", *lucky, *steady)
    assert says(
        ranked(folder)[0], "best.first", goal="time", setting="precision=fp32", figure=100.0
    )
    within = ranked(folder, limits=Limits(accuracy=0.99))
    assert says(within[0], "best.first", setting="", figure=150.0, accuracy=0.991, n=3)
    assert says(within[-1], "best.not-ranked", beyond_limits=3, not_ok={})
    assert says(
        ranked(folder, limits=Limits(memory_bytes=5e9))[-1], "best.not-ranked", beyond_limits=3
    )
    assert says(
        ranked(folder, "memory")[0],
        "best.first",
        goal="memory",
        setting="precision=fp16",
        figure=5e9,
    )
    ties = write(tmp_path / "ties", records.vision(total_s=200.0), records.vision(layout="nhwc"))
    assert says(
        ranked(ties, "memory")[0], "best.first", goal="memory", setting="layout=nhwc", figure=5e9
    )
    nodes = write(
        tmp_path / "nodes", records.vision(nodes=2, gpus=2), records.vision(gpus=2, total_s=200.0)
    )
    assert says(ranked(nodes, limits=Limits(gpus=3))[0], "best.first", setting="", figure=200.0)


def test_the_front_has_what_no_other_dominates_and_what_runs_tell_from_it():
    """Of cost and accuracy, where half a point is what runs tell apart."""
    figures = [(1.0, 0.970), (1.01, 0.969), (2.0, 0.974), (3.0, 0.978), (4.0, 0.974)]
    first, *rest = settings = [
        RankedSetting((), [], cost, 1, {"test_accuracy": share}) for cost, share in figures
    ]

    def told(a: RankedSetting, b: RankedSetting) -> bool:
        return a.cost < 0.9 * b.cost or (a.accuracy or 0.0) > (b.accuracy or 0.0) + 0.005

    assert front(settings, told) == [first, rest[2]]  # the third is no better as far as runs tell
    unknown = [replace(setting, learned={}) for setting in settings]
    assert front(unknown, lambda a, b: a.cost < b.cost) == unknown[:1]


def test_the_front_is_the_same_in_best_the_report_and_the_charts(tmp_path: Path):
    """Means that tie within noise: bf16 is as fast as fp16,
    and fp32 no more accurate than 10,000 images can tell.
    """
    cells = (("fp16", 4, 50.0, 0.980), ("bf16", 4, 50.4, 0.980), ("fp32", 4, 80.0, 0.981))
    cells += (
        ("fp64", 4, 90.0, 0.995),
        ("fp16", 2, 50.2, 0.980),
        ("fp32", 1, 400.0, 0.980),
        ("fp64", 1, 500.0, 0.970),
    )
    contents = [
        records.vision(
            precision=precision, gpus=gpus, total_s=time_s * (1 + 0.01 * seed), seed=seed
        )
        | records.accurate(share)
        for precision, gpus, time_s, share in cells
        for seed in range(3)
    ]
    found = load.read_runs([write(tmp_path / "s", *contents)])
    (ranking,) = best.rankings(found.runs)
    front = [one.runs for one in ranking.front]
    found_at = {(runs[0]["precision"], runs[0]["gpus"]) for runs in front}
    assert found_at == {("fp16", 4), ("fp64", 4), ("fp16", 2), ("fp32", 1)}
    (on_front,) = [column.texts for column in ranking.columns() if column.heading == "front"]
    assert on_front.count("yes") == 4
    (figure,) = trade_off(found.runs)
    for measure in ("test_accuracy", "peak_memory_bytes"):
        numbered = {
            row["series"] for row in figure.rows if row["measure"] == measure and row["front"]
        }
        assert numbered == {ranking.label(one) for one in ranking.front}
    _, not_told = ranking.sentences
    assert says(not_told, "best.equals", settings=["gpus=4 precision=bf16"])
    assert "gpus=4 precision=bf16" in figure.caption


def test_a_point_is_faint_where_others_are_as_good_in_both_axes(tmp_path: Path):
    cells = (("fp16", 10.0, 5e9), ("bf16", 20.0, 3e9), ("fp32", 30.0, 4e9), ("fp64", 40.0, 3e9))
    contents = [
        records.vision(precision=precision, total_s=time_s, peak_memory_bytes={"max": int(peak)})
        for precision, time_s, peak in cells
    ]
    (figure,) = trade_off(load.read_runs([write(tmp_path / "s", *contents)]).runs)
    faint = {
        measure: [
            row["precision"] for row in figure.rows if row["measure"] == measure and row["faint"]
        ]
        for measure in ("test_accuracy", "peak_memory_bytes")
    }
    assert faint == {
        "test_accuracy": ["bf16", "fp32", "fp64"],
        "peak_memory_bytes": ["fp32", "fp64"],
    }


def test_limits_leave_settings_out(sweep: Path, refused: Said):
    assert says(
        ranked(sweep, limits=Limits(gpus=2))[0],
        "best.first",
        setting="precision=bf16",
        figure=163.0,
    )
    left_out = ranked(sweep, limits=Limits(accuracy=0.995))[-1]
    assert says(left_out, "best.not-ranked", not_ok={"failed": 1}, beyond_limits=3)
    limits = ["--accuracy", "0.9999", "--memory", "4.9GB", "--gpus", "1"]
    refusal = find(refused("best", "--goal", "time", *limits, sweep), "best.limits", runs=4)
    reached = {one.code: one.facts for one in told(refusal.facts["reached"])}
    assert reached == {
        "best.highest-accuracy": {"accuracy": 0.999},
        "best.least-memory": {"bytes": 5e9},
        "best.fewest-gpus": {"gpus": 2},
    }


def test_energy_is_ranked_where_it_was_measured(tmp_path: Path, refused: Said):
    spent = [
        records.vision(gpus=gpus, gpu=records.gpu(joules))
        for gpus, joules in ((1, 9e4), (2, 6e4), (4, None))
    ]
    lines = ranked(write(tmp_path / "s", *spent), "energy")
    assert says(lines[0], "best.first", goal="energy", setting="gpus=2", figure=6e4, accuracy=0.98)
    assert says(lines[-1], "best.not-ranked", without_figure=1, not_ok={})
    failed = write(
        tmp_path / "failed", *(records.vision(status=status) for status in ("oom", "diverged"))
    )
    assert says(refused("best", "--goal", "time", failed), "best.none-ok", runs=2, profiled=False)
    on_cpu = write(tmp_path / "c", records.vision(device="cpu"))
    line = refused("best", "--goal", "energy", on_cpu)
    assert says(line, "best.no-figure", goal="energy", column="energy_joules", runs=1)


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 5},
        {"dataset__train_limit": 96},
        {"dataset__image_size": 64},
        {"model__width": 0.5},
        {"commit": "f" * 40},
        {"hardware": "A100"},
        {"dirty": True},
    ],
)
def test_runs_that_did_other_work_are_not_ranked_against_one_another(
    other: dict[str, Any], tmp_path: Path
):
    folder = write(
        tmp_path / "s", records.vision(precision="fp16", total_s=50.0), records.vision(**other)
    )
    lines = ranked(folder)
    assert says(lines[0], "best.several-works", n=2)
    assert sum(says(line, "best.first", goal="time", setting="") for line in lines) == 2
    rankings = codes("\n".join(ranked(folder, mix=True))).count("best.first")
    assert rankings == (1 if set(other) & {"commit", "hardware", "dirty"} else 2)


def works(runs: Iterable[Run]) -> set[str]:
    """The headings of rankings of tuning runs that differ in the amount of their work alone."""
    return {f"tuning trained={trained(run, at_pace=True)}:" for run in runs}


def test_training_tuning_and_other_numbers_of_steps_are_ranked_apart(tmp_path: Path):
    limited = [records.llm(max_steps=steps) for steps in (50, 60)]
    contents = [
        records.vision(),
        records.llm(gpus=1),
        records.llm(gpus=2),
        records.llm(method="dpo"),
        *limited,
    ]
    lines = ranked(write(tmp_path / "s", *contents))
    assert codes("\n".join(lines)).count("best.first") == 5
    runs = load.read_runs([tmp_path / "s"]).runs
    assert works(run for run in runs if run["max_steps"] or run["method"] == "dpo") < {*lines}
    assert any(says(line, "best.first", loss=2.5) for line in lines)
    packed = [
        records.llm(max_steps=50, packed=packed, lr=lr)
        for packed in (False, True)
        for lr in (0.1, 0.2)
    ]
    lines = ranked(write(tmp_path / "packed", *packed))
    apart = works(load.read_runs([tmp_path / "packed"]).runs)
    assert len(apart) == 2 and apart < {*lines}
    # of all rows, however they are laid out
    whole = [records.llm(packed=packed) for packed in (False, True)]
    assert codes("\n".join(ranked(write(tmp_path / "whole", *whole)))).count("best.first") == 1


PRICED = {"price": {"gpu_hour": 2.5}}
COSTS = [name for name in FIGURES if name.startswith("cost")]


def tell(tmp_path: Path, text: str) -> None:
    (tmp_path / "multicard").mkdir(exist_ok=True)
    (tmp_path / prices.TABLE).write_text(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_cost_is_price_times_gpus_times_hours():
    epochs = [{"epoch": n, "samples_trained": 4000} for n in range(2)]
    run = records.as_record(records.vision(gpus=4, total_s=1800.0, **PRICED) | {"epochs": epochs})
    assert [FIGURES[name].value(run) for name in COSTS] == [5.0, 2.5, 0.625, None]
    tokens = {"all": 3_000_000, "non_padding": 2_000_000, "loss_bearing": 1}
    tuned = records.as_record(records.llm(gpus=2, nodes=2, total_s=3600.0, tokens=tokens, **PRICED))
    assert (
        FIGURES["cost"].value(tuned) == 10.0
        and FIGURES["cost_per_million_tokens"].value(tuned) == 5.0
    )


@pytest.mark.parametrize(
    "changes", [{"device": "cpu"}, {"oversubscribed": True}, {"total_s": None}]
)
def test_what_no_gpu_hours_pay_for_has_no_cost(changes: dict[str, Any]):
    run = records.as_record(records.vision(**changes, **PRICED))
    assert [FIGURES[name].value(run) for name in COSTS] == [None] * 4


def test_the_users_table_prices_gpus_by_the_words_of_their_names(home: Path):
    tell(home, "H100: 2.49\nnvidia h100 pcie: 1.9\nA100-SXM4: 1.2\n")
    gpus = (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A10",
        "H100, NVIDIA A10",
        None,
    )
    assert [prices.gpu_hour({}, gpu) for gpu in gpus] == [2.49, 1.9, 1.2, None, None, None]
    assert prices.gpu_hour({"price": {"gpu_hour": 3.0}}, "H100") == 3.0


@pytest.mark.parametrize(
    "text",
    [
        "H100: -1",
        "H100: free",
        "H100: .nan",
        "H100: true",
        "- 2.49",
        "'': 1",
        "a: b: c",
        "\0",
        "a: &a [*a]",
    ],
)
def test_a_broken_table_is_refused_before_anything_runs(home: Path, text: str):
    tell(home, text)
    with pytest.raises(ValueError) as caught:
        typed()
    assert "prices.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_cpu_ranks_have_no_price():
    with pytest.raises(ValueError, match=r"price\.gpu_hour.*2\.49"):
        place(typed("price.gpu_hour=2.49"), 0)
    assert place(typed("price.gpu_hour=2.49"), 1).device == "cuda"


def test_best_ranks_by_cost_at_any_price(tmp_path: Path, said: Said, refused: Said):
    for gpus, total_s in ((1, 100.0), (2, 60.0), (4, 20.0)):
        records.write(tmp_path / str(gpus), records.vision(gpus=gpus, total_s=total_s))
    line = refused("best", tmp_path, "--goal", "cost")
    assert says(line, "best.no-figure", key="--price", goal="cost", runs=3)
    cheapest = said("best", tmp_path, "--goal", "cost", "--price", "36")
    assert says(cheapest, "best.first", goal="cost", setting="gpus=4", figure=0.8)
    runs = multicard.load(tmp_path, price=36)
    assert runs.best(goal="cost").to_pandas()["cost"].round(9).tolist() == [0.8, 1.0, 1.2]
    assert says(repr(runs.best()), "best.first", goal="cost", setting="gpus=4", figure=0.8)
    with messages.refused("notebook.argument", key="price") as caught:
        multicard.load(tmp_path, price=-1)
    assert says(str(caught.value), "analysis.price", value="-1")


def test_what_is_slower_and_cheaper_is_on_the_front_too(tmp_path: Path):
    for hour, total_s, precision in (
        (4.0, 50.0, "bf16"),
        (1.0, 100.0, "fp16"),
        (2.0, 110.0, "fp32"),
    ):
        record = records.vision(precision=precision, total_s=total_s, price={"gpu_hour": hour})
        records.write(tmp_path / precision, record)
    assert multicard.load(tmp_path).best().to_pandas()["front"].tolist() == [True, True, False]
    assert multicard.load(tmp_path, price=1).best().to_pandas()["front"].tolist() == [
        True,
        False,
        False,
    ]


def test_a_first_setting_that_learned_nothing_is_in_doubt_under_a_goal_too(
    tmp_path: Path, said: Said
):
    write(
        tmp_path,
        records.vision(gpus=2, total_s=50.0) | records.accurate(0.1),
        records.vision(gpus=1, total_s=90.0) | records.accurate(0.99),
    )
    doubt = find(said("best", tmp_path, "--goal", "time"), "best.in-doubt")
    assert codes(said("best", tmp_path)).count("best.in-doubt") == 0
    assert "answer.at-chance" in str(doubt.facts)
    assert says(repr(multicard.load(tmp_path).best("time")), "best.in-doubt")


def test_a_first_setting_that_learned_is_not_in_doubt(tmp_path: Path, said: Said):
    write(tmp_path, records.vision(gpus=2, total_s=50.0) | records.accurate(0.99))
    assert not says(said("best", tmp_path, "--goal", "time"), "best.in-doubt")
