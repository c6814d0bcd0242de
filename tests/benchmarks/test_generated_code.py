"""Bytes and launches of code that is generated for a GPU that is not there."""

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch

from benchmarks import absent_gpu, generated_code, kernel_bytes
from benchmarks.kernel_bytes import Graph, Kernel
from tests.conftest import ROOT
from tests.helpers import generated_tiny as tiny
from tests.helpers.messages import refused, says

CODE = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
    inductor_meta={'kernel_name': 'triton_poi_fused_add_0', 'kernel_num_gb': 0.004},
''', device_str='cuda')
triton_red_fused_sum_1 = async_compile.triton('triton_red_fused_sum_1', '''
    inductor_meta={'kernel_name': 'triton_red_fused_sum_1', 'kernel_num_gb': 2e-06},
''', device_str='cuda')
triton_poi_fused_2 = async_compile.triton('triton_poi_fused_2', '''
    inductor_meta={'grid_type': 'SequentialComboKernelGrid', 'kernel_name': 'triton_poi_fused_2'},
''', device_str='cuda')

def call(args):
        triton_poi_fused_add_0.run(arg0, buf0, 1000, stream=stream0)
        triton_poi_fused_add_0.run(buf0, buf1, 1000, stream=stream0)
        triton_red_fused_sum_1.run(buf1, buf2, 1000, stream=stream0)
        triton_poi_fused_2.run(buf1, buf3, 1000, stream=stream0)
"""


def test_kernels_are_read_from_generated_code_with_their_launches():
    assert kernel_bytes.triton_kernels(CODE, combined_bytes=70) == [
        Kernel("triton_poi_fused_add_0", "elementwise", 2, 8_000_000),
        Kernel("triton_red_fused_sum_1", "reductions", 1, 2000),
        Kernel("combined", "combined", 1, 70),
    ]


def test_launches_over_lists_follow_from_tensors_and_blocks():
    small, large = [torch.empty(4)] * 97, [torch.empty(65536 * 321, device="meta")]
    assert kernel_bytes.listed_launches((small, 2.0)) == 1  # of 110
    assert kernel_bytes.listed_launches((small, small, small)) == 3  # of 48
    assert kernel_bytes.listed_launches((large, large)) == 2  # of 320 blocks


def test_expected_milliseconds_are_bytes_at_measured_rates():
    kernels = [Kernel("a", "elementwise", 3, 10**9), Kernel("b", "library", 1, 10**9)]
    found = generated_code.figures(Graph("forward", kernels))
    assert found["launches"] == 4
    assert found["expected_ms"] == pytest.approx(1e12 / 4.291e12 * (1 / 0.87 + 1 / 0.54))


def test_what_a_gpu_would_choose_is_refused():
    with refused("generated-code.max-autotune", key="compile"):
        generated_code.count(["compile=max-autotune"], [])


def test_without_a_compiler_nothing_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with refused("absent-gpu.compiler"):
        absent_gpu.load_runtime()


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT, check=False
    )


def counted(*words: str) -> Any:
    done = ran(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.usefixtures("processes")
def test_bytes_of_tiny_graphs_are_their_closed_forms():
    found = counted("tests.helpers.generated_tiny")

    parts = {graph["part"]: graph["kernels"] for graph in found["affine"]["graphs"]}
    assert [*parts] == ["forward", "backward", "inference"]
    # x is read and y written, or the gradients of both; two bytes a value
    for (kernel,) in parts.values():
        assert (kernel["kind"], kernel["launches"]) == ("elementwise", 1)
        assert kernel["moved_bytes"] == 2 * 2 * tiny.SIDE**2
    assert found["affine"]["eager"]["aten::sum"] == 1

    forward, backward, _ = [graph["kernels"] for graph in found["convolution"]["graphs"]]
    pixels = tiny.IMAGES * tiny.HEIGHT**2
    images, out, weight = (
        4 * tiny.CHANNELS * pixels,
        4 * tiny.OUT * pixels,
        4 * tiny.CHANNELS * tiny.OUT,
    )
    (of_library,) = [kernel for kernel in forward if kernel["kind"] == "library"]
    assert (of_library["launches"], of_library["moved_bytes"]) == (1, images + weight + out)
    (of_library,) = [kernel for kernel in backward if kernel["kind"] == "library"]
    # two kernels: of the images' gradient, and of the weight's;
    # both read the gradient of the output
    assert of_library["launches"] == 2
    assert of_library["moved_bytes"] == 2 * (images + weight + out)


@pytest.mark.usefixtures("processes")
def test_options_that_inductor_does_not_have_are_refused():
    done = ran("benchmarks.generated_code", "--option", "realize_read=8")
    assert done.returncode == 1
    assert says(done.stderr, "generated-code.option", key="--option", value="realize_read=8")


# Of MobileNetV2 with `preset=fast`, 64 images of 500 px: GB by part and kind as counted with torch
# 2.11, docs/studies/h200.md
MOBILENET = {
    "forward": {"elementwise": 8.71, "reductions": 4.49, "library": 8.70},
    "backward": {"elementwise": 13.36, "reductions": 8.68, "library": 15.56},
    "inference": {"elementwise": 8.71, "reductions": 0.04, "library": 8.70},
}
LAUNCHES = {"forward": 356, "backward": 362, "inference": 159}
ROOM = 1.02  # a torch upgrade that moves more than this, or launches more, is looked at


@pytest.mark.usefixtures("processes")
@pytest.mark.nightly
@pytest.mark.timeout(1800)  # one to two minutes of a core, beside whatever else a night brings
def test_mobilenet_moves_no_more_bytes_than_it_did():
    words = ("batch_size=64", "dataset.image_size=500")
    parts = {
        part["part"]: part
        for part in counted("benchmarks.generated_code", *words, "--json")["parts"]
    }
    for name, most in MOBILENET.items():
        moved = {kind: parts[name]["moved_bytes"][kind] / 1e9 for kind in most}
        assert all(moved[kind] <= ROOM * most[kind] + 0.01 for kind in most), (name, moved)
        # all was counted
        assert sum(parts[name]["moved_bytes"].values()) / 1e9 > 0.5 * sum(most.values())
        assert parts[name]["launches"] <= ROOM * LAUNCHES[name]


@pytest.mark.usefixtures("processes")
def test_a_step_of_the_training_loop_is_counted_with_all_that_it_launches():
    option = ("--option", "realize_reads_threshold=4")
    words = ("model=alexnet", "dataset.image_size=64", *option, "batch_size=8", "precision=fp16")
    found = counted("benchmarks.generated_code", *words, "--json")
    batch, forward, backward, inference = found["parts"]
    assert [part["part"] for part in found["parts"]] == ["batch", *MOBILENET]
    # reads 8 small images of a byte a pixel, writes what the model reads
    assert batch["launches"] == 1
    moved = batch["moved_bytes"]["elementwise"]
    assert 0 <= moved - 8 * (28 * 28 + 3 * 64 * 64 * 2) < 64  # and reads mean and deviation
    calls = {kernel["name"]: kernel["launches"] for kernel in found["kernels"]["forward"]}
    assert calls["extern_kernels.convolution"] == 5
    assert calls["extern_kernels.addmm"] == 3
    assert backward["launches"] > forward["launches"] > inference["launches"] > 8
    outside = found["outside"]
    assert outside["batch"] == {"aten::index_select": 2}  # images and labels
    assert "aten::clone" not in outside["step"]  # nothing is copied to three channels
    assert outside["step"]["aten::_fused_sgd_"] == 3  # 57 million values are 870 blocks
    assert outside["step"]["aten::_amp_update_scale_"] == 1
