"""Tensors in a folder that the model of its config.json lacks, or that it ties to others."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.conftest import Tuning, typed_llm
from tests.helpers.messages import find, refused
from tests.llm.test_folders import (  # noqa: F401  (a fixture)
    built,
    checkpoint,
    refusal_of_weights,
    words_of,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]"),
]

LAYER = "model.layers.0.self_attn.q_proj"


def with_tensors(folder: Path, **tensors: torch.Tensor) -> None:
    """Add tensors to the folder's file."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "name",
    [f"{LAYER}.bias", f"{LAYER}.lora_A.default.weight", "model.layers.2.input_layernorm.weight"],
)
@pytest.mark.parametrize("engine_reads", ["stored", "read"])
def test_a_tensor_that_a_part_of_the_model_lacks_is_refused(
    checkpoint: Path,  # noqa: F811
    name: str,
    engine_reads: str,
):
    built("llama").save_pretrained(checkpoint)
    with_tensors(checkpoint, **{name: torch.ones(64)})
    refusal = refusal_of_weights(checkpoint, engine_reads)
    assert find(refusal, "llm.folder-foreign-tensor", tensor=name, count=1)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "name", ["score.weight", "model.visual.proj.weight", "model.layers.0.attn.rotary_emb.inv_freq"]
)
def test_other_heads_and_computed_buffers_are_passed_over(checkpoint: Path, name: str):  # noqa: F811
    from multicard.llm.trl import models

    built("llama").save_pretrained(checkpoint)
    with_tensors(checkpoint, **{name: torch.ones(64)})
    config = typed_llm(*words_of(checkpoint, "model.weights=own"))
    assert models.build_model(config, {}, torch.device("cpu"), empty=False) is not None


@pytest.mark.parametrize("sharding", ["fsdp", "ddp"])
def test_an_output_that_is_not_the_tied_embedding_is_not_lost(
    checkpoint: Path,  # noqa: F811
    tuned: Tuning,
    sharding: str,
):
    """The whole model keeps both. Ranks that read only their shards refuse the folder."""
    model = built("qwen3")
    model.config.tie_word_embeddings = True
    model.save_pretrained(checkpoint)
    output = model.get_output_embeddings().weight.detach()
    with_tensors(checkpoint, **{"lm_head.weight": output + 1})
    run = tuned(
        *words_of(checkpoint, "model.weights=own", "gpus=2", f"sharding={sharding}"),
        "dataset.rows=40",
    )
    if sharding == "ddp":
        assert run["status"] == "ok"
        return
    said = find(run["cause"]["message"], "llm.folder-unread", key="model.path")
    assert said.facts["reason"].has({"tensor": "lm_head.weight"})


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("with_code", [False, True])
def test_a_model_of_another_kind_is_refused_without_a_question(
    checkpoint: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    with_code: bool,
):
    from multicard.llm.trl import models

    written = json.loads((checkpoint / "config.json").read_text()) | {"model_type": "t5"}
    if with_code:  # transformers would ask whether to run it
        written |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Own"}}
        (checkpoint / "code.py").write_text("raise SystemExit\n")
    (checkpoint / "config.json").write_text(json.dumps(written))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    config = typed_llm(*words_of(checkpoint))
    with refused("llm.folder-unread", key="model.path") as caught:
        models.build_model(config, {}, torch.device("cpu"), empty=False)
    assert with_code or find(str(caught.value), "llm.folder-kind", type="t5")
