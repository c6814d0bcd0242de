"""The schema of `tune_llm.py`, without torch.

What depends on the method, the template, the machine, the files or the rows is checked in `multicard.llm.preflight`.
"""

from dataclasses import dataclass
from enum import StrEnum
from json import loads
from pathlib import Path
from typing import Any, ClassVar, Optional

from omegaconf import MISSING

from multicard.config.base import Option, PrecisionConfig, TrainingConfig
from multicard.config.keys import Group, Tries, check_bounds, key, option_name
from multicard.config.roles import DATA_FILES, MODEL_SIZE, WAY_TO_TRAIN, Role
from multicard.config.saving import TuningSave, require_whole_training
from multicard.messages import Refusal

PRECISIONS = ("fp32", "bf16")
PAPERS_WARMUP = 100  # steps of the learning rate's warm-up in both papers, as in torchtune's own configurations
SHARDABLE = ("tok_embeddings", "output")  # what torchtune's own configurations shard apart from the layers
HELD_OUT = 0.1  # share of one's own rows that is held out where the command does not say
BY_DEFAULT = "auto"  # the `dataset.split` of a command that does not say


Engine = StrEnum("Engine", ["torchtune", "trl"])
Sharding = StrEnum("Sharding", ["fsdp", "ddp"])
Recipe = StrEnum("Recipe", ["auto", "single_device", "distributed"])
ChatLoss = StrEnum("ChatLoss", ["answers", "all"])


@dataclass
class MethodConfig(Group):
    """A tuning method and the torchtune recipes that run it (`single_device`: null where torchtune has none).

    Methods with more options extend it: see `multicard.llm.methods`.
    """

    name: str = option_name()
    single_device: Optional[str] = key(
        None,
        "torchtune's recipe for one GPU; null where there is none",
        WAY_TO_TRAIN,
    )
    distributed: str = key(MISSING, "torchtune's recipe for several GPUs", WAY_TO_TRAIN)


@dataclass
class TextConfig(Option):
    """The keys of every set of texts.

    After `__post_init__`, `split` is a share in (0, 1), or None where no row is held out. `is_split_by_default`: the
    command does not say, so that sets of too few rows hold none out in place of a refusal.
    """

    split: Any = key(
        BY_DEFAULT,
        "share of dataset.rows to hold out and to measure the loss on, in (0, 1); 0 or null holds none out; "
        "auto: 0.1 of chat, preference and data_files, else none",
        Role.identity | Role.work | Role.length | Role.part | Role.learning,
        since=("rows", None),
    )

    def __post_init__(self) -> None:
        self.is_split_by_default = self.split == BY_DEFAULT
        if self.is_split_by_default:
            self.split = HELD_OUT if self.is_of_ones_own and not self.has_test_files else None
        is_number = isinstance(self.split, int | float) and not isinstance(self.split, bool)
        if self.split is not None and not (is_number and 0 <= self.split < 1):
            raise Refusal(
                "config.text-split",
                f"dataset.split={self.split}: is a share of the rows; give one in (0, 1), as `dataset.split=0.1`, "
                "or `dataset.split=0` to hold none out",
                key="dataset.split",
                value=str(self.split),
            )
        self.split = float(self.split) if self.split else None
        if self.split is not None and self.has_test_files:
            raise Refusal(
                "config.split-and-test-files",
                f"dataset.split={self.split}: dataset.test_files are held out already; leave one of them out, by "
                "`dataset.split=0` or `dataset.test_files=null`",
                key="dataset.split",
                value=self.split,
            )

    @property
    def is_of_ones_own(self) -> bool:
        """True of rows that are neither generated nor one of the papers' sets of the hub."""
        return False

    @property
    def has_test_files(self) -> bool:
        return False

    @property
    def holds_out(self) -> bool:
        """True where rows are held out, by either key."""
        return self.split is not None or self.has_test_files


