"""What bounds a run: the formulas on the twins' times, and runs that are bound on purpose."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.bottleneck import ablations, diagnosis
from multicard.config.placement import Placement
from multicard.controller import outcome, run
from multicard.llm import workload as llm
from multicard.ranks.process import Rank
from multicard.vision import workload as vision
from tests.conftest import SMALL, composed, typed, typed_llm, warm_up

ALONE = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
CPU, CUDA = Placement("cpu", "gloo", 1, False), Placement("cuda", "nccl", 1, False)


def test_what_each_cost_would_save():
    # 100 ms: 40 of waiting, 10 of copying, 20 of exchanging; of the core's 30, 6 do not shrink with the batch
    twins = {"whole": 0.1, "host": 0.06, "device": 0.05, "alone": 0.08, "core": 0.03, "half": 0.018, "input": 0.05}
    expected = {"input": 0.04, "copy": 0.01, "communication": 0.02, "launch": 0.006, "compute": 0.024}
    assert diagnosis.saved_s(twins) == pytest.approx(expected)


def test_no_step_is_shorter_than_the_making_of_its_batches():
    # workers make batches beside the step, and take longer: a free core would save next to nothing
    saved = diagnosis.saved_s({"whole": 0.1, "device": 0.06, "half": 0.03, "input": 0.098})
    assert saved == pytest.approx({"input": 0.04, "copy": None, "communication": None, "launch": 0.0, "compute": 0.002})


def test_noise_makes_no_cost_negative():
    twins = {"whole": 0.1, "host": 0.11, "device": 0.12, "alone": 0.13, "core": 0.1, "half": 0.04, "input": 0.0}
    saved = diagnosis.saved_s(twins)
    assert saved == {"input": 0, "copy": 0, "communication": 0, "launch": 0, "compute": 0.1}


def test_a_step_is_its_slowest_ranks_and_the_median_of_the_rounds():
    ranks = [
        {"whole": [0.1, 0.5, 0.2], "device": [0.1, 0.1, 0.1]},
        {"whole": [0.3, 0.1, 0.2], "device": [0.2, 0.0, 0.1]},
    ]
    assert diagnosis.slowest(ranks) == {"whole": [0.3, 0.5, 0.2], "device": [0.2, 0.1, 0.1]}
    found = diagnosis.diagnose([rank | {"input": [0.25] * 3} for rank in ranks], "try {}".format)
    assert found["step_s"] == {"whole": 0.3, "device": 0.1, "input": 0.25}
    assert found["bound"] == "input" and found["spread"] == pytest.approx(1.0)
    assert found["sentence"] == (
        "bound by input: waiting for batches is 67% of a step of 300.0 ms. To try next: try input"
    )


def test_twins_take_turns_and_their_first_round_warms_up():
    taken: list[tuple[str, int]] = []

    def twin(name: str) -> ablations.Ablation:
        return lambda count: taken.append((name, count)) or count * len(taken)  # returns seconds

    refill = {"a": lambda count: taken.append(("refill", count))}
    found = ablations.interleaved({"a": twin("a"), "b": twin("b")}, refill, ALONE, 0.1, 4, lambda: False)
    assert taken == [("refill", 4), ("a", 1), ("b", 1), *[("refill", 4), ("a", 3), ("b", 3)] * ablations.ROUNDS]
    assert found == {"a": [5, 8, 11, 14, 17], "b": [6, 9, 12, 15, 18]}
    assert ablations.interleaved({"a": twin("a")}, {}, ALONE, 0.1, 0, lambda: True) is None


@pytest.mark.parametrize(
    ("words", "placement", "bound", "advice"),
    [
        ((), CPU, "input", "loader=device"),
        (("loader=device",), CPU, "input", "a smaller dataset.image_size"),
        (("dataset=images", "dataset.root=x", "dataset.cache=none"), CPU, "input", "dataset.cache=mmap"),
        (("loader=device", "pin_memory=false"), CUDA, "copy", "pin_memory=true"),
        (("strategy=ddp_rr", "gpus=2"), CUDA, "communication", "strategy=ddp_ds"),
        (("gpus=2",), CUDA, "communication", "a larger batch_size"),
        ((), CUDA, "launch", "compile=true"),
        ((), CPU, "launch", "a larger batch_size"),
        (("precision=fp64",), CUDA, "compute", "precision=half"),
        (("precision=fp64",), CPU, "compute", "precision=fp32"),
        (("layout=nhwc",), CPU, "compute", "gpus=2"),
    ],
)
def test_the_option_to_try_next(words: tuple[str, ...], placement: Placement, bound: str, advice: str):
    assert vision.advise(typed(*words), placement, bound) == advice


def test_every_bound_has_its_words_and_its_advice():
    bounds = {"input", "copy", "communication", "launch", "compute"}
    assert set(diagnosis.DESCRIPTIONS) == bounds
    for bound in bounds:
        for placement in (CPU, CUDA):
            assert vision.advise(typed("preset=fast"), placement, bound)
            assert llm.advise(typed_llm("method=dpo"), placement, bound)


@pytest.mark.parametrize(
    ("work", "words", "bound", "least_s"),
    [
        ("tests.rank_work:train_on_slow_data", ("model.width=0.25",), "input", 16 * 0.015),
        ("tests.rank_work:train_over_slow_gloo", ("gpus=2", "model.width=0.25"), "communication", 0.3),
        (vision.WORKLOAD.work, ("dataset.image_size=128", "dataset.train_limit=32"), "compute", 0.05),
    ],
)
def test_a_run_is_bound_by_what_was_made_slow(
    work: str, words: tuple[str, ...], bound: str, least_s: float, tmp_path: Path
):
    warm_up()
    cfg = composed(*SMALL, "diagnose=true", *words)
    result = run.measure(replace(vision.WORKLOAD, work=work), cfg, tmp_path / "run", keep_refused=True)
    assert result["status"] == "ok", result["cause"]
    found = result["diagnosis"]
    assert found["bound"] == bound, found
    assert found["saves_s"][bound] >= 0.8 * least_s
    assert found["sentence"] in outcome.line(result)
    counted = result["step_s"]["count"] + result["step_s"]["warmup_count"]
    assert counted == result["segments"][0]["steps"]  # no step of a twin counts


def test_a_tuning_run_is_diagnosed(tuned: Callable[..., dict[str, Any]]):
    plain, result = tuned("gpus=2"), tuned("gpus=2", "diagnose=true")
    assert result["status"] == "ok", result["cause"]
    found = result["diagnosis"]
    assert set(found["step_s"]) == {"whole", "device", "input", "alone", "core", "half"}
    assert found["step_s"]["input"] < found["step_s"]["whole"]
    for key in ("transfer_bytes", "communication_bytes", "loss"):
        assert result[key] == plain[key]  # no step of a twin counts
    assert plain["diagnosis"] is None and plain["profile"] is None
