"""The schema of `tune_llm.py`: as config.py, without torch.

What depends on the machine, the files or the rows is checked in `multicard/llm/checks.py`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Optional

from omegaconf import MISSING

from multicard.config.base import PROFILES, PrecisionConfig, RunConfig
from multicard.config.keys import key, require

PRECISIONS = ("fp32", "bf16")


class MethodName(StrEnum):
    lora = "lora"
    qlora = "qlora"
    dpo = "dpo"
    qat = "qat"
    full = "full"


class TemplateName(StrEnum):
    instruct = "instruct"
    grammar = "grammar"
    summarize = "summarize"


class TextName(StrEnum):
    synthetic = "synthetic"
    alpaca_cleaned = "alpaca_cleaned"
    grammar = "grammar"
    samsum = "samsum"
    slimorca = "slimorca"
    preference = "preference"


class LlamaName(StrEnum):
    llama3_tiny = "llama3_tiny"
    llama3_8b = "llama3_8b"
    llama3_1b = "llama3_1b"
    llama3_3b = "llama3_3b"


class TokenizerName(StrEnum):
    embedded = "embedded"
    llama3 = "llama3"


class Recipe(StrEnum):
    auto = "auto"
    single_device = "single_device"
    distributed = "distributed"


@dataclass
class MethodConfig:
    """A tuning method and the torchtune recipes that run it (`single_device`: null where torchtune has none)."""

    name: MethodName = MISSING
    single_device: Optional[str] = key(None, "torchtune's recipe for one GPU; null where there is none")
    distributed: str = key(MISSING, "torchtune's recipe for several GPUs")


@dataclass
class LoraConfig(MethodConfig):
    """Low-rank adapters (Hu et al., 2021) beside the named linears; `quantize_base` holds the others in NF4."""

    lora_rank: int = key(8, "rank of the adapters")
    lora_alpha: float = key(16.0, "adapters are scaled by lora_alpha / lora_rank")
    lora_dropout: float = key(0.0, "share of inputs that an adapter drops, in [0, 1)")
    lora_attn_modules: list[str] = key(list, "attention layers with adapters: q_proj, k_proj, v_proj, output_proj")
    apply_lora_to_mlp: bool = key(True, "adapters in the MLP layers too")
    apply_lora_to_output: bool = key(False, "an adapter in the output layer too")

    def __post_init__(self) -> None:
        require(self.lora_rank >= 1, f"method.lora_rank={self.lora_rank}: must be 1 or more")
        require(self.lora_alpha > 0, f"method.lora_alpha={self.lora_alpha}: must be above 0")
        in_range = 0 <= self.lora_dropout < 1
        require(in_range, f"method.lora_dropout={self.lora_dropout}: is a share; give a value in [0, 1)")
        known = ("q_proj", "k_proj", "v_proj", "output_proj")
        modules = self.lora_attn_modules
        works = bool(modules) and set(modules) <= set(known)
        require(works, f"method.lora_attn_modules={modules}: name one or more of {', '.join(known)}")


@dataclass
class DpoConfig(LoraConfig):
    """Direct preference optimisation (Rafailov et al., 2023) of the adapters; the base model is the reference."""

    beta: float = key(0.1, "how strongly the tuned model is held to the base model")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta > 0, f"method.beta={self.beta}: must be above 0")


@dataclass
class QatConfig(MethodConfig):
    """All weights, with int4 weights in groups of `groupsize` and int8 activations simulated in each linear."""

    groupsize: int = key(256, "weights that share a scale; must divide the width of every linear layer")

    def __post_init__(self) -> None:
        require(self.groupsize >= 1, f"method.groupsize={self.groupsize}: must be 1 or more")


@dataclass
class TemplateConfig:
    name: TemplateName = MISSING


@dataclass
class TextConfig:
    """A data set of text."""

    name: TextName = MISSING


@dataclass
class StoredTextConfig(TextConfig):
    """Rows of the Hugging Face hub (`source`) or of a local file (`data_files`)."""

    source: Optional[str] = key(None, "name on the Hugging Face hub")
    data_files: Optional[str] = key(None, "local .json, .jsonl or .parquet file instead of the hub")
    rows: Optional[int] = key(None, "a random sample of so many rows, by seed; null: all")

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, f"dataset.rows={self.rows}: must be 1 or more, or null for all")


@dataclass
class SyntheticConfig(TextConfig):
    """Rows made from the seed: no file, no download."""

    rows: int = key(500, "how many rows to make")

    def __post_init__(self) -> None:
        require(self.rows >= 1, f"dataset.rows={self.rows}: must be 1 or more")


@dataclass
class LlamaConfig:
    """Sizes of a Llama 3 decoder. `vocab_size` null follows the tokenizer; `tied` shares the embeddings with the output
    and stretches the rotary frequencies, as Llama 3.2 does."""

    name: LlamaName = MISSING
    weights: str = key("random", "random, or a folder with Hugging Face's safetensors or Meta's format")
    vocab_size: Optional[int] = key(None, "rows of the embedding; null follows the tokenizer")
    num_layers: int = key(MISSING, "transformer layers")
    num_heads: int = key(MISSING, "query heads")
    num_kv_heads: int = key(MISSING, "key and value heads; must divide model.num_heads")
    embed_dim: int = key(MISSING, "width of a layer")
    intermediate_dim: int = key(MISSING, "width within the MLP")
    max_seq_len: int = key(MISSING, "longest sequence that the model takes, in tokens")
    tied: bool = key(False, "share the embedding with the output, as Llama 3.2 does")

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len"):
            require(getattr(self, name) >= 1, f"model.{name}={getattr(self, name)}: must be 1 or more")
        heads, width = self.num_heads, self.embed_dim
        fits = width % heads == 0 and (width // heads) % 2 == 0
        require(fits, f"model.num_heads={heads}: must split model.embed_dim={width} into heads of an even width")
        groups = self.num_kv_heads
        require(heads % groups == 0, f"model.num_kv_heads={groups}: must divide model.num_heads={heads}")

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


@dataclass
class TokenizerConfig:
    name: TokenizerName = MISSING


@dataclass
class EmbeddedTokenizerConfig(TokenizerConfig):
    """A byte-level BPE trained on the run's own text; `vocab_size` counts the merges and bytes, not special tokens."""

    vocab_size: int = key(2048, "bytes and merges, learnt from the run's own text, without special tokens")

    def __post_init__(self) -> None:
        works = self.vocab_size >= 256
        require(works, f"tokenizer.vocab_size={self.vocab_size}: must be 256 or more, one for each byte")


