"""Evaluations that follow one another are counted, whether or not their loaders reach the end."""

from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

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


def by_strict_turns(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    for batches in zip(*loaders, strict=True):
        yield from batches


def by_turns_to_the_last(loaders: list[DataLoader[Any]]) -> Iterator[Any]:
    short = DataLoader(Subset(loaders[0].dataset, range(16)), 8)
    for batches in zip_longest(short, *loaders):
        yield from (batch for batch in batches if batch is not None)


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize(
    ("drawn", "evaluations"),
    [
        (one_after_another, 6),
        (begun, 6),
        (first_batches, 6),
        (the_same_again, 6),
        (by_turns, 2),
        (by_strict_turns, 2),
        (by_turns_to_the_last, 2),
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


def test_a_pass_that_goes_on_after_each_step_is_an_evaluation_each_time(tmp_path: Path):
    training = Training()
    held_out = iter(DataLoader(TensorDataset(torch.randn(64, 4), torch.zeros(64).long()), 8))
    with recorded(tmp_path) as reports:
        for batch in DataLoader(training.data, 8):
            training.loss(batch).backward()
            training.optimizer.step()
            with torch.no_grad():
                training.loss(next(held_out))
    (report,) = reports
    steps = len(column(tmp_path, "samples"))
    assert says(seen_by(report), "script.evaluations", evaluations=steps)


def use(batches: Iterable[Any], training: Training) -> None:
    for batch in batches:
        training.loss(batch)
