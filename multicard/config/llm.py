"""The schema of `tune_llm.py`. Does not import torch.

Checks that depend on the method, the template, the machine, the files or the rows are in
`multicard.llm.preflight`.
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

# The steps of learning-rate warm-up in both papers, and in torchtune's own configurations.
PAPERS_WARMUP = 100
# The modules that torchtune's own configurations shard separately from the layers.
SHARDABLE = ("tok_embeddings", "output")


Engine = StrEnum("Engine", ["torchtune", "trl"])
Sharding = StrEnum("Sharding", ["fsdp", "fsdp_offload", "ddp"])
Recipe = StrEnum("Recipe", ["auto", "single_device", "distributed"])
Optimizer = StrEnum("Optimizer", ["adamw", "adamw_8bit", "paged_adamw_8bit"])
Kernels = StrEnum("Kernels", ["torch", "liger"])
Attention = StrEnum("Attention", ["auto", "sdpa", "flash", "flex", "eager"])


class NumberFormats(NamedTuple):
    """The number formats of a tuning precision.

    weights: the format of weights, gradients and optimizer states.
    products: the format in which matrix products are computed. If it differs, autocast converts the
        operands.
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
    """A tuning method, and the torchtune recipes that run it.

    `single_device` is null if torchtune has no such recipe. Methods with more options extend this
    class: see `multicard.llm.methods`.
    """

    name: str = option_name()
    single_device: Optional[str] = key(
        None,
        "torchtune's recipe for one GPU; null if there is none",
        WAY_TO_TRAIN,
    )
    distributed: str = key(MISSING, "torchtune's recipe for several GPUs", WAY_TO_TRAIN)


@dataclass
class TemplateConfig(GroupOption):
    """A prompt template. No template has keys other than its name."""


@dataclass
class OptimizerChoice:
    """The optimizer: AdamW, with states in the format of the weights or in 8 bits (bitsandbytes).

    This group has no files: the files under `conf/optimizer/` belong to `train_vision.py`.
    """

    name: Optimizer = option_name(Optimizer.adamw)

    @property
    def has_8_bits(self) -> bool:
        return self.name is not Optimizer.adamw

    @property
    def is_paged(self) -> bool:
        return self.name is Optimizer.paged_adamw_8bit


