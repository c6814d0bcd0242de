"""Predicted memory of the keys that change how tuning computes: closed forms, and the truth on the CPU."""

import sys
from functools import cache, partial
from types import ModuleType
from typing import Any

import pytest
import torch

from multicard.estimate import peaks
from multicard.estimate.memory import answers, liger_kernels, simulate
from multicard.estimate.memory.answers import Active
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.target import Target
from multicard.records.schema_parts import Prediction
from tests.conftest import typed_llm
from tests.estimate.test_predict_memory import needs_trl
from tests.helpers import real_peaks
from tests.helpers.messages import says

LLAMA = ("model=llama3_tiny", "gpus=1", "batch_size=2")
TEXT = TextFacts(2304, 64)
VALUES = 2 * 2304 * 256 + 5 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768)  # of llama3_tiny


@cache
def step(*words: str, device: str = "cuda") -> Active:
    return simulate.simulate(typed_llm(*LLAMA, *words), TEXT, device)


def test_bytes_of_states_in_8_bits():
    """A byte a value for each of two states, and a float32 for 256 of them; norms keep two float32 a value."""
    eight, full = (step("method=full", f"optimizer.name={name}", device="cpu") for name in ("adamw_8bit", "adamw"))
    norms, codes = 5 * 256, 2 * 4 * 256
    large = VALUES - norms
    assert eight.by_kind["optimizer"] == 2 * (large + 4 * large // 256) + 8 * norms + codes
    assert full.by_kind["optimizer"] - 8 * VALUES < 100  # and a number of steps for each weight


def test_states_of_small_adapters_gain_nothing():
    rank_4 = ("method=lora", "method.lora_rank=4")
    eight, full = (step(*rank_4, f"optimizer.name={name}", device="cpu") for name in ("adamw_8bit", "adamw"))
    assert abs(eight.by_kind["optimizer"] - full.by_kind["optimizer"]) < 0.01 * full.by_kind["optimizer"]


def predicted(*words: str, active: Active) -> Prediction:
    prediction, config = Prediction("unknown"), typed_llm(*LLAMA, *words)
    peaks._write(prediction, config, Target(gpu="NVIDIA H100 80GB HBM3", memory_bytes=79 << 30), TEXT, [active])
    return prediction


def test_paged_states_are_none_or_all_on_the_gpu():
    active = Active(10 << 30, {"weights": 6 << 30, "optimizer": 4 << 30})
    held, paged = (predicted(f"optimizer.name={name}", active=active) for name in ("adamw_8bit", "paged_adamw_8bit"))
    assert held.memory_bytes is not None and paged.memory_bytes is not None
    less = held.memory_bytes.low - paged.memory_bytes.low
    assert less == pytest.approx(4 << 30, rel=0.1)  # intervals are added as independent ones
    assert paged.memory_bytes.high == held.memory_bytes.high
    assert says(str(paged.memory_basis), "memory.without-values", uncompared=["optimizer"])
    assert says(str(held.memory_basis), "memory.without-values", uncompared=[])


@needs_trl
def test_attention_that_this_machine_lacks_is_simulated_as_the_fused_one():
    words = ("engine=trl", "method=lora", "precision=bf16")
    assert step(*words, "attention=flash") == step(*words, "attention=flex") == step(*words, "attention=sdpa")
    told = predicted(*words, "attention=flash", active=step(*words, "attention=flash"))
    assert says(str(told.memory_basis), "memory.without-values", uncompared=["attention"])


class Kernel:
    """A Triton kernel of a stand-in: launched, it fails."""

    def __getitem__(self, grid: Any) -> Any:
        raise AssertionError("a kernel was launched")


@needs_trl
def test_ligers_layers_hold_what_its_own_code_does_and_are_undone(monkeypatch: pytest.MonkeyPatch):
    """By a stand-in of what transformers calls of liger-kernel 0.8.5: its gated layer holds its two inputs."""
    from transformers.integrations import liger
    from transformers.models.llama import modeling_llama

    plain, kernel, original = step("engine=trl", "method=full"), Kernel(), modeling_llama.apply_rotary_pos_emb

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(gate, up)
            with torch.cuda.device(gate.device):
                kernel[(1,)](gate, up)
            return torch.empty_like(gate)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return ctx.saved_tensors

    def apply(model: Any, **_: Any) -> None:
        modeling_llama.apply_rotary_pos_emb = partial(original)
        for layer in model.model.layers:
            mlp = layer.mlp
            monkeypatch.setattr(mlp, "forward", lambda x, m=mlp: m.down_proj(Gated.apply(m.gate_proj(x), m.up_proj(x))))

    patches, monkey_patch = (
        ModuleType("liger_kernel.transformers"),
        ModuleType("liger_kernel.transformers.monkey_patch"),
    )
    vars(monkey_patch)["MODEL_TYPE_TO_APPLY_LIGER_FN"] = {"llama": None}
    vars(patches).update(monkey_patch=monkey_patch, _apply_liger_kernel_to_instance=apply)
    for module in (ModuleType("liger_kernel"), patches, monkey_patch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(liger, "is_liger_kernel_available", lambda: True)
    monkeypatch.setattr(simulate, "find_spec", lambda _: object())
    monkeypatch.setattr(Kernel, "__getitem__", liger_kernels.no_launch)
    found = simulate.simulate(typed_llm(*LLAMA, "engine=trl", "method=full", "kernels=liger"), TEXT, "cuda")
    assert modeling_llama.apply_rotary_pos_emb is original
    silu = 4 * 2 * 64 * 768  # bytes of float32, rows, tokens, width: the output of silu alone is not held
    assert plain.by_kind["activations"] - found.by_kind["activations"] == 2 * silu


def test_ligers_layers_need_liger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulate, "find_spec", lambda _: None)
    said = simulate.answer(answers.Request(typed_llm("engine=trl", "kernels=liger"), TEXT, "cuda"))
    assert isinstance(said, str) and says(said, "memory.kernels", key="kernels")


CELLS = (
    (1, "method=full", "optimizer.name=adamw_8bit"),
    (2, "method=full", "optimizer.name=adamw_8bit", "model.num_kv_heads=4"),
    (1, "method=qlora", "optimizer.name=adamw_8bit", "engine=trl", "precision=bf16", "model.num_kv_heads=4"),
    (2, "method=full", "optimizer.name=adamw_8bit", "engine=trl", "sharding=ddp"),
    (2, "method=full", "optimizer.name=adamw_8bit", "engine=trl", "sharding=fsdp"),
    (1, "method=lora", "attention=eager", "engine=trl", "precision=bf16"),
)


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"gpus={cell[0]} {' '.join(cell[1:])}")
def test_a_step_takes_what_is_predicted(cell: tuple[Any, ...]):
    assert abs(real_peaks.error(cell[0], "tune_llm", ("model=llama3_tiny", *cell[1:]))) <= 0.02
