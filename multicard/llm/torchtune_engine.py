"""Tune with one of torchtune's recipes (`engine=torchtune`).

Only this module and `recipes` use private names of the recipes.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
import torchtune.training
from omegaconf import DictConfig
from torch.nn.functional import cross_entropy, pad
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX
from torchtune.modules.peft import disable_adapter

from multicard.config.llm import LlmConfig
from multicard.llm import batches, int4, recipes, torchtune_config
from multicard.llm.parts import TrainedParts
from multicard.llm.step_probe import MeasuredBatches, Probe

LOGIT_CHUNKS = 8  # Chunks of a sequence, by default as many as in torchtune's losses.
# Attributes of a recipe that say which epochs and steps it takes, and how many it has taken.
COUNTERS = ("epochs_run", "total_epochs", "max_steps_per_epoch", "global_step")


class TorchtuneEngine:
    """Tunes with a recipe that is set up. See `tuning_engine.TuningEngine`."""

    def __init__(self, recipe: Any, config: LlmConfig, pad_id: int) -> None:
        self._recipe = recipe
        self._config = config
        self._pad_id = pad_id
        self.model: torch.nn.Module = recipe._model
        self.scheduler: Any = getattr(recipe, "_lr_scheduler", None)
        self.batches: MeasuredBatches = recipe._dataloader
        self.steps_per_epoch: int = recipe._steps_per_epoch

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        if self._config.optimizer_in_bwd:
            return [*self._recipe._optim_ckpt_wrapper.optim_map.values()]
        return [self._recipe._optimizer]

    def train(self, epochs: int) -> None:
        self._recipe.total_epochs = epochs
        self._recipe.train()

    def train_pass(self) -> None:
        """See `TuningEngine`.

        The distributed recipes' `train` would first return all free memory to the GPU, and allocate
        it again in the first steps. Here the memory is kept, as between two steps of a training.
        """
        recipe = self._recipe
        counters_before = {name: value for name, value in vars(recipe).items() if name in COUNTERS}
        recipe.epochs_run = 0
        recipe.total_epochs = 1
        recipe.max_steps_per_epoch = None
        with mock.patch.object(torchtune.training, "cleanup_before_training", lambda: None):
            recipe.train()
        vars(recipe).update(counters_before)

    def check_built(self) -> dict[str, Any]:
        return recipes.built_figures(self.model, self._config)

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """See `TuningEngine`.

        The model returns its logits (rows, S, vocabulary) as one tensor, or in chunks of S. Only
        one chunk at a time is converted to float32: DPO's recipe, which holds all logits, never
        converts them all.
        """
        model: Any = self.model
        chunks = model.num_output_chunks
        # The output is gathered for each chunk, so all ranks need the same number of chunks.
        if "output" in self._config.custom_sharded_layers and chunks:
            padding = (0, batches.least_length(tokens.shape[1], chunks) - tokens.shape[1])
            tokens = pad(tokens, padding, value=self._pad_id)
            labels = pad(labels, padding, value=CROSS_ENTROPY_IGNORE_IDX)
        output = model(tokens=tokens)
        next_labels = pad(labels[:, 1:], (0, 1), value=CROSS_ENTROPY_IGNORE_IDX)
        options: Any = {"ignore_index": CROSS_ENTROPY_IGNORE_IDX, "reduction": "none"}
        losses = torch.zeros(len(tokens), dtype=torch.float64)
        start = 0
        for logits in output if isinstance(output, list) else output.chunk(LOGIT_CHUNKS, dim=1):
            chunk_labels = next_labels[:, start : start + logits.shape[1]]
            nats = cross_entropy(logits.float().flatten(0, 1), chunk_labels.flatten(), **options)
            losses += nats.view(chunk_labels.shape).double().sum(1).cpu()
            start += logits.shape[1]
        return losses

    def reference(self) -> AbstractContextManager[Any]:
        """See `TuningEngine`. The reference model is the model without its adapters."""
        return disable_adapter(self.model)

    def in_int4(self, groupsize: int) -> AbstractContextManager[list[Exception]]:
        return int4.computing(int4.linears(self.model), groupsize)

    def trained(self) -> TrainedParts:
        return recipes.trained_parts(self.model, self._config)

    def close(self) -> None:
        self._recipe.cleanup()


@contextmanager
def prepared(probe: Probe, cfg: dict[str, Any], run_cfg: DictConfig) -> Iterator[TorchtuneEngine]:
    """Set up the recipe that the configuration selects, and yield its engine.

    Args:
        cfg: The configuration in torchtune.yaml. The file is rewritten if the number of warm-up
            steps differs.
        run_cfg: The configuration with which the recipe runs.
    """
    config = probe.config
    rank = probe.rank

    def on_schedule(scheduler: DictConfig, steps: int) -> DictConfig:
        warmup = torchtune_config.warmup_steps(config, steps)
        probe.report.content.warmup_steps = warmup
        # The file does not know the number of steps yet, or the run takes fewer.
        if scheduler["num_warmup_steps"] != warmup and rank.rank == 0:
            cfg["lr_scheduler"]["num_warmup_steps"] = warmup
            torchtune_config.write_yaml(config, cfg, probe.report.folder)
        scheduler["num_warmup_steps"] = warmup
        return scheduler

    module, recipe_class = recipes.load_recipe(config.recipe_name)
    with recipes.patched(module, rank.device):
        recipe: Any = recipes.measured_recipe(recipe_class, probe, on_schedule)(cfg=run_cfg)
        recipe.setup(cfg=run_cfg)
        if rank.rank == 0:
            recipe._metric_logger.listener = probe.log
        yield TorchtuneEngine(recipe, config, probe.pad_id)
