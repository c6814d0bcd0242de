"""Depthwise convolutions by Triton on a GPU: errors against float64, and a model whose passes are theirs."""

import pytest
import torch

from benchmarks.depthwise import Layer, errors
from multicard.config.vision import Depthwise, ModelConfig
from multicard.vision import models
from tests.gpu.test_cuda import pytestmark  # noqa: F401 - marks this module too

LAYERS = [
    Layer(32, 131, 3, 1),
    Layer(96, 131, 3, 2),
    Layer(20, 33, 3, 3),
    Layer(144, 33, 5, 1),
    Layer(48, 17, 5, 2),
    Layer(40, 14, 7, 1),
    Layer(3, 5, 7, 2),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_all_passes_are_the_convolutions(layer: Layer, dtype: torch.dtype):
    assert max(errors(layer, 3, dtype, "cuda")) < 16


def test_a_model_has_the_gradients_of_the_plain_one():
    torch.manual_seed(0)
    plain = models.build(ModelConfig("mobilenet_v2", 0.35), 10, 288).cuda().double()
    own = models.build(ModelConfig("mobilenet_v2", 0.35, depthwise=Depthwise.triton), 10, 288).cuda().double()
    own.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 288, 288, device="cuda", dtype=torch.float64)
    for model in (plain, own):
        model.eval().to(memory_format=torch.channels_last)
        model(images.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    for expected, found in zip(plain.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-6, atol=1e-9)
