"""Tune with TRL's SFTTrainer and DPOTrainer (`engine=trl`).

Rows, tokens, batches and their order, random weights and adapters are the same as with
`engine=torchtune`. The engines only differ in the model's code, the loop, the sharding and the
loss.
"""

import os
import sys
import warnings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import multicard.llm.before_torchtune  # noqa: F401  Sets variables that the libraries below read on import.

# isort: split
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchtune.datasets  # noqa: F401  Must come before its own parts, which import each other in a circle.
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
from multicard.llm import (
    batches,
    eight_bit,
    int4,
    methods,
    peft_layers,
    recipes,
    torchtune_config,
)
from multicard.llm.batches import Batch
from multicard.llm.epoch_marks import LOGGED
from multicard.llm.parts import TensorPart, TrainedParts, unwrapped_name
from multicard.llm.step_probe import MeasuredBatches, Probe
from multicard.llm.trl import (
    adapters,
    checks,
    fake_quantisation,
    models,
    sizes,
    text_part,
)
from multicard.messages import Message
from multicard.ranks.process import Rank

# The name is TRL's: multicard cannot avoid the warning.
warnings.filterwarnings("ignore", ".*gradient_checkpointing` is deprecated", FutureWarning)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

UNLIMITED_STEPS = sys.maxsize // 2  # A limit of steps that is never reached: the batches end first.


