"""Optimisers and learning-rate schedules by name."""

from collections.abc import Callable

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from multicard.config.vision import (
    AdamConfig,
    OptimizerConfig,
    OptimizerName,
    Schedule,
    SgdConfig,
)


def _sgd(model: nn.Module, lr: float, options: OptimizerConfig) -> Optimizer:
    assert isinstance(options, SgdConfig)
    return SGD(
        model.parameters(),
        lr,
        momentum=options.momentum,
        nesterov=options.nesterov,
        weight_decay=options.weight_decay,
        fused=options.fused or None,  # False would rule out the foreach loop too
    )


def _adam(model: nn.Module, lr: float, options: OptimizerConfig) -> Optimizer:
    assert isinstance(options, AdamConfig)
    kind = Adam if options.name is OptimizerName.adam else AdamW
    return kind(
        model.parameters(),
        lr,
        betas=(options.betas[0], options.betas[1]),
        eps=options.eps,
        weight_decay=options.weight_decay,
        fused=options.fused or None,  # False would rule out the foreach loop too
    )


OPTIMIZERS: dict[str, Callable[[nn.Module, float, OptimizerConfig], Optimizer]] = {
    OptimizerName.sgd: _sgd,
    OptimizerName.adam: _adam,
    OptimizerName.adamw: _adam,
}

# Each takes the optimiser, the highest learning rate and the number of steps of the whole run, and goes on a step.
SCHEDULES: dict[str, Callable[[Optimizer, float, int], LRScheduler]] = {
    Schedule.onecycle: lambda optimizer, lr, steps: OneCycleLR(optimizer, lr, total_steps=steps),
    Schedule.cosine: lambda optimizer, _, steps: CosineAnnealingLR(optimizer, T_max=steps),
    Schedule.constant: lambda optimizer, *_: LambdaLR(optimizer, lambda _: 1.0),
}
