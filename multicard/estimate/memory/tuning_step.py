"""A simulated step of torchtune's own recipes, on fake tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import multicard.llm.before_torchtune  # noqa: F401  sets variables that the libraries below read when imported

# isort: split
import torch
import torchtune.datasets  # noqa: F401  before torchtune's own parts, which import each other in a circle
from omegaconf import OmegaConf
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchtune import config as components
from torchtune import modules, training
from torchtune.modules.peft import get_adapter_params, set_trainable_params
from torchtune.training import quantization

from multicard.config.llm import LlmConfig
from multicard.estimate.memory import torch_internals
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.memory.tracker import Tracker
from multicard.llm import batches, int4, methods, preflight, recipes, torchtune_config
from multicard.llm.no_trace import without_trace
from multicard.llm.torchtune_engine import TorchtuneEngine

HERE = "multicard.estimate.memory.tuning_step"


def no_weights(**_: Any) -> SimpleNamespace:
    """Return a checkpointer that loads no weights: fake tensors have no values."""
    return SimpleNamespace(load_checkpoint=lambda: {training.MODEL_KEY: {}})


def no_tokenizer(**_: Any) -> SimpleNamespace:
    return SimpleNamespace(pad_id=0)


class EqualBatches:
    """A loader with the number of equal batches that the steps need."""

    def __init__(self, batch: Callable[[], Any], count: int) -> None:
        self.batch = batch
        self.count = count
        self.sampler = SimpleNamespace(set_epoch=lambda _: None)

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {}

    def __iter__(self) -> Iterator[Any]:
        return (self.batch() for _ in range(self.count))


def step_count(config: LlmConfig) -> int:
    """Return how many steps to simulate.

    Usually it is one, after the optimizer has made its states. It is two if the first step makes
    the states, and for pairs of answers. There, torchtune's recipe holds the reference's output
    into the forward pass of the next step.
    """
    return 2 if config.optimizer_in_bwd or methods.chosen(config).pairs else 1


def recipe_configuration(config: LlmConfig, facts: TextFacts, device_type: str) -> Any:
    """Return a run's torchtune configuration without the parts that read files."""
    steps = step_count(config)
    rows = steps * config.batch_size * config.world_size * config.gradient_accumulation_steps
    inputs = preflight.Inputs([{}] * rows, None, facts.vocabulary)
    cfg = torchtune_config.torchtune_config(config, device_type, inputs, Path())
    cfg |= {
        "tokenizer": {"_component_": f"{HERE}.no_tokenizer"},
        "checkpointer": {
            "_component_": f"{HERE}.no_weights",
            "model_type": cfg["checkpointer"]["model_type"],
        },
        "metric_logger": {"_component_": "multicard.llm.torchtune_components.StepLog"},
        "epochs": 1,
        "max_steps_per_epoch": steps,
        "compile": False,
        "log_peak_memory_stats": False,
        "log_every_n_steps": 1,
    }
    if "lr_scheduler" in cfg:
        cfg["lr_scheduler"]["num_warmup_steps"] = 1
    return OmegaConf.create(cfg)


def run(
    config: LlmConfig, facts: TextFacts, device: torch.device, tracker: Tracker, mesh: Any = None
) -> None:
    """Simulate a tuning step of rank 0 under `tracker`. Call it within `fake(device)`.

    A distributed recipe also needs `fake_ranks`, which yields its mesh.
    """
    cfg = recipe_configuration(config, facts, device.type)
    module, recipe_class = recipes.load_recipe(config.recipe_name)
    with (
        recipes.patched(module, torch.device("cpu")),
        _patched_recipe(module, device, tracker),
        tracker,
    ):
        recipe = _tracked_recipe(recipe_class, config, facts, tracker, mesh)(cfg=cfg)
        recipe.setup(cfg=cfg)
        engine = TorchtuneEngine(recipe, config, pad_id=0)
        engine.check_built()
        engine.model.register_forward_pre_hook(lambda *_: setattr(tracker, "is_forward", True))
        if not config.optimizer_in_bwd:
            tracker.make_states(*engine.optimizers)
        tracker.restart_peak()
        recipe.train()
        if facts.evaluates:
            evaluate(engine, config, facts, device, tracker)


def evaluate(
    engine: TorchtuneEngine,
    config: LlmConfig,
    facts: TextFacts,
    device: torch.device,
    tracker: Tracker,
) -> None:
    """Score a batch of the longest rows like held-out rows, and in int4 if the method uses it.

    This may take more memory than a step, for example with recomputed activations and few
    gradients.
    """
    tracker.is_forward = False
    row_batch = batch(replace(config, packed=False), facts, device, tracker)
    tokens, labels = (
        row_batch if isinstance(row_batch, tuple) else (row_batch["tokens"], row_batch["labels"])
    )
    groupsize = int4.groupsize(config, engine.model)
    with without_trace(engine.model):
        engine.row_losses(tokens, labels)
    if groupsize is not None:
        with without_trace(engine.model), engine.in_int4(groupsize) as failures:
            engine.row_losses(tokens, labels)
        if failures:  # Only fake tensors cause them: the layers of a run have values.
            raise failures[0]


