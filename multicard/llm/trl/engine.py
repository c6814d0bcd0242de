"""`engine=trl`: TRL's SFTTrainer and DPOTrainer.

Rows, tokens, batches and their order, random weights and adapters are those of `engine=torchtune`;
the engines differ in the model's code, the loop, sharding and the loss alone.
"""

import os
import sys
import warnings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import multicard.llm.before_torchtune  # noqa: F401  sets variables that the libraries below read when imported

# isort: split
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchtune.datasets  # noqa: F401  before its own parts, which import each other in a circle
import transformers
from accelerate.state import DistributedType, PartialState
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
from datasets import Dataset
from omegaconf import DictConfig
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchtune import config as components
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX, padded_collate_dpo, padded_collate_sft
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage]

from multicard.config.llm import Kernels, LlmConfig, Sharding
from multicard.config.llm_models import HfConfig
from multicard.llm import batches, eight_bit, int4, methods, recipes, torchtune_config
from multicard.llm.batches import Batch
from multicard.llm.epoch_marks import LOGGED
from multicard.llm.parts import TensorPart, TrainedParts, own_name
from multicard.llm.step_probe import MeasuredBatches, Probe
from multicard.llm.trl import checks, models, sizes, text_part
from multicard.messages import Message
from multicard.ranks.process import Rank

# TRL's own name
warnings.filterwarnings("ignore", ".*gradient_checkpointing` is deprecated", FutureWarning)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

FOREVER = sys.maxsize // 2  # steps of a pass that its batches end


