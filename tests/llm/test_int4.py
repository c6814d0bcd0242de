"""Held-out rows with the model as it is once quantised: the
loss of the model that torchao converts.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import multicard
from multicard.llm import int4, int4_missing, summary
from multicard.llm import workload as llm
from multicard.ranks.failures import Failure
from multicard.records import held_out, limits, rank_files, run_folder
from multicard.records.rank_files import LlmReport
from multicard.records.schema_data import HeldOut
from multicard.run import outcome
from tests.conftest import Tuning, ok, typed_llm
from tests.helpers import plain_losses
from tests.helpers.messages import find
from tests.helpers.tuning import ENGINES, NEEDS_TRL, losses_of

CLOSE = 1e-3  # an activation next to a boundary may round to another int8


@pytest.mark.parametrize(
    ("groupsize", "at_once"),
    [(32, int4.WEIGHTS_AT_ONCE), (64, int4.WEIGHTS_AT_ONCE), (64, 3 * 128)],
)
def test_a_layer_computes_as_torchaos_converted_one_and_is_left_as_it_was(
    groupsize: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(int4, "WEIGHTS_AT_ONCE", at_once)
    from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8, bias=False))
    inputs = torch.randn(5, 128)
    plain = model(inputs)
    with int4.computing(int4.linears(model), groupsize):
        found = model(inputs)
    assert torch.equal(model(inputs), plain) and not any(
        "forward" in vars(layer) for layer in model
    )
    converted = Int8DynActInt4WeightQuantizer(groupsize).quantize(model)
    torch.testing.assert_close(found, converted(inputs))
    assert not torch.allclose(found, plain, rtol=1e-3)


@pytest.mark.parametrize(
    ("words", "width", "groupsize"),
    [
        (["method=full"], 512, 256),
        (["method=full"], 96, 32),
        (["method=full"], 72, None),
        (["method=qat", "method.groupsize=64", "warmup_steps=null"], 256, 64),
        (["method=lora"], 256, None),
        (["method=qlora"], 256, None),
    ],
    ids=str,
)
def test_full_tuning_has_the_groups_of_qat_where_they_divide_its_widths(
    words: list[str], width: int, groupsize: int | None
):
    assert (
        int4.groupsize(typed_llm("device=cpu", *words), nn.Sequential(nn.Linear(width, 4)))
        == groupsize
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "words", [["method=full"], ["method=qat", "warmup_steps=null"]], ids=lambda words: words[0]
)
def test_it_is_the_loss_of_the_converted_model(
    alone: Callable[..., Any], engine: str, words: list[str]
):
    from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

    run = alone(*words, "lr=1e-3", f"engine={engine}")
    measured = run.report.held_out.in_int4
    assert measured.groupsize == 256 and measured.evaluate_s > 0
    rows = held_out.read_row_losses(run.folder, held_out.INT4_LOSS)
    assert rows is not None and rows.mean == pytest.approx(measured.loss)
    plain = plain_losses.plain_model(run.config, run.model, run.report.vocabulary)
    unquantised = plain_losses.loss(plain, run.rows)
    converted = Int8DynActInt4WeightQuantizer(measured.groupsize).quantize(plain)
    assert measured.loss == pytest.approx(plain_losses.loss(converted, run.rows), abs=CLOSE)
    expected = unquantised if run.config.method.name == "full" else measured.loss
    # of QAT, the quantisation that was simulated
    assert losses_of(run)[-1] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_adapters_are_not_quantised(alone: Callable[..., Any], engine: str):
    assert alone("method=lora", f"engine={engine}").report.held_out.in_int4 is None


# ---- a failure of it


def test_a_layer_computes_plainly_once_one_has_failed(monkeypatch: pytest.MonkeyPatch):
    """So that the rank goes on to call all layers, whose weights FSDP gathers."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    inputs, weights, calls = torch.randn(3, 64), int4.weights, list[int]()

    def fails_at_the_second(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("no room")
        return weights(*arguments)

    monkeypatch.setattr(int4, "weights", fails_at_the_second)
    with int4.computing(int4.linears(model), 32) as failures:
        found = model(inputs)
        assert found.shape == (3, 64) and len(calls) == 2
    assert [str(failure) for failure in failures] == ["no room"]


def reported(folder: Path, **figures: Any) -> None:
    (folder / "ranks").mkdir()
    for rank in range(2):
        own = figures if rank == 1 else {}
        rank_files.write(folder, LlmReport(rank=rank, held_out=HeldOut(rows=5), **own))


def test_a_rank_that_ends_in_int4_had_trained(tmp_path: Path):
    reported(tmp_path, scoring_in_int4=True)
    assert not int4_missing.note_failed_scoring(tmp_path, Failure("exit", "rank 0 exited", rank=0))
    assert not int4_missing.note_failed_scoring(
        tmp_path, Failure("timeout", "the job reached its time limit")
    )
    assert int4_missing.note_failed_scoring(
        tmp_path, Failure("signal", "rank 1 was killed", rank=1)
    )
    merged = summary.held_out(rank_files.read_reports(tmp_path), ended_epochs=0)
    assert merged is not None and find(
        str(merged.int4_problem), "llm.int4-failed", rank=1, reason="rank 1 was killed"
    )
    assert not int4_missing.note_failed_scoring(
        tmp_path, Failure("signal", "rank 1 was killed", rank=1)
    )


def test_a_rank_that_ends_before_had_not(tmp_path: Path):
    reported(tmp_path)
    assert not int4_missing.note_failed_scoring(
        tmp_path, Failure("signal", "rank 1 was killed", rank=1)
    )


@pytest.mark.slow
@NEEDS_TRL
def test_a_model_that_is_sharded_trains_on_once_it_was_scored_and_saved(tuned: Tuning):
    """TRL's loss does not call the output, for whose call FSDP waits."""
    rows = ["dataset.rows=40", "dataset.split=0.3", "max_steps=2", "model.num_layers=2"]
    run = ok(
        tuned(
            "method=full",
            "engine=trl",
            "gpus=2",
            *rows,
            "save=model",
            "diagnose=true",
            "eval_steps=1",
        )
    )
    assert (
        run["held_out"]["in_int4"]["loss"] > 0
        and run["saved"]["folder"] == "model"
        and run["diagnosis"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["weights", "activations", "computing"])
def test_a_failure_is_none_of_a_run_that_had_trained(
    alone: Callable[..., Any], engine: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(int4, name, fails)
    run = alone("method=full", f"engine={engine}", "save=model")
    found = run.report.held_out
    assert found.in_int4 is None and find(found.int4_problem, "llm.int4-failed", rank=0)
    assert losses_of(run)[-1] > 0 and not run.report.scoring_in_int4
    assert run.report.saved.folder == "model" and (run.folder / "model/model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("weights", []),
        ("call", ["custom_sharded_layers=[output]"]),
        ("entry", ["activation_checkpointing=true"]),
        ("within", []),
        ("killed", []),
        pytest.param("weights", ["engine=trl"], marks=NEEDS_TRL),
        pytest.param("entry", ["engine=trl"], marks=NEEDS_TRL),
        pytest.param("call", ["engine=trl", "sharding=ddp"], marks=NEEDS_TRL),
        pytest.param("within", ["engine=trl", "sharding=ddp"], marks=NEEDS_TRL),
    ],
    ids=str,
)
def test_a_failure_of_one_rank_of_two_leaves_the_run_as_it_was_measured(
    tuned: Tuning, fault: str, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Of more batches than one a rank, so that the other rank waits for the one that failed."""
    work = "tests.helpers.rank_work_llm:tune_and_fail_in_int4"
    monkeypatch.setattr(llm, "WORKLOAD", replace(llm.WORKLOAD, work=work))
    (tuned.folder / "sweep").mkdir()
    (tuned.folder / "sweep/fault").write_text(fault)
    rows = [
        "dataset.rows=40",
        "dataset.split=0.3",
        "max_steps=2",
        "model.num_layers=2",
        "save=model",
    ]
    run = ok(tuned("method=full", *rows, *words, "gpus=2"))
    assert run["held_out"]["in_int4"] is None
    assert find(run["held_out"]["int4_problem"], "llm.int4-failed", rank=1)
    assert run["held_out"]["evaluations"][-1]["loss"] > 0 and run["saved"]["folder"] == "model"
    assert limits.NO_INT4.code in [limit["code"] for limit in run["limits"]]
    read = run_folder.read_run(Path(run["folder"]))
    assert read is not None and find(str(outcome.line(read)), "llm.int4-failed", rank=1)
    assert multicard.load_model(run["folder"]).config.num_hidden_layers == 2


@pytest.mark.slow
def test_a_failure_before_the_training_ended_is_the_runs(
    tuned: Tuning, monkeypatch: pytest.MonkeyPatch
):
    work = "tests.helpers.rank_work_llm:tune_and_fail_in_the_evaluation"
    monkeypatch.setattr(llm, "WORKLOAD", replace(llm.WORKLOAD, work=work))
    run = tuned("method=full", "dataset.rows=40", "dataset.split=0.3", "max_steps=2", "gpus=2")
    assert run["status"] == "oom"
