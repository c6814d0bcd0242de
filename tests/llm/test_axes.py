"""Keys that change how steps compute: each beside the plain run, and what is refused."""

import gc
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from multicard.cli import command_line
from multicard.config.placement import Placement
from multicard.llm import axes, preflight, torchtune_config
from multicard.llm import workload as llm
from multicard.measure import garbage
from multicard.records import run_folder
from multicard.vision import workload as vision
from tests.conftest import Tuning, typed_llm
from tests.helpers.messages import find, refused, remedies
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
    """FSDP gathers weights in bf16, half of their bytes, and sums gradients in fp32,
    as DDP does.
    """
    words = (
        "engine=trl",
        "gpus=2",
        "dataset.rows=40",
        "max_steps=3",
        "lr=3e-3",
        "model.vocab_size=1600",
    )
    chosen = ([], ["precision=bf16_mixed"], ["precision=bf16_mixed", "sharding=ddp"])
    runs = [tuned(*words, *more) for more in chosen]
    assert [run["status"] for run in runs] == ["ok"] * 3
    expected, *others = (
        run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in runs
    )
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
    first, *others = (
        run_folder.read_steps(Path(run["folder"]))["grad_norm"].to_numpy() for run in runs
    )
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
def test_an_attention_that_would_be_another_is_refused(
    words: list[str], code: str, facts: dict[str, Any]
):
    with refused(code, key="attention", **facts):
        preflight.refuse(typed_llm(*words))


def test_an_attention_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch):
    flash, flex = (
        typed_llm("engine=trl", "precision=bf16", f"attention={name}") for name in ("flash", "flex")
    )
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
def test_an_attention_is_refused_where_the_model_or_the_gpu_has_none(
    monkeypatch: pytest.MonkeyPatch,
):
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
@pytest.mark.parametrize(
    ("chosen", "name"), [("flash", "flash_attention_2"), ("flex", "flex_attention")]
)
def test_transformers_is_asked_for_it_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch, chosen: str, name: str
):
    """Neither runs on CPU ranks: what the model is built with is asserted in their place."""
    import torch

    from multicard.llm.trl import models

    asked: dict[str, Any] = {}
    monkeypatch.setattr(models, "check_attention", lambda *_: None)
    monkeypatch.setattr(
        models, "build_on_meta", lambda sizes, device, options: asked.update(options)
    )
    config = typed_llm("engine=trl", "precision=bf16", f"attention={chosen}")
    models.build_model(config, {"model": {"vocab_size": 512}}, torch.device("cpu"), empty=True)
    assert asked["attn_implementation"] == name


# ---- optimisers


# AdamW's step of one weight does not depend on the size of its
# gradient: rounding of states moves a loss of 6 by 1e-3
EIGHT_BITS = 2e-3
BOTH = ["torchtune", pytest.param("trl", marks=NEEDS_TRL)]


@NEEDS_TRL
@pytest.mark.parametrize("engine", BOTH)
def test_states_of_8_bits_take_nearly_the_same_steps(here: Here, engine: str):
    words = (f"engine={engine}", "method=full", "lr=3e-3")
    plain, expected = here(*words)
    report, steps = here(*words, "optimizer.name=adamw_8bit")
    assert 0 < np.abs(steps["loss"] - expected["loss"]).max() < EIGHT_BITS
    assert plain.eight_bit_share is None
    norms = 2 * 2 * 256 + 256  # weights of fewer than 4,096 values keep states in float32
    assert report.eight_bit_share == pytest.approx(1 - norms / report.trainable_parameters)