class Feed(MeasuredBatches):
    """The measured batches, with the names that transformers has for their parts."""

    def __init__(self, loader: Any, probe: Probe) -> None:
        super().__init__(loader, probe)
        self.per_step = probe.config.gradient_accumulation_steps
        limit = probe.config.max_steps
        self.steps = min(len(loader) // self.per_step, limit or FOREVER)

    def __len__(self) -> int:
        return self.steps * self.per_step

    def set_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return map(named, super().__iter__())


def named(batch: Batch) -> dict[str, torch.Tensor]:
    if isinstance(batch, tuple):
        return {"input_ids": batch[0], "labels": batch[1]}
    parts = {"input_ids": batch["tokens"], "labels": batch["labels"]}
    return parts | ({"position_ids": batch["input_pos"]} if "input_pos" in batch else {})


def loader(probe: Probe, cfg: DictConfig) -> DataLoader[Any]:
    """torchtune's rows, in the batches and in the order of its recipes."""
    config = probe.config
    rank = probe.rank
    tokenizer = components.instantiate(cfg.tokenizer)
    rows = components.instantiate(cfg.dataset, tokenizer)
    collate = padded_collate_dpo if methods.chosen(config).pairs else padded_collate_sft
    padded = partial(collate, padding_idx=tokenizer.pad_id, ignore_idx=CROSS_ENTROPY_IGNORE_IDX)
    loaded = DataLoader(
        rows,
        config.batch_size,
        # torchtune's seed
        sampler=DistributedSampler(rows, rank.world_size, rank.rank, shuffle=True, seed=0),
        collate_fn=batches.counted(batches.stacked) if config.packed else padded,
        drop_last=True,
        pin_memory=config.pin_memory and rank.device.type == "cuda",
    )
    recipes.note(loaded, probe, tokenizer.pad_id)
    probe.copies = 1
    return loaded


def trainer_class(base: type, probe: Probe, feed: Feed) -> type:
    """TRL's trainer on measured batches. `train()` prepares all,
    and notes with what an epoch is run.
    """
    rank = probe.rank
    pad_id = probe.pad_id

    class MeasuredTrainer(base):
        arguments: dict[str, Any] | None = None  # of an epoch

        def get_train_dataloader(self) -> Any:
            return feed

        def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
            """All of them, as torchtune's recipes have it:
            transformers leaves out norms and biases.
            """
            return [name for name, _ in model.named_parameters()]

        def _run_epoch(self, **arguments: Any) -> None:
            if self.arguments is None:
                self.arguments = arguments
                self.control.should_training_stop = True
            else:
                super()._run_epoch(**arguments)

        def get_batch_samples(self, *arguments: Any, **keywords: Any) -> Any:
            samples, items = super().get_batch_samples(*arguments, **keywords)
            self.control.should_epoch_stop |= not samples  # the pass is at its end, or a probe
            return samples, items

        def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
            if probe.ranges is not None and not probe.copies_pinned_batches:
                probe.ranges.open("h2d")
            inputs = super()._prepare_inputs(inputs)
            tokens = inputs["input_ids"]
            if "position_ids" not in inputs:  # packed rows are told apart by their positions
                inputs["attention_mask"] = (tokens != pad_id).long()
                inputs["input_ids"] = tokens.clamp(min=0)
            if base is DPOTrainer:
                inputs["completion_mask"] = (
                    inputs.pop("labels") != CROSS_ENTROPY_IGNORE_IDX
                ).long()
            return inputs

        def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
            super().log(logs, *arguments, **keywords)
            if "loss" in logs and rank.rank == 0:
                probe.log({name: logs[name] for name in LOGGED if name in logs})

    return MeasuredTrainer


class TrlEngine:
    """A trainer that is ready. See `tuning_engine.TuningEngine`."""

    def __init__(self, trainer: Any, probe: Probe, feed: Feed) -> None:
        self.trainer = trainer
        self._probe = probe
        self._config = probe.config
        self.model: torch.nn.Module = trainer.model_wrapped
        self.optimizers: Sequence[torch.optim.Optimizer] = [trainer.optimizer.optimizer]
        self.scheduler: Any = trainer.lr_scheduler
        self.batches = feed
        self.steps_per_epoch = feed.steps

    def train(self, epochs: int) -> None:
        self._train(epochs, self.steps_per_epoch)

    def train_pass(self) -> None:
        self._train(1, FOREVER)

    def _train(self, epochs: int, steps: int) -> None:
        """Train as the trainer does, epoch by epoch, each of at most so many steps."""
        trainer = self.trainer
        trainer.state.global_step = trainer._globalstep_last_logged = 0
        # its own count would end the training after steps that were not measured
        trainer.state.max_steps = FOREVER
        per_epoch = {
            "steps_in_epoch": steps * self.batches.per_step,
            "num_update_steps_per_epoch": steps,
        }
        trainer.control.should_training_stop = False
        for epoch in range(epochs):
            handler = trainer.callback_handler
            trainer.control = handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
            trainer._run_epoch(**trainer.arguments | per_epoch | {"epoch": epoch})
            self._probe.end_epoch()

    def check_built(self) -> dict[str, Any]:
        figures = built_figures(self.model, self._config)
        figures["sizes"] = sizes.of_model(self.trainer.model)
        figures["attention_used"] = self.trainer.model.config._attn_implementation
        return figures

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """See `TuningEngine`: by the head of TRL's loss, whose logits are never whole."""
        model = self.model
        if isinstance(model, DistributedDataParallel):
            # DDP would wait for the ranks in its forward pass, to broadcast buffers
            model = model.module
        mask = (tokens != self._probe.pad_id).long()
        padded = {"input_ids": tokens.clamp(min=0), "attention_mask": mask}
        with self.trainer.accelerator.autocast():  # of bf16_mixed alone
            output = model(**padded, labels=labels, fused_lm_head=True, use_cache=False)
        return -output.log_probs.double().sum(1).cpu()

    def reference(self) -> AbstractContextManager[Any]:
        """See `TuningEngine`: the model without its adapters."""
        return self.trainer.model.disable_adapter()

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]:
        return models.in_int4(self.trainer.model, groupsize)

    def trained(self) -> TrainedParts:
        return trained_parts(self.trainer.model, self._config)

    def close(self) -> None:
        """Nothing to release: the process ends."""