@dataclass
class Llama3TokenizerConfig(TokenizerConfig):
    """Llama 3's own tokenizer, from its `tokenizer.model`."""

    path: Optional[str] = key(None, "file tokenizer.model of Llama 3")

    def __post_init__(self) -> None:
        require(self.path is not None, "tokenizer.path is not set: give the path of Llama 3's tokenizer.model")


@dataclass
class LlmConfig(RunConfig):
    """The configuration of `tune_llm.py`, once composed. `warmup_steps` are the learning rate's."""

    method: MethodConfig = key(MISSING, "how the model is tuned")
    template: Optional[TemplateConfig] = key(None, "prompt that a row is put into; null is the data set's own")
    dataset: TextConfig = key(MISSING, "rows that are tuned on")
    model: LlamaConfig = key(MISSING, "what is tuned")
    tokenizer: TokenizerConfig = key(MISSING, "what turns text into tokens")
    precision: PrecisionConfig = key(MISSING, "number format of weights, activations and gradients")
    recipe: Recipe = key(
        Recipe.auto, "single_device, distributed, or auto: single_device on one GPU where there is one"
    )
    weight_decay: float = key(0.01, "AdamW's weight decay")
    warmup_steps: Optional[int] = key(
        None, "steps in which the learning rate rises; null takes 100, or a tenth of a run of less than 1000 steps"
    )
    skip_steps: int = key(5, "first steps that iteration_s and tokens_per_s leave out; they are recorded and marked")
    max_steps: Optional[int] = key(None, "stop an epoch after so many steps; null: all")
    gradient_accumulation_steps: int = key(1, "batches whose gradients are summed for one step")
    activation_checkpointing: bool = key(False, "recompute activations in the backward pass, to save memory")
    compile: bool = key(False, "torch.compile the model")
    packed: bool = key(False, "put rows one after the other into sequences of max_seq_len")
    max_seq_len: Optional[int] = key(None, "cut longer rows, in tokens; null: whole rows")
    optimizer_in_bwd: bool = key(False, "method=full or qat: update each weight as soon as its gradient is there")

    def __post_init__(self) -> None:
        precision = self.precision.name
        options = ", ".join(PRECISIONS)
        works = precision in PRECISIONS
        require(works, f"precision={precision}: method={self.method.name} has no such precision; it has {options}")
        super().__post_init__()
        for name in ("max_steps", "max_seq_len", "gradient_accumulation_steps"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}={value}: must be 1 or more")
        for name in ("skip_steps", "warmup_steps", "weight_decay"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"{name}={value}: must be 0 or more")
        _check_method(self)
        _check_template(self)

    @property
    def recipe_name(self) -> str:
        """The file of torchtune's recipe: one GPU takes the single-device one where there is one."""
        alone = self.gpus * self.nodes == 1 and self.recipe is not Recipe.distributed
        single = self.method.single_device
        return single if alone and single is not None else self.method.distributed

    @property
    def distributed(self) -> bool:
        return self.recipe_name == self.method.distributed

    @property
    def template_name(self) -> TemplateName | None:
        """The template in force: the data set's own where none is given, which for chat rows is none at all."""
        return FITS[self.dataset.name][0] if self.template is None else self.template.name


