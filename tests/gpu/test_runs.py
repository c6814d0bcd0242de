"""Training and tuning on a CUDA device: compiled, profiled,
with fused optimisers and random weights.
"""

import math

import pytest
import torch
import torch._inductor.config
from torch._inductor.utils import run_and_get_code

from multicard.config import compilation
from multicard.llm.torchtune_components import STD, RandomWeight
from multicard.measure import memory
from multicard.vision import compiling
from multicard.vision.loop import memory_format
from tests.conftest import Measured, ok, typed
from tests.gpu.test_cuda import CUDA, pytestmark, several  # noqa: F401 - marks this module too
from tests.helpers.optimised import (
    OPTIMIZERS,
    OVERFLOWS,
    numbers,
    trained,
    uninitialised,  # noqa: F401 - a fixture
)
from tests.helpers.rank_work import Small
from tests.helpers.recorded import rows, steps


@pytest.mark.parametrize("mode", compilation.MODES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_mode_of_compilation_trains_as_eager_does(measured: Measured, mode: str, layout: str):
    # odd batches in both splits; a model without dropout,
    # whose draws alone make losses differ by 3 %
    words = (CUDA, f"layout={layout}", "epochs=2", "batch_size=20", "lr=0.001")
    words += ("model.width=1", "model.name=shufflenet_v2_x0_5")
    plain, compiled = ok(measured(*words)), ok(measured(*words, f"compile={mode}"))
    assert compiled["cuda_graphs"] is (True if compilation.has_cuda_graphs(mode) else None)
    for got, expected in zip(compiled["epochs"], plain["epochs"], strict=True):
        assert got["train_loss"] == pytest.approx(expected["train_loss"], rel=0.05)
    assert compiled["peak_memory_bytes"]["max"] > plain["peak_memory_bytes"]["max"] / 2


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_compiled_code_has_the_layout_that_was_asked_for(layout: str):
    config = typed(f"layout={layout}", "compile=true", CUDA)
    model = Small().cuda().to(memory_format=memory_format(config))  # pyright: ignore[reportCallIssue]
    images = torch.zeros(16, 3, 32, 32, device="cuda").contiguous(
        memory_format=memory_format(config)
    )
    with torch._inductor.config.patch(force_disable_caches=True):
        compiling.compile_model(model, config, "cuda")
        _, codes = run_and_get_code(model, images)
    strides = {"nchw": "(3600, 900, 30, 1)", "nhwc": "(3600, 1, 120, 4)"}
    assert any(f"(16, 4, 30, 30), {strides[layout]}" in code for code in codes)


@pytest.mark.parametrize("strategy", ["ddp_ds", "ddp_rr"])
def test_cuda_graphs_on_two_gpus(measured: Measured, strategy: str):
    several()
    result = ok(
        measured(CUDA, "gpus=2", f"strategy={strategy}", "compile=reduce-overhead", "batch_size=20")
    )
    assert result["cuda_graphs"] is True


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step", "ignore:.*deterministic")
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("uninitialised")
def test_fused_optimisers_train_as_unfused_ones_on_cuda(name: str, overflow: str):
    case = "fp16", True, OVERFLOWS[overflow], *OPTIMIZERS[name]
    cuda = torch.device("cuda")
    plain = numbers(*trained(*case, "optimizer.fused=false", device=cuda))
    fused = numbers(*trained(*case, "optimizer.fused=true", device=cuda))
    assert all(torch.isfinite(value).all() for value in fused)
    for one, other in zip(plain, fused, strict=True):
        # steps are counted on either
        torch.testing.assert_close(other, one, rtol=2e-3, atol=2e-3, check_device=False)


def test_random_weights_are_generated_on_the_gpu():
    """A gigabyte of float32, of which the host sees nothing;
    two readings and bfloat16 give the same numbers.
    """
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
    assert (
        math.isfinite(result["loss"]["last"])
        and result["peak_memory_bytes"]["kind"] == "cuda_allocated"
    )


def test_the_bytes_of_packed_rows_are_those_that_the_profiler_sees(tuned: Measured):
    words = ("packed=true", "max_seq_len=256", "dataset.rows=400", "precision=bf16")
    result = ok(tuned(CUDA, *words, "profile=kineto", "diagnose=true"))
    assert result["transfer_bytes"]["h2d"] == 4 * 8 * result["tokens"]["all"]
    assert abs(result["profile"]["h2d"]["disagreement"]) < 0.01
    assert result["diagnosis"]["step_s"]["half"] > 0
    compiled = ok(tuned(CUDA, *words, "compile=true"))
    for run in (result, compiled):  # their attention is always compiled, before training
        assert 0 < steps(run, "step_s")[0] < run["compile_s"]


@pytest.mark.parametrize("pin_memory", ["true", "false"])
def test_what_kineto_sees_of_training_is_what_was_counted(measured: Measured, pin_memory: str):
    words = ("profile=kineto", "diagnose=true", f"pin_memory={pin_memory}", "dataset.image_size=64")
    result = ok(measured(CUDA, *words))
    calls, copies = rows(result, "api"), rows(result, "copy")
    assert calls["cudaLaunchKernel"]["calls"] > 100 and calls["cudaMemcpyAsync"]["calls"] > 0
    assert (
        "cudaEventDestroy" in result["profile"]["not_recorded"] and "cudaEventDestroy" not in calls
    )
    assert abs(result["profile"]["h2d"]["disagreement"]) <= 0.02
    assert copies["memcpy Host-to-Device"]["detail"] == (
        "pinned" if pin_memory == "true" else "pageable"
    )
    assert {"data", "h2d", "forward", "backward", "optimizer"} <= set(rows(result, "phase"))
    (rank,) = result["profile"]["ranks"]
    assert 0 < rank["derived"]["gpu_busy_share"] <= 1
    assert rank["steps"] == 10
    assert set(result["diagnosis"]["step_s"]) == {"whole", "host", "device", "input", "half"}


def test_what_kineto_sees_of_tuning_is_what_was_counted(tuned: Measured):
    result = ok(tuned(CUDA, "profile=kineto", "profile.steps=3", "precision=bf16", "diagnose=true"))
    assert rows(result, "api")["cudaLaunchKernel"]["calls"] > 100
    assert {"data", "forward", "backward", "optimizer"} <= set(rows(result, "phase"))
    assert abs(result["profile"]["h2d"]["disagreement"]) <= 0.02
    assert result["diagnosis"]["step_s"]["device"] > 0
