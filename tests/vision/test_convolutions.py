"""MobileNetV2's pointwise convolutions as matrix products, with the same numbers."""

import math
from copy import deepcopy
from dataclasses import asdict
from hashlib import sha256
from json import dumps

import pytest
import torch
from torch import nn

from multicard.config import schema
from multicard.config.keys import flat
from multicard.config.vision import ModelConfig, Pointwise
from multicard.vision import models
from multicard.vision.convolutions import PointwiseLinear
from tests.conftest import typed


def mobilenet(pointwise: Pointwise = Pointwise.convolution) -> nn.Module:
    return models.build(ModelConfig("mobilenet_v2", 0.35, pointwise), 10, 32)


CASES = {
    "with a bias": (lambda: nn.Sequential(nn.Conv2d(5, 7, 1)), (2, 5, 3, 4)),
    "without a bias": (lambda: nn.Sequential(nn.Conv2d(5, 7, 1, bias=False)), (2, 5, 3, 4)),
    "MobileNet": (lambda: mobilenet().eval(), (2, 3, 32, 32)),  # no dropout
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_the_convolutions(case: str):
    torch.manual_seed(0)
    build, shape = CASES[case]
    plain, results = build().double(), []
    turned = deepcopy(plain)
    models.turn_into(PointwiseLinear, turned)
    for model in (plain, turned):
        model.to(memory_format=torch.channels_last)
        images = torch.arange(float(math.prod(shape))).sin().reshape(shape).double()
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        outputs = model(images)
        outputs.square().sum().backward()
        assert outputs.dim() == 2 or outputs.is_contiguous(memory_format=torch.channels_last)
        assert images.grad is not None and images.grad.is_contiguous(
            memory_format=torch.channels_last
        )
        results.append(
            [outputs, images.grad, *(parameter.grad for parameter in model.parameters())]
        )
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-13)


def test_only_pointwise_convolutions_of_mobilenet_are_turned():
    others = [{"kernel_size": 3}, {"kernel_size": 1, "stride": 2}, {"kernel_size": 1, "groups": 2}]
    for options in [*others, {"kernel_size": 1, "padding": 1}]:
        assert not PointwiseLinear.computes(nn.Conv2d(4, 4, **options))
    turned = mobilenet(Pointwise.linear)
    assert [*turned.state_dict()] == [*mobilenet().state_dict()]
    assert sum(isinstance(module, PointwiseLinear) for module in turned.modules()) == 34


def test_it_is_an_option_of_its_own():
    linear = typed("layout=nhwc", "model.pointwise=linear")
    assert linear.identity() != typed("layout=nhwc").identity()
    measured = {key: value for key, value in asdict(typed()).items() if key not in schema.beside()}
    own = flat(measured)
    for later, came_after in schema.since().items():  # as before they were there
        if later == "stop_at_target" or not any(before in own for before, _ in came_after):
            continue  # images always had the target; other keys are of other commands
        group, _, key = later.rpartition(".")
        (measured.get(group, {}) if group else measured).pop(key, None)
    assert typed().identity() == sha256(dumps(measured, sort_keys=True).encode()).hexdigest()[:8]