@contextmanager
def prepared(probe: Probe, cfg: dict[str, Any], run_cfg: DictConfig) -> Iterator[TrlEngine]:
    """The trainer, ready to train, its model on the device, sharded or copied by `sharding`."""
    config = probe.config
    rank = probe.rank
    # or accelerate sets torch's threads to others
    os.environ.setdefault("OMP_NUM_THREADS", str(rank.threads))
    if rank.world_size == 1:
        os.environ.pop("LOCAL_RANK", None)  # or accelerate takes the run for a distributed one
    loaded = loader(probe, run_cfg)
    feed = Feed(loaded, probe)
    folder = probe.report.folder / "tune_run"
    args = arguments(config, rank, feed.steps, folder)
    report = probe.report.content
    report.warmup_steps = args.warmup_steps if methods.chosen(config).scheduled else None
    base = DPOTrainer if methods.chosen(config).pairs else SFTTrainer
    model = models.built(config, cfg, rank.device, empty=fsdp(config))
    if not getattr(model.config.get_text_config(), "output_router_logits", False):
        # TRL would add the loss that balances a mixture's experts unasked
        args.router_aux_loss_coef = 0.0
    models.simulate_quantisation(model, config)
    checks.check_quantised(model, config)
    checks.check_kernels(model, config)
    text_part.freeze_others(model)
    if fsdp(config):  # accelerate knows FSDP of GPUs, and copies the model of CPU ranks in silence
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    placeholder: dict[str, Any] = {"input_ids": [0, 1], "labels": [0, 1]}
    if base is DPOTrainer:
        placeholder = {"prompt": "a", "chosen": "b", "rejected": "c"}
    trainer = trainer_class(base, probe, feed)(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([placeholder]),
        processing_class=models.no_tokenizer(),
        peft_config=models.adapters(model, config),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    if fsdp(config):
        plugin = trainer.accelerator.state.fsdp_plugin
        plugin.transformer_cls_names_to_wrap = text_part.layer_classes(model)
        # accelerate would have the loss rounded to bf16, and gradients summed in it
        if config.formats.are_mixed:
            gathered = models.DTYPES[config.formats.products]
            plugin.mixed_precision_policy = MixedPrecisionPolicy(gathered, torch.float32)
        if config.offloads:
            plugin.cpu_offload = CPUOffloadPolicy(pin_memory=rank.device.type == "cuda")
    if config.optimizer.has_8_bits:
        own = {
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "is_paged": config.optimizer.is_paged,
        }
        trainer.optimizer_cls_and_kwargs = (eight_bit.AdamW8bit, own)
    models.adapt(trainer.model, config, cfg, rank.device)
    if config.compile:  # before FSDP, whose hooks stay outside of what is compiled
        for layer in text_part.layers(model):
            # as torchtune chooses it
            layer.compile(backend=os.environ.get("TORCH_COMPILE_BACKEND", "inductor"))
    if fsdp(config) and any(parameter.is_meta for parameter in model.parameters()):
        shard(trainer)
        models.fill(trainer.model, config, cfg, rank.device)
    trainer.train()
    models.quantise_output(trainer.model)
    if isinstance(config.model, HfConfig):
        checks.check_rows(trainer.model_wrapped, config)
    yield TrlEngine(trainer, probe, feed)


def shard(trainer: Any) -> None:
    """Shard the model as accelerate would in `train()`, which needs weights that are there."""
    plugin = trainer.accelerator.state.fsdp_plugin
    if plugin.activation_checkpointing:
        plugin.set_auto_wrap_policy(trainer.model)
        fsdp2_apply_ac(trainer.accelerator, trainer.model)
        plugin.activation_checkpointing = False  # or once more
    fsdp2_prepare_model(trainer.accelerator, trainer.model)


def fsdp(config: LlmConfig) -> bool:
    return config.world_size > 1 and config.sharding is not Sharding.ddp


def arguments(config: LlmConfig, rank: Rank, steps: int, folder: Path) -> Any:
    """The trainer's arguments: what torchtune's recipes do, where TRL's defaults differ."""
    scheduled = methods.chosen(config).scheduled
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": rank.device.type == "cpu",
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "num_train_epochs": config.epochs,
        "learning_rate": config.lr,
        "lr_scheduler_type": "cosine" if scheduled else "constant",
        "warmup_steps": (
            torchtune_config.warmup_steps(config, config.epochs * steps) if scheduled else 0
        ),
        "weight_decay": config.weight_decay,
        "optim": "adamw_torch_fused",
        "max_grad_norm": config.clip_grad_norm or 0.0,  # 0: no clipping
        # autocast; else weights, adapters and optimiser have the run's precision
        "bf16": config.formats.are_mixed,
        "fp16": False,
        "seed": config.seed,
        "logging_steps": 1,  # reads the loss on the host in every step, as the recipes do
        "logging_nan_inf_filter": False,
        "gradient_checkpointing": config.activation_checkpointing and not fsdp(config),
        "max_length": None,  # rows are cut where they are made
        "ddp_find_unused_parameters": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "error",
    }
    if fsdp(config):
        options["fsdp"] = True
        options["fsdp_config"] = {
            "version": 2,
            "activation_checkpointing": config.activation_checkpointing,
        }
    if config.kernels is Kernels.liger:  # the loss is TRL's own, which has no logits either
        options["use_liger_kernel"] = True
        options["liger_kernel_config"] = {
            "cross_entropy": False,
            "fused_linear_cross_entropy": False,
        }
    is_dpo = methods.chosen(config).pairs
    args = DPOConfig(**options, beta=config.method.beta) if is_dpo else SFTConfig(**options)  # pyright: ignore[reportAttributeAccessIssue]
    args._n_gpu = min(args._n_gpu, 1)  # of several visible GPUs a rank takes its own
    return args