class TrainerBatches(MeasuredBatches):
    """Yields the measured batches, with their parts named as transformers names them."""

    def __init__(self, loader: Any, probe: Probe) -> None:
        super().__init__(loader, probe)
        self.per_step = probe.config.gradient_accumulation_steps
        limit = probe.config.max_steps
        self.steps = min(len(loader) // self.per_step, limit or UNLIMITED_STEPS)

    def __len__(self) -> int:
        return self.steps * self.per_step

    def set_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return map(with_transformers_names, super().__iter__())


def with_transformers_names(batch: Batch) -> dict[str, torch.Tensor]:
    """Return a batch of torchtune's with transformers' names."""
    if isinstance(batch, tuple):
        return {"input_ids": batch[0], "labels": batch[1]}
    parts = {"input_ids": batch["tokens"], "labels": batch["labels"]}
    return parts | ({"position_ids": batch["input_pos"]} if "input_pos" in batch else {})


def build_loader(probe: Probe, cfg: DictConfig) -> DataLoader[Any]:
    """Return a loader of torchtune's rows, in the batches and in the order of its recipes."""
    config = probe.config
    rank = probe.rank
    tokenizer = components.instantiate(cfg.tokenizer)
    rows = components.instantiate(cfg.dataset, tokenizer)
    collate = padded_collate_dpo if methods.chosen(config).pairs else padded_collate_sft
    pad_batch = partial(collate, padding_idx=tokenizer.pad_id, ignore_idx=CROSS_ENTROPY_IGNORE_IDX)
    torchtune_loader = DataLoader(
        rows,
        config.batch_size,
        # Seed 0 is the seed of torchtune's recipes.
        sampler=DistributedSampler(rows, rank.world_size, rank.rank, shuffle=True, seed=0),
        collate_fn=batches.with_counts(batches.stack_sequences) if config.packed else pad_batch,
        drop_last=True,
        pin_memory=config.pin_memory and rank.device.type == "cuda",
    )
    recipes.record_rows(torchtune_loader, probe, tokenizer.pad_id)
    probe.copies = 1
    return torchtune_loader


def trainer_class(base: type, probe: Probe, feed: TrainerBatches) -> type:
    """Return a subclass of TRL's trainer that trains on measured batches.

    Its `train()` prepares everything and stores the arguments of the first epoch, without training.
    `TrlEngine` then runs the epochs with these arguments.
    """
    rank = probe.rank
    pad_id = probe.pad_id

    class MeasuredTrainer(base):
        arguments: dict[str, Any] | None = None  # Arguments of an epoch, once `train()` was called.

        def get_train_dataloader(self) -> Any:
            return feed

        def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
            """Return the names of all parameters, as in torchtune's recipes.

            transformers would exclude norms and biases from weight decay.
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
            # Without samples, the pass over the rows is over, or a probe has ended it.
            self.control.should_epoch_stop |= not samples
            return samples, items

        def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
            if probe.ranges is not None and not probe.copies_pinned_batches:
                probe.ranges.open("h2d")
            inputs = super()._prepare_inputs(inputs)
            tokens = inputs["input_ids"]
            if "position_ids" not in inputs:  # Packed rows are separated by their positions.
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
    """Tunes with a prepared trainer. See `tuning_engine.TuningEngine`."""

    def __init__(self, trainer: Any, probe: Probe, feed: TrainerBatches) -> None:
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
        self._train(1, UNLIMITED_STEPS)

    def _train(self, epochs: int, steps: int) -> None:
        """Train as the trainer does, with at most `steps` steps in each epoch."""
        trainer = self.trainer
        trainer.state.global_step = trainer._globalstep_last_logged = 0
        # With its own limit, the trainer would also count steps that were not measured, and stop.
        trainer.state.max_steps = UNLIMITED_STEPS
        epoch_arguments = {
            "steps_in_epoch": steps * self.batches.per_step,
            "num_update_steps_per_epoch": steps,
        }
        trainer.control.should_training_stop = False
        for epoch in range(epochs):
            handler = trainer.callback_handler
            trainer.control = handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
            trainer._run_epoch(**trainer.arguments | epoch_arguments | {"epoch": epoch})
            self._probe.end_epoch()

    def check_built(self) -> dict[str, Any]:
        figures = built_figures(self.model, self._config)
        figures["sizes"] = sizes.of_model(self.trainer.model)
        figures["attention_used"] = self.trainer.model.config._attn_implementation
        return figures

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """See `TuningEngine`. TRL's fused loss never holds the logits of all tokens at once."""
        model = self.model
        if isinstance(model, DistributedDataParallel):
            # In its forward pass, DDP would wait for the other ranks in order to broadcast buffers.
            model = model.module
        mask = (tokens != self._probe.pad_id).long()
        padded = {"input_ids": tokens.clamp(min=0), "attention_mask": mask}
        with self.trainer.accelerator.autocast():  # It only has an effect with bf16_mixed.
            output = model(**padded, labels=labels, fused_lm_head=True, use_cache=False)
        return -output.log_probs.double().sum(1).cpu()

    def reference(self) -> AbstractContextManager[Any]:
        """See `TuningEngine`. The reference model is the model without its adapters."""
        return self.trainer.model.disable_adapter()

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]:
        return fake_quantisation.in_int4(self.trainer.model, groupsize)

    def trained(self) -> TrainedParts:
        return trained_parts(self.trainer.model, self._config)

    def close(self) -> None:
        """Release nothing: the process ends."""


