"""A step of an image model without values: the project's own model, strategy, optimiser and loop."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from multicard.config.vision import VisionConfig
from multicard.estimate.memory import image_data, wrappers
from multicard.estimate.memory.facts import ImageFacts
from multicard.estimate.memory.tracker import Tracker
from multicard.measure.timing import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER
from multicard.ranks.process import Rank
from multicard.vision import models, optim
from multicard.vision.loop import Loop, memory_format
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES, Share

PHASES = {DATA: "data", H2D: "data", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}


class DryLoop(Loop):
    """The loop of training without what surrounds it: clocks, the controller's board, files."""

    def __init__(self, rank: Rank, config: VisionConfig, share: Share, optimisation: Any, tracker: Tracker) -> None:
        self.rank, self.config, self.share, self.optim, self.tracker = rank, config, share, optimisation, tracker
        self.precision = choose(config.precision.name, rank.device)
        self.memory_format = memory_format(config)
        self.compiled = self.cuda_graphs = False
        self.timer: Any = SimpleNamespace(begin=lambda phase: setattr(tracker, "phase", PHASES[phase]))
        self.peek: Any = SimpleNamespace(offer=lambda loss: None)
        self.losses = torch.zeros(share.steps, dtype=torch.float64, device=rank.device)

    def move(self, batch: Any, counts: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        moved = super().move(batch, counts)
        self.tracker.note(moved, "batch")
        return moved


def run(
    config: VisionConfig, facts: ImageFacts, device: torch.device, tracker: Tracker, memory_bytes: int | None = None
) -> nn.Module:
    """Train for a step as rank 0 does, under `tracker`. Call it within `fake_device.fake(device)`.

    Returns:
        The model that was trained.
    """
    strategy = STRATEGIES[config.strategy.name]
    ranks = 1 if strategy.one_process else config.gpus * config.nodes
    rank = Rank(0, 0, ranks, device, "gloo", 1)
    precision = choose(config.precision.name, device)
    with device:
        model = models.build(config.model, facts.classes, config.dataset.image_size)
    convert(model, precision.model_dtype, memory_format(config))
    with tracker, wrappers.standing_in(tracker):
        tracker.note_model(model)
        share = strategy.share(model, facts.train, config, rank)
        kept = image_data.resident(config, facts, share, device, memory_bytes)
        tracker.note(kept, "resident")
        optimisation = optim.build(share.model, config, config.epochs * share.steps, precision.scale_loss, device)
        tracker.make_states(optimisation.optimizer)
        loop = DryLoop(rank, config, share, optimisation, tracker)
        share.model.train()
        batches = image_data.batches(config, facts, share, device, tracker)
        tracker.restart_peak()
        loop.step(batches)
    return model


def convert(model: nn.Module, dtype: torch.dtype, form: torch.memory_format) -> None:
    """`model.to(dtype).to(memory_format=form)`, by hand: fake parameters cannot be swapped in place."""
    with torch.no_grad():
        for module in model.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    layout = form if value.dim() == 4 else torch.preserve_format
                    changed = nn.Parameter(value.detach().to(dtype, memory_format=layout), value.requires_grad)
                    module._parameters[name] = changed
            for name, value in module._buffers.items():
                if value is not None and value.is_floating_point():
                    module._buffers[name] = value.to(dtype)
