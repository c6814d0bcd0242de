"""torch.compile on a CUDA device: every mode trains as eager does, CUDA graphs run, layouts stay as asked for."""

import pytest
import torch
import torch._inductor.config
from torch._inductor.utils import run_and_get_code

from multicard.config import compilation
from multicard.vision import compiling
from multicard.vision.loop import memory_format
from tests.conftest import Measured, ok, typed
from tests.gpu.test_cuda import CUDA, pytestmark, several  # noqa: F401 - marks this module too
from tests.helpers.rank_work import Small


@pytest.mark.parametrize("mode", compilation.MODES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_mode_of_compilation_trains_as_eager_does(measured: Measured, mode: str, layout: str):
    # odd batches in both splits; a model without dropout, whose draws alone make losses differ by 3 %
    words = (
        CUDA,
        f"layout={layout}",
        "epochs=2",
        "batch_size=20",
        "lr=0.001",
        "model.width=1",
        "model.name=shufflenet_v2_x0_5",
    )
    plain, compiled = ok(measured(*words)), ok(measured(*words, f"compile={mode}"))
    assert compiled["cuda_graphs"] is (True if compilation.has_cuda_graphs(mode) else None)
    for got, expected in zip(compiled["epochs"], plain["epochs"], strict=True):
        assert got["train_loss"] == pytest.approx(expected["train_loss"], rel=0.05)
    assert compiled["peak_memory_bytes"]["max"] > plain["peak_memory_bytes"]["max"] / 2


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_compiled_code_has_the_layout_that_was_asked_for(layout: str):
    config = typed(f"layout={layout}", "compile=true", CUDA)
    model = Small().cuda().to(memory_format=memory_format(config))  # pyright: ignore[reportCallIssue]
    images = torch.zeros(16, 3, 32, 32, device="cuda").contiguous(memory_format=memory_format(config))
    with torch._inductor.config.patch(force_disable_caches=True):
        compiling.compile_model(model, config)
        _, codes = run_and_get_code(model, images)
    strides = {"nchw": "(3600, 900, 30, 1)", "nhwc": "(3600, 1, 120, 4)"}
    assert any(f"(16, 4, 30, 30), {strides[layout]}" in code for code in codes)


@pytest.mark.parametrize("strategy", ["ddp_ds", "ddp_rr"])
def test_cuda_graphs_on_two_gpus(measured: Measured, strategy: str):
    several()
    result = ok(measured(CUDA, "gpus=2", f"strategy={strategy}", "compile=reduce-overhead", "batch_size=20"))
    assert result["cuda_graphs"] is True
