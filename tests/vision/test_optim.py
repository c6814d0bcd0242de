"""Optimisers: fused ones train as the others do, and steps that
overflow under loss scaling leave nothing behind.
"""

import pytest
import torch

from tests.helpers.optimised import (
    OPTIMIZERS,
    OVERFLOWS,
    numbers,
    trained,
    uninitialised,  # noqa: F401 - a fixture
)

CASES = [(precision, False, "none") for precision in ("fp64", "fp32", "bf16", "fp16")]
# without loss scaling, an overflow is not left out
CASES += [("fp16", True, overflow) for overflow in OVERFLOWS]


# an overflowed first step is left out
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(("precision", "scale_loss", "overflow"), CASES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("uninitialised")
def test_fused_optimisers_train_as_unfused_ones(
    name: str, precision: str, scale_loss: bool, overflow: str
):
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
    _, optimisation = trained(
        "fp32", False, (), *OPTIMIZERS["sgd without momentum"], "optimizer.fused=true"
    )
    assert not any(optimisation.optimizer.state.values())  # and costs no memory where there is none