def few_steps_recipe(
    recipe_class: type, config: LlmConfig, steps: int, batch: Callable[[Any], Any]
) -> type:
    """Return a recipe that takes a few steps on equal batches from `batch` and saves nothing."""

    class FewStepsRecipe(recipe_class):
        def _setup_data(self, *_: Any, **__: Any) -> Any:
            loader = EqualBatches(partial(batch, self), steps * config.gradient_accumulation_steps)
            gives_sampler = config.recipe_name.startswith(("lora_dpo", "qat"))
            return (loader.sampler, loader) if gives_sampler else loader

        def save_checkpoint(self, *_: Any, **__: Any) -> None: ...

        def setup(self, *arguments: Any, **keywords: Any) -> None:
            super().setup(*arguments, **keywords)
            client = getattr(self, "_checkpoint_client", None)
            if client is not None:  # Some recipes save by it, and a checkpoint gathers the weights.
                client.save_checkpoint = lambda *_, **__: None

    return FewStepsRecipe


def _tracked_recipe(
    recipe_class: type, config: LlmConfig, facts: TextFacts, tracker: Tracker, mesh: Any
) -> type:
    def longest_batch(recipe: Any) -> Any:
        return batch(config, facts, recipe._device, tracker, recipe._model.num_output_chunks)

    class TrackedRecipe(few_steps_recipe(recipe_class, config, step_count(config), longest_batch)):
        def _setup_model(self, *arguments: Any, **keywords: Any) -> nn.Module:
            if mesh is None:
                model = super()._setup_model(*arguments, **keywords)
            else:
                model = build_sharded(
                    self, config, keywords["cfg_model"], keywords.get("quantizer_cfg"), mesh
                )
            tracker.note_model(model)
            return model

    return TrackedRecipe


def build_sharded(
    recipe: Any, config: LlmConfig, cfg_model: Any, quantizer_cfg: Any, mesh: Any
) -> nn.Module:
    """Return the model of a distributed recipe, as `_setup_model` returns it with weights."""
    with training.set_default_dtype(recipe._dtype), recipe._device:
        model = components.instantiate(cfg_model)
    if methods.chosen(config).adapters:
        set_trainable_params(model, get_adapter_params(model))
    if config.activation_checkpointing:
        training.set_activation_checkpointing(
            model, auto_wrap_policy={modules.TransformerSelfAttentionLayer}
        )
    if quantizer_cfg is not None:
        quantizer = components.instantiate(quantizer_cfg)
        quantizer.precision = recipe._dtype
        recipe._quantizer_mode = quantization.get_quantizer_mode(quantizer)
        model = quantizer.prepare(model)
    conditions = [
        partial(training.get_shard_conditions, names_to_match=list(config.custom_sharded_layers))
    ]
    training.shard_model(model, conditions, cpu_offload=False, dp_mesh=mesh)
    recipe.activations_handling_ctx = nullcontext()
    return model


def batch(
    config: LlmConfig, facts: TextFacts, device: torch.device, tracker: Tracker, chunks: int = 0
) -> Any:
    """Return a full batch of the longest rows on the device.

    It has the shapes of `padded_collate_sft`, `_dpo` or `_packed`. If the output layer is sharded,
    the rows are padded to the chunks in which the model computes its output.
    """
    pairs = methods.chosen(config).pairs
    pads_to_chunks = "output" in config.custom_sharded_layers and chunks and not config.packed
    length = batches.least_length(facts.length, chunks) if pads_to_chunks else facts.length
    shape = (2 * config.batch_size if pairs else config.batch_size, length)

    def zeros() -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    tokens = zeros()
    labels = zeros()
    parts: dict[str, Any] = {"tokens": tokens, "labels": labels}
    if config.packed:
        parts["input_pos"] = zeros()
        if device.type == "cuda":
            parts["mask"] = torch_internals.PackedMask(zeros())
            tracker.note(parts["mask"].row_numbers, "batch")
        else:
            parts["mask"] = torch.ones(*shape, facts.length, dtype=torch.bool, device=device)
    tracker.note([part for part in parts.values() if isinstance(part, torch.Tensor)], "batch")
    return (tokens, labels) if pairs else parts


def unscaled_positions(rope: Any) -> None:
    """Replace `rope_init` of Llama 3.1 and 3.2, which reads values. The tables keep their sizes."""
    modules.RotaryPositionalEmbeddings.rope_init(rope)
    rope.is_cache_built = True


@contextmanager
def _patched_recipe(module: ModuleType, device: torch.device, tracker: Tracker) -> Iterator[None]:
    """Replace a recipe's access to files, GPU and terminal. Tell `tracker` when forward ends."""
    backward = torch.Tensor.backward

    def backward_ending_forward(loss: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        tracker.is_forward = False
        backward(loss, *arguments, **keywords)

    replacements: dict[str, Any] = {
        "torch.Tensor.backward": backward_ending_forward,
        # It returns the missing and the unexpected keys.
        "torch.nn.Module.load_state_dict": lambda *_, **__: ([], []),
        "torchtune.models.llama3_1.Llama3ScaledRoPE.rope_init": unscaled_positions,
        **torch_internals.NF4_BY_SHAPE,
        **(torch_internals.torchtune_on_gpu() if device.type == "cuda" else {}),
    }
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: tracker.note_states(optimizer))
    try:
        with (
            torch_internals.patched(replacements),
            mock.patch.object(module, "tqdm", mock.MagicMock()),
        ):
            yield
    finally:
        hook.remove()
