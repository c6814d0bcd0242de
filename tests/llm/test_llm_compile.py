"""torch.compile of tuning: its modes, CUDA graphs' steps, and all of it before training starts, without a trace."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torchtune import training
from torchtune.models.llama3 import llama3
from torchtune.modules.loss import CEWithChunkedOutputLoss

from multicard.config import compilation
from multicard.llm import compiling, preflight, step_probe, torchtune_config
from multicard.llm import workload as llm
from tests.conftest import Measured, typed_llm
from tests.llm.test_llm_run import ok, steps

PACKED = ("packed=true", "max_seq_len=512")


@pytest.mark.parametrize("mode", compilation.MODES)
def test_layers_and_loss_are_compiled_in_the_mode(mode: str):
    config = typed_llm(f"compile={mode}", *PACKED)
    preflight.refuse(config)  # accepts it
    with torch.device("meta"):
        model = llama3(vocab_size=64, num_layers=2, num_heads=2, num_kv_heads=2, embed_dim=8, max_seq_len=16)
    with mock.patch.object(torch, "compile", side_effect=lambda model, **_: model) as compiled:
        with compiling.in_mode(config):
            training.compile_model(model, verbose=False)
            training.compile_loss(CEWithChunkedOutputLoss(), verbose=False)
            torch.compile(nn.ReLU(), options={"max_autotune": True})  # not ours
        torch.compile(nn.ReLU())
    *ours, with_options, outside = [call.kwargs for call in compiled.call_args_list]
    assert ours == [{"backend": "inductor", "mode": mode}] * 3
    assert "mode" not in with_options and "mode" not in outside


@pytest.mark.parametrize(("mode", "accumulated", "expected"), [("reduce-overhead", 2, [0, 2, 4]), ("true", 1, [])])
def test_steps_are_marked_for_cuda_graphs(mode: str, accumulated: int, expected: list[int]):
    config = typed_llm(f"compile={mode}", f"gradient_accumulation_steps={accumulated}", *PACKED)
    begun, fetched = [], []

    def batches() -> Iterator[int]:
        for number in range(5):
            fetched.append(number)
            yield number

    with mock.patch.object(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(fetched[-1])):
        assert [*step_probe.marked(batches(), config)] == [*range(5)]
    assert begun == expected


def test_torchtune_is_told_yes_or_no():
    """torchtune.yaml knows no mode."""
    content = mock.Mock(vocabulary=64, rows=[{}], token_ranks=None)
    cfg = torchtune_config.torchtune_config(typed_llm("compile=max-autotune", *PACKED), "cpu", content, Path("x"))
    assert cfg["compile"] is True


def instead(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Have ranks run a function of `tests.helpers.rank_work_llm`."""
    monkeypatch.setattr(llm, "WORKLOAD", replace(llm.WORKLOAD, work=f"tests.helpers.rank_work_llm:{work}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["gpus=2", "method.lora_dropout=0.1"],
        ["method=dpo", "gradient_accumulation_steps=3", "batch_size=2"],
        ["method=full", "optimizer_in_bwd=true", "warmup_steps=0"],
        ["packed=true", "max_seq_len=128", "epochs=2"],
    ],
    ids=" ".join,
)
def test_nothing_compiles_while_training_which_begins_as_if_nothing_had(tuned: Measured, words: list[str], monkeypatch):
    words = [*words, "dataset.rows=60", "lr=3e-3"]
    plain = ok(tuned(*words))
    instead(monkeypatch, "tune_and_count_graphs")
    compiled = ok(tuned(*words, "compile=true"))
    for rank in range(compiled["axes"]["gpus"]):
        before, after = torch.load(Path(compiled["folder"]) / f"{rank}.pt")
        assert after == before > 0
    assert compiled["compile_s"] > 0 and plain["compile_s"] is None and plain["compile_cache"] is None
    assert steps(compiled, "loss") == pytest.approx(steps(plain, "loss"), abs=1e-4)
    for column in ("lr", "tokens", "non_padding", "h2d_bytes"):
        assert steps(compiled, column).tolist() == steps(plain, column).tolist()
    for key in ("communication_bytes", "transfer_bytes", "tokens"):
        assert compiled[key] == plain[key]


def test_what_torch_cannot_compile_is_said(tuned: Measured, monkeypatch: pytest.MonkeyPatch):
    instead(monkeypatch, "tune_without_a_compiler")
    record = tuned("compile=true")
    assert record["status"] == "failed"
    assert record["cause"]["message"].startswith("rank 0: compile=true: torch cannot compile the model here (")