@NEEDS_TRL
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchtune", "trl"])
def test_each_rank_updates_its_part_in_8_bits(tuned: Tuning, engine: str):
    words = (
        "gpus=2",
        "dataset.rows=40",
        "max_steps=3",
        "lr=3e-3",
        "method=full",
        "optimizer.name=adamw_8bit",
    )
    chosen = ([f"engine={engine}"], ["engine=trl", "sharding=ddp"])
    sharded, copied = (tuned(*words, *more) for more in chosen)
    losses = [
        run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in (sharded, copied)
    ]
    assert np.nanmax(np.abs(losses[0] - losses[1])) < EIGHT_BITS
    assert losses[0][0] - losses[0][2] > 0.1
    assert 0.9 < sharded["eight_bit_share"] < 1


# ---- shards on the host


@NEEDS_TRL
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchtune", "trl"])
@pytest.mark.parametrize(
    "more", [["method=lora"], ["method=qlora"], ["method=full", "optimizer.name=adamw_8bit"]]
)
def test_shards_on_the_host_learn_as_those_on_the_device(
    tuned: Tuning, engine: str, more: list[str]
):
    words = (
        "gpus=2",
        "dataset.rows=40",
        "max_steps=3",
        "lr=3e-3",
        "clip_grad_norm=0.5",
        "dataset.split=0.2",
    )
    own = (f"engine={engine}", "model.num_kv_heads=4", *more)
    on_device, on_host = (
        tuned(*words, *own, f"sharding={kind}") for kind in ("fsdp", "fsdp_offload")
    )
    losses = [
        run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy()
        for run in (on_device, on_host)
    ]
    assert np.array_equal(*losses, equal_nan=True)
    scores = [
        [each["loss"] for each in run["held_out"]["evaluations"]] for run in (on_device, on_host)
    ]
    assert scores[0] == scores[1] != []


def test_what_is_on_the_host_is_not_paged_there_too():
    with refused("llm.paged-offload", key="optimizer") as caught:
        preflight.refuse(
            typed_llm("gpus=2", "sharding=fsdp_offload", "optimizer.name=paged_adamw_8bit")
        )
    assert "optimizer=adamw_8bit" in remedies(caught.value)
    with refused("llm.trl-qat-offload", key="sharding"):
        preflight.refuse(typed_llm("engine=trl", "gpus=2", "sharding=fsdp_offload", "method=qat"))
    with refused("llm.sharding-alone", key="sharding"):
        preflight.refuse(typed_llm("gpus=1", "sharding=fsdp_offload"))


