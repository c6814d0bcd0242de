"""torch.compile: its time is apart, it leaves no trace,
and the compiled model computes what the plain one does.
"""

import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config
import torch._inductor.cudagraph_trees
from torch import nn
from torch._inductor.utils import run_and_get_code

from multicard.config import compilation
from multicard.vision import compiling
from multicard.vision.strategy import compiles
from tests.conftest import SMALL, typed
from tests.helpers.launching import on_ranks
from tests.helpers.rank_work import Small


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_compiling_leaves_no_trace_and_computes_the_same(tmp_path: Path):
    config = typed(*SMALL, "compile=reduce-overhead", "batch_size=4")
    (compiled,) = on_ranks(1, "compile_and_compare", tmp_path, config, tmp_path)
    assert all(compiled["left"].values()), compiled["left"]
    assert compiled["compile_s"] > 0 and compiled["graphs"] == 2  # training and evaluation
    assert max(compiled["differ"]) < 1e-5
    assert compiled["again"] == 0  # the odd batch ran as it is
    assert compiled["cuda_graphs"] is False  # on CPU ranks


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("world", "strategy", "precision"),
    [(1, "ddp_ds", "fp16"), (2, "ddp", "fp32"), (2, "ddp_rr", "fp32")],
)
def test_all_shapes_of_a_run_are_warm_before_it(
    world: int, strategy: str, precision: str, tmp_path: Path
):
    words = [
        f"strategy={strategy}",
        f"precision={precision}",
        f"gpus={world}",
        "compile=true",
        "batch_size=4",
    ]
    ranks = on_ranks(world, "warm_up_and_train", tmp_path, typed(*SMALL, *words), tmp_path, 19, 9)
    for rank in ranks:
        assert rank["seen"] <= rank["warmed"]
        assert all(rank["traceless"].values()), rank["traceless"]
    sizes = {size for rank in ranks for size, training, _ in rank["seen"] if training}
    assert len(sizes) == 2  # some rank trains on an odd batch
    if strategy == "ddp_rr":  # of five batches the third round has one
        assert [max(rank["seen"]) for rank in ranks] == [(4, True, True)] * 2
        assert [(3, True, True) in rank["warmed"] for rank in ranks] == [True, False]


@pytest.mark.parametrize(
    ("device", "words", "is_slow"),
    [
        # cuDNN searches for odd last batches too
        ("cuda", "compile=false cudnn_benchmark=true", True),
        ("cuda", "compile=false cudnn_benchmark=false", False),
        ("cpu", "compile=false cudnn_benchmark=true", False),
        ("cpu", "compile=true cudnn_benchmark=false", True),
    ],
)
def test_all_shapes_are_warmed_where_code_is_compiled_or_cudnn_searches(
    device: str, words: str, is_slow: bool
):
    config = typed(*words.split())
    rank = SimpleNamespace(device=torch.device(device))
    loop: Any = SimpleNamespace(compiled=compiles(config, device), config=config, rank=rank)
    assert compiling.is_slow_at_first(loop) is is_slow


def test_compile_null_compiles_on_cuda():
    compiled = {"compile=true": True, "compile=reduce-overhead": True, "compile=null": False}
    assert {words: compiles(typed(words), "cpu") for words in compiled} == compiled
    compiled = {"compile=false": False, "compile=null": True, "compile=null strategy=dp": False}
    assert {words: compiles(typed(*words.split()), "cuda") for words in compiled} == compiled


@pytest.mark.slow
def test_nchw_stays_nchw_within_compiled_code():
    """On a CPU Inductor would turn each convolution to channels-last."""
    model = Small().eval()
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        compiling.compile_model(model, typed("layout=nchw", "compile=true"), "cpu")
        _, (code,) = run_and_get_code(model, torch.zeros(2, 3, 32, 32))
    strides = re.findall(r"assert_size_stride\(buf\d+, \(2, 4, 30, 30\), \(([\d, ]+)\)", code)
    assert strides == ["3600, 900, 30, 1"]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.LayerNorm])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", compilation.MODES)
def test_the_options_of_mode_layout_device_and_model_reach_inductor_and_are_recorded(
    mode: str, layout: str, device: str, norm: type[nn.Module]
):
    model, config = (
        nn.Sequential(nn.Conv2d(3, 4, 1), norm(4)),
        typed(f"compile={mode}", f"layout={layout}"),
    )
    with mock.patch.object(torch, "compile") as compiled:
        compiling.compile_model(model, config, device)
    options = compiled.call_args.kwargs["options"]
    own = {
        name: options.pop(name)
        for name in ("layout_optimization", *compiling.STORING)
        if name in options
    }
    assert own.pop("layout_optimization", None) is (False if layout == "nchw" else None)
    pays = device == "cuda" and norm is nn.BatchNorm2d
    assert own == (compiling.STORING if pays else {})
    assert options == torch._inductor.list_mode_options(mode)
    assert options.get("triton.cudagraphs", False) == compilation.has_cuda_graphs(mode)
    recorded = compiling.recorded_options(model, config, device)
    recorded.pop("inductor_layout_optimization", None)
    assert recorded == {f"inductor_{name}": value for name, value in own.items()}
    assert compiling.recorded_options(model, typed("compile=false"), device) == {}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", compilation.CUDA_GRAPHS)
def test_cuda_graphs_have_each_batch_marked_and_are_warm_before_training(mode: str, tmp_path: Path):
    config = typed(*SMALL, f"compile={mode}", "batch_size=4")
    (seen,) = on_ranks(1, "run_as_with_cuda_graphs", tmp_path, config, tmp_path)
    # and the two odd batches
    assert seen["marks"] == seen["calls"] == 2 * compilation.GRAPH_PASSES + 2
    assert seen["cuda_graphs"] is True  # nothing was compiled, so that nothing was left out


@pytest.mark.parametrize(
    ("recorded", "skips", "whole"), [(2, 0, True), (3, 0, True), (1, 1, False), (0, 0, False)]
)
def test_cuda_graphs_are_counted_and_those_with_a_part_left_out_are_not_whole(
    recorded: int, skips: int, whole: bool
):
    trees = SimpleNamespace(graph_counter=count(recorded))  # as torch numbers them
    manager = mock.patch("torch._inductor.cudagraph_trees.get_manager", lambda *_, **__: trees)
    skipped = mock.patch.dict(torch._dynamo.utils.counters["inductor"], cudagraph_skips=skips)
    with manager, skipped:
        for _ in range(2):  # to read them takes none
            seen = compiling.cuda_graphs(torch.device("cuda", 0), "reduce-overhead")
            assert seen == {"cuda_graphs": whole, "cuda_graphs_recorded": recorded}
        assert compiling.cuda_graphs(torch.device("cuda", 0), True) == {}


@pytest.mark.usefixtures("processes")
def test_cuda_graphs_are_counted_once_training_has_ended(tmp_path: Path):
    """What a step of training leaves out counts."""
    config = typed(*SMALL, "compile=reduce-overhead", "batch_size=48", "layout=nchw")
    (report,) = on_ranks(1, "train_and_skip_cuda_graphs", tmp_path, config, tmp_path, 0)
    assert (report["steps"], report["cuda_graphs"]) == (2, False)
    assert report["flags"] == {"inductor_layout_optimization": False}  # what was compiled with


@pytest.mark.usefixtures("processes")
def test_what_torch_cannot_compile_is_said(tmp_path: Path):
    config = typed(*SMALL, "compile=true", "batch_size=4")
    with pytest.raises(pytest.fail.Exception, match=r"compile(=true|\.failed)"):
        on_ranks(1, "compile_without_a_compiler", tmp_path, config, tmp_path)
