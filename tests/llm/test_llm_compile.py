"""torch.compile of tuning: all of it before training starts, without a trace."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multicard.llm import workload as llm
from tests.conftest import Measured, ok
from tests.llm.test_llm_run import steps


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
    assert compiled["compile_s"] > 0 and plain["compile_s"] is None
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
