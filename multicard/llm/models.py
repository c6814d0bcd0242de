"""Describe families of decoders: torchtune's builders, shapes and FLOPs, and pretrained weights.

Weights are checked by the headers of their files, without reading a tensor. Imports no torch.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.config.llm_models import (
    DecoderConfig,
    HfConfig,
    Llama31Config,
    LlamaConfig,
    Qwen25Config,
)
from multicard.llm.stored_weights import hold_the_same, stored_shapes
from multicard.messages import Refusal

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]

OUTPUT = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
RANDOM = "random"  # A value of `model.weights`.
LINEARS = (
    "attn.q_proj",
    "attn.k_proj",
    "attn.v_proj",
    "attn.output_proj",
    "mlp.w1",
    "mlp.w2",
    "mlp.w3",
)
SIZES = ("num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len")


@dataclass(frozen=True)
class Family:
    """Decoders that torchtune builds with the same function.

    Attributes:
        package: The module of torchtune that holds the builders.
        name: Name of the builder. The builder with adapters has the prefix `lora_`.
        checkpoint: torchtune's name for the format of the checkpoints.
        model_type: Value of `model_type` in the checkpoints' config.json.
        norm_eps: Epsilon of the RMS norms.
        rope_base: Base of the rotary frequencies.
        rope_factor: Factor by which Llama 3.1 and 3.2 stretch the lower rotary frequencies, or
            None for a family that does not stretch them.
        quantizes_all: True if NF4 also quantises linears without an adapter.
        qkv_bias: True if the query, key and value projections have a bias.
    """

    package: str
    name: str
    checkpoint: str
    model_type: str = "llama"
    norm_eps: float = 1e-5
    rope_base: int = 500_000
    rope_factor: int | None = None
    quantizes_all: bool = True
    qkv_bias: bool = False


LLAMA3 = Family("torchtune.models.llama3", "llama3", "LLAMA3")
LLAMA3_1 = Family("torchtune.models.llama3_1", "llama3_1", "LLAMA3", rope_factor=8)
LLAMA3_2 = Family("torchtune.models.llama3_2", "llama3_2", "LLAMA3_2", rope_factor=32)
QWEN2_5 = Family(
    "torchtune.models.qwen2",
    "qwen2",
    "QWEN2",
    model_type="qwen2",
    norm_eps=1e-6,
    rope_base=1_000_000,
    quantizes_all=False,
    qkv_bias=True,
)


FAMILIES: dict[type[DecoderConfig], Family] = {
    LlamaConfig: LLAMA3,
    Llama31Config: LLAMA3_1,
    Qwen25Config: QWEN2_5,
}


def family(model: DecoderConfig) -> Family:
    """Return the family of a model. Llama 3 with tied embeddings is Llama 3.2."""
    family_of_type = FAMILIES[type(model)]
    return LLAMA3_2 if family_of_type is LLAMA3 and model.tied else family_of_type


def builder_arguments(model: DecoderConfig) -> dict[str, Any]:
    """Return arguments for torchtune's builder, except for adapters and the vocabulary."""
    model_family = family(model)
    arguments = {key: getattr(model, key) for key in SIZES} | {
        "norm_eps": model_family.norm_eps,
        "rope_base": model_family.rope_base,
    }
    if model_family.rope_factor is not None:
        arguments["scale_factor"] = model_family.rope_factor
    return arguments | ({"tie_word_embeddings": model.tied} if model_family is QWEN2_5 else {})


