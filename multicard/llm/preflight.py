"""What cannot work is refused here, in the controller, before any model is built and without torch."""

import json
import math
import struct
import zipfile
from pathlib import Path

from multicard.config.keys import require
from multicard.config.llm import (
    EmbeddedTokenizerConfig,
    Llama3TokenizerConfig,
    LlamaConfig,
    LlmConfig,
    MethodName,
    QatConfig,
)
from multicard.llm import llama_sizes
from multicard.llm.data.tokenizer import LLAMA3_VOCABULARY, SPECIAL

NF4_BLOCK = 64 * 256  # weights that share torchao's two levels of scales
RANDOM = "random"


def vocabulary(config: LlmConfig, ranks: int) -> int:
    """The model's vocabulary: the tokenizer's (`ranks` tokens and the special ones) unless the model fixes its own.

    Raises:
        ValueError: where the model's is too small for the tokenizer.
    """
    needed = LLAMA3_VOCABULARY if isinstance(config.tokenizer, Llama3TokenizerConfig) else ranks + len(SPECIAL)
    fixed = config.model.vocab_size
    remedy = f"use {needed} or more, or another tokenizer"
    problem = f"model.vocab_size={fixed}: tokenizer={config.tokenizer.name} has {needed} tokens"
    require(fixed is None or fixed >= needed, f"{problem}; {remedy}")
    return fixed or needed


def check_method(config: LlmConfig) -> None:
    """What torchao would pass over in silence, or break on in mid-run."""
    method, model, world = config.method, config.model, config.gpus * config.nodes
    shapes = llama_sizes.linears(model)
    if isinstance(method, QatConfig):
        inputs = {name: shape[1] for name, shape in shapes.items()}
        uneven = [f"{name} ({width})" for name, width in inputs.items() if width % method.groupsize]
        remedy = f"use a divisor of {math.gcd(*inputs.values())}"
        problem = f"method.groupsize={method.groupsize}: does not divide the width of {', '.join(uneven)}"
        require(not uneven, f"{problem}, which method=qat would not quantise; {remedy}")
    if method.name is MethodName.qlora:
        uneven = [f"{name} ({a * b})" for name, (a, b) in shapes.items() if a * b % (NF4_BLOCK * world) or a % world]
        works = [n for n in range(1, world) if all(a * b % (NF4_BLOCK * n) == a % n == 0 for a, b in shapes.values())]
        remedy = f"use gpus={works[-1]}" if works else "use method=lora, or other sizes"
        problem = f"method=qlora: NF4 needs each layer's weights to divide by {NF4_BLOCK} x {world} rank(s)"
        require(not uneven, f"{problem}; {', '.join(uneven)} of model={model.name} do not; {remedy}")


def check_steps(config: LlmConfig, rows: int) -> None:
    needed = config.batch_size * config.gpus * config.nodes * config.gradient_accumulation_steps
    product = "batch_size x gpus x gradient_accumulation_steps"
    require(rows >= needed, f"dataset.rows={rows}: is less than one step ({product} = {needed}); use {needed} or more")


def steps_per_epoch(config: LlmConfig, rows: int) -> int:
    """As the recipes count: a sampler that fills up the last round, whole batches, whole accumulations."""
    world = config.gpus * config.nodes
    steps = -(-rows // world) // config.batch_size // config.gradient_accumulation_steps
    return min(steps, config.max_steps or steps)


def check_weights(model: LlamaConfig, size: int) -> None:
    """See that a checkpoint folder holds this model's weights.

    Raises:
        ValueError: with the key and the remedy.
    """
    if model.weights == RANDOM:
        return
    folder, key = Path(model.weights).expanduser(), f"model.weights={model.weights}"
    remedy = "give a folder with *.safetensors and config.json, or consolidated.00.pth and params.json, or random"
    require(folder.is_dir(), f"{key}: no such folder; {remedy}")
    if list(folder.glob("*.safetensors")):
        _check_hugging_face(folder, key, model, size)
    elif (folder / "consolidated.00.pth").is_file():
        _check_meta(folder, key, model, size)
    else:
        raise ValueError(f"{key}: holds no weights; {remedy}")


def _check_hugging_face(folder: Path, key: str, model: LlamaConfig, size: int) -> None:
    require((folder / "config.json").is_file(), f"{key}: has no config.json; fetch the whole folder")
    found: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: entry["shape"] for name, entry in _safetensors_header(file, key).items()}
    expected = {_hugging_face_name(name): list(shape) for name, shape in llama_sizes.tensors(model, size).items()}
    missing = [name for name in expected if name not in found]
    require(not missing, f"{key}: lacks {len(missing)} tensors of model={model.name}, as {missing[:1]}; {_OTHER}")
    for name, shape in expected.items():
        problem = f"{key}: {name} has shape {found[name]}, not {shape} as model={model.name}"
        require(found[name] == shape, f"{problem}; {_OTHER}")
    config = json.loads((folder / "config.json").read_text())
    for name, value in (("num_attention_heads", model.num_heads), ("num_key_value_heads", model.num_kv_heads)):
        require(config.get(name) == value, f"{key}: config.json says {name} {config.get(name)}, not {value}; {_OTHER}")


_OTHER = "choose the model that fits, or another folder"


def _safetensors_header(file: Path, key: str) -> dict[str, dict[str, list[int]]]:
    """Name to shape and place of each tensor, checked against the size of the file (huggingface/safetensors)."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, 100_000_000)))
        header.pop("__metadata__", None)
        end = max(entry["data_offsets"][1] for entry in header.values())
        whole = file.stat().st_size == 8 + length + end
    except (struct.error, ValueError, KeyError, TypeError):
        whole, header = False, {}
    require(whole, f"{key}: {file.name} is cut off or no safetensors file; fetch it again")
    return header


_HUGGING_FACE = {
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
    """What Hugging Face calls a tensor of torchtune's."""
    if name in _HUGGING_FACE:
        return _HUGGING_FACE[name]
    _, layer, part = name.split(".", 2)
    return f"model.layers.{layer}.{_HUGGING_FACE[part.rpartition('.')[0]]}.weight"


def _check_meta(folder: Path, key: str, model: LlamaConfig, size: int) -> None:
    require(len(list(folder.glob("consolidated.*.pth"))) == 1, f"{key}: torchtune reads one consolidated.00.pth alone")
    require(
        zipfile.is_zipfile(folder / "consolidated.00.pth"), f"{key}: consolidated.00.pth is cut off; fetch it again"
    )
    try:
        params = json.loads((folder / "params.json").read_text())
    except (OSError, ValueError):
        raise ValueError(f"{key}: has no whole params.json; fetch the whole folder") from None
    expected = {
        "dim": model.embed_dim,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_kv_heads,
        "vocab_size": size,
    }
    for name, value in expected.items():
        found = params.get(name)
        require(found == value, f"{key}: params.json says {name} {found}, not {value} as model={model.name}; {_OTHER}")


def embedded(config: LlmConfig) -> EmbeddedTokenizerConfig | None:
    return config.tokenizer if isinstance(config.tokenizer, EmbeddedTokenizerConfig) else None
