"""Load torchtune's recipe classes from the installed package, and subclass them for measuring."""

import gc
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.distributed.fsdp import CPUOffloadPolicy
from torchtune import training
from torchtune.modules import attention_utils

from multicard.config.llm import LlmConfig
from multicard.llm import batches, int4, labelled_rows, methods, models
from multicard.llm.method_options import LoraConfig
from multicard.llm.parts import TensorPart, TrainedParts, unwrapped_name
from multicard.llm.step_probe import MeasuredBatches, Probe
from multicard.messages import Message, Refusal
from multicard.records.schema_data import TextRows


def load_recipe(name: str) -> tuple[ModuleType, type]:
    """Load a recipe, and return its module and its class."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", methods.recipe_file(name))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (recipe,) = (
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    )
    return module, recipe


def measured_recipe(
    recipe: type, probe: Probe, on_schedule: Callable[[DictConfig, int], DictConfig]
) -> type:
    """Return a subclass of the recipe that measures its batches and saves no checkpoints."""

    class MeasuredRecipe(recipe):
        def _setup_data(self, *arguments: Any, **keywords: Any) -> Any:
            result = super()._setup_data(*arguments, **keywords)
            *sampler, loader = result if isinstance(result, tuple) else (result,)
            loader.pin_memory = probe.config.pin_memory  # Only read once the loader is iterated.
            if probe.config.packed:
                loader.collate_fn = batches.with_counts(loader.collate_fn)
            elif "output" in probe.config.custom_sharded_layers and (
                chunks := self._model.num_output_chunks
            ):
                loader.collate_fn = batches.with_even_chunks(
                    loader.collate_fn, chunks, self._tokenizer.pad_id
                )
            record_rows(loader, probe, self._tokenizer.pad_id)
            measured_batches = MeasuredBatches(loader, probe)
            return (*sampler, measured_batches) if sampler else measured_batches

        def _setup_lr_scheduler(
            self, cfg_lr_scheduler: Any, num_training_steps: int, last_epoch: int
        ) -> Any:
            if cfg_lr_scheduler is not None:
                cfg_lr_scheduler = on_schedule(cfg_lr_scheduler, num_training_steps)
            return super()._setup_lr_scheduler(
                cfg_lr_scheduler=cfg_lr_scheduler,
                num_training_steps=num_training_steps,
                last_epoch=last_epoch,
            )

        def save_checkpoint(self, *_: Any, **__: Any) -> None:
            probe.end_epoch()

        def setup(self, *arguments: Any, **keywords: Any) -> None:
            super().setup(*arguments, **keywords)
            client = getattr(self, "_checkpoint_client", None)  # The full recipe saves by it.
            if client is not None:
                client.save_checkpoint = self.save_checkpoint

    return MeasuredRecipe


def record_rows(loader: Any, probe: Probe, pad_id: int) -> None:
    """Record the loader's rows in the report, and set the probe's `pad_id`.

    Raises:
        ValueError: The rows do not fill one step.
    """
    probe.pad_id = pad_id
    probe.report.content.text_rows = TextRows(**labelled_rows.counts(loader.dataset))
    probe.report.content.ignored = labelled_rows.ignored(loader.dataset)
    check_steps(loader, probe.config)


def check_steps(loader: Any, config: LlmConfig) -> None:
    """Refuse a data set that does not fill one step.

    Only the ranks know how many rows or packed sequences it has.
    """
    samples = len(loader.dataset)
    accumulation_steps = config.gradient_accumulation_steps
    if len(loader) >= accumulation_steps:
        return
    needed = config.rows_of_a_step
    unit = "sequences" if config.packed else "rows with a label"
    has_length_limit = config.max_seq_len is not None
    key = "max_seq_len" if has_length_limit else "batch_size"
    value = config.max_seq_len if has_length_limit else config.batch_size
    raise Refusal(
        "llm.samples-below-a-step",
        f"{key}={value}: gives {samples} {unit}, less than one step (batch_size x gpus x"
        f" gradient_accumulation_steps = {needed}); use more rows, or another {key}",
        key=key,
        value=value,
        samples=samples,
        packed=config.packed,
        needed=needed,
    )


@contextmanager
def patched(module: ModuleType, device: torch.device) -> Iterator[None]:
    """Replace parts of torchtune while a recipe runs in our ranks.

    Reading the memory figures must not reset the peak. On the CPU there are no such figures, but
    the distributed recipes read them nevertheless. They would also build the masks of packed rows
    for a GPU if the machine has one. The process group already exists.
    """
    with ExitStack() as stack:
        if device.type == "cpu":
            no_figures = {
                "get_memory_stats": lambda **_: {},
                "log_memory_stats": lambda *_, **__: None,
            }
            stack.enter_context(
                mock.patch.multiple(training, cleanup_before_training=gc.collect, **no_figures)
            )
            stack.enter_context(
                mock.patch.object(attention_utils, "_SUPPORTS_FLEX_ATTENTION", False)
            )
            # Pinned memory only helps a GPU, and cannot be allocated without one.
            unpinned = partial(CPUOffloadPolicy, pin_memory=False)
            stack.enter_context(
                mock.patch("torchtune.training._distributed.CPUOffloadPolicy", unpinned)
            )
        else:
            original = training.get_memory_stats
            stack.enter_context(
                mock.patch.object(
                    training,
                    "get_memory_stats",
                    lambda device, **_: original(device, reset_stats=False),
                )
            )
        if hasattr(module, "init_process_group"):
            stack.enter_context(
                mock.patch.object(module, "init_process_group", lambda *_, **__: None)
            )
        yield


def join_alone(backend: str) -> None:
    """Create a process group of one rank, without a network, for a distributed recipe."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)


