"""Evaluations that follow one another are counted, whether or not their loaders reach the end."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.messages import says
from tests.script.test_recorder import Training, column, recorded, seen_by

pytestmark = pytest.mark.core


def one_after_another(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    for loader in loaders:
        yield from loader


def begun(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    for loader in loaders:
        yield from islice(loader, 2)


def first_batches(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    for loader in loaders:
        yield next(iter(loader))


def the_same_again(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    for _ in loaders:
        yield from islice(loaders[0], 2)


def by_turns(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    for batches in zip(*loaders, strict=False):
        yield from batches


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize(
    ("drawn", "evaluations"),
    [
        (one_after_another, 6),
        (begun, 6),
        (first_batches, 6),
        (the_same_again, 6),
        (by_turns, 2),
    ],
)
def test_evaluations_in_a_row(drawn: Any, evaluations: int, has_gradients: bool, tmp_path: Path):
    training = Training()
    sets = [TensorDataset(torch.randn(32, 4), torch.zeros(32).long()) for _ in range(3)]
    with recorded(tmp_path) as reports:
        for _ in range(2):
            training.train()
            loaders = [DataLoader(each, 8) for each in sets]
            with torch.set_grad_enabled(has_gradients):
                use(drawn(loaders), training)
        training.train()
    (report,) = reports
    assert column(tmp_path, "samples") == [8] * 18
    assert says(seen_by(report), "script.evaluations", evaluations=evaluations)


def use(batches: Iterable[Any], training: Training) -> None:
    for batch in batches:
        training.loss(batch)
