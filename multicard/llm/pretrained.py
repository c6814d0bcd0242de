"""Checks of a folder of pretrained weights against the model, from the files' headers alone. No torch."""

import json
import zipfile
from pathlib import Path
from typing import Any

from multicard.config.keys import require
from multicard.config.llm import DecoderConfig
from multicard.llm import models

RANDOM = "random"
OTHER = "choose the model that fits, or another folder"


def check_weights(model: DecoderConfig, vocabulary: int) -> None:
    """See that a checkpoint folder holds this model's weights.

    Raises:
        ValueError: with the key and the remedy.
    """
    if model.weights == RANDOM:
        return
    folder, key = Path(model.weights).expanduser(), f"model.weights={model.weights}"
    meta = models.family(model).meta_format
    remedy = "give a folder with *.safetensors and config.json, "
    remedy += "or consolidated.00.pth and params.json, or random" if meta else "or random"
    require(folder.is_dir(), f"{key}: no such folder; {remedy}")
    if list(folder.glob("*.safetensors")):
        _check_hugging_face(folder, key, model, vocabulary)
    elif meta and (folder / "consolidated.00.pth").is_file():
        _check_meta(folder, key, model, vocabulary)
    else:
        raise ValueError(f"{key}: holds no weights; {remedy}")


def _check_hugging_face(folder: Path, key: str, model: DecoderConfig, vocabulary: int) -> None:
    from safetensors import SafetensorError, safe_open

    require((folder / "config.json").is_file(), f"{key}: has no config.json; fetch the whole folder")
    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            raise ValueError(f"{key}: {path.name} is cut off or no safetensors file; fetch it again") from None
    expected = {_hugging_face_name(name): list(shape) for name, shape in models.tensors(model, vocabulary).items()}
    missing = [name for name in expected if name not in shapes]
    require(not missing, f"{key}: lacks {len(missing)} tensors of model={model.name}, as {missing[:1]}; {OTHER}")
    for name, shape in expected.items():
        problem = f"{key}: {name} has shape {shapes[name]}, not {shape} as model={model.name}"
        require(shapes[name] == shape, f"{problem}; {OTHER}")
    heads = {"num_attention_heads": model.num_heads, "num_key_value_heads": model.num_kv_heads}
    _check_values(key, folder / "config.json", heads | models.family(model).config_json(model), model)


def _check_meta(folder: Path, key: str, model: DecoderConfig, vocabulary: int) -> None:
    file = folder / "consolidated.00.pth"
    require(len(list(folder.glob("consolidated.*.pth"))) == 1, f"{key}: torchtune reads one {file.name} alone")
    require(zipfile.is_zipfile(file), f"{key}: {file.name} is cut off; fetch it again")
    expected = {
        "dim": model.embed_dim,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_kv_heads,
        "vocab_size": vocabulary,
    }
    _check_values(key, folder / "params.json", expected, model)


def _check_values(key: str, path: Path, expected: dict[str, Any], model: DecoderConfig) -> None:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        raise ValueError(f"{key}: has no whole {path.name}; fetch the whole folder") from None
    for name, value in expected.items():
        problem = f"{key}: {path.name} says {name} {values.get(name)}, not {value} as model={model.name}"
        require(values.get(name) == value, f"{problem}; {OTHER}")


HUGGING_FACE = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
    "sa_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


def _hugging_face_name(name: str) -> str:
    """Hugging Face's name of one of torchtune's tensors."""
    if name in HUGGING_FACE:
        return HUGGING_FACE[name]
    _, layer, part = name.split(".", 2)
    module, _, kind = part.rpartition(".")
    return f"model.layers.{layer}.{HUGGING_FACE[module]}.{'bias' if kind == 'bias' else 'weight'}"
