"""A third engine, as docs/develop/extending.md describes one: a plain loop, all weights of torchtune's model,
one rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from omegaconf import DictConfig
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler
from torchtune import config as components
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX, padded_collate_sft
from torchtune.training import MODEL_KEY

from multicard.llm import recipes, torchtune_config
from multicard.llm.parts import TrainedParts
from multicard.llm.step_probe import MeasuredBatches, Probe


class PlainEngine:
    """Rows, weights and optimiser that `cfg` names, and a loop over them."""

    def __init__(self, probe: Probe, cfg: DictConfig) -> None:
        self.probe = probe
        config = probe.config
        tokenizer = components.instantiate(cfg.tokenizer)
        rows = components.instantiate(cfg.dataset, tokenizer)
        collate = partial(
            padded_collate_sft, padding_idx=tokenizer.pad_id, ignore_idx=CROSS_ENTROPY_IGNORE_IDX
        )
        self.sampler = DistributedSampler(rows, 1, 0, shuffle=True, seed=0)
        loader = DataLoader(
            rows, config.batch_size, sampler=self.sampler, collate_fn=collate, drop_last=True
        )
        recipes.record_rows(loader, probe, tokenizer.pad_id)
        self.batches = MeasuredBatches(loader, probe)
        self.model: torch.nn.Module = components.instantiate(cfg.model)
        weights = components.instantiate(cfg.checkpointer).load_checkpoint()[MODEL_KEY]
        self.model.load_state_dict(weights)
        self.optimizer = components.instantiate(cfg.optimizer, self.model.parameters())
        self.optimizers = [self.optimizer]
        self.steps_per_epoch = min(len(loader), config.max_steps or len(loader))
        steps = config.epochs * self.steps_per_epoch
        cfg.lr_scheduler.num_warmup_steps = torchtune_config.warmup_steps(config, steps)
        probe.report.content.warmup_steps = cfg.lr_scheduler.num_warmup_steps
        self.scheduler = components.instantiate(
            cfg.lr_scheduler, self.optimizer, num_training_steps=steps
        )

    def train(self, epochs: int) -> None:
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            self._train_on(islice(self.batches, self.steps_per_epoch))
            self.probe.end_epoch()

    def train_pass(self) -> None:
        self._train_on(iter(self.batches))

    def _train_on(self, batches: Iterator[Any]) -> None:
        for batch in batches:
            logits = self.model(batch["tokens"])[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.probe.log({"loss": loss.item(), "lr": self.scheduler.get_last_lr()[0]})

    def check_built(self) -> dict[str, Any]:
        return recipes.built_figures(self.model, self.probe.config)

    def row_losses(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(tokens)[:, :-1]
        options: Any = {"ignore_index": CROSS_ENTROPY_IGNORE_IDX, "reduction": "none"}
        nats = cross_entropy(logits.transpose(1, 2), labels[:, 1:], **options)
        return nats.double().sum(1).cpu()

    def reference(self) -> nullcontext[None]:
        raise NotImplementedError("this engine trains no pairs")

    def in_int4(self, groupsize: int) -> nullcontext[list[Exception]]:
        raise NotImplementedError("this engine has no layers that are quantised")

    def trained(self) -> TrainedParts:
        return recipes.trained_parts(self.model, self.probe.config)

    def close(self) -> None:
        pass


@contextmanager
def prepared(probe: Probe, cfg: dict[str, Any], run_cfg: DictConfig) -> Iterator[PlainEngine]:
    yield PlainEngine(probe, run_cfg)