@dataclass
class StoredTextConfig(TextConfig):
    """Rows of the Hugging Face hub (`source`) or of a local file (`data_files`)."""

    source: Optional[str] = key(
        None, "name on the Hugging Face hub", Role.identity | Role.work | Role.input | Role.learning | Role.speed
    )
    revision: Optional[str] = key(
        None,
        "branch, tag or commit there; null: the latest",
        Role.identity | Role.work | Role.learning | Role.speed,
        since=("source", None),
    )
    data_files: Any = key(
        None,
        "instead of the hub: .jsonl, .json, .csv, .tsv, .parquet or .arrow files: one, a list, a pattern or a folder",
        DATA_FILES,
    )
    test_files: Any = key(
        None,
        "files of rows to measure the loss on, beside those that are trained on; given as dataset.data_files",
        DATA_FILES,
        since=("data_files", None),
    )
    columns: dict[str, Optional[str]] = key(
        dict,
        "what the columns are called, as {instruction: question, output: answer}; null leaves a column out",
        Role.identity | Role.work | Role.input | Role.learning | Role.rows | Role.text | Role.speed,
        since=("data_files", {}),
    )
    rows: Optional[int] = key(
        None,
        "a random sample of so many rows, by seed, those held out by dataset.split among them; null: all",
        Role.identity | Role.work | Role.length | Role.part | Role.drawn | Role.learning,
        least=1,
        shown=6,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, files in (("dataset.data_files", self.data_files), ("dataset.test_files", self.test_files)):
            listed = files if isinstance(files, list) else [files]
            if files is not None and not (listed and all(isinstance(file, str) for file in listed)):
                raise Refusal(
                    "config.data-files",
                    f"{name}={files}: is no file; give one, or a list, as `{name}=[a.jsonl,b.jsonl]`",
                    key=name,
                    value=str(files),
                )

    @property
    def is_of_ones_own(self) -> bool:
        return self.data_files is not None or DATASETS[self.name].is_of_ones_own

    @property
    def has_test_files(self) -> bool:
        return self.test_files is not None


@dataclass
class ChatConfig(StoredTextConfig):
    """Conversations: `messages` of role and content, or ShareGPT's `conversations`."""

    loss: ChatLoss = key(
        ChatLoss.answers,
        "answers: loss on the assistant's turns alone; all: on every token",
        Role.identity | Role.work | Role.learning | Role.loss | Role.speed,
    )
    chat_template: Optional[str] = key(
        None,
        "a .jinja file or a folder with one; null: the model's own, or Llama 3's",
        Role.identity | Role.work | Role.learning | Role.speed,
    )
    skip_broken: bool = key(
        False,
        "leave out, and count, rows that are no conversation or that the template refuses",
        Role.identity | Role.work | Role.learning | Role.speed,
    )


@dataclass
class SyntheticConfig(TextConfig):
    """Rows generated from the seed: no file, no download."""

    rows: int = key(
        500,
        "how many rows to generate",
        Role.identity | Role.work | Role.length | Role.part | Role.drawn | Role.learning,
        least=1,
        shown=6,
    )


@dataclass
class DecoderConfig(Group):
    """Sizes of a decoder."""

    name: str = option_name()
    weights: str = key(
        "random",
        "random, or a folder with Hugging Face's safetensors and config.json",
        Role.identity | Role.work | Role.content | Role.learning | Role.speed,
        shown=3,
    )
    vocab_size: Optional[int] = key(
        None,
        "rows of the embedding; null follows the tokenizer",
        MODEL_SIZE,
    )
    num_layers: int = key(MISSING, "transformer layers", MODEL_SIZE, least=1)
    num_heads: int = key(MISSING, "query heads", MODEL_SIZE, least=1)
    num_kv_heads: int = key(
        MISSING,
        "key and value heads; must divide model.num_heads",
        MODEL_SIZE,
        least=1,
    )
    embed_dim: int = key(MISSING, "width of a layer", MODEL_SIZE, least=1)
    intermediate_dim: int = key(MISSING, "width within the MLP", MODEL_SIZE, least=1)
    max_seq_len: int = key(
        MISSING,
        "longest sequence that the model takes, in tokens",
        MODEL_SIZE,
        least=1,
    )
    tied: bool = key(
        False,
        "share the embedding with the output; of a Llama, makes it a Llama 3.2",
        MODEL_SIZE,
    )

    def __post_init__(self) -> None:
        check_bounds(self, "model.")  # divisors, here
        heads, groups, width = self.num_heads, self.num_kv_heads, self.embed_dim
        if width % (2 * heads) != 0:
            raise Refusal(
                "config.model-heads",
                f"model.num_heads={heads}: must split model.embed_dim={width} into heads of an even width",
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
        """The folder of its weights; None of random ones."""
        return None if self.weights == "random" else self.weights


@dataclass
class LlamaConfig(DecoderConfig):
    """A Llama 3, or a Llama 3.2, which is `tied` and stretches the rotary frequencies by 32."""


@dataclass
class Llama31Config(DecoderConfig):
    """A Llama 3.1, which stretches the rotary frequencies by 8."""


@dataclass
class Qwen25Config(DecoderConfig):
    """A Qwen 2.5: its query, key and value projections have a bias."""


READ = "of config.json: leave it out"


@dataclass
class HfConfig(DecoderConfig):
    """Any causal language model that transformers knows, with its own tokenizer; sizes are those of its config.json."""

    path: Optional[str] = key(
        None,
        "folder with config.json, tokenizer.json and, unless model.weights=random, weights",
        Role.identity | Role.work | Role.content | Role.learning | Role.memory | Role.speed,
    )
    weights: str = key(
        "own",
        "own: those of the folder; random: of its config.json alone",
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
                "model.path is not set: give the folder of a model in Hugging Face's form, `model.path=FOLDER`",
                key="model.path",
            )
        if self.weights not in ("own", "random"):
            raise Refusal(
                "config.hf-weights",
                f"model.weights={self.weights}: model=hf has only `model.weights=own` and `model.weights=random`",
                key="model.weights",
                value=self.weights,
            )
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise Refusal(
                "config.hf-no-folder",
                f"model.path={self.path}: no such folder; give the folder of a causal language model",
                key="model.path",
                value=self.path,
            )
        try:
            values = loads((folder / "config.json").read_text())
            values = values.get("text_config") or values
            sizes = {own: next(filter(None, map(values.get, names)), None) for own, names in HF_SIZES.items()}
        except (OSError, ValueError, AttributeError):
            raise Refusal(
                "config.hf-no-config",
                f"model.path={self.path}: its config.json is missing or damaged; "
                "give the folder of a causal language model",
                key="model.path",
                value=self.path,
            ) from None
        sizes["num_kv_heads"] = sizes["num_kv_heads"] or sizes["num_heads"]  # absent where each head has its own
        for name, value in sizes.items():
            is_size = isinstance(value, int) and value > 0
            if not is_size and (value is not None or name not in HF_OPTIONAL):
                raise Refusal(
                    "config.hf-no-size",
                    f"model.path={self.path}: {HF_SIZES[name][0]}={value} in config.json is no size; "
                    "give the folder of a causal language model",
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


HF_SIZES = {  # of config.json, with the names of GPT-2 and its kin, Bloom, MPT and XGLM
    "vocab_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "num_kv_heads": ("num_key_value_heads",),
    "embed_dim": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "intermediate_dim": ("intermediate_size", "n_inner"),
    "max_seq_len": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
# Absent where they follow from others, in models without attention, and where positions have no end
HF_OPTIONAL = ("intermediate_dim", "num_heads", "num_kv_heads", "max_seq_len")


@dataclass
class TemplateConfig(Option):
    """A prompt: none has keys beside its name."""


@dataclass
class TokenizerConfig(Option):
    """The keys of every tokenizer; those with more extend it."""


@dataclass
class EmbeddedTokenizerConfig(TokenizerConfig):
    """A byte-level BPE trained on the run's own text; `vocab_size` counts the merges and bytes, not special tokens."""

    vocab_size: int = key(
        2048,
        "bytes and merges, learnt from the run's own text, without special tokens",
        MODEL_SIZE,
    )

    def __post_init__(self) -> None:
        size = self.vocab_size
        if size < 256:
            raise Refusal(
                "config.tokenizer-vocab-size",
                f"tokenizer.vocab_size={size}: must be 256 or more, one for each byte",
                key="tokenizer.vocab_size",
                value=size,
                least=256,
            )


@dataclass
class Llama3TokenizerConfig(TokenizerConfig):
    """Llama 3's own tokenizer, from its `tokenizer.model`."""

    path: Optional[str] = key(
        None,
        "file tokenizer.model of Llama 3",
        DATA_FILES,
    )

    def __post_init__(self) -> None:
        if self.path is None:
            raise Refusal(
                "config.tokenizer-llama3-path",
                "tokenizer.path is not set: give Llama 3's tokenizer.model, `tokenizer.path=FILE`",
                key="tokenizer.path",
            )


@dataclass
class Qwen25TokenizerConfig(TokenizerConfig):
    """Qwen 2.5's own tokenizer, from its `vocab.json` and `merges.txt`."""

    path: Optional[str] = key(
        None,
        "Qwen 2.5's vocab.json",
        DATA_FILES,
    )
    merges_file: Optional[str] = key(
        None,
        "Qwen 2.5's merges.txt",
        DATA_FILES,
    )

    def __post_init__(self) -> None:
        if self.path is None:
            raise Refusal(
                "config.tokenizer-qwen-path",
                "tokenizer.path is not set: give Qwen 2.5's vocab.json, `tokenizer.path=FILE`",
                key="tokenizer.path",
            )
        if self.merges_file is None:
            raise Refusal(
                "config.tokenizer-qwen-merges",
                "tokenizer.merges_file is not set: give Qwen 2.5's merges.txt, `tokenizer.merges_file=FILE`",
                key="tokenizer.merges_file",
            )


@dataclass(frozen=True)
class DatasetFacts:
    """Properties of a data set's rows. `template`: the one it is read by unless another is chosen; None: its rows
    are messages already. `conversations`: they are ShareGPT's, which the template `instruct` can be put around too."""

    schema: type
    template: str | None
    any_template: bool = False
    conversations: bool = False
    has_answers: bool = True  # one answer a row, for supervised tuning
    has_pairs: bool = False  # a chosen and a rejected answer a row
    is_of_ones_own: bool = False  # no set of the papers: a part of it is held out unless the command says otherwise


DATASETS = {
    "synthetic": DatasetFacts(SyntheticConfig, "instruct", any_template=True, has_pairs=True),
    "alpaca_cleaned": DatasetFacts(StoredTextConfig, "instruct"),
    "grammar": DatasetFacts(StoredTextConfig, "grammar"),
    "samsum": DatasetFacts(StoredTextConfig, "summarize"),
    "slimorca": DatasetFacts(StoredTextConfig, None, conversations=True),
    "chat": DatasetFacts(ChatConfig, None, is_of_ones_own=True),
    "preference": DatasetFacts(
        StoredTextConfig, None, any_template=True, has_answers=False, has_pairs=True, is_of_ones_own=True
    ),
}

TOKENIZERS: dict[str, type[TokenizerConfig]] = {
    "embedded": EmbeddedTokenizerConfig,
    "llama3": Llama3TokenizerConfig,
    "qwen2_5": Qwen25TokenizerConfig,
    "own": TokenizerConfig,
}

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


# The axes of a run's record, in the order of tables
AXES = (
    *("engine", "sharding", "method", "recipe", "template", "dataset", "dataset.rows", "model", "model.weights"),
    *("tokenizer", "precision"),
    *("gpus", "nodes", "pin_memory", "batch_size", "gradient_accumulation_steps", "max_seq_len", "max_steps", "packed"),
    *("activation_checkpointing", "optimizer_in_bwd", "compile", "lr", "epochs", "seed", "scale"),
)


@dataclass
class LlmConfig(TrainingConfig):
    """The configuration of `tune_llm.py`, once composed. `warmup_steps` are the learning rate's."""

    kind: ClassVar[str] = "llm"

    method: MethodConfig = key(
        MISSING,
        "how the model is tuned",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.text | Role.titled | Role.defining,
        shown=4,
        tries=Tries(("lora", "qlora")),
    )
    template: Optional[TemplateConfig] = key(
        None,
        "prompt that a row is put into; null is the data set's own",
        Role.identity | Role.work | Role.learning | Role.rows | Role.text | Role.speed | Role.titled,
        shown=5,
    )
    dataset: TextConfig = key(
        MISSING,
        "rows that are tuned on",
        Role.identity | Role.work | Role.content | Role.learning | Role.rows | Role.text | Role.speed | Role.titled,
        shown=0,
    )
    model: DecoderConfig = key(
        MISSING,
        "what is tuned",
        Role.identity | Role.work | Role.content | Role.learning | Role.memory | Role.speed | Role.text | Role.titled,
        shown=2,
    )
    tokenizer: TokenizerConfig = key(
        MISSING,
        "what turns text into tokens",
        Role.identity | Role.work | Role.content | Role.learning | Role.rows | Role.text | Role.speed,
    )
    precision: PrecisionConfig = key(
        MISSING,
        "number format of weights, activations and gradients",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.titled,
        shown=7,
        tries=Tries(("fp32", "bf16"), ("forward", "backward")),
    )
    engine: Engine = key(
        Engine.torchtune,
        "whose loop tunes: torchtune's recipes, or trl: TRL's trainers with PEFT",
        WAY_TO_TRAIN,
        since=("recipe", "torchtune"),
    )
    sharding: Sharding = key(
        Sharding.fsdp,
        "several GPUs: fsdp shards the weights (FSDP2); ddp keeps all on each GPU (engine=trl)",
        Role.identity | Role.memory | Role.speed,
        since=("recipe", "fsdp"),
    )
    recipe: Recipe = key(
        Recipe.auto,
        "torchtune: single_device, distributed, or auto: single_device on one GPU where there is one",
        WAY_TO_TRAIN,
    )
    weight_decay: float = key(0.01, "AdamW's weight decay", Role.identity | Role.learning | Role.speed, least=0)
    warmup_steps: Optional[int] = key(
        None,
        "steps in which the learning rate rises; null takes 100, or a tenth of a run of less than 1000 steps",
        Role.identity | Role.learning,
        least=0,
    )
    skip_steps: int = key(
        5,
        "first steps that iteration_s and tokens_per_s leave out; they are recorded and marked",
        Role.identity,
        least=0,
    )
    max_steps: Optional[int] = key(
        None,
        "stop an epoch after so many steps; null: all",
        Role.identity | Role.length | Role.part | Role.drawn | Role.learning,
        least=1,
        shown=14,
    )
    gradient_accumulation_steps: int = key(
        1,
        "batches whose gradients are summed for one step",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.follows,
        least=1,
    )
    custom_sharded_layers: list[str] = key(
        list,
        "several GPUs: parts that FSDP gathers by themselves, beside each layer: tok_embeddings, output",
        Role.identity | Role.memory | Role.speed,
        since=("recipe", []),
    )
    activation_checkpointing: bool = key(
        False, "recompute activations in the backward pass, to save memory", Role.identity | Role.memory | Role.speed
    )
    compile: bool = key(False, "torch.compile each layer and the loss", Role.identity | Role.speed)
    packed: bool = key(
        False,
        "put rows one after the other into sequences of max_seq_len",
        Role.identity | Role.learning | Role.memory | Role.rows | Role.text | Role.speed,
    )
    max_seq_len: Optional[int] = key(
        None,
        "cut longer rows, in tokens, and leave out those without a label then; null: whole rows",
        Role.identity | Role.work | Role.learning | Role.rows | Role.text | Role.speed,
        least=2,
    )
    optimizer_in_bwd: bool = key(
        False,
        "method=full or qat: update each weight as soon as its gradient is there",
        Role.identity | Role.memory | Role.speed,
    )
    eval_steps: Optional[int] = key(
        None,
        "measure the held-out loss every so many steps too, and not only after each epoch; null: then alone",
        Role.identity,
        least=1,
        since=("skip_steps", None),
    )
    target_loss: Optional[float] = key(
        None,
        "held-out loss, above 0, to which the time is recorded; null: none",
        Role.identity | Role.work,
        above=0,
        since=("skip_steps", None),
    )
    stop_at_target: bool = key(
        False,
        "stop when the held-out loss is target_loss or less",
        Role.identity | Role.work | Role.learning,
        since=("skip_steps", False),
    )
    save: TuningSave = key(
        TuningSave.none,
        "what is kept of the tuning in the run's folder: adapter (PEFT's form), model (all weights), "
        "int4 (all weights, quantised), or none",
        Role.beside,
    )

    def __post_init__(self) -> None:
        if self.precision.name not in PRECISIONS:
            raise Refusal(
                "config.tuning-precision",
                f"precision={self.precision.name}: method={self.method.name} has no such precision; "
                f"it has {', '.join(PRECISIONS)}",
                key="precision",
                value=self.precision.name,
                choices=PRECISIONS,
            )
        super().__post_init__()
        require_whole_training(self, self.save)
        parts = self.custom_sharded_layers
        if len({*parts}) < len(parts) or not {*parts} <= {*SHARDABLE}:
            raise Refusal(
                "config.sharded-layers",
                f"custom_sharded_layers={parts}: name some of {', '.join(SHARDABLE)}, each once",
                key="custom_sharded_layers",
                value=parts,
                choices=SHARDABLE,
            )
        if self.packed and self.max_seq_len is None:
            raise Refusal(
                "config.packed-unbounded",
                "packed=true: needs the length to pack to, as `max_seq_len=512`",
                key="packed",
            )
        self._check_held_out()
        longest = self.max_seq_len or 1
        limit = self.model.max_seq_len or longest  # model=hf: 0 where positions have no end
        if longest > limit:
            raise Refusal(
                "config.sequence-too-long",
                f"max_seq_len={longest}: is above model.max_seq_len={limit}; use `max_seq_len={limit}` or less",
                key="max_seq_len",
                value=longest,
                most=limit,
            )

    def _check_held_out(self) -> None:
        """Refuse what needs held-out rows where there are none."""
        for name, value in (("eval_steps", self.eval_steps), ("target_loss", self.target_loss)):
            if value is not None and not self.dataset.holds_out:
                raise Refusal(
                    "config.nothing-held-out",
                    f"{name}={value}: needs rows that are not trained on; hold some out by `dataset.split={HELD_OUT}`",
                    key=name,
                    value=value,
                )
        if self.stop_at_target and self.target_loss is None:
            raise Refusal(
                "config.target-loss-missing",
                "stop_at_target=true: needs a held-out loss to stop at, as `target_loss=2.0`",
                key="stop_at_target",
            )

    @property
    def world_size(self) -> int:
        return self.gpus * self.nodes

    @property
    def rows_of_a_step(self) -> int:
        """Rows, pairs or packed sequences of one step of all ranks."""
        return self.batch_size * self.world_size * self.gradient_accumulation_steps

    @property
    def recipe_name(self) -> str:
        """The file of torchtune's recipe: one GPU takes the single-device one where there is one; or TRL's trainer."""
        if self.engine is Engine.trl:
            return "trl_dpo" if self.method.name == "dpo" else "trl_sft"
        alone = self.world_size == 1 and self.recipe is not Recipe.distributed
        single = self.method.single_device
        return single if alone and single is not None else self.method.distributed

    @property
    def distributed(self) -> bool:
        if self.engine is Engine.trl:
            return self.world_size > 1
        return self.recipe_name == self.method.distributed

    @property
    def template_name(self) -> str | None:
        """The template in force: the data set's own where none is chosen, which for conversations is none at all."""
        return DATASETS[self.dataset.name].template if self.template is None else self.template.name
