"""Words of a short tuning that holds rows out, and what was measured of them."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

NEEDS_TRL = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
ENGINES = ["torchtune", pytest.param("trl", marks=NEEDS_TRL)]
SHORT = (
    "device=cpu",
    "dataset.rows=40",
    "template=grammar",
    "dataset.split=0.2",
    "warmup_steps=0",
    "max_steps=3",
)


def losses_of(run: SimpleNamespace) -> list[float]:
    return [evaluation.loss for evaluation in run.report.held_out.evaluations]
