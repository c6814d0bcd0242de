"""Optimisers: fused ones train as the others do, and steps that overflow under loss scaling leave nothing behind."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from multicard.vision import optim
from multicard.vision.precision import PRECISIONS
from tests.conftest import typed

OPTIMIZERS = {
    "sgd": ("optimizer=sgd",),
    "sgd without nesterov": ("optimizer=sgd", "optimizer.nesterov=false", "optimizer.weight_decay=0"),
    "sgd whose schedule brings momentum": ("optimizer=sgd", "optimizer.nesterov=false", "optimizer.momentum=0"),
    "sgd without momentum": ("optimizer=sgd", "optimizer.nesterov=false", "optimizer.momentum=0", "schedule=constant"),
    "adam": ("optimizer=adam", "lr=0.05"),
    "adamw": ("optimizer=adamw", "lr=0.05"),
}
STEPS = 8
CPU = torch.device("cpu")
OVERFLOWS = {"none": (), "first": (0,), "first three": (0, 1, 2), "later": (4, 6), "first and later": (0, 5)}
CASES = [(precision, False, "none") for precision in ("fp64", "fp32", "bf16", "fp16")]
CASES += [("fp16", True, overflow) for overflow in OVERFLOWS]  # without loss scaling, an overflow is not left out


@pytest.fixture
def uninitialised() -> Iterator[None]:
    """Memory that torch leaves as it is holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors so: torch.utils.deterministic
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
        images = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)).to(device, kind.model_dtype)
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
    """All that a later step depends on: weights, the optimiser's buffers and counters, and the loss scale."""
    state = optimisation.optimizer.state_dict()["state"]
    kept = [torch.as_tensor(value) for own in state.values() for _, value in sorted(own.items()) if value is not None]
    return [*model.state_dict().values(), *kept, torch.tensor(optimisation.scaler.get_scale())]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # an overflowed first step is left out
@pytest.mark.parametrize(("precision", "scale_loss", "overflow"), CASES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("uninitialised")
def test_fused_optimisers_train_as_unfused_ones(name: str, precision: str, scale_loss: bool, overflow: str):
    case = precision, scale_loss, OVERFLOWS[overflow]
    plain = numbers(*trained(*case, *OPTIMIZERS[name], "optimizer.fused=false"))
    fused = numbers(*trained(*case, *OPTIMIZERS[name], "optimizer.fused=true"))
    assert len(plain) == len(fused) and all(torch.isfinite(value).all() for value in fused)
    # a weight off in its last digit may be rounded to the next number of the arithmetic
    arithmetic = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-3}[precision]
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(other, one, rtol=arithmetic, atol=arithmetic)


@pytest.mark.usefixtures("uninitialised")
def test_momentum_is_zero_until_a_step_is_taken_also_after_a_restart():
    for overflows in ((0,), (0, 1, 2, 3)):
        case = "fp16", True, overflows, *OPTIMIZERS["sgd"], "optimizer.fused=true"
        whole, resumed = numbers(*trained(*case)), numbers(*trained(*case, restart=2))
        assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))
    _, optimisation = trained("fp32", False, (), *OPTIMIZERS["sgd without momentum"], "optimizer.fused=true")
    assert not any(optimisation.optimizer.state.values())  # and costs no memory where there is none
