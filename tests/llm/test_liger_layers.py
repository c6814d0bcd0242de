"""Liger's layers give what transformers' give: one by one in Triton's interpreter,
as no kernel runs without a GPU.

The interpreter has no bfloat16, so float32 alone is compared.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

MODULE = "tests.helpers.liger_in_interpreter"


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(find_spec("liger_kernel") is None, reason="pip install -e .[liger]")
def test_outputs_and_gradients_of_ligers_layers_are_those_of_transformers():
    root = Path(__file__).parents[2]
    variables = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", MODULE]
    ran = subprocess.run(
        command, cwd=root, env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    differences = json.loads(ran.stdout.splitlines()[-1])
    assert differences.keys() == {"norm", "gated layer", "rotary embedding"}
    assert max(differences.values()) < 1e-6  # of the largest value