def built_figures(model: torch.nn.Module, config: LlmConfig) -> dict[str, Any]:
    """Parameters and bytes of the model, with what `models.counts` counts.

    Raises:
        RuntimeError: another wrapper, type or method than asked for runs in truth.
    """
    is_on_host = config.offloads and all(
        parameter.device.type == "cpu" for parameter in model.parameters()
    )
    sharded = Sharding.fsdp_offload if is_on_host else Sharding.fsdp
    kinds = {sharded: FSDPModule, Sharding.ddp: DistributedDataParallel}
    wrapper = next((name for name, kind in kinds.items() if isinstance(model, kind)), None)
    asked = config.sharding if config.world_size > 1 else None
    if wrapper is not asked:
        said = Message(
            "llm.wrapper",
            f"sharding={asked}: accelerate wrapped the model as {wrapper} ({type(model).__name__})",
            asked=asked,
            wrapper=wrapper,
            type=type(model).__name__,
        )
        raise RuntimeError(said)
    parameters = list(model.parameters())
    dtype = models.DTYPES[config.formats.weights]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    others = {parameter.dtype for parameter in trained} - {dtype}
    if others:
        said = Message(
            "llm.trained-type",
            f"precision={config.precision.name}: weights are trained in {others}",
            asked=config.precision.name,
            types=sorted(map(str, others)),
        )
        raise RuntimeError(said)
    counts = models.counts(model)
    return {
        "parameters": sum(parameter.numel() for parameter in parameters) + counts.pop("hidden"),
        "trainable_parameters": sum(parameter.numel() for parameter in trained),
        "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
        **counts,
    }


def trained_parts(model: Any, config: LlmConfig) -> TrainedParts:
    """What was trained, by PEFT's and transformers' own names."""
    reader = text_part.reader_of(model.config).__name__
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    named = {own_name(name): tensor for name, tensor in model.named_parameters()}
    if not methods.chosen(config).adapters:
        layers = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
        linears = frozenset(models.plain(f"{name}.weight") for name in layers)
        groupsize = int4.groupsize(config, model)
        return TrainedParts(models.whole_model(model), {}, None, tied, reader, linears, groupsize)
    # "default" is PEFT's name of the only adapter, which files do not have
    parts = {
        name.replace(".default.", "."): TensorPart(tensor)
        for name, tensor in named.items()
        if ".lora_" in name
    }
    options = model.peft_config["default"].to_dict()
    adapter = {
        name: sorted(value) if isinstance(value, set) else value for name, value in options.items()
    }
    return TrainedParts(parts, models.whole_model(model), adapter, tied, reader)
