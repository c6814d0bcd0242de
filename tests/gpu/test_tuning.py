"""Tuning on a CUDA device."""

import math

import pytest
import torch

from multicard.llm.torchtune_components import STD, RandomWeight
from multicard.measure import memory
from tests.conftest import Measured, ok
from tests.gpu.test_cuda import CUDA, pytestmark  # noqa: F401 - marks this module too
from tests.llm.test_llm_run import steps


def test_random_weights_are_generated_on_the_gpu():
    """A gigabyte of float32, of which the host sees nothing; two readings and bfloat16 give the same numbers."""
    device = torch.device("cuda", torch.cuda.current_device())

    def weight(dtype: torch.dtype) -> torch.Tensor:
        return RandomWeight("output.weight", 0, torch.Size((2**14, 2**14)), dtype, device)

    into = torch.empty(2**14, 2**14, device=device)
    into.copy_(weight(torch.float32))
    memory.reset_peak_memory(torch.device("cpu"))
    before = memory.peak_resident_bytes()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    into.copy_(weight(torch.float32))
    assert torch.cuda.max_memory_allocated() - held < 2**20
    assert memory.peak_resident_bytes() - before < 50e6
    assert into.std().item() == pytest.approx(STD, rel=1e-3)
    assert torch.equal(weight(torch.bfloat16).to(device), into.bfloat16())


@pytest.mark.parametrize("method", ["lora", "qlora", "dpo", "full", "qat"])
def test_every_method_tunes(tuned: Measured, method: str):
    result = ok(tuned(CUDA, f"method={method}", "precision=bf16", "dataset.rows=40"))
    assert math.isfinite(result["loss"]["last"]) and result["peak_memory_bytes"]["kind"] == "cuda_allocated"


def test_the_bytes_of_packed_rows_are_those_that_the_profiler_sees(tuned: Measured):
    words = ("packed=true", "max_seq_len=256", "dataset.rows=400", "precision=bf16")
    result = ok(tuned(CUDA, *words, "profile=kineto", "diagnose=true"))
    assert result["transfer_bytes"]["h2d"] == 4 * 8 * result["tokens"]["all"]
    assert abs(result["profile"]["h2d"]["disagreement"]) < 0.01
    assert result["diagnosis"]["step_s"]["half"] > 0
    compiled = ok(tuned(CUDA, *words, "compile=true"))
    for run in (result, compiled):  # their attention is always compiled, before training
        assert 0 < steps(run, "step_s")[0] < run["compile_s"]