def built_figures(model: torch.nn.Module, config: LlmConfig) -> dict[str, int]:
    """Return the parameters and bytes of torchtune's model.

    They come with the number of NF4 tensors, and of linears with fake quantisation.

    Raises:
        RuntimeError: torchtune did not quantise weights that the method should quantise.
    """
    from torchao.dtypes.nf4tensor import NF4Tensor
    from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear

    method = methods.chosen(config)
    name = config.method.name
    parameters = list(model.parameters())
    nf4_count = sum(
        isinstance(getattr(parameter, "_local_tensor", parameter), NF4Tensor)
        for parameter in parameters
    )
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    fake_quantised_count = sum(
        isinstance(module, Int8DynActInt4WeightQATLinear) for module in linears
    )
    if method.nf4 and not nf4_count:
        message = Message(
            "llm.base-unquantised", f"method={name}: torchtune left the base weights unquantised"
        )
        raise RuntimeError(message)
    if method.fake_quantised and fake_quantised_count != len(linears):
        message = Message(
            "llm.linears-unquantised",
            f"method={name}: torchtune quantised {fake_quantised_count} of {len(linears)} linears",
            quantised=fake_quantised_count,
            linears=len(linears),
        )
        raise RuntimeError(message)
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(
            parameter.numel() for parameter in parameters if parameter.requires_grad
        ),
        "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
        "nf4_tensors": nf4_count,
        "fake_quantised_linears": fake_quantised_count,
    }


def trained_parts(model: torch.nn.Module, config: LlmConfig) -> TrainedParts:
    """Return what was trained, by the names of PEFT and transformers.

    The rows of a head are in transformers' order.
    """
    parameters_by_name = {unwrapped_name(name): tensor for name, tensor in model.named_parameters()}
    tied = config.model.tied
    if not methods.chosen(config).adapters:
        parts = {
            models.hugging_face_name(name): _part(name, tensor, config)
            for name, tensor in parameters_by_name.items()
        }
        linear_names = {
            unwrapped_name(name)
            for name, part in model.named_modules()
            if isinstance(part, torch.nn.Linear)
        }
        linears = frozenset(models.hugging_face_name(f"{name}.weight") for name in linear_names)
        return TrainedParts(
            parts, {}, None, tied, linears=linears, groupsize=int4.groupsize(config, model)
        )
    adapters = {name: tensor for name, tensor in parameters_by_name.items() if ".lora_" in name}
    parts = {
        f"base_model.model.{models.hugging_face_name(name)}": _part(name, tensor, config)
        for name, tensor in adapters.items()
    }
    options = config.method
    assert isinstance(options, LoraConfig)
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": options.lora_rank,
        "lora_alpha": options.lora_alpha,
        "use_rslora": options.rslora,
        "lora_dropout": options.lora_dropout,
        "target_modules": sorted({name.split(".lora_")[0].rpartition(".")[2] for name in parts}),
        "bias": "none",
        "fan_in_fan_out": False,
    }
    return TrainedParts(parts, {}, adapter, tied)


def _part(name: str, tensor: torch.Tensor, config: LlmConfig) -> TensorPart:
    return TensorPart(
        tensor, lambda whole_tensor: models.permute_heads(name, whole_tensor, config.model)
    )
