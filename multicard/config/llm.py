"""The schema of `tune_llm.py`, without torch.

What depends on the method, the template, the machine,
the files or the rows is checked in `multicard.llm.preflight`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Optional

from omegaconf import MISSING

from multicard.config.base import GroupOption, PrecisionConfig, TrainingConfig
from multicard.config.keys import Group, Tries, key, option_name
from multicard.config.llm_models import DecoderConfig
from multicard.config.llm_texts import DATASETS, HELD_OUT, TextConfig
from multicard.config.llm_tokenizers import TokenizerConfig
from multicard.config.roles import WAY_TO_TRAIN, Role
from multicard.config.saving import TuningSave, require_whole_training
from multicard.messages import Refusal

# steps of the learning rate's warm-up in both papers, as in torchtune's own configurations
PAPERS_WARMUP = 100
# what torchtune's own configurations shard apart from the layers
SHARDABLE = ("tok_embeddings", "output")


Engine = StrEnum("Engine", ["torchtune", "trl"])
Sharding = StrEnum("Sharding", ["fsdp", "fsdp_offload", "ddp"])
Recipe = StrEnum("Recipe", ["auto", "single_device", "distributed"])
Optimizer = StrEnum("Optimizer", ["adamw", "adamw_8bit", "paged_adamw_8bit"])
Kernels = StrEnum("Kernels", ["torch", "liger"])
Attention = StrEnum("Attention", ["auto", "sdpa", "flash", "flex", "eager"])


class NumberFormats(NamedTuple):
    """What a precision of tuning means: the format of weights, gradients and the optimiser's
    states, and that in which products are computed. Where they differ,
    autocast converts a product's operands.
    """

    weights: str
    products: str

    @property
    def are_mixed(self) -> bool:
        return self.weights != self.products


PRECISIONS = {
    "fp32": NumberFormats("fp32", "fp32"),
    "bf16": NumberFormats("bf16", "bf16"),
    "bf16_mixed": NumberFormats("fp32", "bf16"),
}


@dataclass
class MethodConfig(Group):
    """A tuning method and the torchtune recipes that run it
    (`single_device`: null where torchtune has none).

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
class TemplateConfig(GroupOption):
    """A prompt: none has keys beside its name."""


@dataclass
class OptimizerChoice:
    """How weights are updated: AdamW, with states in the format of the weights,
    or in 8 bits (bitsandbytes').

    A group without files: those under `conf/optimizer/` are of `train_vision.py`.
    """

    name: Optimizer = option_name(Optimizer.adamw)

    @property
    def has_8_bits(self) -> bool:
        return self.name is not Optimizer.adamw

    @property
    def is_paged(self) -> bool:
        return self.name is Optimizer.paged_adamw_8bit


# The axes of a run's record, in the order of tables
AXES = (
    "engine",
    "sharding",
    "method",
    "recipe",
    "template",
    "dataset",
    "dataset.rows",
    "model",
    "model.weights",
    "tokenizer",
    "precision",
    "gpus",
    "nodes",
    "pin_memory",
    "batch_size",
    "gradient_accumulation_steps",
    "max_seq_len",
    "max_steps",
    "packed",
    "activation_checkpointing",
    "optimizer_in_bwd",
    "compile",
    "lr",
    "epochs",
    "seed",
    "scale",
)


