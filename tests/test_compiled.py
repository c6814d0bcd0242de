"""torch.compile: its time is apart, it leaves no trace, and the compiled model computes what the plain one does."""

from pathlib import Path

import pytest

from multicard.config.vision import VisionConfig
from multicard.vision.strategy import compiles
from tests.conftest import SMALL, typed
from tests.test_strategy import on_ranks


def test_compiling_leaves_no_trace_and_computes_the_same(tmp_path: Path):
    config = typed(*SMALL, "compile=true", "batch_size=4")
    (compiled,) = on_ranks(1, "compile_and_compare", tmp_path, config, tmp_path)
    assert compiled["left"] == {"state": True, "random": True, "gradients": True}
    assert compiled["compile_s"] > 0 and compiled["graphs"] == 2  # training and evaluation
    looked_up = compiled["compile_cache"]
    assert looked_up["hits"] + looked_up["misses"] >= 3  # forward, backward, evaluation
    assert max(compiled["differ"]) < 1e-5
    assert compiled["again"] == 0  # the odd batch ran as it is


@pytest.mark.parametrize(
    ("words", "device", "expected"),
    [
        ("compile=true", "cpu", True),
        ("compile=false", "cuda", False),
        ("compile=null", "cpu", False),
        ("compile=null", "cuda", True),
        ("compile=null strategy=dp", "cuda", False),
    ],
)
def test_compile_null_compiles_on_cuda(words: str, device: str, expected: bool):
    config: VisionConfig = typed(*words.split())
    assert compiles(config, device) is expected


def test_what_torch_cannot_compile_is_refused(tmp_path: Path):
    config = typed(*SMALL, "compile=true", "batch_size=4")
    with pytest.raises(pytest.fail.Exception, match=r"compile=true: torch cannot compile the model here .*false"):
        on_ranks(1, "compile_without_a_compiler", tmp_path, config, tmp_path)
