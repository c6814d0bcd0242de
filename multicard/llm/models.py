"""Families of decoders: torchtune's builders, arithmetic on a model's tensors,
and pretrained weights. No torch.

Weights are checked by their files' headers alone.
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
from multicard.messages import Refusal

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]

RANDOM = "random"  # model.weights
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
    """Decoders that torchtune builds by the same function.

    Fields:
        package: holds the builder, `name`, and the one with adapters, `lora_` and `name`.
        checkpoint: torchtune's name of the checkpoints' form.
        model_type: `model_type` of the checkpoints' config.json.
        norm_eps, rope_base: epsilon of the RMS norms, and base of the rotary frequencies.
        rope_factor: by which Llama 3.1 and 3.2 stretch the lower rotary frequencies; None: they do
            not.
        quantizes_all: with NF4, linears without an adapter are quantised too.
        qkv_bias: the query, key and value projections have a bias.
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
    own = FAMILIES[type(model)]
    return LLAMA3_2 if own is LLAMA3 and model.tied else own


def builder_arguments(model: DecoderConfig) -> dict[str, Any]:
    """What the builders of torchtune take, beside adapters and the vocabulary."""
    own = family(model)
    arguments = {key: getattr(model, key) for key in SIZES} | {
        "norm_eps": own.norm_eps,
        "rope_base": own.rope_base,
    }
    if own.rope_factor is not None:
        arguments["scale_factor"] = own.rope_factor
    return arguments | ({"tie_word_embeddings": model.tied} if own is QWEN2_5 else {})


def linears(model: DecoderConfig) -> dict[str, tuple[int, int]]:
    """The weights of the linears of one layer, (out, in), as torchtune names them."""
    width = model.embed_dim
    inner = model.intermediate_dim
    narrow = model.num_kv_heads * model.head_dim
    attention = ((width, width), (narrow, width), (narrow, width), (width, width))
    return dict(
        zip(LINEARS, (*attention, (inner, width), (width, inner), (inner, width)), strict=True)
    )


def tensors(model: DecoderConfig, vocabulary: int) -> dict[str, Shape]:
    """All tensors of the model without adapters, as torchtune names them.
    Shared embeddings count once.
    """
    width = model.embed_dim
    has_bias = family(model).qkv_bias
    shapes: dict[str, Shape] = {"tok_embeddings.weight": (vocabulary, width)}
    for layer in range(model.num_layers):
        for name, shape in linears(model).items():
            shapes[f"layers.{layer}.{name}.weight"] = shape
            if has_bias and name in ("attn.q_proj", "attn.k_proj", "attn.v_proj"):
                shapes[f"layers.{layer}.{name}.bias"] = shape[:1]
        shapes[f"layers.{layer}.sa_norm.scale"] = shapes[f"layers.{layer}.mlp_norm.scale"] = (
            width,
        )
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
    """Floating-point operations that training on a token takes.

    2 a weight for each pass over it (Kaplan et al., 2020; the embedding is looked up, biases are
    left out), and 4 L d s for the attention of a forward pass, not halved for causality (PaLM,
    appendix B). A backward pass costs twice a forward one, less the gradients of frozen weights.
    Recomputed activations are no work of the model's.

    Args:
        length: mean over the tokens of their row's length, in tokens, padding included.
        adapters: parameters of the adapters; None where all weights are trained.
        reference_passes: forward passes of a frozen reference model a step.
    """
    weights = (
        model.num_layers * sum(a * b for a, b in linears(model).values())
        + vocabulary * model.embed_dim
    )
    return flops(weights, model.num_layers * model.embed_dim, length, adapters, reference_passes)


def flops(
    weights: int, width: int, length: float, adapters: int | None, reference_passes: int
) -> float:
    """The same by the number of weights that products of matrices read,
    and the width of all layers' attention.
    """
    attention = 4 * width * length
    trained = 6 * weights if adapters is None else 4 * weights + 6 * adapters
    return trained + 3 * attention + reference_passes * (2 * weights + attention)


def stored_shapes(place: str, key: str) -> dict[str, Shape]:
    """The tensors that a folder's safetensors hold, by their files' headers. Refuses (ValueError)
    one without; `key` says where the folder is.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(place).expanduser()
    remedy = "give a folder with *.safetensors and config.json, or `model.weights=random`"
    if not folder.is_dir():
        raise Refusal(
            "llm.weights-absent", f"{key}={place}: no such folder; {remedy}", key=key, value=place
        )
    files = sorted(folder.glob("*.safetensors"))
    shapes = dict[str, Shape]()
    if not files and any(folder.glob("*.bin")):
        raise Refusal(
            "llm.weights-pickled",
            f"{key}={place}: its weights are pickled, so that reading them could run any program; "
            "save them as safetensors (model.save_pretrained)",
            key=key,
            value=place,
        )
    if not files:
        raise Refusal(
            "llm.no-weights", f"{key}={place}: holds no weights; {remedy}", key=key, value=place
        )
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            raise Refusal(
                "llm.weights-cut-off",
                f"{key}={place}: {path.name} is cut off, or not a safetensors file; fetch it again",
                key=key,
                value=place,
                file=path.name,
            ) from None
    return shapes


def check_weights(model: DecoderConfig, vocabulary: int) -> None:
    """Refuse (ValueError) a checkpoint folder that does not hold this model's weights. What
    transformers cannot read of a folder of `model=hf` it says itself, in the ranks.
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
    # computed anew; the embedding once more, which torchtune leaves out of a Qwen's weights alone
    ignored = ("rotary_emb.inv_freq", *(["lm_head.weight"] if family(model) is QWEN2_5 else []))
    unknown = [name for name in shapes if name not in expected and not name.endswith(ignored)]
    if unknown:
        raise Refusal(
            "llm.weights-unknown-tensor",
            f"{key}={model.weights}: has a tensor {unknown[0]}, which model={model.name} does not"
            " have; choose the model that fits, or another folder",
            key=key,
            value=model.weights,
            tensor=unknown[0],
            model=model.name,
        )
    for name, shape in expected.items():
        if name not in shapes:
            raise Refusal(
                "llm.weights-missing-tensor",
                f"{key}={model.weights}: has no tensor {name}; fetch the whole folder, not a"
                " quantised one",
                key=key,
                value=model.weights,
                tensor=name,
            )
        if shapes[name] != shape:
            raise Refusal(
                "llm.weights-shape",
                f"{key}={model.weights}: {name} has shape {shapes[name]}, not {shape} as"
                f" model={model.name}; choose the model that fits, or another folder",
                key=key,
                value=model.weights,
                tensor=name,
                shape=list(shapes[name]),
                expected=list(shape),
            )


