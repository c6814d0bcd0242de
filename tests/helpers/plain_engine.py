"""A third engine, as docs/extending.md describes one: a plain loop,
all weights of torchtune's model, one rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from omegaconf import DictConfig
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler
from torchtune import config as components
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX, padded_collate_sft
from torchtune.training import MODEL_KEY

from multicard.llm import recipes, torchtune_config
from multicard.llm.step_probe import MeasuredBatches, Probe

check_built, row_losses = recipes.check_built, recipes.row_losses


class Loop:
    """Rows, weights and optimiser that `cfg` names, and what multicard asks of a loop."""

    def __init__(self, probe: Probe, cfg: DictConfig) -> None:
        self.probe, config = probe, probe.config
        tokenizer = components.instantiate(cfg.tokenizer)
        rows = components.instantiate(cfg.dataset, tokenizer)
        collate = partial(
            padded_collate_sft, padding_idx=tokenizer.pad_id, ignore_idx=CROSS_ENTROPY_IGNORE_IDX
        )
        self.sampler = DistributedSampler(rows, 1, 0, shuffle=True, seed=0)
        loader = DataLoader(
            rows, config.batch_size, sampler=self.sampler, collate_fn=collate, drop_last=True
        )
        recipes.note(loader, probe, tokenizer.pad_id)
        self._dataloader = MeasuredBatches(loader, probe)
        self._model = components.instantiate(cfg.model)
        self._model.load_state_dict(
            components.instantiate(cfg.checkpointer).load_checkpoint()[MODEL_KEY]
        )
        self._optimizer = components.instantiate(cfg.optimizer, self._model.parameters())
        self._steps_per_epoch = self.max_steps_per_epoch = min(
            len(loader), config.max_steps or len(loader)
        )
        self.epochs_run, self.total_epochs = 0, config.epochs
        steps = config.epochs * self._steps_per_epoch
        cfg.lr_scheduler.num_warmup_steps = torchtune_config.warmup_steps(config, steps)
        probe.report.content.warmup_steps = cfg.lr_scheduler.num_warmup_steps
        self._lr_scheduler = components.instantiate(
            cfg.lr_scheduler, self._optimizer, num_training_steps=steps
        )

    def train(self) -> None:
        for epoch in range(self.epochs_run, self.total_epochs):
            self.sampler.set_epoch(epoch)
            for batch in islice(self._dataloader, self.max_steps_per_epoch):
                logits = self._model(batch["tokens"])[:, :-1]
                loss = cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
                loss.backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
                self._lr_scheduler.step()
                self.probe.log({"loss": loss.item(), "lr": self._lr_scheduler.get_last_lr()[0]})
            self.probe.end_epoch()

    def cleanup(self) -> None:
        pass


@contextmanager
def prepared(probe: Probe, cfg: dict[str, Any], run_cfg: DictConfig) -> Iterator[Loop]:
    yield Loop(probe, run_cfg)
