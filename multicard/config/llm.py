"""The schema of `tune_llm.py`: as config.py, without torch.

What depends on the machine, the files or the rows is checked in `multicard/llm/checks.py`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Optional

from omegaconf import MISSING

from multicard.config.base import PROFILES, PrecisionConfig, RunConfig, own, require

ENTRY = "tune_llm.py"
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


class ExperimentName(StrEnum):
    datasets = "datasets"
    table5 = "table5"
    llm_metrics = "llm_metrics"
    templates = "templates"
    template_scaling = "template_scaling"
    llm_api_share = "llm_api_share"
    peak_memory = "peak_memory"
    transfer_volume = "transfer_volume"


@dataclass
class MethodConfig:
    """A tuning method and the torchtune recipes that run it (`single_device`: null where torchtune has none)."""

    name: MethodName = MISSING
    single_device: Optional[str] = None
    distributed: str = MISSING


@dataclass
class LoraConfig(MethodConfig):
    """Low-rank adapters (Hu et al., 2021) beside the named linears; `quantize_base` holds the others in NF4."""

    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_dropout: float = 0.0
    lora_attn_modules: list[str] = field(default_factory=list)
    apply_lora_to_mlp: bool = True
    apply_lora_to_output: bool = False

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

    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta > 0, f"method.beta={self.beta}: must be above 0")


@dataclass
class QatConfig(MethodConfig):
    """All weights, with int4 weights in groups of `groupsize` and int8 activations simulated in each linear."""

    groupsize: int = 256

    def __post_init__(self) -> None:
        require(self.groupsize >= 1, f"method.groupsize={self.groupsize}: must be 1 or more")


@dataclass
class TemplateConfig:
    name: TemplateName = MISSING


@dataclass
class TextConfig:
    """A data set of text: made here, from the hub (`source`), or from a local file (`data_files`)."""

    name: TextName = MISSING
    source: Optional[str] = None
    data_files: Optional[str] = None
    rows: Optional[int] = None

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 1, f"dataset.rows={self.rows}: must be 1 or more, or null for all")


@dataclass
class SyntheticConfig:
    """Rows made from the seed: no file, no download."""

    name: TextName = MISSING
    rows: int = 500

    def __post_init__(self) -> None:
        require(self.rows >= 1, f"dataset.rows={self.rows}: must be 1 or more")


@dataclass
class LlamaConfig:
    """Sizes of a Llama 3 decoder. `vocab_size` null follows the tokenizer; `tied` shares the embeddings with the output
    and stretches the rotary frequencies, as Llama 3.2 does."""

    name: LlamaName = MISSING
    weights: str = "random"
    vocab_size: Optional[int] = None
    num_layers: int = MISSING
    num_heads: int = MISSING
    num_kv_heads: int = MISSING
    embed_dim: int = MISSING
    intermediate_dim: int = MISSING
    max_seq_len: int = MISSING
    tied: bool = False

    def __post_init__(self) -> None:
        for key in ("num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len"):
            require(getattr(self, key) >= 1, f"model.{key}={getattr(self, key)}: must be 1 or more")
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

    vocab_size: int = 2048

    def __post_init__(self) -> None:
        works = self.vocab_size >= 256
        require(works, f"tokenizer.vocab_size={self.vocab_size}: must be 256 or more, one for each byte")


@dataclass
class Llama3TokenizerConfig(TokenizerConfig):
    """Llama 3's own tokenizer, from its `tokenizer.model`."""

    path: Optional[str] = None

    def __post_init__(self) -> None:
        require(self.path is not None, "tokenizer.path is not set: give the path of Llama 3's tokenizer.model")


if TYPE_CHECKING:
    Dataset = TextConfig | SyntheticConfig
    Model = LlamaConfig
else:
    Dataset = Model = Any


@dataclass
class LlmConfig(RunConfig):
    """The configuration of `tune_llm.py`, once composed. `warmup_steps` are the learning rate's."""

    method: MethodConfig = MISSING
    template: Optional[TemplateConfig] = None
    dataset: Dataset = MISSING
    model: Model = MISSING
    tokenizer: TokenizerConfig = MISSING
    precision: PrecisionConfig = MISSING
    recipe: Recipe = Recipe.auto
    weight_decay: float = 0.01
    warmup_steps: Optional[int] = None
    skip_steps: int = 5
    max_steps: Optional[int] = None
    gradient_accumulation_steps: int = 1
    activation_checkpointing: bool = False
    compile: bool = False
    packed: bool = False
    max_seq_len: Optional[int] = None
    optimizer_in_bwd: bool = False

    def __post_init__(self) -> None:
        own("dataset", self.dataset, TextConfig | SyntheticConfig, ENTRY)
        own("model", self.model, LlamaConfig, ENTRY)
        precision = self.precision.name
        options = ", ".join(PRECISIONS)
        works = precision in PRECISIONS
        require(works, f"precision={precision}: method={self.method.name} has no such precision; it has {options}")
        super().__post_init__()
        for key in ("max_steps", "max_seq_len", "gradient_accumulation_steps"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"{key}={value}: must be 1 or more")
        for key in ("skip_steps", "warmup_steps", "weight_decay"):
            value = getattr(self, key)
            require(value is None or value >= 0, f"{key}={value}: must be 0 or more")
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
    "dataset": {name: SyntheticConfig if name is TextName.synthetic else TextConfig for name in TextName},
    "model": dict.fromkeys(LlamaName, LlamaConfig),
    "tokenizer": {
        TokenizerName.embedded: EmbeddedTokenizerConfig,
        TokenizerName.llama3: Llama3TokenizerConfig,
    },
    "profile": PROFILES,
}
