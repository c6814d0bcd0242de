"""Held-out rows with the model as it is once quantised: the loss of the model that torchao converts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from multicard.llm import int4
from tests.conftest import typed_llm
from tests.helpers import plain_losses
from tests.helpers.tuning import ENGINES, losses_of

CLOSE = 1e-3  # an activation next to a boundary may round to another int8


@pytest.mark.parametrize(("groupsize", "at_once"), [(32, int4.AT_ONCE), (64, int4.AT_ONCE), (64, 3 * 128)])
def test_a_layer_computes_as_torchaos_converted_one_and_is_left_as_it_was(
    groupsize: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(int4, "AT_ONCE", at_once)
    from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8, bias=False))
    inputs = torch.randn(5, 128)
    plain = model(inputs)
    with int4.computing(int4.linears(model), groupsize):
        found = model(inputs)
    assert torch.equal(model(inputs), plain) and not any("forward" in vars(layer) for layer in model)
    converted = Int8DynActInt4WeightQuantizer(groupsize).quantize(model)
    torch.testing.assert_close(found, converted(inputs))
    assert not torch.allclose(found, plain, rtol=1e-3)


@pytest.mark.parametrize(
    ("words", "width", "groupsize"),
    [
        (["method=full"], 512, 256),
        (["method=full"], 96, 32),
        (["method=full"], 72, None),
        (["method=qat", "method.groupsize=64", "warmup_steps=null"], 256, 64),
        (["method=lora"], 256, None),
        (["method=qlora"], 256, None),
    ],
    ids=str,
)
def test_full_tuning_has_the_groups_of_qat_where_they_divide_its_widths(
    words: list[str], width: int, groupsize: int | None
):
    assert int4.groupsize(typed_llm("device=cpu", *words), nn.Sequential(nn.Linear(width, 4))) == groupsize


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("words", [["method=full"], ["method=qat", "warmup_steps=null"]], ids=lambda words: words[0])
def test_it_is_the_loss_of_the_converted_model(alone: Callable[..., Any], engine: str, words: list[str]):
    from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

    run = alone(*words, "lr=1e-3", f"engine={engine}")
    measured = run.report.held_out.in_int4
    assert measured.groupsize == 256 and measured.evaluate_s > 0
    plain = plain_losses.plain_model(run.config, run.model, run.report.vocabulary)
    unquantised = plain_losses.loss(plain, run.rows)
    converted = Int8DynActInt4WeightQuantizer(measured.groupsize).quantize(plain)
    assert measured.loss == pytest.approx(plain_losses.loss(converted, run.rows), abs=CLOSE)
    expected = unquantised if run.config.method.name == "full" else measured.loss
    assert losses_of(run)[-1] == pytest.approx(expected, abs=CLOSE)  # of QAT, the quantisation that was simulated


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_adapters_are_not_quantised(alone: Callable[..., Any], engine: str):
    assert alone("method=lora", f"engine={engine}").report.held_out.in_int4 is None
