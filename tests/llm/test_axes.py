"""Keys that change how steps compute: each beside the plain run, and what is refused."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicard.config.placement import Placement
from multicard.llm import axes, preflight
from multicard.records import run_folder
from tests.conftest import Tuning, typed_llm
from tests.helpers.messages import refused, remedies
from tests.llm.test_engines import ROUNDING, tuned_here

NEEDS_TRL = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
Here = Callable[..., tuple[Any, dict[str, np.ndarray]]]


@pytest.fixture
def here(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Report and steps of a run of one rank in this process."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words: str) -> tuple[Any, dict[str, np.ndarray]]:
        return tuned_here(tmp_path / str(len([*tmp_path.iterdir()])), *words)

    return run


# ---- precision


@NEEDS_TRL
@pytest.mark.parametrize("method", ["lora", "qlora", "full", "dpo"])
def test_mixed_precision_has_weights_in_fp32_and_products_in_bf16(here: Here, method: str):
    words = ("engine=trl", f"method={method}", "lr=3e-3", "dataset.split=0.2")
    whole, expected = here(*words)
    mixed, steps = here(*words, "precision=bf16_mixed")
    difference = np.abs(steps["loss"] - expected["loss"])
    assert 0 < difference.max() < ROUNDING["bf16"]
    assert mixed.parameter_bytes == whole.parameter_bytes
    assert mixed.flags["model_dtype"] == "fp32" and mixed.flags["autocast_dtype"] == "bf16"
    scores, exact = (report.held_out.evaluations[-1].loss for report in (mixed, whole))
    assert 0 < abs(scores - exact) < ROUNDING["bf16"]


@NEEDS_TRL
@pytest.mark.slow
def test_mixed_precision_is_the_same_sharded_and_copied(tuned: Tuning):
    """FSDP gathers weights in bf16, half of their bytes, and sums gradients in fp32, as DDP does."""
    words = ("engine=trl", "gpus=2", "dataset.rows=40", "max_steps=3", "lr=3e-3", "model.vocab_size=1600")
    chosen = ([], ["precision=bf16_mixed"], ["precision=bf16_mixed", "sharding=ddp"])
    runs = [tuned(*words, *more) for more in chosen]
    assert [run["status"] for run in runs] == ["ok"] * 3
    expected, *others = (run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in runs)
    for own in others:
        assert 0 < np.nanmax(np.abs(own - expected)) < ROUNDING["bf16"]
    whole, moved = (run["communication_bytes"] for run in runs[:2])
    assert moved["reduce_scatter"] == whole["reduce_scatter"]
    assert whole["all_gather"] / 2 <= moved["all_gather"] < whole["all_gather"]


def test_mixed_precision_is_refused_where_nothing_computes_it():
    with refused("llm.torchtune-precision", key="precision", value="bf16_mixed"):
        preflight.refuse(typed_llm("precision=bf16_mixed"))
    sharded = ("engine=trl", "precision=bf16_mixed", "method=qlora", "gpus=2")
    with refused("llm.mixed-nf4-sharded", key="precision", method="qlora"):
        preflight.refuse(typed_llm(*sharded))
    preflight.refuse(typed_llm(*sharded, "sharding=ddp"))


# ---- clipping


@NEEDS_TRL
def test_gradients_are_clipped_alike_by_both_engines(here: Here):
    words = ("method=lora", "lr=3e-3")
    _, free = here(*words)
    _, expected = here(*words, "clip_grad_norm=0.1")
    _, steps = here(*words, "engine=trl", "clip_grad_norm=0.1")
    np.testing.assert_allclose(steps["loss"], expected["loss"], rtol=0, atol=ROUNDING["fp32"])
    np.testing.assert_allclose(steps["grad_norm"], expected["grad_norm"], rtol=1e-4)
    assert (expected["grad_norm"] > 0.1).all()  # all were clipped
    assert np.abs(expected["loss"] - free["loss"]).max() > 2 * ROUNDING["fp32"]
    assert np.isnan(free["grad_norm"]).all()


def test_a_norm_that_no_gradient_exceeds_changes_nothing(here: Here):
    _, free = here("method=full")
    _, steps = here("method=full", "clip_grad_norm=1e9")
    np.testing.assert_array_equal(steps["loss"], free["loss"])
    assert np.isfinite(steps["grad_norm"]).all()


@NEEDS_TRL
@pytest.mark.slow
def test_the_norm_is_that_of_all_shards(tuned: Tuning):
    words = ("gpus=2", "dataset.rows=40", "max_steps=2", "clip_grad_norm=0.5", "method=full")
    runs = [tuned(*words), tuned(*words, "engine=trl"), tuned(*words, "engine=trl", "sharding=ddp")]
    first, *others = (run_folder.read_steps(Path(run["folder"]))["grad_norm"].to_numpy() for run in runs)
    for own in others:
        np.testing.assert_allclose(own, first, rtol=1e-4)
    assert np.nanmin(first) > 0.5


def test_clipping_is_refused_where_a_recipe_does_not_clip():
    with refused("llm.recipe-clipping", key="clip_grad_norm", method="dpo"):
        preflight.refuse(typed_llm("method=dpo", "clip_grad_norm=1"))
    with refused("llm.clipping-in-bwd", key="clip_grad_norm"):
        preflight.refuse(typed_llm("method=full", "optimizer_in_bwd=true", "clip_grad_norm=1"))
    with refused("config.above", key="clip_grad_norm"):
        typed_llm("clip_grad_norm=0")


def test_runs_without_these_keys_keep_their_identity():
    assert typed_llm("clip_grad_norm=null").identity() == typed_llm().identity()
    assert typed_llm("clip_grad_norm=1").identity() != typed_llm().identity()


# ---- attention


@NEEDS_TRL
@pytest.mark.parametrize("words", [[], ["packed=true", "max_seq_len=256"]], ids=" ".join)
def test_each_attention_takes_the_same_steps(here: Here, words: list[str]):
    words = ["engine=trl", "lr=3e-3", *words]
    plain, expected = here(*words)
    for attention in ("sdpa", "eager"):
        report, steps = here(*words, f"attention={attention}")
        assert report.attention_used == attention
        np.testing.assert_allclose(steps["loss"], expected["loss"], rtol=0, atol=ROUNDING["fp32"])
    assert plain.attention_used == "sdpa"  # what transformers takes for a Llama


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["attention=sdpa"], "llm.torchtune-attention", {"value": "sdpa"}),
        (["engine=trl", "attention=flash"], "llm.flash-precision", {"precision": "fp32"}),
    ],
)
def test_an_attention_that_would_be_another_is_refused(words: list[str], code: str, facts: dict[str, Any]):
    with refused(code, key="attention", **facts):
        preflight.refuse(typed_llm(*words))


def test_an_attention_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch):
    flash, flex = (typed_llm("engine=trl", "precision=bf16", f"attention={name}") for name in ("flash", "flex"))
    on_cpu, on_gpu = Placement("cpu", "gloo", 1, False), Placement("cuda", "nccl", 1, False)
    with refused("llm.flash-cpu", key="attention"):
        axes.fits(flash, on_cpu)
    with refused("llm.flex-cpu", key="attention"):
        axes.fits(flex, on_cpu)
    axes.fits(flex, on_gpu)
    monkeypatch.setattr("multicard.llm.axes.find_spec", lambda _: None)
    with refused("llm.no-flash", key="attention") as caught:
        axes.fits(flash, on_gpu)
    assert "pip install flash-attn --no-build-isolation" in remedies(caught.value)
    monkeypatch.setattr("multicard.llm.axes.find_spec", lambda _: object())
    axes.fits(flash, on_gpu)


@NEEDS_TRL
@pytest.mark.usefixtures("processes")
def test_an_attention_is_refused_where_the_model_or_the_gpu_has_none(monkeypatch: pytest.MonkeyPatch):
    import torch
    import transformers

    from multicard.llm.trl import models

    gpu = torch.device("cuda:0")
    flash = typed_llm("engine=trl", "precision=bf16", "attention=flash")
    for capability, code in (((7, 5), "llm.flash-gpu"), ((9, 0), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        if code is None:
            models.check_attention(transformers.LlamaConfig(), flash, gpu)
            continue
        with refused(code, key="attention"):
            models.check_attention(transformers.LlamaConfig(), flash, gpu)
    without = transformers.MambaConfig()
    with refused("llm.attention-unknown", key="attention", value="flex", model="MambaForCausalLM"):
        models.check_attention(without, typed_llm("engine=trl", "attention=flex"), gpu)
    models.check_attention(without, typed_llm("engine=trl"), gpu)


@NEEDS_TRL
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("chosen", "name"), [("flash", "flash_attention_2"), ("flex", "flex_attention")])
def test_transformers_is_asked_for_it_by_its_own_name(monkeypatch: pytest.MonkeyPatch, chosen: str, name: str):
    """Neither runs on CPU ranks: what the model is built with is asserted in their place."""
    import torch

    from multicard.llm.trl import models

    asked: dict[str, Any] = {}
    monkeypatch.setattr(models, "check_attention", lambda *_: None)
    monkeypatch.setattr(models, "hollow", lambda sizes, device, options: asked.update(options))
    config = typed_llm("engine=trl", "precision=bf16", f"attention={chosen}")
    models.built(config, {"model": {"vocab_size": 512}}, torch.device("cpu"), empty=True)
    assert asked["attn_implementation"] == name
