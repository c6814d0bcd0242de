"""Pointwise convolutions as matrix products: the same model, the same numbers."""

from copy import deepcopy
from dataclasses import asdict
from hashlib import sha256
from json import dumps

import pytest
import torch
from torch import nn

from multicard.config import base
from multicard.config.vision import ModelConfig, Pointwise
from multicard.vision import models
from multicard.vision.pointwise import PointwiseLinear, is_pointwise, with_matrix_products
from tests.conftest import typed


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_the_convolutions(bias: bool):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(5, 7, 1, bias=bias)).double()
    turned = with_matrix_products(deepcopy(plain))
    assert type(turned[0]) is PointwiseLinear
    results = []
    for model in (plain, turned):
        model.to(memory_format=torch.channels_last)
        images = torch.arange(2 * 5 * 3 * 4.0).sin().reshape(2, 5, 3, 4).double()
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        outputs = model(images)
        assert outputs.is_contiguous(memory_format=torch.channels_last)
        outputs.square().sum().backward()
        assert images.grad is not None and images.grad.is_contiguous(memory_format=torch.channels_last)
        results.append([outputs, images.grad, *(parameter.grad for parameter in model.parameters())])
    for expected, got in zip(*results, strict=True):
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_the_channels_are_read_without_a_copy():
    images = torch.zeros(2, 5, 3, 4).contiguous(memory_format=torch.channels_last)
    assert images.permute(0, 2, 3, 1).is_contiguous()
    weight = nn.Conv2d(5, 7, 1).to(memory_format=torch.channels_last).weight
    assert weight.flatten(1).data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, stride=2), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1, padding=1)],
)
def test_other_convolutions_stay(layer: nn.Conv2d):
    assert not is_pointwise(layer) and type(with_matrix_products(nn.Sequential(layer))[0]) is nn.Conv2d


def test_mobilenet_keeps_its_parameters_and_its_training_step():
    config = ModelConfig("mobilenet_v2", 0.35)
    torch.manual_seed(0)
    plain = models.build(config, 10, 32).double()
    torch.manual_seed(0)
    turned = models.build(ModelConfig("mobilenet_v2", 0.35, Pointwise.linear), 10, 32).double()
    assert [*turned.state_dict()] == [*plain.state_dict()]
    assert sum(isinstance(module, PointwiseLinear) for module in turned.modules()) == 34
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    gradients = []
    for model in (plain, turned):
        torch.manual_seed(1)  # dropout
        model.to(memory_format=torch.channels_last)
        nn.functional.cross_entropy(model(images), torch.tensor([1, 2])).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)  # batch norm of few values amplifies
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(turned.get_buffer(name), buffer)


def test_it_is_an_option_of_its_own():
    linear = typed("layout=nhwc", "model.pointwise=linear")
    assert linear.model.pointwise is Pointwise.linear and linear.identity() != typed("layout=nhwc").identity()
    measured = {key: value for key, value in asdict(typed()).items() if key not in base.NOT_IDENTITY}
    del measured["model"]["pointwise"]  # as before it was there
    assert typed().identity() == sha256(dumps(measured, sort_keys=True).encode()).hexdigest()[:8]
    with pytest.raises(ValueError, match=r"model\.pointwise=linear: .*layout=nhwc"):
        typed("model.pointwise=linear")
