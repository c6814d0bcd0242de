"""Whether a model is given all samples that were drawn."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.nn.modules import module
from torch.utils.data import DataLoader

import multicard
from multicard.records.rank_files import ScriptReport
from multicard.script.summary import _trained_part
from tests.script.test_recorder import Training, recorded

Batch = list[torch.Tensor]


def two_views(training: Training, batch: Batch) -> torch.Tensor:
    x, y = batch
    return training.loss([torch.cat([x, x + 0.1]), torch.cat([y, y])])


def micro_batches(training: Training, batch: Batch) -> torch.Tensor:
    x, y = batch
    return torch.stack([training.loss([x[n::2], y[n::2]]) for n in range(2)]).sum()


def flattened(training: Training, batch: Batch) -> torch.Tensor:
    """A model of positions, as of a sequence: it is given other rows than were drawn."""
    x, y = batch
    model = torch.nn.Linear(2, 1)
    return model(x.reshape(4, -1, 2)[:2]).sum() + training.loss([x, y])


def teacher(training: Training, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        training.model(batch[0][:2])
    return training.loss(batch)


def sliced(training: Training, batch: Batch) -> torch.Tensor:
    return training.loss([part[::2] for part in batch])


def hardest(training: Training, batch: Batch) -> torch.Tensor:
    x, y = batch
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(training.model(x), y, reduction="none")
    hard = losses.topk(3).indices
    return training.loss([x[hard], y[hard]])


class ByName(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *, pixels: torch.Tensor) -> torch.Tensor:
        return self.inner(pixels)


def by_name(training: Training, batch: Batch) -> torch.Tensor:
    x, y = (part[::2] for part in batch)
    found = ByName(training.model)(pixels=x)
    return torch.nn.functional.cross_entropy(found, y)


Loss = Callable[[Training, Batch], torch.Tensor]


def trained_by(loss: Loss, folder: Path, marked: bool = False) -> ScriptReport:
    training = Training()
    with recorded(folder) as reports:
        for batch in DataLoader(training.data, 8):
            with multicard.step(samples=4) if marked else nullcontext():
                loss(training, batch).backward()
                training.optimizer.step()
    return reports[0]


@pytest.mark.parametrize("loss", [Training.loss, two_views, micro_batches, flattened, teacher])
def test_a_model_that_is_given_all_samples_trains_on_them(tmp_path: Path, loss: Loss):
    assert trained_by(loss, tmp_path).trained_part is None


@pytest.mark.parametrize(("loss", "given"), [(sliced, 4), (hardest, 3), (by_name, 4)])
def test_a_part_of_the_samples_is_seen(tmp_path: Path, loss: Loss, given: int):
    assert trained_by(loss, tmp_path).trained_part == [8, given]


class Both(torch.nn.Module):
    """A model that takes batches of two loaders in one call."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.inner(first).sum() + self.inner(second).sum()


@pytest.mark.parametrize(("sizes", "keeps"), [((8, 8), 1), ((8, 4), 1), ((8, 8), 2)])
def test_batches_of_two_loaders_may_be_given_in_one_call(
    tmp_path: Path, sizes: tuple[int, int], keeps: int
):
    training = Training()
    model = Both(training.model)
    with recorded(tmp_path) as reports:
        loaders = [DataLoader(training.data, size) for size in sizes]
        for (first, _), (second, _) in zip(*loaders, strict=False):
            model(first[::keeps], second[::keeps]).backward()
            training.optimizer.step()
    expected = None if keeps == 1 else [sum(sizes), sum(sizes) // keeps]
    assert reports[0].trained_part == expected


def test_samples_that_the_script_tells_are_right(tmp_path: Path):
    assert trained_by(sliced, tmp_path, marked=True).trained_part is None


@pytest.fixture
def no_hooks_stay() -> Iterator[None]:
    yield
    assert not module._global_forward_pre_hooks and not module._global_forward_hooks


@pytest.mark.usefixtures("no_hooks_stay")
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_models_are_watched_for_a_few_steps_alone(tmp_path: Path, steps: int):
    training = Training()
    with recorded(tmp_path):
        for _, batch in zip(range(steps), DataLoader(training.data, 8), strict=False):
            training.loss(batch).backward()
            training.optimizer.step()


def test_a_part_is_no_doubt_where_one_rank_draws_for_all():
    drawing = ScriptReport(rank=0, loads=True, trained_part=[8, 4])
    part = _trained_part([drawing, ScriptReport(rank=1, loads=True, trained_part=[8, 4])])
    assert part is not None and part.facts == {"drawn": 8, "given": 4}
    assert _trained_part([drawing, ScriptReport(rank=1, loads=False)]) is None
    assert _trained_part([ScriptReport(rank=0, loads=True)]) is None
