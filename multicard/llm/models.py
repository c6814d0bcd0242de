"""Families of decoders: torchtune's builders, arithmetic on a model's tensors, and pretrained weights. No torch.

Weights are checked by their files' headers alone.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.keys import require
from multicard.config.llm import DecoderConfig, LlamaConfig, Qwen25Config

Shape = tuple[int, ...]

RANDOM = "random"  # model.weights
LINEARS = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj", "mlp.w1", "mlp.w2", "mlp.w3")
SIZES = ("num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len")


@dataclass(frozen=True)
class Family:
    """Decoders that torchtune builds by the same function.

    Fields:
        package: holds the builder, `name`, and the one with adapters, `lora_` and `name`.
        checkpoint: torchtune's name of the checkpoints' form.
        quantizes_all: with NF4, linears without an adapter are quantised too.
        qkv_bias: the query, key and value projections have a bias.
        arguments: what the builders take beside the sizes.
    """

    package: str
    name: str
    checkpoint: str
    quantizes_all: bool = False
    qkv_bias: bool = False
    arguments: Callable[[DecoderConfig], dict[str, Any]] = lambda _: {}


LLAMA3 = Family("torchtune.models.llama3", "llama3", "LLAMA3", quantizes_all=True)
LLAMA3_2 = Family("torchtune.models.llama3_2", "llama3_2", "LLAMA3_2", quantizes_all=True)
QWEN2_5 = Family(
    "torchtune.models.qwen2",
    "qwen2",
    "QWEN2",
    qkv_bias=True,
    arguments=lambda model: {"norm_eps": 1e-6, "rope_base": 1e6, "tie_word_embeddings": model.tied},
)


FAMILIES: dict[type[DecoderConfig], Family] = {LlamaConfig: LLAMA3, Qwen25Config: QWEN2_5}


def family(model: DecoderConfig) -> Family:
    own = FAMILIES[type(model)]
    return LLAMA3_2 if own is LLAMA3 and model.tied else own


def linears(model: DecoderConfig) -> dict[str, tuple[int, int]]:
    """The weights of the linears of one layer, (out, in), as torchtune names them."""
    width, inner, narrow = model.embed_dim, model.intermediate_dim, model.num_kv_heads * model.head_dim
    attention = ((width, width), (narrow, width), (narrow, width), (width, width))
    return dict(zip(LINEARS, (*attention, (inner, width), (width, inner), (inner, width)), strict=True))


def tensors(model: DecoderConfig, vocabulary: int) -> dict[str, Shape]:
    """All tensors of the model without adapters, as torchtune names them. Shared embeddings count once."""
    width, has_bias = model.embed_dim, family(model).qkv_bias
    shapes: dict[str, Shape] = {"tok_embeddings.weight": (vocabulary, width)}
    for layer in range(model.num_layers):
        for name, shape in linears(model).items():
            shapes[f"layers.{layer}.{name}.weight"] = shape
            if has_bias and name in ("attn.q_proj", "attn.k_proj", "attn.v_proj"):
                shapes[f"layers.{layer}.{name}.bias"] = shape[:1]
        shapes[f"layers.{layer}.sa_norm.scale"] = shapes[f"layers.{layer}.mlp_norm.scale"] = (width,)
    shapes["norm.scale"] = (width,)
    if not model.tied:
        shapes["output.weight"] = (vocabulary, width)
    return shapes


def flops_per_token(
    model: DecoderConfig, vocabulary: int, length: float, adapters: int | None, reference_passes: int
) -> float:
    """Floating-point operations that training on a token takes.

    2 a weight for each pass over it (Kaplan et al., 2020; the embedding is looked up, biases are left out), and 4 L d s
    for the attention of a forward pass, not halved for causality (PaLM, appendix B). A backward pass costs twice a
    forward one, less the gradients of frozen weights. Recomputed activations are no work of the model's.

    Args:
        length: mean over the tokens of their row's length, in tokens, padding included.
        adapters: parameters of the adapters; None where all weights are trained.
        reference_passes: forward passes of a frozen reference model a step.
    """
    weights = model.num_layers * sum(a * b for a, b in linears(model).values()) + vocabulary * model.embed_dim
    attention = 4 * model.num_layers * model.embed_dim * length
    trained = 6 * weights if adapters is None else 4 * weights + 6 * adapters
    return trained + 3 * attention + reference_passes * (2 * weights + attention)


def check_weights(model: DecoderConfig, vocabulary: int) -> None:
    """Refuse (ValueError) a checkpoint folder that does not hold this model's weights."""
    if model.weights == RANDOM:
        return
    from safetensors import SafetensorError, safe_open

    folder, key = Path(model.weights).expanduser(), f"model.weights={model.weights}"
    remedy = "give a folder with *.safetensors and config.json, or random"
    require(folder.is_dir(), f"{key}: no such folder; {remedy}")
    files, shapes = sorted(folder.glob("*.safetensors")), dict[str, Shape]()
    require(bool(files), f"{key}: holds no weights; {remedy}")
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            raise ValueError(f"{key}: {path.name} is cut off or no safetensors file; fetch it again") from None
    try:
        values = {"tie_word_embeddings": False} | json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        raise ValueError(f"{key}: has no whole config.json; fetch the whole folder") from None
    sizes = {
        "hidden_size": model.embed_dim,
        "intermediate_size": model.intermediate_dim,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": model.tied,
    }
    for name, value in sizes.items():
        problem = f"{key}: config.json says {name} {values.get(name)}, not {value} as model={model.name}"
        require(values.get(name) == value, f"{problem}; choose the model that fits, or another folder")
    for name, shape in tensors(model, vocabulary).items():
        own = _hugging_face_name(name)
        require(own in shapes, f"{key}: has no tensor {own}; fetch the whole folder, not a quantised one")
        problem = f"{key}: {own} has shape {shapes[own]}, not {shape} as model={model.name}"
        require(shapes[own] == shape, f"{problem}; choose the model that fits, or another folder")


HUGGING_FACE = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "sa_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
}


def _hugging_face_name(name: str) -> str:
    """Hugging Face's name of one of torchtune's tensors."""
    if name in HUGGING_FACE:
        return HUGGING_FACE[name]
    _, layer, part = name.split(".", 2)
    module, _, kind = part.rpartition(".")
    own = HUGGING_FACE.get(module, module.replace("attn.", "self_attn."))
    return f"model.layers.{layer}.{own}.{'bias' if kind == 'bias' else 'weight'}"