def _check_configuration(model: DecoderConfig, vocabulary: int) -> None:
    """Refuse (ValueError) a checkpoint folder whose config.json is another decoder's."""
    key = "model.weights"
    folder = Path(model.weights).expanduser()
    try:
        values = json.loads((folder / "config.json").read_text())
        own = _facts(values)
    except (OSError, ValueError, AttributeError):
        raise Refusal(
            "llm.weights-no-config",
            f"{key}={model.weights}: has no complete config.json; fetch the whole folder",
            key=key,
            value=model.weights,
        ) from None
    for name, value in expected_facts(model, vocabulary).items():
        if own[name] != value:
            raise Refusal(
                "llm.weights-of-another-model",
                f"{key}={model.weights}: config.json says {name} {own[name]}, not {value} as"
                f" model={model.name}; choose the model that fits, or another folder",
                key=key,
                value=model.weights,
                name=name,
                stored=own[name],
                expected=value,
                model=model.name,
            )


# Of config.json, what changes a decoder's answers, with transformers' values where a file has none
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


def _facts(values: dict[str, Any]) -> dict[str, Any]:
    """The facts of a config.json that decide a decoder's answers. Its rotary part is in
    `rope_parameters`, or before transformers 5 in `rope_theta` and `rope_scaling`,
    whose `rope_type` was once `type`.
    """
    rope = {"rope_theta": values.get("rope_theta", ROPE_DEFAULTS["rope_theta"])}
    rope |= values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope.setdefault("rope_type", rope.get("type", "default"))
    own = {name: values.get(name, default) for name, default in HUGGING_FACE_DEFAULTS.items()}
    return own | {name: rope.get(name, default) for name, default in ROPE_DEFAULTS.items()}


def expected_facts(model: DecoderConfig, vocabulary: int) -> dict[str, Any]:
    """The same of a decoder that torchtune builds."""
    own = family(model)
    stretched = {
        "rope_type": "llama3",
        "factor": own.rope_factor,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
    }
    stretched["original_max_position_embeddings"] = 8192
    return {
        **HUGGING_FACE_DEFAULTS,
        "model_type": own.model_type,
        "hidden_size": model.embed_dim,
        "intermediate_size": model.intermediate_dim,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": model.tied,
        "rms_norm_eps": own.norm_eps,
        **ROPE_DEFAULTS,
        "rope_theta": own.rope_base,
        **(stretched if own.rope_factor is not None else {}),
    }


def hugging_face_config(model: DecoderConfig, vocabulary: int) -> dict[str, Any]:
    """transformers' configuration of the same decoder."""
    facts = expected_facts(model, vocabulary)
    rope = {name: facts.pop(name) for name in ROPE_DEFAULTS}
    known = {name: value for name, value in rope.items() if value is not None}
    return facts | {"rope_parameters": known, "max_position_embeddings": model.max_seq_len}


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


def hugging_face_name(name: str, adapter: str = "") -> str:
    """Hugging Face's name of one of torchtune's tensors; of an adapter's,
    PEFT's below its own prefix.

    Args:
        adapter: what PEFT has after `lora_A` in a model in memory, as ".default";
            nothing in a file.
    """
    of_adapter = re.search(r"\.lora_([ab])\.weight$", name)
    if of_adapter is not None:
        linear = hugging_face_name(name[: of_adapter.start()] + ".weight")
        return f"{linear.removesuffix('weight')}lora_{of_adapter[1].upper()}{adapter}.weight"
    if name in HUGGING_FACE:
        return HUGGING_FACE[name]
    _, layer, part = name.split(".", 2)
    module, _, kind = part.rpartition(".")
    own = HUGGING_FACE.get(module, module.replace("attn.", "self_attn."))
    return f"model.layers.{layer}.{own}.{'bias' if kind == 'bias' else 'weight'}"


def permuted(name: str, weight: "torch.Tensor", model: DecoderConfig) -> "torch.Tensor":
    """A weight (out, in) of torchtune's, with the rows of each head as transformers has them.

    torchtune's rotary embedding turns pairs of neighbours, that of transformers a head's first half
    with its second. torchtune has Qwen's as transformers. Of an adapter the second matrix (out,
    rank) has the rows of the heads.
    """
    has_heads = re.search(r"\.[qk]_proj\.(lora_b\.)?weight$", name) is not None
    if family(model) is QWEN2_5 or not has_heads:
        return weight
    pairs = weight.view(-1, model.head_dim // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
