"""Small scripts of a user's, and runs of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

PREFIX = """
import os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 2, (96,)))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def loss_of(batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a script below PREFIX in the working folder; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(body: str, name: str = "train.py") -> str:
        Path(name).write_text(PREFIX + body)
        return name

    return write
