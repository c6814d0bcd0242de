"""Fused optimisers on CUDA, whose kernels are others than the CPU's."""

import pytest
import torch

from tests.gpu.test_cuda import pytestmark  # noqa: F401 - marks this module too
from tests.vision.test_optim import OPTIMIZERS, OVERFLOWS, numbers, trained, uninitialised  # noqa: F401 - a fixture


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step", "ignore:.*deterministic")
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("uninitialised")
def test_fused_optimisers_train_as_unfused_ones_on_cuda(name: str, overflow: str):
    case = "fp16", True, OVERFLOWS[overflow], *OPTIMIZERS[name]
    cuda = torch.device("cuda")
    plain = numbers(*trained(*case, "optimizer.fused=false", device=cuda))
    fused = numbers(*trained(*case, "optimizer.fused=true", device=cuda))
    assert all(torch.isfinite(value).all() for value in fused)
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(other, one, rtol=2e-3, atol=2e-3, check_device=False)  # steps are counted on either
