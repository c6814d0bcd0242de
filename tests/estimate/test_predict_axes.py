"""Predicted memory of the keys that change how tuning computes: closed forms,
and the truth on the CPU.
"""

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from multicard.estimate import peaks
from multicard.estimate.memory import answers, simulate
from multicard.estimate.memory.answers import Active
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.target import TargetMachine
from multicard.records.schema_parts import Prediction
from tests.conftest import typed_llm
from tests.estimate.test_predict_memory import needs_trl
from tests.helpers import real_peaks
from tests.helpers.messages import says

LLAMA = ("model=llama3_tiny", "gpus=1", "batch_size=2")
TEXT = TextFacts(2304, 64)
# of llama3_tiny
VALUES = 2 * 2304 * 256 + 5 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768)
needs_liger = pytest.mark.skipif(
    find_spec("liger_kernel") is None, reason="pip install -e .[liger]"
)


@cache
def step(*words: str, device: str = "cuda") -> Active:
    return simulate.simulate(typed_llm(*LLAMA, *words), TEXT, device)


def test_bytes_of_states_in_8_bits():
    """A byte a value for each of two states, and a float32 for 256 of them;
    norms keep two float32 a value.
    """
    eight, full = (
        step("method=full", f"optimizer.name={name}", device="cpu")
        for name in ("adamw_8bit", "adamw")
    )
    norms, codes = 5 * 256, 2 * 4 * 256
    large = VALUES - norms
    assert eight.by_kind["optimizer"] == 2 * (large + 4 * large // 256) + 8 * norms + codes
    assert full.by_kind["optimizer"] - 8 * VALUES < 100  # and a number of steps for each weight


def test_states_of_small_adapters_gain_nothing():
    rank_4 = ("method=lora", "method.lora_rank=4")
    eight, full = (
        step(*rank_4, f"optimizer.name={name}", device="cpu") for name in ("adamw_8bit", "adamw")
    )
    assert (
        abs(eight.by_kind["optimizer"] - full.by_kind["optimizer"])
        < 0.01 * full.by_kind["optimizer"]
    )


def test_shards_on_the_host_take_nothing_of_the_gpu():
    words = ("gpus=2", "method=lora")
    sharded, offloaded = (step(*words, f"sharding={kind}") for kind in ("fsdp", "fsdp_offload"))
    assert not {"optimizer", "gradients"} & offloaded.by_kind.keys()
    tables = offloaded.by_kind["weights"]  # of positions, which no rank shards
    # and half of the adapters
    assert sharded.by_kind["weights"] - tables == pytest.approx(4 * VALUES / 2, rel=0.06)
    assert {kind: sharded.by_kind[kind] for kind in ("activations", "buckets")} == {
        kind: offloaded.by_kind[kind] for kind in ("activations", "buckets")
    }


def predicted(*words: str, active: Active) -> Prediction:
    prediction, config = Prediction("unknown"), typed_llm(*LLAMA, *words)
    peaks._write_computed_peaks(
        prediction,
        config,
        TargetMachine(gpu="NVIDIA H100 80GB HBM3", memory_bytes=79 << 30),
        TEXT,
        [active],
    )
    return prediction


def test_paged_states_are_none_or_all_on_the_gpu():
    active = Active(10 << 30, {"weights": 6 << 30, "optimizer": 4 << 30})
    held, paged = (
        predicted(f"optimizer.name={name}", active=active)
        for name in ("adamw_8bit", "paged_adamw_8bit")
    )
    assert held.memory_bytes is not None and paged.memory_bytes is not None
    less = held.memory_bytes.low - paged.memory_bytes.low
    assert less == pytest.approx(4 << 30, rel=0.1)  # intervals are added as independent ones
    assert paged.memory_bytes.high == held.memory_bytes.high
    assert says(str(paged.memory_basis), "memory.without-values", uncompared=["optimizer"])
    assert says(str(held.memory_basis), "memory.without-values", uncompared=[])


@needs_trl
def test_attention_that_this_machine_lacks_is_simulated_as_the_fused_one():
    words = ("engine=trl", "method=lora", "precision=bf16")
    assert (
        step(*words, "attention=flash")
        == step(*words, "attention=flex")
        == step(*words, "attention=sdpa")
    )
    told = predicted(*words, "attention=flash", active=step(*words, "attention=flash"))
    assert says(str(told.memory_basis), "memory.without-values", uncompared=["attention"])


@needs_trl
@needs_liger
def test_ligers_layers_hold_less_and_are_undone(caplog: pytest.LogCaptureFixture):
    """Of a norm the normalised tokens, and of the gated layer its gate after silu."""
    from transformers.models.llama import modeling_llama

    # Liger logs errors whose frames hold tensors, which captured logs would keep
    caplog.set_level(logging.ERROR, "liger_kernel")
    original = modeling_llama.apply_rotary_pos_emb
    plain, found = (
        step("engine=trl", "method=full", f"kernels={kernels}") for kernels in ("torch", "liger")
    )
    tokens, norms, layers = 2 * 64, 5, 2
    less = 4 * tokens * (norms * 256 + layers * 768)  # bytes of float32, by the widths
    assert plain.by_kind["activations"] - found.by_kind["activations"] == less
    assert {kind for kind in plain.by_kind if plain.by_kind[kind] != found.by_kind[kind]} == {
        "activations"
    }
    assert modeling_llama.apply_rotary_pos_emb is original


def test_ligers_layers_need_liger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulate, "find_spec", lambda _: None)
    said = simulate.answer(answers.Request(typed_llm("engine=trl", "kernels=liger"), TEXT, "cuda"))
    assert isinstance(said, str) and says(said, "memory.kernels", key="kernels")


CELLS = (
    (1, "method=full", "optimizer.name=adamw_8bit"),
    (2, "method=full", "optimizer.name=adamw_8bit", "model.num_kv_heads=4"),
    (
        1,
        "method=qlora",
        "optimizer.name=adamw_8bit",
        "engine=trl",
        "precision=bf16",
        "model.num_kv_heads=4",
    ),
    (2, "method=full", "optimizer.name=adamw_8bit", "engine=trl", "sharding=ddp"),
    (2, "method=full", "optimizer.name=adamw_8bit", "engine=trl", "sharding=fsdp"),
    (1, "method=lora", "attention=eager", "engine=trl", "precision=bf16"),
)


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"gpus={cell[0]} {' '.join(cell[1:])}")
def test_a_step_takes_what_is_predicted(cell: tuple[Any, ...]):
    assert abs(real_peaks.error(cell[0], "tune_llm", ("model=llama3_tiny", *cell[1:]))) <= 0.02
