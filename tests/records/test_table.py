"""The table at the end: what it says of each run, and what it compares."""

from typing import Any

import pytest

from multicard.measure import formulas
from multicard.records import table, text_table
from tests.helpers import records

TUNED = {
    "kind": "llm",
    "iteration_s": {"mean": 0.1, "definition": formulas.STEP_DEFINITION},
    "loss": {"first": 2.0, "mean_of_last_tenth": 1.0},
    "tokens_per_s": {"non_padding": 10.0},
}


def result(total_s: float, status: str = "ok", **changes: Any) -> dict[str, Any]:
    """A run's record; `changes` of its configuration."""
    figures = {"peak_memory_bytes": {"max": 5_432_000_000}, "transfer_bytes": {"h2d": 999}, "test_accuracy": 0.98765}
    return records.vision(status=status, total_s=total_s, **figures, **changes) | {"folder": f"multirun/x/{total_s}"}


def printed(made: list[dict[str, Any]]) -> list[list[str]]:
    return [line.split() for line in lines_of(made)]


def lines_of(made: list[dict[str, Any]]) -> list[str]:
    return table.lines([records.as_run(record) for record in made])


def test_efficiency_is_against_one_gpu_of_the_same_kind():
    made = [
        result(100.0, precision="fp64"),
        result(60.0, precision="fp64", gpus=2),
        result(40.0, precision="fp16"),
        result(25.0, precision="fp16", gpus=2),
    ]
    header, *rows, alike = lines_of(made)
    assert header.split() == ["precision", "gpus", "total", "s", "x", "1", "GPU"]
    assert [row.split()[2:] for row in rows] == [
        ["100.0", "1.00", "(100%)"],
        ["60.0", "1.67", "(83%)"],
        ["40.0", "1.00", "(100%)"],
        ["25.0", "1.60", "(80%)"],
    ]
    figures = "images/s 1,234, accuracy 98.77%, peak memory 5.43 GB, to device 999 B"
    assert alike == f"the same in all rows: status ok, {figures}"
    assert printed(made[:1])[1] == ["fp64", "1", "ok", "100.0", "1,234", "98.77%", "5.43", "GB", "999", "B"]


def test_repetitions_and_seeds_are_one_row_with_their_mean_and_deviation():
    made = [result(100.0), result(104.0, repetition=2), result(60.0, gpus=2), result(58.0, gpus=2, seed=7)]
    made[1] |= {"peak_memory_bytes": {"max": 6_000_000_000}, "test_accuracy": 0.98}
    rows = printed([*made, result(1.0, status="failed", gpus=2, seed=8)])
    assert [" ".join(words) for words in rows[:4]] == [
        "gpus n status total s images/s x 1 GPU accuracy peak memory to device",
        "1 2 ok 102.0 ± 2.8 1,234 1.00 (100%) 98.38% ± 0.54 6 GB 999 B",
        "2 2 ok 59.0 ± 1.4 1,234 1.73 (86%) 98.77% 5.43 GB 999 B",
        "2 - failed - - - - - -",
    ]
    made[3]["images_per_s"] = None  # too short: the other run alone is no mean
    assert " ".join(printed(made)[2]).startswith("2 59.0 ± 1.4 - 1.73 (86%)")
    narrow = table.lines([records.as_run(record) for record in made], 70)
    assert "to device" not in narrow[0] and len(narrow[0]) <= 70 and "peak memory" in narrow[0]


def test_efficiency_counts_the_ranks_of_all_nodes():
    times_s = {(1, 1): 100.0, (2, 1): 55.0, (2, 4): 16.0}
    made = [result(total_s, nodes=nodes, gpus=gpus) for (nodes, gpus), total_s in times_s.items()]
    _, *rows = printed(made)[:4]
    assert [row[3:] for row in rows] == [["1.00", "(100%)"], ["1.82", "(91%)"], ["6.25", "(78%)"]]
    tuned = [
        result(50.0, nodes=nodes, gpus=gpus, method="lora", template="instruct")
        | {**TUNED, "tokens_per_s": {"non_padding": 1000.0 / total_s}}
        for (nodes, gpus), total_s in times_s.items()
    ]
    shares = [share for line in printed(tuned) for share in line if share.endswith("%)")]
    assert shares == ["(100%)", "(91%)", "(78%)"]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_run_without_figures_is_shown_with_its_cause_and_never_a_reference(status: str):
    made = [result(100.0, status=status) | {"cause": {"message": "the loss is not finite"}}, result(50.0, gpus=2)]
    _, first, second, *_ = printed(made)
    assert first[1:] == [status, *["-"] * 5]  # the two comparisons are left out: nothing can be compared
    assert second[1:5] == ["ok", "50.0", "1,234", "98.77%"]


