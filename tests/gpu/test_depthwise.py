"""Depthwise convolutions by Triton on a GPU: errors against float64,
and a model whose passes are theirs.
"""

import pytest
import torch

from multicard.config.vision import Depthwise, ModelConfig
from multicard.vision import models
from tests.gpu.test_cuda import pytestmark  # noqa: F401 - marks this module too
from tests.helpers.convolved import errors

# channels, side of the images, side of the taps, stride
LAYERS = [
    (32, 131, 3, 1),
    (96, 131, 3, 2),
    (20, 33, 3, 3),
    (144, 33, 5, 1),
    (48, 17, 5, 2),
    (40, 14, 7, 1),
    (3, 5, 7, 2),
]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layer", LAYERS)
def test_all_passes_are_the_convolutions(layer: tuple[int, int, int, int], kind: str):
    channels, side, kernel, stride = layer
    assert max(errors(kind, 3, channels, side, side + 2, kernel, stride, "cuda")) < 16


def test_a_model_has_the_gradients_of_the_plain_one():
    torch.manual_seed(0)
    plain = models.build(ModelConfig("mobilenet_v2", 0.35), 10, 288).cuda().double()
    own = (
        models.build(ModelConfig("mobilenet_v2", 0.35, depthwise=Depthwise.triton), 10, 288)
        .cuda()
        .double()
    )
    own.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 288, 288, device="cuda", dtype=torch.float64)
    for model in (plain, own):
        model.eval().to(memory_format=torch.channels_last)
        model(images.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    for expected, found in zip(plain.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-6, atol=1e-9)
