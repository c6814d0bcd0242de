"""What depthwise layers would take: their bytes in closed form,
instructions counted in compiled code.
"""

import pytest
import torch

from benchmarks import depthwise
from benchmarks.depthwise import Layer, PassCost
from multicard.vision.depthwise import launch_of
from tests.helpers.convolved import interpreted

MEASURED = """
import json, torch
from unittest import mock
from benchmarks import depthwise
layers = [depthwise.Layer(5, 9, 3, 2, 4), depthwise.Layer(3, 8, 5, 1)]
with mock.patch.object(depthwise, "kernels_ms", lambda call: 0.5 if call() is not None else None):
    rows = [depthwise.measure_layer(layer, 2, torch.float16, "cpu") for layer in layers]
print(json.dumps([[max(row.errors) for row in rows], depthwise.measured_table(rows)]))
"""


def test_the_layers_of_a_model_are_counted_by_their_shapes():
    layers = depthwise.layers_of("mobilenet_v2", 500)
    assert sum(layer.count for layer in layers) == 17
    assert layers[0] == Layer(32, 250, 3, 1) and Layer(384, 32, 3, 1, 4) in layers
    assert {layer.kernel for layer in depthwise.layers_of("efficientnet_b0", 224)} == {3, 5}


def test_a_pass_takes_as_long_as_the_slower_of_its_bytes_and_its_instructions():
    by_bytes = PassCost(Layer(1, 1, 3, 1), "forward", 1, 0, int(4.291e12 * 0.75), 1, 1)
    assert by_bytes.ms(0.4) == pytest.approx(1000)
    by_instructions = PassCost(Layer(1, 1, 3, 1), "forward", 1, 0, 1, int(132 * 4 * 1.755e9), 1)
    assert by_instructions.ms(0.4) == pytest.approx(2500)


@pytest.mark.parametrize(("kind", "least"), [("forward", 9), ("backward", 18)])
def test_bytes_are_those_of_each_tensor_and_instructions_at_least_the_products(
    kind: str, least: int
):
    layer, values = Layer(32, 64, 3, 1), 4 * 32 * 64 * 64
    found = depthwise.expected_cost(layer, kind, 4)
    parts = launch_of(layer.images(4, torch.float16, "meta"), 3, 1).parts
    assert parts == 4 * 2 * 2  # images, strips, tiles
    sums_bytes = 2 * 4 * parts * 9 * 32
    assert found.bytes == (2 * 2 * values if kind == "forward" else 2 * 3 * values + sums_bytes)
    assert found.values == values
    assert least < 32 * found.instructions / found.values < 2.5 * least
    assert found.stack_bytes == 0


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_what_a_gpu_measures_is_its_errors_and_both_sides_times():
    worst, table = interpreted(MEASURED)
    assert 0 < min(worst) and max(worst) < 16
    assert table[-1].split()[:2] == ["all", "5"]
    assert table[-1].count("2.50 / 2.50") == len(depthwise.PASSES)