# The templates that each data set can be read by, its own first. None: the rows are conversations already.
FITS: dict[TextName, tuple[TemplateName | None, ...]] = {
    TextName.synthetic: (TemplateName.instruct, TemplateName.grammar, TemplateName.summarize),
    TextName.alpaca_cleaned: (TemplateName.instruct,),
    TextName.grammar: (TemplateName.grammar,),
    TextName.samsum: (TemplateName.summarize,),
    TextName.slimorca: (None,),
    TextName.preference: (None, *TemplateName),
}


def _check_method(config: LlmConfig) -> None:
    """What torchtune's recipe refuses, or would pass over in silence."""
    method, name = config.method, config.method.name
    alone = config.gpus * config.nodes == 1
    single = config.recipe is Recipe.single_device
    require(alone or not single, f"recipe=single_device: is for one GPU; use gpus=1 (it is {config.gpus})")
    has = method.single_device is not None
    require(has or not single, f"recipe=single_device: torchtune has none for method={name}; use recipe=auto")
    breaks = name is MethodName.qlora and alone and config.distributed
    remedy = "use recipe=auto, or gpus=2"
    require(not breaks, f"recipe=distributed: torchtune's FSDP cannot hold method=qlora's NF4 weights alone; {remedy}")

    compiles = name is not MethodName.qat and not (name is MethodName.dpo and config.distributed)
    require(compiles or not config.compile, f"compile=true: method={name}'s recipe does not compile; use compile=false")
    packs = name is not MethodName.dpo
    require(packs or not config.packed, "packed=true: method=dpo reads pairs, which cannot be packed; use packed=false")
    bounded = config.max_seq_len is not None or not config.packed
    require(bounded, "packed=true: needs max_seq_len, the length to pack to (as max_seq_len=512)")
    in_bwd = name in (MethodName.full, MethodName.qat)
    remedy = "use optimizer_in_bwd=false"
    whole = in_bwd or not config.optimizer_in_bwd
    require(whole, f"optimizer_in_bwd=true: method={name}'s recipe has no such option; {remedy}")
    once = config.gradient_accumulation_steps == 1 or not config.optimizer_in_bwd
    require(once, f"gradient_accumulation_steps={config.gradient_accumulation_steps}: must be 1; or {remedy}")
    scheduled = name is not MethodName.qat or config.warmup_steps is None
    remedy = "leave warmup_steps at null"
    require(scheduled, f"warmup_steps={config.warmup_steps}: method=qat's recipe keeps its learning rate; {remedy}")

    longest = config.max_seq_len or 1
    limit = config.model.max_seq_len
    require(longest <= limit, f"max_seq_len={longest}: is above model.max_seq_len={limit}; use {limit} or less")


def _check_template(config: LlmConfig) -> None:
    method, data = config.method.name, config.dataset.name
    pairs = data in (TextName.preference, TextName.synthetic)
    remedy = "use dataset=preference or dataset=synthetic"
    dpo = method is MethodName.dpo
    require(pairs or not dpo, f"dataset={data}: method=dpo needs chosen and rejected answers; {remedy}")
    single = data is not TextName.preference or dpo
    remedy = "use method=dpo, or another dataset"
    require(single, f"dataset=preference: holds pairs, which method={method} cannot read; {remedy}")
    fits = FITS[data]
    names = ", ".join(f"template={name}" for name in fits if name is not None) or "no template (template=null)"
    found = config.template_name
    require(found in fits, f"template={found}: does not fit dataset={data}; use {names}")


SCHEMAS: dict[str, dict[str, type]] = {
    "method": {
        MethodName.lora: LoraConfig,
        MethodName.qlora: LoraConfig,
        MethodName.dpo: DpoConfig,
        MethodName.qat: QatConfig,
        MethodName.full: MethodConfig,
    },
    "template": dict.fromkeys(TemplateName, TemplateConfig),
    "dataset": {name: SyntheticConfig if name is TextName.synthetic else StoredTextConfig for name in TextName},
    "model": dict.fromkeys(LlamaName, LlamaConfig),
    "tokenizer": {
        TokenizerName.embedded: EmbeddedTokenizerConfig,
        TokenizerName.llama3: Llama3TokenizerConfig,
    },
    "precision": dict.fromkeys(PRECISIONS, PrecisionConfig),
    "profile": PROFILES,
}
