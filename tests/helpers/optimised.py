"""A small model after some steps of an optimiser."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from multicard.vision import optim
from multicard.vision.precision import PRECISIONS
from tests.conftest import typed

OPTIMIZERS = {
    "sgd": ("optimizer=sgd",),
    "sgd without nesterov": (
        "optimizer=sgd",
        "optimizer.nesterov=false",
        "optimizer.weight_decay=0",
    ),
    "sgd whose schedule brings momentum": (
        "optimizer=sgd",
        "optimizer.nesterov=false",
        "optimizer.momentum=0",
    ),
    "sgd without momentum": (
        "optimizer=sgd",
        "optimizer.nesterov=false",
        "optimizer.momentum=0",
        "schedule=constant",
    ),
    "adam": ("optimizer=adam", "lr=0.05"),
    "adamw": ("optimizer=adamw", "lr=0.05"),
}


STEPS = 8


CPU = torch.device("cpu")


OVERFLOWS = {
    "none": (),
    "first": (0,),
    "first three": (0, 1, 2),
    "later": (4, 6),
    "first and later": (0, 5),
}


@pytest.fixture
def uninitialised() -> Iterator[None]:
    """Memory that torch leaves as it is holds NaN."""
    # fills new tensors so: torch.utils.deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def trained(
    precision: str,
    scale_loss: bool,
    overflows: tuple[int, ...],
    *overrides: str,
    restart: int | None = None,
    device: torch.device = CPU,
) -> tuple[nn.Module, optim.Optimisation]:
    """A linear model after `STEPS` steps, of which `overflows` have infinite gradients.

    Args:
        restart: the step before which model and optimiser are made anew, and their states put back.
    """
    config = typed(f"precision={precision}", *overrides)
    kind = PRECISIONS[precision]

    def new() -> tuple[nn.Module, optim.Optimisation]:
        torch.manual_seed(0)
        model = nn.Linear(6, 4).to(device, kind.model_dtype)
        return model, optim.build(model, config, STEPS, scale_loss, device)

    model, optimisation = new()
    for step in range(STEPS):
        if step == restart:
            states = model.state_dict(), optimisation.state()
            model, optimisation = new()
            model.load_state_dict(states[0])
            optimisation.restore(states[1])
        images = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)).to(
            device, kind.model_dtype
        )
        optimisation.optimizer.zero_grad(set_to_none=True)
        with kind.arithmetic(device):
            loss = model(images).double().square().mean()
        optimisation.scaler.scale(loss).backward()
        if step in overflows:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(torch.inf)
        optimisation.scaler.step(optimisation.optimizer)
        optimisation.scaler.update()
        optimisation.schedule.step()
    return model, optimisation


def numbers(model: nn.Module, optimisation: optim.Optimisation) -> list[torch.Tensor]:
    """All that a later step depends on: weights, the optimiser's buffers and counters,
    and the loss scale.
    """
    state = optimisation.optimizer.state_dict()["state"]
    kept = [
        torch.as_tensor(value)
        for own in state.values()
        for _, value in sorted(own.items())
        if value is not None
    ]
    return [*model.state_dict().values(), *kept, torch.tensor(optimisation.scaler.get_scale())]