@dataclass
class LlmConfig(TrainingConfig):
    """The configuration of `tune_llm.py`, once composed. `warmup_steps` are the learning rate's."""

    kind: ClassVar[str] = "llm"

    method: MethodConfig = key(
        MISSING,
        "how the model is tuned",
        Role.identity
        | Role.learning
        | Role.memory
        | Role.speed
        | Role.text
        | Role.titled
        | Role.defining,
        shown=4,
        tries=Tries(("lora", "qlora")),
        also=("peft", "peft_method", "finetuning_type", "tuning"),
        means={
            "adapter": "lora",
            "adapters": "lora",
            "peft": "lora",
            "full_finetune": "full",
            "full_finetuning": "full",
            "load_in_4bit": "qlora",
        },
    )
    template: Optional[TemplateConfig] = key(
        None,
        "prompt that a row is put into; null is the data set's own",
        Role.identity
        | Role.work
        | Role.learning
        | Role.rows
        | Role.text
        | Role.speed
        | Role.titled,
        shown=5,
        also=("prompt_template",),
    )
    dataset: TextConfig = key(
        MISSING,
        "rows that are tuned on",
        Role.identity
        | Role.work
        | Role.content
        | Role.learning
        | Role.rows
        | Role.text
        | Role.speed
        | Role.titled,
        shown=0,
        also=(
            "data",
            "data_dir",
            "data_path",
            "data_files",
            "dataset_name",
            "dataset_path",
            "train_file",
            "train_data",
        ),
        means={
            "alpaca": "alpaca_cleaned",
            "chats": "chat",
            "conversations": "chat",
            "sharegpt": "chat",
            "preferences": "preference",
            "slim_orca": "slimorca",
        },
    )
    model: DecoderConfig = key(
        MISSING,
        "what is tuned",
        Role.identity
        | Role.work
        | Role.content
        | Role.learning
        | Role.memory
        | Role.speed
        | Role.text
        | Role.titled,
        shown=2,
        also=(
            "model_name",
            "model_name_or_path",
            "pretrained_model_name_or_path",
            "base_model",
            "model_id",
            "model_dir",
        ),
    )
    tokenizer: TokenizerConfig = key(
        MISSING,
        "what turns text into tokens",
        Role.identity
        | Role.work
        | Role.content
        | Role.learning
        | Role.rows
        | Role.text
        | Role.speed,
    )
    precision: PrecisionConfig = key(
        MISSING,
        "number format of weights, activations and gradients; bf16_mixed: fp32 weights, products in"
        " bf16 (engine=trl)",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.titled,
        shown=7,
        tries=Tries(("fp32", "bf16"), ("forward", "backward")),
        also=("dtype", "torch_dtype", "mixed_precision"),
        means={"bfloat16": "bf16", "float32": "fp32", "32": "fp32", "amp": "bf16_mixed"},
    )
    engine: Engine = key(
        Engine.torchtune,
        "whose loop tunes: torchtune's recipes, or trl: TRL's trainers with PEFT",
        WAY_TO_TRAIN,
        since=("recipe", "torchtune"),
        also=("framework", "library", "trainer"),
        means={"hf": "trl", "huggingface": "trl", "transformers": "trl", "peft": "trl"},
    )
    sharding: Sharding = key(
        Sharding.fsdp,
        "several GPUs: fsdp shards the weights (FSDP2); fsdp_offload holds shards and optimiser in"
        " host memory; ddp keeps all on each GPU (engine=trl)",
        Role.identity | Role.memory | Role.speed,
        since=("recipe", "fsdp"),
        also=("strategy", "parallelism", "distribution", "distributed_strategy"),
        means={"full_shard": "fsdp", "fsdp2": "fsdp"},
    )
    recipe: Recipe = key(
        Recipe.auto,
        "torchtune: single_device, distributed, or auto: single_device on one GPU where there"
        " is one",
        WAY_TO_TRAIN,
    )
    weight_decay: float = key(
        0.01,
        "AdamW's weight decay",
        Role.identity | Role.learning | Role.speed,
        least=0,
        also=("wd",),
    )
    warmup_steps: Optional[int] = key(
        None,
        "steps in which the learning rate rises; null takes 100, or a tenth of a run of less than"
        " 1000 steps",
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
        also=("num_steps", "steps", "max_train_steps"),
    )
    gradient_accumulation_steps: int = key(
        1,
        "batches whose gradients are summed for one step",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.follows,
        least=1,
        also=("gradient_accumulation", "grad_accum", "accum_steps", "accumulate_grad_batches"),
    )
    custom_sharded_layers: list[str] = key(
        list,
        "several GPUs: parts that FSDP gathers by themselves, beside each layer: tok_embeddings,"
        " output",
        Role.identity | Role.memory | Role.speed,
        since=("recipe", []),
    )
    activation_checkpointing: bool = key(
        False,
        "recompute activations in the backward pass, to save memory",
        Role.identity | Role.memory | Role.speed,
        also=("gradient_checkpointing", "grad_checkpointing", "checkpointing"),
    )
    compile: bool = key(
        False,
        "torch.compile each layer and the loss",
        Role.identity | Role.speed,
        also=("torch_compile", "torchcompile"),
    )
    packed: bool = key(
        False,
        "put rows one after the other into sequences of max_seq_len",
        Role.identity | Role.learning | Role.memory | Role.rows | Role.text | Role.speed,
        also=("packing", "pack"),
    )
    max_seq_len: Optional[int] = key(
        None,
        "cut longer rows, in tokens, and leave out those without a label then; null: whole rows",
        Role.identity | Role.work | Role.learning | Role.rows | Role.text | Role.speed,
        least=2,
        also=(
            "max_seq_length",
            "max_length",
            "seq_len",
            "seq_length",
            "sequence_length",
            "context_length",
            "cutoff_len",
            "block_size",
        ),
    )
    optimizer_in_bwd: bool = key(
        False,
        "method=full or qat: update each weight as soon as its gradient is there",
        Role.identity | Role.memory | Role.speed,
    )
    optimizer: OptimizerChoice = key(
        OptimizerChoice,
        "adamw, or with states of 8 bits adamw_8bit, paged_adamw_8bit: in host memory where the"
        " GPU's is full",
        WAY_TO_TRAIN,
        switch="name",
        since=("weight_decay", {"name": "adamw"}),
        also=("optim", "opt", "optimiser"),
        means={"adamw_torch": "adamw", "adamw_bnb_8bit": "adamw_8bit", "adam_8bit": "adamw_8bit"},
    )
    attention: Attention = key(
        Attention.auto,
        "engine=trl: what computes attention; auto: what transformers takes for the model; flash:"
        " FlashAttention 2",
        Role.identity | Role.learning | Role.memory | Role.speed,
        since=("weight_decay", "auto"),
        also=("attn", "attn_implementation"),
        means={"flash_attention_2": "flash", "flash_attn": "flash"},
    )
    kernels: Kernels = key(
        Kernels.torch,
        "engine=trl: torch's own, or Liger's for norms, rotary embedding and the gated part of"
        " the MLP",
        Role.identity | Role.learning | Role.memory | Role.speed,
        since=("weight_decay", "torch"),
        also=("use_liger_kernel", "use_liger"),
        means={"true": "liger", "false": "torch"},
    )
    clip_grad_norm: Optional[float] = key(
        None,
        "scale the gradients of a step down to this norm, where theirs is above it; null: leave"
        " them",
        Role.identity | Role.learning | Role.speed,
        above=0,
        since=("weight_decay", None),
        also=("max_grad_norm", "gradient_clip_val", "grad_clip"),
    )
    eval_steps: Optional[int] = key(
        None,
        "measure the held-out loss every so many steps too, and not only after each epoch; null:"
        " then alone",
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
        "what is kept of the tuning in the run's folder: adapter (PEFT's form), model (all"
        " weights), int4 (all weights, quantised), or none",
        Role.beside,
    )

    def __post_init__(self) -> None:
        if self.precision.name not in PRECISIONS:
            raise Refusal(
                "config.tuning-precision",
                f"precision={self.precision.name}: method={self.method.name} has no such precision;"
                f" it has {', '.join(PRECISIONS)}",
                key="precision",
                value=self.precision.name,
                choices=list(PRECISIONS),
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
                f"max_seq_len={longest}: is above model.max_seq_len={limit}; use"
                f" `max_seq_len={limit}` or less",
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
                    f"{name}={value}: needs rows that are not trained on; hold some out by"
                    f" `dataset.split={HELD_OUT}`",
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
    def formats(self) -> NumberFormats:
        """Of the weights and of the products, by the precision."""
        return PRECISIONS[self.precision.name]

    @property
    def world_size(self) -> int:
        return self.gpus * self.nodes

    @property
    def rows_of_a_step(self) -> int:
        """Rows, pairs or packed sequences of one step of all ranks."""
        return self.batch_size * self.world_size * self.gradient_accumulation_steps

    @property
    def recipe_name(self) -> str:
        """The file of torchtune's recipe: one GPU takes the single-device one where there is one;
        or TRL's trainer.
        """
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
    def offloads(self) -> bool:
        """True where the ranks hold their shards, and the optimiser, in the host's memory."""
        return self.world_size > 1 and self.sharding is Sharding.fsdp_offload

    @property
    def template_name(self) -> str | None:
        """The template in force: the data set's own where none is chosen,
        which for conversations is none at all.
        """
        return DATASETS[self.dataset.name].template if self.template is None else self.template.name