def on_ranks(total_s: float, gpus: int, threads: int = 2, data: str = "a1", **more: Any) -> dict[str, Any]:
    content = {"fingerprint": data, "parts": {"dataset": data}, "bytes": 1, "hashed_bytes": 1}
    return result(total_s, gpus=gpus, device="cpu") | {"threads": threads, "data": content, "cores": 4} | more


def test_an_efficiency_that_cannot_be_is_marked_with_the_likely_reason():
    lines = lines_of([on_ranks(100.0, 1), on_ranks(45.6, 2), on_ranks(22.0, 4, threads=1)])
    assert lines[2].endswith("2.19 (110%)") and "4.55 (114%)?" in lines[3]
    (why,) = [line for line in lines if line.startswith("? ")]
    assert "110% of the ideal" in why and "the run on one was slower" in why
    assert not any(line.startswith("?") for line in lines_of([on_ranks(100.0, 1), on_ranks(45.5, 2)]))


def test_runs_on_other_data_are_not_compared_and_are_told_apart():
    header, _, two, *_ = printed([on_ranks(100.0, 1), on_ranks(50.0, 2, data="b2")])
    assert "data" in header and two == ["2", "b2", "50.0", "-"]
    alike = [on_ranks(100.0, 1), on_ranks(90.0, 1, data="b2")]
    header, *rows = printed(alike)
    assert "data" in header and [row[header.index("data")] for row in rows[:2]] == ["a1", "b2"]
    older = [on_ranks(100.0, 1) | {"data": None}, on_ranks(50.0, 2) | {"data": None}]
    assert "2.00 (100%)" in lines_of(older)[2]  # which do not say: as before


def test_a_loaded_machine_and_ranks_that_take_turns_are_marked():
    busy = {"others_cores": 1.6, "stolen_cores": 0.0}
    lines = lines_of([on_ranks(9.0, 1, load=busy), on_ranks(9.0, 8, threads=1), on_ranks(9.0, 2, beside=1)])
    assert [line.split()[1] for line in lines[1:4]] == ["ok&", "ok>", "ok"]
    assert "& others kept up to 1.6 of 4 cores busy during 1 run: see load in the records" in lines
    assert "> more CPU ranks than cores: they took turns: 1 run" in lines
    assert "beside other runs on its machine: 1 run" in lines
    stolen = [{"others_cores": 0.2, "stolen_cores": 1.0}, {"others_cores": None, "stolen_cores": 2.0}]
    lines = lines_of([on_ranks(9.0, gpus, load=load) for gpus, load in enumerate(stolen, 1)])
    assert "& others kept up to 2.0 of 4 cores busy during 2 runs: see load in the records" in lines
    quiet = lines_of([on_ranks(9.0, 1, load={"others_cores": 0.3, "stolen_cores": 0.05})])
    assert not any(line.startswith("&") for line in quiet)


def test_a_short_run_says_why_it_has_no_throughput():
    short = result(5.0, gpus=2) | {"images_per_s": None, "step_s": None}
    lines = [" ".join(words) for words in printed([result(10.0), short])]
    assert any(line.startswith("images/s is missing") and "warmup_steps" in line for line in lines)
    assert not any("missing" in word for words in printed([result(10.0), result(9.0, status="oom")]) for word in words)


def test_runs_that_shared_their_gpus_are_marked():
    disturbed = {"gpu": {"disturbed_by": [{"name": "solve", "pid": 7}]}}
    made = [result(1.0) | {"oversubscribed": True}, result(2.0, gpus=2) | disturbed, result(3.0, gpus=4)]
    lines = printed(made)
    assert [line[1] for line in lines[1:4]] == ["ok*", "ok!", "ok"]
    assert "* ranks shared a GPU: not a figure of this machine: 1 run" in [" ".join(line) for line in lines]


def test_units_suit_their_figures():
    counts = (None, 0, 999, 1000, 5.432e9, 2e13)
    assert [*map(text_table.in_bytes, counts)] == ["-", "0 B", "999 B", "1 kB", "5.43 GB", "20 TB"]
    joules = (3.0, 0.0, 4321.0, 2.5e6, 1.2345e9)
    assert [*map(text_table.in_joules, joules)] == ["3 J", "0 J", "4.32 kJ", "2.5 MJ", "1.23 GJ"]


def test_the_last_line_says_where_the_records_are(capsys: pytest.CaptureFixture[str]):
    runs = [records.as_run(result(total_s)) for total_s in (1.0, 2.0)]
    table.show(runs[:1])
    table.show(runs)
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Records: ")]
    assert found == ["Records: multirun/x/1.0/", "Records: multirun/x/"]