@contextmanager
def prepared(probe: Probe, cfg: dict[str, Any], run_cfg: DictConfig) -> Iterator[TrlEngine]:
    """Yield an engine that is ready to train.

    Its model is on the device, and sharded or replicated as `sharding` says.
    """
    config = probe.config
    rank = probe.rank
    # Without this variable, accelerate would change the number of torch's threads.
    os.environ.setdefault("OMP_NUM_THREADS", str(rank.threads))
    if rank.world_size == 1:
        os.environ.pop("LOCAL_RANK", None)  # accelerate would take the run for a distributed one.
    torchtune_loader = build_loader(probe, run_cfg)
    feed = TrainerBatches(torchtune_loader, probe)
    folder = probe.report.folder / "tune_run"
    args = trainer_arguments(config, rank, feed.steps, folder)
    report = probe.report.content
    report.warmup_steps = args.warmup_steps if methods.chosen(config).scheduled else None
    base = DPOTrainer if methods.chosen(config).pairs else SFTTrainer
    model = models.build_model(config, cfg, rank.device, empty=uses_fsdp(config))
    if not getattr(model.config.get_text_config(), "output_router_logits", False):
        # By default, TRL would add the loss that balances the experts of a mixture.
        args.router_aux_loss_coef = 0.0
    fake_quantisation.simulate_quantisation(model, config)
    checks.check_quantised(model, config)
    checks.check_kernels(model, config)
    text_part.freeze_outside_text(model)
    if uses_fsdp(config):  # On CPU ranks, accelerate would silently replicate the model instead.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    placeholder: dict[str, Any] = {"input_ids": [0, 1], "labels": [0, 1]}
    if base is DPOTrainer:
        placeholder = {"prompt": "a", "chosen": "b", "rejected": "c"}
    with peft_layers.adapted_as_named():
        trainer = trainer_class(base, probe, feed)(
            model=model,
            args=args,
            train_dataset=Dataset.from_list([placeholder]),
            processing_class=models.no_tokenizer(),
            peft_config=adapters.adapter_config(model, config),
        )
    trainer.remove_callback(transformers.PrinterCallback)
    if uses_fsdp(config):
        plugin = trainer.accelerator.state.fsdp_plugin
        plugin.transformer_cls_names_to_wrap = text_part.layer_classes(model)
        # accelerate would round the loss to bf16, and sum gradients in bf16.
        if config.formats.are_mixed:
            product_dtype = models.DTYPES[config.formats.products]
            plugin.mixed_precision_policy = MixedPrecisionPolicy(product_dtype, torch.float32)
        if config.offloads:
            plugin.cpu_offload = CPUOffloadPolicy(pin_memory=rank.device.type == "cuda")
    if config.optimizer.has_8_bits:
        optimizer_options = {
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "is_paged": config.optimizer.is_paged,
        }
        trainer.optimizer_cls_and_kwargs = (eight_bit.AdamW8bit, optimizer_options)
    adapters.initialise_adapters(trainer.model, config, cfg, rank.device)
    if config.compile:  # Compiling before FSDP keeps FSDP's hooks out of the compiled code.
        for layer in text_part.layers(model):
            # torchtune chooses the backend by the same variable.
            layer.compile(backend=os.environ.get("TORCH_COMPILE_BACKEND", "inductor"))
    if uses_fsdp(config) and any(parameter.is_meta for parameter in model.parameters()):
        shard_model(trainer)
        models.fill_shards(trainer.model, config, cfg, rank.device)
    trainer.train()
    fake_quantisation.quantise_output(trainer.model)
    if isinstance(config.model, HfConfig):
        checks.check_logits(trainer.model_wrapped, config)
    yield TrlEngine(trainer, probe, feed)


def shard_model(trainer: Any) -> None:
    """Shard the model as accelerate would in `train()`.

    accelerate itself cannot do so here, because it needs weights that are in memory.
    """
    plugin = trainer.accelerator.state.fsdp_plugin
    if plugin.activation_checkpointing:
        plugin.set_auto_wrap_policy(trainer.model)
        fsdp2_apply_ac(trainer.accelerator, trainer.model)
        plugin.activation_checkpointing = False  # Else `train()` would apply it a second time.
    fsdp2_prepare_model(trainer.accelerator, trainer.model)


def uses_fsdp(config: LlmConfig) -> bool:
    """Return True if FSDP shards the model."""
    return config.world_size > 1 and config.sharding is not Sharding.ddp


