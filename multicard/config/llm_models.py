"""The decoders that `tune_llm.py` tunes: their sizes, or the folder that has them.

Does not import torch.
"""

import re
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any, Optional

from omegaconf import MISSING

from multicard.config.keys import Group, check_bounds, key, option_name
from multicard.config.roles import MODEL_SIZE, Role
from multicard.messages import Refusal

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # The name of a model on Hugging Face's hub.


@dataclass
class DecoderConfig(Group):
    """The sizes of a decoder."""

    name: str = option_name()
    weights: str = key(
        "random",
        "random, or a folder with safetensors and config.json, as on the Hugging Face hub",
        Role.identity | Role.work | Role.content | Role.learning | Role.speed,
        shown=3,
    )
    vocab_size: Optional[int] = key(
        None,
        "rows of the embedding; null: as many as the tokenizer needs",
        MODEL_SIZE,
    )
    num_layers: int = key(MISSING, "number of transformer layers", MODEL_SIZE, least=1)
    num_heads: int = key(MISSING, "number of query heads", MODEL_SIZE, least=1)
    num_kv_heads: int = key(
        MISSING,
        "number of key and value heads; must divide model.num_heads",
        MODEL_SIZE,
        least=1,
    )
    embed_dim: int = key(MISSING, "width of a layer", MODEL_SIZE, least=1)
    intermediate_dim: int = key(MISSING, "width within the MLP", MODEL_SIZE, least=1)
    max_seq_len: int = key(
        MISSING,
        "longest sequence that the model accepts, in tokens",
        MODEL_SIZE,
        least=1,
    )
    tied: bool = key(
        False,
        "share the embedding with the output; makes a Llama a Llama 3.2",
        MODEL_SIZE,
    )

    def __post_init__(self) -> None:
        check_bounds(self, "model.")  # The values below are divisors.
        heads = self.num_heads
        groups = self.num_kv_heads
        width = self.embed_dim
        if width % (2 * heads) != 0:
            raise Refusal(
                "config.model-heads",
                f"model.num_heads={heads}: must split model.embed_dim={width} into heads of an even"
                " width",
                key="model.num_heads",
                value=heads,
                width=width,
            )
        if heads % groups != 0:
            raise Refusal(
                "config.model-kv-heads",
                f"model.num_kv_heads={groups}: must divide model.num_heads={heads}",
                key="model.num_kv_heads",
                value=groups,
                heads=heads,
            )

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def folder(self) -> str | None:
        """The folder of the weights; None if they are random."""
        return None if self.weights == "random" else self.weights


@dataclass
class LlamaConfig(DecoderConfig):
    """A Llama 3, or a Llama 3.2, which is `tied` and scales the rotary frequencies by 32."""


@dataclass
class Llama31Config(DecoderConfig):
    """A Llama 3.1, which scales the rotary frequencies by 8."""


@dataclass
class Qwen25Config(DecoderConfig):
    """A Qwen 2.5. Its query, key and value projections have a bias."""


READ = "read from config.json; leave it out"


@dataclass
class HfConfig(DecoderConfig):
    """Any causal language model that transformers knows, with its own tokenizer.

    The sizes are read from its config.json.
    """

    path: Optional[str] = key(
        None,
        "folder with config.json, tokenizer.json and, unless model.weights=random, weights",
        Role.identity | Role.work | Role.content | Role.learning | Role.memory | Role.speed,
    )
    weights: str = key(
        "own",
        "own: the weights in the folder; random: built from its config.json only",
        Role.identity | Role.work | Role.content | Role.learning | Role.speed,
        shown=3,
    )
    num_layers: int = key(0, READ, MODEL_SIZE)
    num_heads: int = key(0, READ, MODEL_SIZE)
    num_kv_heads: int = key(0, READ, MODEL_SIZE)
    embed_dim: int = key(0, READ, MODEL_SIZE)
    intermediate_dim: int = key(0, READ, MODEL_SIZE)
    max_seq_len: int = key(0, READ, MODEL_SIZE)

    def __post_init__(self) -> None:
        if self.path is None:
            raise Refusal(
                "config.hf-path-missing",
                "model.path is not set: give the folder of a model in Hugging Face's format,"
                " `model.path=FOLDER`",
                key="model.path",
            )
        if self.weights not in ("own", "random"):
            raise Refusal(
                "config.hf-weights",
                f"model.weights={self.weights}: model=hf has only `model.weights=own` and"
                " `model.weights=random`",
                key="model.weights",
                value=self.weights,
            )
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            remedy = (
                "give the folder of a causal language model, as"
                " `hf download OWNER/NAME --local-dir FOLDER` writes it"
            )
            if HUB_NAME.fullmatch(self.path):
                own_name = self.path.partition("/")[2]
                remedy = (
                    f"download it, as `hf download {self.path} --local-dir {own_name}`, and use"
                    f" `model.path={own_name}`"
                )
            raise Refusal(
                "config.hf-no-folder",
                f"model.path={self.path}: no such folder; {remedy}",
                key="model.path",
                value=self.path,
            )
        try:
            values = loads((folder / "config.json").read_text())
            values = values.get("text_config") or values
            sizes = {size: _first_value(values, names) for size, names in HF_SIZES.items()}
        except (OSError, ValueError, AttributeError):
            remedy = "give the folder of a causal language model"
            if (folder / "adapter_config.json").is_file():
                remedy = "merge its adapter into the base (PEFT's merge_and_unload), and give that"
            raise Refusal(
                "config.hf-no-config",
                f"model.path={self.path}: its config.json is missing or damaged; {remedy}",
                key="model.path",
                value=self.path,
            ) from None
        # The number is absent if each query head has its own key and value head.
        sizes["num_kv_heads"] = sizes["num_kv_heads"] or sizes["num_heads"]
        for name, value in sizes.items():
            is_size = isinstance(value, int) and value > 0
            is_absent = value is None and name in HF_OPTIONAL
            if not is_size and not is_absent:
                raise Refusal(
                    "config.hf-no-size",
                    f"model.path={self.path}: {HF_SIZES[name][0]}={value} in config.json is not a"
                    " size; give the folder of a causal language model",
                    key="model.path",
                    value=self.path,
                    name=HF_SIZES[name][0],
                    size=value,
                )
            setattr(self, name, value or 0)
        self.tied = bool(values.get("tie_word_embeddings"))

    @property
    def folder(self) -> str | None:
        return self.path if self.weights == "own" else None


def _first_value(values: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first value under one of the names that is neither absent nor 0; else None."""
    for name in names:
        if values.get(name):
            return values[name]
    return None


HF_SIZES = {  # The keys of config.json, including the names in GPT-2, Bloom, MPT and XGLM.
    "vocab_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "num_kv_heads": ("num_key_value_heads",),
    "embed_dim": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "intermediate_dim": ("intermediate_size", "n_inner"),
    "max_seq_len": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
# Keys that config.json may lack: sizes that follow from others, the heads of models without
# attention, and the maximum length of models without one.
HF_OPTIONAL = ("intermediate_dim", "num_heads", "num_kv_heads", "max_seq_len")


MODELS: dict[str, type[DecoderConfig]] = {
    "llama3_tiny": LlamaConfig,
    "llama3_2_1b": LlamaConfig,
    "llama3_2_3b": LlamaConfig,
    "llama3_8b": LlamaConfig,
    "llama3_1_8b": Llama31Config,
    "qwen2_5_tiny": Qwen25Config,
    "qwen2_5_0_5b": Qwen25Config,
    "qwen2_5_7b": Qwen25Config,
    "hf": HfConfig,
}
