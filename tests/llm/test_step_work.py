"""The work of a tuning step: operations and bytes in closed form,
on a model whose sums one can do by hand.
"""

from typing import Any

import pytest

from multicard.llm import step_work
from multicard.records.rank_files import ModelSizes
from tests.conftest import typed_llm

SIZES = ModelSizes(layers=2, weights=1000, output=200, width=10, parameters=1500, adapters=None)
LORA = ModelSizes(layers=2, weights=1000, output=200, width=10, parameters=1500, adapters=30)


def config(*words: str) -> Any:
    return typed_llm("method=full", "precision=bf16", *words)


def test_sizes_of_a_named_model_are_those_of_its_tensors():
    from multicard.llm import models

    for name in ("llama3_8b", "llama3_2_1b", "qwen2_5_0_5b", "qwen2_5_7b"):
        own = typed_llm(f"model={name}", "method=lora" if name == "llama3_8b" else "method=full")
        vocabulary = own.model.vocab_size
        shapes = models.tensors(own.model, vocabulary).values()
        sizes = step_work.sizes_of_decoder(own, vocabulary)
        assert sizes.parameters == sum(
            shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes
        )
        assert (
            sizes.output == vocabulary * own.model.embed_dim
            and sizes.layers == own.model.num_layers
        )
        assert (sizes.adapters is None) == (name != "llama3_8b")


def test_the_operations_of_a_token():
    attention = 4 * 10 * 50
    model = 6 * 1000 + 3 * attention
    assert step_work.model_flops(SIZES, 50, 0) == model
    assert step_work.model_flops(LORA, 50, 0) == 4 * 1000 + 6 * 30 + 3 * attention
    assert step_work.executed_flops(config(), SIZES, 50, is_causal=False) == model
    assert step_work.executed_flops(config(), SIZES, 50, is_causal=True) == model - 1.5 * attention
    again = config("activation_checkpointing=true")
    assert step_work.executed_flops(again, SIZES, 50, is_causal=False) == model + 2000 + attention
    assert step_work.executed_flops(again, SIZES, 50, is_causal=True) == model + 2000 - attention
    pairs = typed_llm("method=dpo", "dataset=preference", "precision=bf16")
    assert (
        step_work.executed_flops(pairs, LORA, 50, is_causal=False)
        == 6 * 1000 + 6 * 30 + 4 * attention
    )


@pytest.mark.parametrize(
    ("words", "a_weight", "times"),
    [
        ([], 2, 2),
        (["precision=fp32"], 4, 2),
        (["activation_checkpointing=true"], 2, 3),
        (["gradient_accumulation_steps=4"], 2, 8),
        (["engine=trl", "precision=bf16_mixed"], 4 + step_work.CAST_BYTES, 2),
        (["method=qlora"], step_work.NF4_BYTES, 2),
    ],
)
def test_weights_are_read_in_every_pass(words: list[str], a_weight: float, times: int):
    assert step_work.read_bytes(config(*words), SIZES) == times * 1000 * a_weight


def test_the_update_moves_gradients_weights_and_states():
    assert step_work.update_bytes(config(), SIZES) == 1500 * 2 * (2 + 7)
    assert step_work.update_bytes(config("precision=fp32"), SIZES) == 1500 * 4 * (2 + 7)
    assert step_work.update_bytes(config("gradient_accumulation_steps=3"), SIZES) == 1500 * 2 * (
        6 + 7
    )
    assert step_work.update_bytes(config("optimizer.name=adamw_8bit"), SIZES) == 1500 * (
        2 * 2 + 3 * 2 + 4
    )
    assert step_work.update_bytes(config("gpus=2"), SIZES) == 1500 * 2 * (2 + 7 / 2)
    whole = config("gpus=2", "engine=trl", "sharding=ddp")
    assert step_work.update_bytes(whole, SIZES) == 1500 * 2 * (2 + 7)
    assert step_work.update_bytes(config("method=lora"), LORA) == 30 * 2 * (2 + 7)


def test_ranks_exchange_weights_and_gradients_by_the_ring():
    assert step_work.exchanged_bytes(config(), SIZES) == 0
    share = 3 / 4
    assert step_work.exchanged_bytes(config("gpus=4"), SIZES) == pytest.approx(
        share * 2 * (2 * 1500 + 1500)
    )
    twice = config("gpus=4", "gradient_accumulation_steps=2")
    assert step_work.exchanged_bytes(twice, SIZES) == pytest.approx(
        2 * share * 2 * (2 * 1500 + 1500)
    )
    ddp = config("gpus=4", "engine=trl", "sharding=ddp", "gradient_accumulation_steps=2")
    assert step_work.exchanged_bytes(ddp, SIZES) == pytest.approx(2 * share * 2 * 1500)
    mixed = config("gpus=4", "engine=trl", "precision=bf16_mixed")
    assert step_work.exchanged_bytes(mixed, SIZES) == pytest.approx(
        share * (2 * 2 * 1500 + 4 * 1500)
    )
    nf4 = config("gpus=4", "method=qlora")
    expected = share * (2 * step_work.NF4_BYTES * 1500 + 2 * 30)
    assert step_work.exchanged_bytes(nf4, LORA) == pytest.approx(expected)