def trainer_arguments(config: LlmConfig, rank: Rank, steps: int, folder: Path) -> Any:
    """Return the trainer's arguments. They follow torchtune's recipes if TRL's defaults differ."""
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
        "max_grad_norm": config.clip_grad_norm or 0.0,  # 0 turns clipping off.
        # This is autocast. Without it, weights, adapters and optimizer have the run's precision.
        "bf16": config.formats.are_mixed,
        "fp16": False,
        "seed": config.seed,
        "logging_steps": 1,  # Reads the loss on the host in every step, as torchtune's recipes do.
        "logging_nan_inf_filter": False,
        "gradient_checkpointing": config.activation_checkpointing and not uses_fsdp(config),
        "max_length": None,  # Rows were already cut when they were tokenized.
        "ddp_find_unused_parameters": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "error",
    }
    if uses_fsdp(config):
        options["fsdp"] = True
        options["fsdp_config"] = {
            "version": 2,
            "activation_checkpointing": config.activation_checkpointing,
        }
    if config.kernels is Kernels.liger:  # The loss stays TRL's, which holds no logits either.
        options["use_liger_kernel"] = True
        options["liger_kernel_config"] = {
            "cross_entropy": False,
            "fused_linear_cross_entropy": False,
        }
    is_dpo = methods.chosen(config).pairs
    args = DPOConfig(**options, beta=config.method.beta) if is_dpo else SFTConfig(**options)  # pyright: ignore[reportAttributeAccessIssue]
    args._n_gpu = min(args._n_gpu, 1)  # A rank uses its own GPU only, even if it sees several.
    return args


def built_figures(model: torch.nn.Module, config: LlmConfig) -> dict[str, Any]:
    """Return the parameters and bytes of the model, and the figures of `models.layer_counts`.

    Raises:
        RuntimeError: The wrapper or the type of the trained weights differs from the configuration.
    """
    is_on_host = config.offloads and all(
        parameter.device.type == "cpu" for parameter in model.parameters()
    )
    fsdp_sharding = Sharding.fsdp_offload if is_on_host else Sharding.fsdp
    wrapper = None
    if isinstance(model, FSDPModule):
        wrapper = fsdp_sharding
    elif isinstance(model, DistributedDataParallel):
        wrapper = Sharding.ddp
    configured_sharding = config.sharding if config.world_size > 1 else None
    if wrapper is not configured_sharding:
        message = Message(
            "llm.wrapper",
            f"sharding={configured_sharding}: accelerate wrapped the model as {wrapper}"
            f" ({type(model).__name__})",
            asked=configured_sharding,
            wrapper=wrapper,
            type=type(model).__name__,
        )
        raise RuntimeError(message)
    parameters = list(model.parameters())
    dtype = models.DTYPES[config.formats.weights]
    trained_parameters = [parameter for parameter in parameters if parameter.requires_grad]
    other_types = {parameter.dtype for parameter in trained_parameters} - {dtype}
    if other_types:
        message = Message(
            "llm.trained-type",
            f"precision={config.precision.name}: weights are trained in {other_types}",
            asked=config.precision.name,
            types=sorted(map(str, other_types)),
        )
        raise RuntimeError(message)
    counts = models.layer_counts(model)
    return {
        "parameters": sum(parameter.numel() for parameter in parameters) + counts.pop("hidden"),
        "trainable_parameters": sum(parameter.numel() for parameter in trained_parameters),
        "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
        **counts,
    }


def trained_parts(model: Any, config: LlmConfig) -> TrainedParts:
    """Return what was trained, by the names of PEFT and transformers."""
    reader = text_part.reader_of(model.config).__name__
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    parameters_by_name = {unwrapped_name(name): tensor for name, tensor in model.named_parameters()}
    if not methods.chosen(config).adapters:
        linear_names = [
            name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)
        ]
        linears = frozenset(adapters.transformers_name(f"{name}.weight") for name in linear_names)
        groupsize = int4.groupsize(config, model)
        return TrainedParts(models.whole_model(model), {}, None, tied, reader, linears, groupsize)
    # "default" is PEFT's name for the only adapter. Files do not contain it.
    parts = {
        name.replace(".default.", "."): TensorPart(tensor)
        for name, tensor in parameters_by_name.items()
        if ".lora_" in name
    }
    options = model.peft_config["default"].to_dict()
    adapter = {
        name: sorted(value) if isinstance(value, set) else value for name, value in options.items()
    }
    return TrainedParts(parts, models.whole_model(model), adapter, tied, reader)
