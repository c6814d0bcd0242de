"""How many samples a batch has, by what is in it and by what a loader collated."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset

from multicard.script.batches import samples
from tests.helpers.messages import says
from tests.script.test_recorder import column, recorded, seen_by


@dataclass
class Pair:
    inputs: Any
    targets: Any


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape)


def tokens(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


KNOWN = {
    "columns": [zeros(8, 3), zeros(8)],
    "tokens": [tokens(8, 128)] * 3,
    "nested": {"a": {"x": zeros(8, 2)}, "b": [zeros(8), zeros(8, 2)]},
    "samples": [(zeros(3, 5), 1)] * 8,
    "samples in dictionaries": [{"image": zeros(3, 4, 4), "label": 1}] * 8,
    "attributes": SimpleNamespace(inputs=zeros(8, 2), targets=zeros(8)),
    "dataclass": Pair(zeros(8), zeros(8, 3)),
    "graphs": SimpleNamespace(x=zeros(40, 3), edges=tokens(2, 90), num_graphs=8),
    "numpy": [np.zeros((8, 3)), np.zeros(8)],
    "packed sequences": pack_sequence([zeros(2)] * 8),
    "texts": {"images": zeros(8, 3), "texts": ["a"] * 8},
    "views": ((zeros(8, 3, 4, 4), zeros(8, 3, 4, 4)), tokens(8)),
}
UNKNOWN = {
    "lengths first": {"lengths": zeros(5), "images": zeros(8, 3)},
    "packed rows": {"cu_seqlens": tokens(9), "tokens": tokens(1, 512)},
    "targets of another size": (zeros(8, 3), zeros(9, 10)),
    "dataclass": Pair(zeros(8), zeros(7, 3)),
    "sequence first": (zeros(35, 8), zeros(35 * 8)),
    "a sample": (zeros(3, 32, 32), 5),
    "a sample of tokens": {"tokens": tokens(77), "mask": tokens(77), "label": 3},
    "pictures": [zeros(3, 4, 4)] * 8,
    "two sources": ((zeros(8, 2), tokens(8)), (zeros(56, 2), zeros(56, 2))),
    "numbers": [torch.tensor(1.0)] * 8,
}


@pytest.mark.parametrize("name", KNOWN)
def test_parts_that_agree_show_the_samples(name: str):
    assert samples(KNOWN[name], None) == samples(KNOWN[name], 8) == 8


@pytest.mark.parametrize("name", UNKNOWN)
def test_parts_that_disagree_show_none(name: str):
    assert samples(UNKNOWN[name], None) is None


@pytest.mark.parametrize(
    "name", ["lengths first", "targets of another size", "pictures", "numbers"]
)
def test_the_batch_size_of_the_loader_decides(name: str):
    assert samples(UNKNOWN[name], 8) == 8


def test_columns_are_not_samples_of_a_last_batch():
    """Two columns of a batch of one, where batches have two."""
    assert samples([zeros(1, 3), zeros(1)], 2) == 1


class Stream(IterableDataset[Any]):
    """So many rows."""

    def __init__(self, count: int, row: Any) -> None:
        self.count, self.row = count, row

    def __iter__(self) -> Iterator[Any]:
        yield from [self.row] * self.count


def packed(rows: Any) -> dict[str, torch.Tensor]:
    return {"lengths": tokens(len(rows) + 1), "tokens": tokens(1, 64)}


def one_row(rows: Any) -> torch.Tensor:
    return tokens(1, 64)


def train_on(loader: Any, folder: Path) -> Any:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recorded(folder) as reports:
        for _ in loader:
            model(zeros(8, 4)).sum().backward()
            optimizer.step()
    return reports[0]


def test_what_a_stream_collates_is_counted_in_this_process(tmp_path: Path):
    train_on(DataLoader(Stream(11, zeros(4)), 4, collate_fn=packed), tmp_path)
    assert column(tmp_path, "samples") == [4, 4, 3]


def test_batches_that_a_loader_hands_on_are_not_one_sample(tmp_path: Path):
    report = train_on(
        DataLoader(Stream(3, zeros(8, 4)), 1, collate_fn=lambda rows: rows[0]), tmp_path
    )
    assert column(tmp_path, "samples") == [0] * 3
    assert says(seen_by(report), "script.samples-unknown", steps=3)


@pytest.mark.process
def test_more_short_batches_than_workers_are_packed_rows(tmp_path: Path):
    report = train_on(
        DataLoader(Stream(16, zeros(4)), 4, collate_fn=one_row, num_workers=1), tmp_path
    )
    assert column(tmp_path, "samples") == [0] * 4
    assert says(seen_by(report), "script.samples-unknown", steps=4)


def attempts(
    data: Any, folder: Path, steps_before: int, calls_backward: bool
) -> list[tuple[int, int]]:
    """Train on smaller and smaller batches, as those before did
    not fit: samples and batches of each step.
    """
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(batch_size: int, most: int) -> None:
        for number, (inputs, _) in enumerate(DataLoader(data, batch_size)):
            if number < most or calls_backward:
                model(inputs).sum().backward()
            if number == most:
                return
            optimizer.step()

    with recorded(folder):
        train(16, steps_before)
        train(12, 0)
        train(8, 48)
    return list(zip(column(folder, "samples"), column(folder, "batches"), strict=True))


@pytest.mark.parametrize("steps_before", [0, 1, 2])
@pytest.mark.parametrize("calls_backward", [False, True])
def test_batches_of_a_failed_attempt_are_of_no_step(
    tmp_path: Path, steps_before: int, calls_backward: bool
):
    data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.zeros(48))
    found = attempts(data, tmp_path, steps_before, calls_backward)
    assert found == [(16, 1)] * steps_before + [(8, 1)] * 6
