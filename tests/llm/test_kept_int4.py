"""`save=int4`: the converted model, which transformers loads with torchao alone,
has the loss in int4 of the record.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import multicard
from multicard.llm import int4_file, kept_model, preflight
from multicard.llm.parts import TensorPart, TrainedParts
from tests.conftest import Tuning, ok, typed_llm
from tests.helpers import plain_losses
from tests.helpers.messages import find, refused, remedies
from tests.helpers.tuning import ENGINES, NEEDS_TRL, losses_of
from tests.llm.test_int4 import CLOSE

WIDE, GROUP = 64, 32


@NEEDS_TRL
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "words",
    [
        ["method=full"],
        ["method=qat", "method.groupsize=32", "warmup_steps=null"],
        ["method=full", "model.tied=true"],
    ],
    ids=" ".join,
)
def test_what_is_kept_has_the_loss_in_int4(
    alone: Callable[..., Any], engine: str, words: list[str]
):
    import transformers

    run = alone(*words, "lr=1e-3", f"engine={engine}", "save=int4")
    assert run.report.saved.problem is None and run.report.saved.folder == "int4"
    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "int4")
    assert type(model.model.layers[0].mlp.up_proj.weight).__name__ == "IntxUnpackedToInt8Tensor"
    measured = run.report.held_out.in_int4.loss
    assert plain_losses.loss(model, run.rows) == pytest.approx(measured, abs=CLOSE)
    if words == ["method=full"]:  # of QAT the plain evaluation is quantised too
        assert abs(losses_of(run)[-1] - measured) > 2 * CLOSE
    files = (run.folder / "int4/model.safetensors").stat().st_size
    assert run.report.saved.bytes <= files < 0.6 * 4 * run.report.parameters
    named: dict[str, Any] = {}
    exec("\n".join(kept_model.lines_to_load(run.folder)), named)
    tokens = torch.tensor([run.rows[0]["tokens"]])
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        assert torch.equal(named["model"](input_ids=tokens).logits, expected)
        assert torch.equal(multicard.load_model(run.folder)(input_ids=tokens).logits, expected)


@NEEDS_TRL
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [[], ["engine=trl"], ["engine=trl", "sharding=ddp"]], ids=" ".join
)
def test_two_ranks_keep_what_they_measured(tuned: Tuning, words: list[str]):
    import transformers

    rows = ["dataset.rows=40", "dataset.split=0.2", "max_steps=2", "model.num_layers=2"]
    run = ok(tuned("method=full", *rows, *words, "gpus=2", "save=int4"))
    assert run["saved"]["problem"] is None and run["held_out"]["in_int4"]["loss"] > 0
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(Path(run["folder"]) / "int4")
    assert type(model.lm_head.weight).__name__ == "IntxUnpackedToInt8Tensor"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_stored_as_torchao_quantises_it(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """Some rows at a time; the file says what torchao says of such a tensor."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
    from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

    monkeypatch.setattr(int4_file, "WEIGHTS_AT_ONCE", 3 * WIDE)
    torch.manual_seed(2)
    layer = nn.Linear(WIDE, 8, bias=False, dtype=dtype)
    parts = {
        "a.weight": TensorPart(layer.weight.detach()),
        "norm.weight": TensorPart(torch.ones(4)),
    }
    trained = TrainedParts(
        parts, {}, None, tied=False, linears=frozenset({"a.weight"}), groupsize=GROUP
    )
    made = int4_file.quantised_parts(trained)
    written: dict[str, torch.Tensor] = {}
    for name, part in made.items():
        written |= part.tensors_to_write(name, part.gather())
        stored = {
            key: (tensor.dtype, tuple(tensor.shape))
            for key, tensor in part.tensors_to_write(name, part.gather()).items()
        }
        assert stored == part.tensor_entries(name)
    again, _ = unflatten_tensor_state_dict(written, int4_file.metadata(made))
    inputs = torch.randn(5, WIDE, dtype=dtype)
    expected = Int8DynActInt4WeightQuantizer(GROUP, precision=dtype).quantize(nn.Sequential(layer))(
        inputs
    )
    torch.testing.assert_close(
        nn.functional.linear(inputs, again["a.weight"]), expected, atol=0.02, rtol=0.02
    )
    assert torch.equal(again["norm.weight"], torch.ones(4))


def test_widths_without_groups_are_not_kept():
    trained = TrainedParts({}, {}, None, tied=False)
    with pytest.raises(ValueError, match="groups"):
        int4_file.quantised_parts(trained)


@pytest.mark.parametrize("method", ["lora", "qlora", "dpo"])
def test_adapters_are_not_kept_so(method: str):
    with refused("llm.save-int4-adapter", key="save") as caught:
        preflight.refuse(typed_llm(f"method={method}", "save=int4"))
    assert remedies(caught.value) == ["save=adapter"]


@pytest.mark.slow
def test_a_layer_that_has_no_groups_leaves_the_run(alone: Callable[..., Any]):
    sizes = (
        "model.embed_dim=72",
        "model.num_heads=2",
        "model.num_kv_heads=2",
        "model.intermediate_dim=96",
    )
    run = alone("method=full", *sizes, "save=int4")
    assert run.report.saved.folder is None and find(
        run.report.saved.problem, "save.failed-tuned", form="int4"
    )
    assert not (run.folder / "int4").exists() and run.report.held_out.in_int4 is None
