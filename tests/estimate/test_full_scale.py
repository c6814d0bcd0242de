"""What all experiments take on the papers' node, by the times that the papers print."""

from collections.abc import Callable
from pathlib import Path

import pytest

from multicard import workloads
from multicard.llm import workload as llm
from multicard.sweep import full_scale
from multicard.sweep.full_scale import Cost
from multicard.vision import workload as vision

TABLE2_S = {
    "fp64": [6266, 3339, 2318, 1937],
    "fp32": [3721, 2094, 1483, 1256],
    "fp16": [2477, 1445, 1049, 919],
}
PINNED_S = [2921, 1733, 1283, 1165]  # of Table 3
ITERATION_S = {True: [0.77, 0.92, 0.90, 0.91], False: [0.77, 0.93, 0.90, 0.94]}  # of Table 5, by pinned memory


def on_gpus(times_s: list[float]) -> float:
    return sum(gpus * time_s for gpus, time_s in enumerate(times_s, 1))


def trained(*words: str, name: str = "table2") -> Cost:
    return full_scale.of_experiment(vision.WORKLOAD, name, words)


def test_tables_take_the_times_that_they_print():
    table2, table3 = trained(), trained(name="table3")
    assert (table2.cells, table2.known, table2.gpus) == (12, 12, (1, 4))
    assert table2.time_s == sum(map(sum, TABLE2_S.values()))
    assert table2.gpu_s == sum(map(on_gpus, TABLE2_S.values()))
    assert table3.gpu_s == on_gpus(PINNED_S) + on_gpus(TABLE2_S["fp32"])
    words = ["dataset=alpaca_cleaned", "dataset.rows=51760"]
    table5 = full_scale.of_experiment(llm.WORKLOAD, "table5", words)
    iterations = [-(-25880 // gpus) for gpus in (1, 2, 3, 4)]
    expected_s = sum(count * s for times in ITERATION_S.values() for count, s in zip(iterations, times, strict=True))
    assert table5.time_s == pytest.approx(expected_s)
    assert table5.data == {"alpaca_cleaned": 24.1e6}


SCALED = [
    (["epochs=10"], 3721 / 2),
    (["dataset.image_size=700"], 3721 * 1.96),
    (["dataset.image_size=100"], 3721),  # at most
    (["pin_memory=true"], 2921),
    (["strategy=ddp_rr", "gpus=4"], 3721),
    (["precision=fp64", "pin_memory=true", "gpus=4"], 1937),
]
UNKNOWN = [[word] for word in ("loader=dali", "dataset=images", "gpus=5", "strategy=dp", "dataset.train_limit=9")]


@pytest.mark.parametrize(("words", "seconds"), SCALED, ids=[" ".join(words) for words, _ in SCALED])
def test_times_are_scaled_by_what_the_papers_say(words: list[str], seconds: float):
    cost = trained("precision=fp32", "gpus=1", *words)
    assert (cost.cells, cost.known) == (1, 1) and cost.time_s == pytest.approx(seconds)
    assert cost.gpu_s == pytest.approx(seconds * cost.gpus[0])


@pytest.mark.parametrize("words", UNKNOWN, ids=" ".join)
def test_what_the_papers_tell_no_time_of_is_unknown(words: list[str]):
    cost = trained("precision=fp32", "gpus=2", "time_min=30", *words)
    assert (cost.cells, cost.unknown, cost.time_s) == (1, 1, 0.0)
    assert cost.limit_gpu_s == 1800 * cost.gpus[0]


def test_tuning_of_500_rows_is_250_iterations_over_the_gpus():
    words = ["template=instruct", "gpus=4", "pin_memory=true", "dataset.rows=500"]
    cost = full_scale.of_experiment(llm.WORKLOAD, "peak_memory", words)
    assert (cost.cells, cost.known, cost.unknown) == (4, 2, 2)  # QLoRA and QAT have no printed time
    assert cost.time_s == pytest.approx(63 * 0.91 * (1 + 1.4))


def test_a_setting_of_several_experiments_is_counted_once():
    costs = {cost.name: cost for cost in full_scale.of_all(vision.WORKLOAD, ())}
    assert costs["table2"].again == 0 and costs["table3"].again == 4  # fp32, without pinned memory
    assert costs["table3"].gpu_s == on_gpus(PINNED_S)
    repeated = trained("repeat=3", "precision=fp32")
    assert (repeated.cells, repeated.again) == (12, 0) and repeated.gpu_s == 3 * on_gpus(TABLE2_S["fp32"])


def test_the_command_plans_both_entries_and_starts_nothing(called: Callable[..., tuple[int, str]], tmp_path: Path):
    words = ["experiment=all", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    code, printed = called(*words, entry="tune_llm.py")
    assert code == 0 and not (tmp_path / "sweep").exists()
    lines = printed.splitlines()
    names = [name for workload in workloads.WORKLOADS for name in workloads.experiments(workload)]
    assert {line.split()[0] for line in lines} >= {*names, "sum"}
    assert max(map(len, lines[: len(names) + 8])) <= 120
    (table2,) = (line.split() for line in lines if line.startswith("table2 "))
    assert table2[1:] == ["Table", "2", "12", "-", "1", "to", "4", "7.9", "15.9", "-", "100", "MB", "-"]
    code, printed = called(*words, "precision=fp99", entry="tune_llm.py")
    assert code == 1 and printed.startswith("refused: precision=fp99: no such option") and printed.count("\n") == 1