@NEEDS_TRL
@pytest.mark.usefixtures("processes")
def test_a_sharded_weight_is_updated_as_its_whole(tmp_path: Path):
    """Of one rank, whose part is all of it; a weight without a gradient stays."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    from multicard.llm.eight_bit import AdamW8bit, share_in_8_bits

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        values, gradients = torch.randn(64, 128), torch.randn(64, 128)
        plain = torch.nn.Parameter(values.clone())
        sharded = torch.nn.Parameter(DTensor.from_local(values.clone(), mesh, [Shard(0)]))
        frozen = torch.nn.Parameter(DTensor.from_local(values.clone(), mesh, [Shard(0)]))
        optimisers = [AdamW8bit([plain], 1e-2, 0.1), AdamW8bit([sharded, frozen], 1e-2, 0.1)]
        for step in range(3):
            plain.grad = gradients * (step + 1)
            sharded.grad = DTensor.from_local(gradients * (step + 1), mesh, [Shard(0)])
            for optimiser in optimisers:
                optimiser.step()
        assert torch.equal(sharded.full_tensor(), plain) and torch.equal(
            frozen.full_tensor(), values
        )
        assert not torch.equal(plain, values)
        assert optimisers[1].param_groups[0]["params"] == [sharded, frozen]
        assert [share_in_8_bits(optimiser) for optimiser in optimisers] == [1.0, 1.0]
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("processes")
@NEEDS_TRL
def test_pages_are_asked_for():
    """Not on a CPU, where bitsandbytes has none and would go
    on without: what it is told is asserted.
    """
    import torch

    from multicard.llm.eight_bit import AdamW8bit

    parameters = [torch.nn.Parameter(torch.zeros(4))]
    assert AdamW8bit(parameters, 1e-3, 0.0, is_paged=True).is_paged
    assert not AdamW8bit(parameters, 1e-3, 0.0).is_paged
    config = typed_llm("optimizer.name=paged_adamw_8bit")
    assert torchtune_config.optimizer(config)["is_paged"] is True


def test_an_optimiser_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch):
    paged = typed_llm("optimizer.name=paged_adamw_8bit")
    with refused("llm.paged-cpu", key="optimizer") as caught:
        axes.fits(paged, Placement("cpu", "gloo", 1, False))
    assert remedies(caught.value) == ["optimizer=adamw_8bit"]
    axes.fits(paged, Placement("cuda", "nccl", 1, False))
    with refused("llm.eight-bit-in-bwd", key="optimizer"):
        preflight.refuse(
            typed_llm("method=full", "optimizer_in_bwd=true", "optimizer.name=adamw_8bit")
        )
    monkeypatch.setattr("multicard.llm.axes.find_spec", lambda _: None)
    with refused("llm.no-bitsandbytes", key="optimizer", value="adamw_8bit"):
        preflight.refuse(typed_llm("optimizer.name=adamw_8bit"))


def test_the_optimiser_is_typed_as_it_is_named():
    words = ["optimizer=adamw_8bit", "method=full"]
    assert command_line.switched(words, llm.WORKLOAD) == [
        "optimizer.name=adamw_8bit",
        "method=full",
    ]
    assert command_line.switched(["optimizer=adam"], vision.WORKLOAD) == ["optimizer=adam"]
    assert typed_llm("optimizer.name=adamw").identity() == typed_llm().identity()
    assert typed_llm("optimizer.name=adamw_8bit").identity() != typed_llm().identity()


# ---- adapters


@pytest.mark.parametrize("engine", BOTH)
def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank(here: Here, engine: str):
    words = (f"engine={engine}", "method.lora_rank=4", "lr=3e-3")
    _, stabilised = here(*words, "method.lora_alpha=8", "method.rslora=true")
    _, scaled = here(*words, "method.lora_alpha=16")  # 8 / sqrt(4) is 16 / 4
    _, plain = here(*words, "method.lora_alpha=8")
    np.testing.assert_array_equal(stabilised["loss"], scaled["loss"])
    assert np.abs(stabilised["loss"] - plain["loss"]).max() > 10 * ROUNDING["fp32"]


def test_rank_stabilised_adapters_are_another_cell():
    assert typed_llm("method.rslora=false").identity() == typed_llm().identity()
    assert typed_llm("method.rslora=true").identity() != typed_llm().identity()


# ---- garbage


@pytest.mark.parametrize("engine", BOTH)
def test_garbage_is_collected_at_fixed_steps(
    here: Here, engine: str, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[int, bool]] = []
    monkeypatch.setattr(garbage, "step_ended", lambda steps: seen.append((steps, gc.isenabled())))
    here(f"engine={engine}", "max_steps=3")
    assert seen == [(1, False), (2, False), (3, False)] and gc.isenabled()


# ---- compilation


@NEEDS_TRL
def test_a_layer_that_torch_would_leave_uncompiled_ends_the_run(
    here: Here, monkeypatch: pytest.MonkeyPatch
):
    import torch

    from multicard.llm import compiling

    monkeypatch.setenv("TORCH_COMPILE_BACKEND", "aot_eager")
    monkeypatch.setattr(compiling, "RECOMPILE_LIMIT", 1)
    torch._dynamo.reset()
    with pytest.raises((RuntimeError, ValueError)) as caught:
        here("engine=trl", "compile=true", "max_steps=2")
    assert find(str(caught.value), "llm.recompile-limit", key="compile", limit=1)
    assert (
        torch._dynamo.config.recompile_limit == 8
        and not torch._dynamo.config.fail_on_recompile_limit_hit
    )


@pytest.mark.usefixtures("processes")
def test_batches_are_made_with_and_without_padding_and_of_one_row_and_of_several():
    import torch

    from multicard.llm import compiling

    for padded in (True, False):
        batch = {
            "tokens": torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]]),
            "labels": torch.full((2, 4), 3),
        }
        made = compiling.pad_or_fill(batch, 0, padded)
        assert bool((made["tokens"] == 0).any()) is padded
        pairs = compiling.pad_or_fill((batch["tokens"].clone(), batch["labels"].clone()), 0, padded)
        assert bool((pairs[0] == 0).any()) is padded
    packed = {"tokens": torch.ones(2, 5), "input_pos": torch.zeros(2, 5, dtype=torch.int64)}
    assert compiling.split_into_rows(packed, 1)["input_pos"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert compiling.split_into_rows(packed, 2)["input_pos"].tolist() == [[0, 1, 2, 0, 1]] * 2


@pytest.mark.parametrize("method", ["qlora", "qat"])
def test_what_is_no_plain_layer_is_not_compiled_by_trl(method: str):
    if find_spec("trl") is None:
        pytest.skip("pip install -e .[trl]")
    with refused("llm.recipe-compile", key="compile", method=method):
        preflight.refuse(typed_llm("engine=trl", f"method={method}", "compile=true"))
    preflight.refuse(typed_llm("engine=trl", "method=dpo", "gpus=2", "compile=true"))


# ---- kernels


@NEEDS_TRL
def test_liger_is_asked_for_all_but_the_loss(here: Here, monkeypatch: pytest.MonkeyPatch):
    """By a stand-in of the parts of liger-kernel 0.8.5 that
    transformers calls: its kernels need a GPU.
    """
    from transformers.integrations import liger

    calls: list[tuple[str, dict[str, Any]]] = []

    def apply(model: Any, **asked: Any) -> None:
        calls.append((type(model).__name__, asked))

    patches = ModuleType("liger_kernel.transformers")
    monkey_patch = ModuleType("liger_kernel.transformers.monkey_patch")
    vars(monkey_patch)["MODEL_TYPE_TO_APPLY_LIGER_FN"] = {"llama": None}
    vars(patches)["monkey_patch"] = monkey_patch
    vars(patches)["_apply_liger_kernel_to_instance"] = lambda model, **asked: calls.append(
        (type(model).__name__, asked)
    )
    for module in (ModuleType("liger_kernel"), patches, monkey_patch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(liger, "is_liger_kernel_available", lambda: True)
    here("engine=trl", "kernels=liger", "max_steps=1")
    assert calls == [
        ("LlamaForCausalLM", {"cross_entropy": False, "fused_linear_cross_entropy": False})
    ]
    with refused("llm.liger-model", key="kernels", model="qwen2"):
        here("engine=trl", "kernels=liger", "max_steps=1", "model=qwen2_5_tiny")


def test_kernels_that_this_machine_lacks_are_refused(monkeypatch: pytest.MonkeyPatch):
    liger = typed_llm("engine=trl", "kernels=liger")
    with refused("llm.torchtune-kernels", key="kernels"):
        preflight.refuse(typed_llm("kernels=liger"))
    with refused("llm.liger-cpu", key="kernels"):
        axes.fits(liger, Placement("cpu", "gloo", 1, False))
    on_gpu = Placement("cuda", "nccl", 1, False)
    monkeypatch.setattr("multicard.llm.axes.find_spec", lambda _: None)
    with refused("llm.no-liger", key="kernels") as caught:
        axes.fits(liger, on_gpu)
    assert "pip install -e '.[liger]'" in remedies(caught.value)
    monkeypatch.setattr("multicard.llm.axes.find_spec", lambda _: object())
    axes.fits(liger, on_gpu)
    assert typed_llm("kernels=torch").identity() == typed_llm().identity() != liger.identity()
