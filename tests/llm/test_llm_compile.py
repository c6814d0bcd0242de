"""Modes of torch.compile in tuning: torchtune's layers and losses get them; CUDA graphs know where a step begins."""

from collections.abc import Iterator
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
from tests.conftest import typed_llm

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