def linears(model: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Return the shapes (out, in) of the linears in one layer, by torchtune's names."""
    width = model.embed_dim
    inner = model.intermediate_dim
    narrow = model.num_kv_heads * model.head_dim
    attention = ((width, width), (narrow, width), (narrow, width), (width, width))
    return dict(
        zip(LINEARS, (*attention, (inner, width), (width, inner), (inner, width)), strict=True)
    )


def tensors(model: DecoderConfig, vocabulary: int) -> dict[str, Shape]:
    """Return the shapes of all tensors of the model without adapters, by torchtune's names.

    Tied embeddings are one tensor.
    """
    width = model.embed_dim
    has_bias = family(model).qkv_bias
    shapes: dict[str, Shape] = {"tok_embeddings.weight": (vocabulary, width)}
    for layer in range(model.num_layers):
        for name, shape in linears(model).items():
            shapes[f"layers.{layer}.{name}.weight"] = shape
            if has_bias and name in ("attn.q_proj", "attn.k_proj", "attn.v_proj"):
                shapes[f"layers.{layer}.{name}.bias"] = shape[:1]
        shapes[f"layers.{layer}.sa_norm.scale"] = (width,)
        shapes[f"layers.{layer}.mlp_norm.scale"] = (width,)
    shapes["norm.scale"] = (width,)
    if not model.tied:
        shapes["output.weight"] = (vocabulary, width)
    return shapes


def flops_per_token(
    model: DecoderConfig,
    vocabulary: int,
    length: float,
    adapters: int | None,
    reference_passes: int,
) -> float:
    """Return the floating-point operations that training takes for one token.

    A pass over the weights takes 2 operations a weight (Kaplan et al., 2020). The embedding is
    looked up, and biases are not counted. The attention of a forward pass takes 4 L d s, not
    halved for causality (PaLM, appendix B). A backward pass costs twice a forward pass, minus the
    gradients of frozen weights. Recomputed activations do not count as work of the model.

    Args:
        length: Length of the token's row in tokens, with padding: the mean over all tokens.
        adapters: Number of adapter parameters, or None if all weights are trained.
        reference_passes: Number of forward passes through a frozen reference model in a step.
    """
    weights = (
        model.num_layers * sum(a * b for a, b in linears(model).values())
        + vocabulary * model.embed_dim
    )
    return flops(weights, model.num_layers * model.embed_dim, length, adapters, reference_passes)


def flops(
    weights: int, width: int, length: float, adapters: int | None, reference_passes: int
) -> float:
    """Return the FLOPs of training on one token, from sizes instead of a decoder's configuration.

    Args:
        weights: Number of weights that take part in matrix products.
        width: Sum of the attention widths of all layers.
        length, adapters, reference_passes: As in `flops_per_token`.
    """
    attention = 4 * width * length
    trained = 6 * weights if adapters is None else 4 * weights + 6 * adapters
    return trained + 3 * attention + reference_passes * (2 * weights + attention)


def check_weights(model: DecoderConfig, vocabulary: int) -> None:
    """Refuse (ValueError) a checkpoint folder that does not hold this model's weights.

    For `model=hf`, only the presence of weights is checked. The ranks report what transformers
    cannot read.
    """
    if model.folder is None:
        return
    if isinstance(model, HfConfig):
        stored_shapes(model.folder, "model.path")
        return
    key = "model.weights"
    shapes = stored_shapes(model.folder, key)
    _check_configuration(model, vocabulary)
    expected = {
        hugging_face_name(name): shape for name, shape in tensors(model, vocabulary).items()
    }
    # `inv_freq` is computed anew. torchtune drops the output, a copy of the embedding, from Qwen's
    # weights only.
    ignored = ("rotary_emb.inv_freq", *([OUTPUT] if family(model) is QWEN2_5 else []))
    unknown = [name for name in shapes if name not in expected and not name.endswith(ignored)]
    if unknown:
        raise Refusal(
            "llm.weights-unknown-tensor",
            f"{key}={model.weights}: has a tensor {unknown[0]}, and model={model.name} has no such"
            " tensor; choose the model that fits, or another folder",
            key=key,
            value=model.weights,
            tensor=unknown[0],
            model=model.name,
        )
    has_both = {OUTPUT, EMBEDDING} <= {*shapes}
    if has_both and OUTPUT not in expected and not hold_the_same(model.folder, OUTPUT, EMBEDDING):
        raise Refusal(
            "llm.weights-two-outputs",
            f"{key}={model.weights}: its {OUTPUT} differs from {EMBEDDING}, but model={model.name}"
            f" has one tensor for both; use `engine=trl model=hf model.path={model.weights}`",
            key=key,
            value=model.weights,
            model=model.name,
        )
    for name, shape in expected.items():
        if name not in shapes:
            raise Refusal(
                "llm.weights-missing-tensor",
                f"{key}={model.weights}: has no tensor {name}; download the whole folder, not a"
                " quantised one",
                key=key,
                value=model.weights,
                tensor=name,
            )
        if shapes[name] != shape:
            raise Refusal(
                "llm.weights-shape",
                f"{key}={model.weights}: {name} has shape {shapes[name]}, but model={model.name}"
                f" needs {shape}; choose the model that fits, or another folder",
                key=key,
                value=model.weights,
                tensor=name,
                shape=list(shapes[name]),
                expected=list(shape),
            )


def _check_configuration(model: DecoderConfig, vocabulary: int) -> None:
    """Refuse (ValueError) a checkpoint folder whose config.json describes another decoder."""
    key = "model.weights"
    folder = Path(model.weights).expanduser()
    try:
        values = json.loads((folder / "config.json").read_text())
        stored_facts = _stored_facts(values)
    except (OSError, ValueError, AttributeError):
        raise Refusal(
            "llm.weights-no-config",
            f"{key}={model.weights}: has no complete config.json; download the whole folder",
            key=key,
            value=model.weights,
        ) from None
    for name, value in expected_facts(model, vocabulary).items():
        if stored_facts[name] != value:
            raise Refusal(
                "llm.weights-of-another-model",
                f"{key}={model.weights}: config.json says {name} {stored_facts[name]}, but"
                f" model={model.name} needs {value}; choose the model that fits, or another folder",
                key=key,
                value=model.weights,
                name=name,
                stored=stored_facts[name],
                expected=value,
                model=model.name,
            )


# The values of config.json that change a decoder's output. Where a file lacks one, transformers
# uses the default given here.
HUGGING_FACE_DEFAULTS = {
    **dict.fromkeys(
        (
            "model_type",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
    ),
    **dict.fromkeys(("num_key_value_heads", "vocab_size")),
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
}
ROPE_DEFAULTS = {
    "rope_type": "default",
    "rope_theta": 10_000,
    **dict.fromkeys(
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    ),
}


def _stored_facts(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values in a config.json that change a decoder's output.

    The rotary part is in `rope_parameters`. Before transformers 5, it was in `rope_theta` and
    `rope_scaling`, and `rope_type` was once called `type`.
    """
    rope = {"rope_theta": values.get("rope_theta", ROPE_DEFAULTS["rope_theta"])}
    rope |= values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope.setdefault("rope_type", rope.get("type", "default"))
    values_or_defaults = {
        name: values.get(name, default) for name, default in HUGGING_FACE_DEFAULTS.items()
    }
    return values_or_defaults | {
        name: rope.get(name, default) for name, default in ROPE_DEFAULTS.items()
    }


def expected_facts(model: DecoderConfig, vocabulary: int) -> dict[str, Any]:
    """Return the values that config.json should have for a decoder that torchtune builds."""
    model_family = family(model)
    llama3_rope = {
        "rope_type": "llama3",
        "factor": model_family.rope_factor,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
    }
    llama3_rope["original_max_position_embeddings"] = 8192
    return {
        **HUGGING_FACE_DEFAULTS,
        "model_type": model_family.model_type,
        "hidden_size": model.embed_dim,
        "intermediate_size": model.intermediate_dim,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": model.tied,
        "rms_norm_eps": model_family.norm_eps,
        **ROPE_DEFAULTS,
        "rope_theta": model_family.rope_base,
        **(llama3_rope if model_family.rope_factor is not None else {}),
    }


def hugging_face_config(model: DecoderConfig, vocabulary: int) -> dict[str, Any]:
    """Return transformers' configuration of the same decoder."""
    facts = expected_facts(model, vocabulary)
    rope = {name: facts.pop(name) for name in ROPE_DEFAULTS}
    known_rope = {name: value for name, value in rope.items() if value is not None}
    return facts | {"rope_parameters": known_rope, "max_position_embeddings": model.max_seq_len}


HUGGING_FACE_NAMES = {
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


def hugging_face_name(name: str, adapter: str = "") -> str:
    """Return Hugging Face's name of one of torchtune's tensors.

    A tensor of an adapter gets PEFT's name, without PEFT's prefix.

    Args:
        adapter: What PEFT writes after `lora_A`: ".default" for a model in memory, and nothing
            in a file.
    """
    adapter_match = re.search(r"\.lora_([ab])\.weight$", name)
    if adapter_match is not None:
        linear = hugging_face_name(name[: adapter_match.start()] + ".weight")
        return f"{linear.removesuffix('weight')}lora_{adapter_match[1].upper()}{adapter}.weight"
    if name in HUGGING_FACE_NAMES:
        return HUGGING_FACE_NAMES[name]
    _, layer, part = name.split(".", 2)
    module, _, kind = part.rpartition(".")
    hugging_face_module = HUGGING_FACE_NAMES.get(module, module.replace("attn.", "self_attn."))
    return f"model.layers.{layer}.{hugging_face_module}.{'bias' if kind == 'bias' else 'weight'}"


def permute_heads(name: str, weight: "torch.Tensor", model: DecoderConfig) -> "torch.Tensor":
    """Return a weight (out, in) of torchtune's with its rows in the order that transformers uses.

    The rotary embeddings differ. torchtune rotates pairs of neighbouring rows; transformers rotates
    the first half of a head with the second. For Qwen, torchtune uses transformers' order. In an
    adapter, only the second matrix (out, rank) has one row for each output of a head.
    """
    has_heads = re.search(r"\.[qk]_proj\.(lora_b\.)?weight$", name) is not None
    if family(model) is QWEN2_5 or not has_heads:
        return weight
    pairs = weight.view(-1, model.head_dim // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