# The axes of a run's record, in the order of tables.
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
    """The composed configuration of `tune_llm.py`. `warmup_steps` concerns the learning rate."""

    kind: ClassVar[str] = "llm"

    method: MethodConfig = key(
        MISSING,
        "tuning method",
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
        "prompt template that rows are put into; null: the data set's own",
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
        "data set of text rows to tune on",
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
        "language model to tune",
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
        "tokenizer, which turns text into tokens",
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
        "library that runs the training: torchtune (its recipes) or trl (TRL's trainers, PEFT)",
        WAY_TO_TRAIN,
        since=("recipe", "torchtune"),
        also=("framework", "library", "trainer"),
        means={"hf": "trl", "huggingface": "trl", "transformers": "trl", "peft": "trl"},
    )
    sharding: Sharding = key(
        Sharding.fsdp,
        "several GPUs: fsdp shards the weights (FSDP2); fsdp_offload keeps shards and optimiser in"
        " host memory; ddp keeps everything on each GPU (engine=trl)",
        Role.identity | Role.memory | Role.speed,
        since=("recipe", "fsdp"),
        also=("strategy", "parallelism", "distribution", "distributed_strategy"),
        means={"full_shard": "fsdp", "fsdp2": "fsdp"},
    )
    recipe: Recipe = key(
        Recipe.auto,
        "torchtune: single_device, distributed or auto; auto: single_device on one GPU, if the"
        " method has such a recipe",
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
        "steps in which the learning rate rises; null: 100, or a tenth of the steps if the run has"
        " less than 1000",
        Role.identity | Role.learning,
        least=0,
    )
    skip_steps: int = key(
        5,
        "number of first steps that iteration_s and tokens_per_s leave out; records mark them",
        Role.identity,
        least=0,
    )
    max_steps: Optional[int] = key(
        None,
        "stop an epoch after this many steps; null: all",
        Role.identity | Role.length | Role.part | Role.drawn | Role.learning,
        least=1,
        shown=14,
        also=("num_steps", "steps", "max_train_steps"),
    )
    gradient_accumulation_steps: int = key(
        1,
        "number of batches whose gradients are summed for one step",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.follows,
        least=1,
        also=("gradient_accumulation", "grad_accum", "accum_steps", "accumulate_grad_batches"),
    )
    custom_sharded_layers: list[str] = key(
        list,
        "several GPUs: modules that FSDP gathers separately, in addition to each layer:"
        " tok_embeddings, output",
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
        "concatenate rows into sequences of max_seq_len",
        Role.identity | Role.learning | Role.memory | Role.rows | Role.text | Role.speed,
        also=("packing", "pack"),
    )
    max_seq_len: Optional[int] = key(
        None,
        "cut rows to this many tokens, and drop rows that then have no label; null: whole rows",
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
        "method=full or qat: update each weight as soon as its gradient is computed",
        Role.identity | Role.memory | Role.speed,
    )
    optimizer: OptimizerChoice = key(
        OptimizerChoice,
        "adamw, or with 8-bit states adamw_8bit or paged_adamw_8bit; paged: in host memory if the"
        " GPU's is full",
        WAY_TO_TRAIN,
        switch="name",
        since=("weight_decay", {"name": "adamw"}),
        also=("optim", "opt", "optimiser"),
        means={"adamw_torch": "adamw", "adamw_bnb_8bit": "adamw_8bit", "adam_8bit": "adamw_8bit"},
    )
    attention: Attention = key(
        Attention.auto,
        "engine=trl: attention implementation; auto: transformers' choice for the model; flash:"
        " FlashAttention 2",
        Role.identity | Role.learning | Role.memory | Role.speed,
        since=("weight_decay", "auto"),
        also=("attn", "attn_implementation"),
        means={"flash_attention_2": "flash", "flash_attn": "flash"},
    )
    kernels: Kernels = key(
        Kernels.torch,
        "engine=trl: torch's kernels, or Liger's for norms, rotary embedding and the gated part of"
        " the MLP",
        Role.identity | Role.learning | Role.memory | Role.speed,
        since=("weight_decay", "torch"),
        also=("use_liger_kernel", "use_liger"),
        means={"true": "liger", "false": "torch"},
    )
    clip_grad_norm: Optional[float] = key(
        None,
        "scale the gradients of a step down to this norm if they exceed it; null: no clipping",
        Role.identity | Role.learning | Role.speed,
        above=0,
        since=("weight_decay", None),
        also=("max_grad_norm", "gradient_clip_val", "grad_clip"),
    )
    eval_steps: Optional[int] = key(
        None,
        "measure the held-out loss every this many steps, too; null: only after each epoch",
        Role.identity,
        least=1,
        since=("skip_steps", None),
    )
    target_loss: Optional[float] = key(
        None,
        "record the time until the held-out loss reaches this value, above 0; null: none",
        Role.identity | Role.work,
        above=0,
        since=("skip_steps", None),
    )
    stop_at_target: bool = key(
        False,
        "stop as soon as the held-out loss is target_loss or less",
        Role.identity | Role.work | Role.learning,
        since=("skip_steps", False),
    )
    save: TuningSave = key(
        TuningSave.none,
        "what to keep in the run's folder: adapter (PEFT's format), model (all weights), int4 (all"
        " weights, quantised) or none",
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
                "packed=true: needs the length of the packed sequences, as `max_seq_len=512`",
                key="packed",
            )
        self._check_held_out()
        longest = self.max_seq_len or 1
        limit = (
            self.model.max_seq_len or longest
        )  # 0 means that positions have no limit (model=hf).
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
        """Refuse keys that need held-out rows if there are none."""
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
        """The number formats of the precision."""
        return PRECISIONS[self.precision.name]

    @property
    def world_size(self) -> int:
        return self.gpus * self.nodes

    @property
    def rows_of_a_step(self) -> int:
        """Rows, pairs or packed sequences in one step of all ranks."""
        return self.batch_size * self.world_size * self.gradient_accumulation_steps

    @property
    def recipe_name(self) -> str:
        """The file of torchtune's recipe, or TRL's trainer. One GPU uses the single-device recipe
        if the method has one.
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
        """True if the ranks keep their shards and the optimizer state in host memory."""
        return self.world_size > 1 and self.sharding is Sharding.fsdp_offload

    @property
    def template_name(self) -> str | None:
        """The chosen template, or else the data set's own; None for conversations."""
        return DATASETS[self.dataset.name].template if self.template is None else self.template.name
