"""Optimizers and learning-rate schedules.

torch is imported only inside functions, because the controller reads the names.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from multicard.config.vision import AdamConfig, OptimizerConfig, Schedule, SgdConfig, VisionConfig

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.amp.grad_scaler import GradScaler
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

# For each name: the class of torch.optim, and the schema of its options, which are the class's
# keywords.
OPTIMIZERS: dict[str, tuple[str, type[OptimizerConfig]]] = {
    "sgd": ("SGD", SgdConfig),
    "adam": ("Adam", AdamConfig),
    "adamw": ("AdamW", AdamConfig),
}


@dataclass
class Optimisation:
    """The optimizer, its learning-rate schedule, and the scaler of the loss in fp16."""

    optimizer: "Optimizer"
    schedule: "LRScheduler"
    scaler: "GradScaler"

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in vars(self).items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, part in vars(self).items():
            part.load_state_dict(state[name])


def build(
    model: "nn.Module", config: VisionConfig, steps: int, scale_loss: bool, device: "torch.device"
) -> Optimisation:
    """Build the optimizer of the trainable parameters of `model`, for a run of `steps` steps."""
    import torch
    from torch.amp.grad_scaler import GradScaler

    optimizer = optimizer_of(model, config.lr, config.optimizer)
    scaler = GradScaler(device.type, enabled=scale_loss)
    # This creates the scaler's state, also on ranks that have no batch in their first round.
    scaler.scale(torch.zeros(1, device=device))
    scheduled = schedule(optimizer, config.schedule, config.lr, steps)
    zero_momentum(optimizer)
    return Optimisation(optimizer, scheduled, scaler)


def optimizer_of(model: "nn.Module", lr: float, options: OptimizerConfig) -> "Optimizer":
    """Build the optimizer of the trainable parameters, without a schedule."""
    import torch

    keywords = asdict(options)
    class_name, _ = OPTIMIZERS[keywords.pop("name")]
    keywords["fused"] = options.fused or None  # False would rule out the foreach loop too.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return getattr(torch.optim, class_name)(trained, lr, **keywords)


def zero_momentum(optimizer: "Optimizer") -> None:
    """Fill the momentum buffers of fused SGD with zeros.

    Call it after the schedule was made, which may set the momentum. torch creates the buffers by
    `empty_like` in the first step, and the kernel fills them. If the gradients of that step
    overflow under loss scaling, the kernel returns at once, and whatever was in memory stays as
    momentum. Starting from zeros gives the same first step: momentum x 0 + gradient, as there is no
    dampening.
    """
    import torch

    for group in optimizer.param_groups:
        if group["fused"] and group.get("momentum"):
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def schedule(optimizer: "Optimizer", name: Schedule, lr: float, steps: int) -> "LRScheduler":
    """Build the schedule of a run. It advances with each step.

    Args:
        lr: The highest learning rate.
        steps: Steps of the run.
    """
    from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

    if name is Schedule.onecycle:
        return OneCycleLR(optimizer, lr, total_steps=steps)
    if name is Schedule.cosine:
        return CosineAnnealingLR(optimizer, T_max=steps)
    return LambdaLR(optimizer, lambda _: 1.0)
