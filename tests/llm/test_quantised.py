"""A checkpoint whose weights are quantised already is never tuned
under the name of a method that it is not.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from multicard.llm import preflight, quantised
from tests.conftest import typed_llm
from tests.helpers.messages import refused, remedies
from tests.llm.test_folders import checkpoint, words_of  # noqa: F401  (a fixture)

PLAIN = {
    "model.embed_tokens.weight": np.zeros((300, 64), np.float32),
    "h.attn.bias": np.zeros((4, 4), np.uint8),
}
# What config.json says, and the kind of the refusal
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "bitsandbytes": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "4 bits",
    ),
    "eight bits": (
        {"quantization_config": {"quant_method": "bitsandbytes", "_load_in_8bit": True}},
        "8 bits",
    ),
    "GPTQ": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq, 4 bits"),
    "MXFP4": ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    "of the text part": ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
    "compressed tensors": (
        {"compression_config": {"quant_method": "compressed-tensors"}},
        "compressed-tensors",
    ),
}


def add(folder: Path, values: dict[str, Any]) -> None:
    own = json.loads((folder / "config.json").read_text())
    text = {"text_config": {**own, **values["text_config"]}} if "text_config" in values else values
    (folder / "config.json").write_text(json.dumps(own | text))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("method", ["lora", "full", "qlora", "qat", "dpo"])
def test_it_is_refused_by_what_it_is(checkpoint: Path, name: str, method: str):  # noqa: F811
    values, kind = KINDS[name]
    save_file(PLAIN, checkpoint / "model.safetensors")
    own = words_of(checkpoint, "model.weights=own", f"method={method}")
    quantised.check_unquantised(typed_llm(*own))
    add(checkpoint, values)
    with refused(
        "llm.weights-quantised", key="model.path", value=str(checkpoint), method=method
    ) as caught:
        preflight.check_rows(typed_llm(*own))
    assert kind in caught.value.facts["kind"]
    assert remedies(caught.value) == []  # with this folder no method is what it says
    quantised.check_unquantised(
        typed_llm(*words_of(checkpoint, f"method={method}"))
    )  # random weights are not


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        ({"model.layers.0.mlp.up_proj.weight": np.zeros((64, 1), np.uint8)}, np.uint8),
        ({"model.layers.0.mlp.up_proj.qweight": np.zeros((64, 1), np.int32)}, np.int32),
        ({"model.layers.0.mlp.experts.gate_up_proj_blocks": np.zeros((64, 1), np.uint8)}, np.uint8),
    ],
)
def test_weights_say_it_too(checkpoint: Path, tensor: dict[str, Any], kind: Any):  # noqa: F811
    save_file(PLAIN | tensor, checkpoint / "model.safetensors")
    with refused("llm.weights-quantised", key="model.path") as caught:
        preflight.check_rows(typed_llm(*words_of(checkpoint, "model.weights=own")))
    assert next(iter(tensor)) in caught.value.facts["kind"]


def test_a_folder_of_a_decoder_of_torchtune_is_refused_likewise(checkpoint: Path):  # noqa: F811
    """Before its tensors are called those of another model."""
    save_file(PLAIN, checkpoint / "model.safetensors")
    add(checkpoint, KINDS["bitsandbytes"][0])
    with refused(
        "llm.weights-quantised", key="model.weights", value=str(checkpoint), method="lora"
    ):
        preflight.check_rows(typed_llm(f"model.weights={checkpoint}"))
