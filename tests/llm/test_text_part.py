"""Models that read images too: their text part is tuned, and the rest is frozen,
on one rank and on several.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicard.config.llm_texts import ChatLoss
from multicard.llm.data import chat
from multicard.records import run_folder
from tests.conftest import Tuning, typed_llm
from tests.llm.test_engines import ROUNDING, tuned_here
from tests.llm.test_folders import SIZES, TEMPLATE, byte_tokenizer, words_of

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION |= {"image_size": 32, "patch_size": 8}
ROPE = {
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
}
BLOCKS = {
    "hidden_size": 32,
    "depth": 2,
    "num_heads": 2,
    "intermediate_size": 64,
    "out_hidden_size": 64,
}
# What configurations have beside SIZES in their text part
KINDS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {"head_dim": 16, "sliding_window": 8},
        "vision_config": VISION,
        "mm_tokens_per_image": 4,
        "image_token_index": 299,
        "boi_token_index": 298,
        "eoi_token_index": 297,
    },
    "qwen2_5_vl": {
        "text_config": ROPE,
        "vision_config": BLOCKS | {"patch_size": 8, "fullatt_block_indexes": [1]},
        "image_token_id": 299,
        "video_token_id": 298,
    },
    "qwen3_vl": {
        "text_config": ROPE | {"head_dim": 16},
        "vision_config": BLOCKS | {"patch_size": 8, "deepstack_visual_indexes": [0, 1]},
        "image_token_id": 299,
        "video_token_id": 298,
    },
    "llava": {
        "text_config": {"model_type": "llama"},
        "vision_config": VISION | {"model_type": "clip_vision_model"},
        "image_token_index": 299,
    },
}


def written(folder: Path, kind: str) -> Path:
    """A folder with a tiny model of this kind, its weights, and a tokenizer of bytes."""
    import transformers

    from multicard.llm.trl.text_part import reader_of

    folder.mkdir()
    torch.manual_seed(0)
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    values = {**KINDS[kind], "text_config": {**SIZES, **special, **KINDS[kind]["text_config"]}}
    sizes = transformers.AutoConfig.for_model(kind, **values)
    model = reader_of(sizes).from_config(sizes)
    # as transformers draws them, some gradients are nothing but rounding
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def parts_of(model: torch.nn.Module) -> tuple[set[str], set[str]]:
    """The names of the trained parameters, and of those beyond the text part."""
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    outside = ("vision_tower", "visual", "vision_model", "multi_modal_projector", "connector")
    others = {
        name
        for name, _ in model.named_parameters()
        if any(part in name.split(".") for part in outside)
    }
    return trained, others


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gemma3", ["method=lora"]),
        *(
            pytest.param(
                kind, ["method=lora", "method.lora_attn_modules=all-linear"], marks=pytest.mark.slow
            )
            for kind in KINDS
        ),
        *(pytest.param(kind, ["method=full"], marks=pytest.mark.slow) for kind in KINDS),
        *(
            pytest.param(kind, ["method=qlora"], marks=pytest.mark.slow)
            for kind in ("gemma3", "qwen2_5_vl")
        ),
        pytest.param("gemma3", ["method=dpo"], marks=pytest.mark.slow),
        pytest.param("gemma3", ["packed=true", "max_seq_len=256"], marks=pytest.mark.slow),
    ],
)
def test_the_text_part_is_tuned_and_the_rest_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: list[str]
):
    from multicard.llm.trl.engine import TrlEngine

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, engines = written(tmp_path / "model", kind), list[Any]()
    check = TrlEngine.check_built
    monkeypatch.setattr(
        TrlEngine, "check_built", lambda engine: engines.append(engine) or check(engine)
    )
    own = words_of(folder, "model.weights=own", "lr=1e-2", "warmup_steps=0", *words)
    report, steps = tuned_here(tmp_path / "run", *own)
    assert steps["loss"][2] != steps["loss"][0] and np.isfinite(steps["loss"]).all()
    trained, others = parts_of(engines[0].model)
    assert trained and others and not trained & others
    text = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128) + 300 * 64
    assert report.sizes is not None and report.sizes.weights == text
    if words == ["method=full"]:
        assert report.trainable_parameters == sum(
            weight.numel()
            for name, weight in engines[0].model.named_parameters()
            if name not in others
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"),
    [("gemma3", "lora"), ("gemma3", "full"), ("qwen2_5_vl", "lora"), ("qwen3_vl", "lora")],
)
def test_two_ranks_tune_the_text_part_to_the_losses_of_one(
    tmp_path: Path, tuned: Tuning, kind: str, method: str
):
    """Sharded and copied."""
    folder = written(tmp_path / "model", kind)
    words = words_of(
        folder,
        "model.weights=own",
        f"method={method}",
        "dataset.rows=40",
        "lr=1e-3",
        "warmup_steps=0",
    )
    runs = [tuned(*words, "gpus=2", f"sharding={way}") for way in ("fsdp", "ddp")]
    assert [run["status"] for run in runs] == ["ok"] * 2, [run["cause"] for run in runs]
    sharded, copied = (
        run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in runs
    )
    assert (
        np.nanmax(np.abs(sharded - copied)) < ROUNDING["fp32"] and np.nanmin(sharded) < sharded[0]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_only_layers_that_the_model_has_are_named_for_sharding(tmp_path: Path):
    """transformers lists, for Gemma 3, layers of towers that this one does not have."""
    import transformers

    from multicard.llm.trl.text_part import layer_classes

    model = transformers.AutoModelForCausalLM.from_pretrained(written(tmp_path / "model", "gemma3"))
    names = layer_classes(model)
    assert "Gemma3DecoderLayer" in names and set(names) < set(model._no_split_modules)
    there = {type(part).__name__ for part in model.modules()}
    assert set(names) <= there


def test_sizes_are_those_of_the_text_part(tmp_path: Path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": SIZES})
    )
    model = typed_llm(*words_of(tmp_path)).model
    assert (model.num_layers, model.embed_dim, model.vocab_size) == (2, 64, 300)


@pytest.mark.parametrize("parts", [False, True])
def test_the_template_of_such_a_model_may_stand_in_a_file_of_its_own_and_read_parts(
    tmp_path: Path, parts: bool
):
    """chat_template.json, as processors leave it; a content is a text, or a list of parts."""
    byte_tokenizer(tmp_path)
    content = (
        "{% for part in m.content %}{{ part.text }}{% endfor %}" if parts else "{{ m.content }}"
    )
    source = TEMPLATE.replace("{{ m.content }}", content)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": SIZES}))
    config = typed_llm(*words_of(tmp_path, "dataset=chat", "dataset.data_files=x"))
    said = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes"}]
    pieces = chat.template(config).pieces(said, None, ChatLoss.answers).pieces
    assert [piece["content"] for piece in pieces] == [
        "<user>Is it?</s>\n<assistant>",
        "Yes</s>",
        "\n",
    ]
    assert [piece["learnt"] for piece in pieces] == [False, True, False]
