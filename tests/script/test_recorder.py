"""What the hooks see of a script's steps, in this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import multicard
from multicard.ranks.process import Rank
from multicard.records import rank_files, run_folder
from multicard.records.progress import Board
from multicard.records.rank_files import ScriptReport
from multicard.script import hooks
from multicard.script.batches import samples
from multicard.script.recorder import EndedError, Recorder
from tests.helpers.messages import find, says, told
from tests.script.test_words import typed


class Training:
    """A model and its data. `train` takes steps; evaluation data are of their own."""

    def __init__(self) -> None:
        self.data, self.held_out = (
            TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,))) for _ in range(2)
        )
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def train(self, accumulate: int = 1) -> None:
        for number, batch in enumerate(DataLoader(self.data, 8), 1):
            self.loss(batch).backward()
            if number % accumulate == 0:
                self.optimizer.step()


@contextmanager
def recorded(folder: Path, *words: str) -> Iterator[list[ScriptReport]]:
    """Measures what is done within; the report is there after it."""
    rank = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
    Board(folder, 1, create=True)
    recorder, reports = Recorder(rank, typed(*words), folder), list[ScriptReport]()
    with hooks.installed(recorder):
        yield reports
    recorder.close()
    reports += rank_files.read_reports(folder)


def seen_by(report: ScriptReport) -> str:
    return "\n".join(report.seen)


def column(folder: Path, name: str) -> list[Any]:
    table = run_folder.read_steps(folder)
    return table[name].to_pylist()


def test_steps_samples_and_waits_are_seen(tmp_path: Path):
    training = Training()
    with recorded(tmp_path) as reports:
        next(iter(DataLoader(training.data, 8)))  # a look at a batch, which is not trained on
        training.train()
    (report,) = reports
    assert (report.epochs[0].steps, column(tmp_path, "samples"), report.loads) == (6, [8] * 6, True)
    waits, steps = column(tmp_path, "data_s"), column(tmp_path, "step_s")
    assert all(0 < wait < step for wait, step in zip(waits, steps, strict=True))
    assert report.epochs[0].ended_s == pytest.approx(sum(steps), rel=0.05)
    assert report.seen_codes == ["script.steps-of", "script.no-loss"]
    assert [message.code for message in told("\n".join(report.seen))] == report.seen_codes
    assert find(report.seen[0], "script.steps-of").facts == {"names": ["SGD.step"]}


@pytest.mark.parametrize("batches", [[2, 2, 2], [4, 2]])
def test_accumulated_batches_make_a_step(tmp_path: Path, batches: list[int]):
    training = Training()
    with recorded(tmp_path) as reports:
        for _ in range(3):
            # as Lightning counts
            for number, batch in zip(range(1, 7), DataLoader(training.data, 8), strict=False):
                training.loss(batch).backward()
                if number in accumulate(batches):
                    training.optimizer.step()
    assert column(tmp_path, "batches") == batches * 3 and sum(column(tmp_path, "samples")) == 3 * 48
    assert says(seen_by(reports[0]), "script.accumulated", least=min(batches), most=max(batches))


def test_a_batch_that_a_loader_reads_ahead_is_not_of_the_samples(tmp_path: Path):
    training = Training()
    with recorded(tmp_path) as reports:
        # a whole pass, and one that is cut short; as Accelerate's loaders read
        for steps in (6, 4):
            batches = iter(DataLoader(training.data, 8))
            ahead = next(batches)
            for number in range(steps):
                if number == 5:
                    # the last batch is there already
                    with_gradients(training.held_out, training.loss)
                batch, ahead = ahead, next(batches, None)
                training.loss(batch).backward()
                training.optimizer.step()
    assert sum(column(tmp_path, "samples")) == 10 * 8 and column(tmp_path, "batches") == [1] * 10
    assert reports[0].left_out == [5]


@pytest.mark.parametrize(
    ("stepping", "steps", "left_out", "names", "further"),
    [
        (lambda number: slice(2), 36, [], ["SGD.step"], 1),
        (lambda number: slice(31), 36, [], ["SGD.step"], 30),  # for each parameter
        (
            lambda number: slice(0, 1) if number < 5 else slice(1, 2),
            36,
            [],
            ["SGD.step", "Adam.step"],
            0,
        ),
    ],
)
def test_the_first_optimiser_counts_until_another_steps_alone(
    tmp_path: Path,
    stepping: Callable[[int], slice],
    steps: int,
    left_out: list[int],
    names: list[str],
    further: int,
):
    training = Training()
    optimizers = [
        training.optimizer,
        *(torch.optim.Adam(training.model.parameters()) for _ in range(30)),
    ]
    with recorded(tmp_path) as reports:
        for number in range(6):
            for place, batch in enumerate(DataLoader(training.data, 8), 6 * number):
                training.loss(batch).backward()
                for optimizer in optimizers[stepping(place)]:
                    optimizer.step()
    assert (reports[0].epochs[0].steps, reports[0].left_out) == (steps, left_out)
    assert sum(column(tmp_path, "samples")) == 36 * 8
    assert says(seen_by(reports[0]), "script.steps-of", names=names)
    if further:
        assert says(seen_by(reports[0]), "script.further-optimisers", optimisers=further)
    else:
        assert "script.further-optimisers" not in reports[0].seen_codes


Evaluation = Callable[..., None]


def with_gradients(data: Any, use: Callable[[Any], Any], batch_size: int = 8, **how: Any) -> None:
    for batch in DataLoader(data, batch_size, **how):  # as Hugging Face's Trainer draws them
        use(batch)


no_gradients = torch.no_grad()(with_gradients)


@torch.no_grad()
def not_to_its_end(data: Any, use: Callable[[Any], Any]) -> None:
    for _, batch in zip(range(6), DataLoader(data, 8), strict=False):  # as Lightning counts them
        use(batch)


@pytest.mark.parametrize(
    ("order", "evaluate", "of_training", "evaluations"),
    [
        *(("TETE", how, None, 2) for how in (no_gradients, with_gradients, not_to_its_end)),
        ("TEEET", with_gradients, None, 3),
        ("ETET", with_gradients, None, 1),  # none before the first step
        ("TETE", with_gradients, {"batch_size": 16}, 2),
        ("TETE", with_gradients, {"shuffle": True}, 2),
        # in the training's batches: after it, nothing tells it from them
        ("TETE", with_gradients, {}, 1),
    ],
)
def test_an_evaluation_is_told_from_training(
    tmp_path: Path,
    order: str,
    evaluate: Evaluation,
    of_training: dict[str, Any] | None,
    evaluations: int,
):
    training = Training()
    data = training.held_out if of_training is None else training.data
    with recorded(tmp_path) as reports:
        for each in order:
            if each == "T":
                training.train()
            else:
                evaluate(data, training.loss, **of_training or {})
    (report,) = reports
    assert (report.left_out, column(tmp_path, "samples")) == ([6], [8] * 12)
    assert report.evaluate_s > 0 or of_training is not None
    assert says(seen_by(report), "script.evaluations", evaluations=evaluations)


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """48 samples; the first comes after 20 ms."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        time.sleep(0.02)
        yield from ((torch.randn(4), number % 2) for number in range(48))


@pytest.mark.parametrize("evaluate", [None, no_gradients, with_gradients, not_to_its_end])
def test_data_built_anew_for_each_pass_are_trained_on(tmp_path: Path, evaluate: Evaluation | None):
    training = Training()
    with recorded(tmp_path) as reports:
        for _ in range(3):
            training.data = Stream()
            training.train()
            if evaluate is not None:
                evaluate(Stream(), training.loss)
    (report,) = reports
    assert (column(tmp_path, "samples"), column(tmp_path, "batches")) == ([8] * 18, [1] * 18)
    # at the first new data it is watched whether they train
    assert report.left_out == ([6, 12] if evaluate else [6])
    assert says(seen_by(report), "script.evaluations", evaluations=3) == bool(evaluate)
    waits = column(tmp_path, "data_s")
    assert min(waits[6], waits[12]) >= 0.02
    assert report.evaluate_s == 0 if evaluate is None else report.evaluate_s >= 0.06


def test_batches_left_over_are_of_the_first_step_of_new_data(tmp_path: Path):
    training = Training()
    with recorded(tmp_path):
        for _ in range(2):
            training.data = Stream()
            training.train(accumulate=4)
    assert column(tmp_path, "samples") == [32, 16 + 32]


def test_a_pass_without_a_step_is_an_evaluation_where_no_step_follows_it(tmp_path: Path):
    training = Training()
    with recorded(tmp_path) as reports:
        for _ in range(2):
            with_gradients(training.data, training.loss)
        for _ in range(3):
            with_gradients(training.data, lambda batch: training.loss(batch).backward())
            training.optimizer.step()
    assert column(tmp_path, "samples") == [48] * 3
    assert reports[0].left_out == [0, 2]  # the last one is watched
    assert says(seen_by(reports[0]), "script.evaluations", evaluations=2)


def test_a_step_that_a_scaler_leaves_out_counts(tmp_path: Path):
    training, scaler = Training(), torch.amp.GradScaler("cpu")
    with recorded(tmp_path) as reports:
        for number, batch in enumerate(DataLoader(training.data, 8)):
            training.optimizer.zero_grad()
            scaler.scale(training.loss(batch) * (float("inf") if number < 2 else 1.0)).backward()
            scaler.step(training.optimizer)
            scaler.update()
    assert column(tmp_path, "samples") == [8] * 6
    assert says(seen_by(reports[0]), "script.scaler-skipped", steps=2)


@pytest.mark.parametrize(("evaluates", "left_out"), [(False, [0]), (True, [0, 1, 2])])
def test_without_a_loader_samples_are_not_known(
    tmp_path: Path, evaluates: bool, left_out: list[int]
):
    training = Training()
    with recorded(tmp_path) as reports:
        for _ in range(3):
            training.loss(training.data[:]).backward()
            training.optimizer.step()
            if evaluates:
                with_gradients(training.held_out, training.loss)
    (report,) = reports
    assert (column(tmp_path, "samples"), report.loads, report.left_out) == (
        [0] * 3,
        False,
        left_out,
    )
    assert says(seen_by(report), "script.no-loader") and says(
        seen_by(report), "script.samples-unknown", steps=3
    )


def test_marks_are_exact(tmp_path: Path):
    training, losses = Training(), []
    with recorded(tmp_path) as reports:
        for batch in DataLoader(training.data, 8):
            with multicard.step(samples=5, tokens=7) as step:
                training.optimizer.zero_grad()
                step.loss = training.loss(batch)
                step.loss.backward()
                training.optimizer.step()
                training.optimizer.step()
            losses.append(step.loss.item())
            multicard.log(accuracy=torch.tensor(0.5), norm=3, bad=float("nan"))
    (report,) = reports
    assert (column(tmp_path, "samples"), column(tmp_path, "tokens")) == ([5] * 6, [7] * 6)
    assert column(tmp_path, "loss") == pytest.approx(losses)
    assert (report.test_accuracy, report.logged) == (0.5, {"norm": 3.0})
    assert report.seen_codes == ["script.steps-of"] and says(
        seen_by(report), "script.steps-of", names=["multicard.step"]
    )


def test_a_loss_belongs_to_the_step_that_has_just_ended(tmp_path: Path):
    training, losses = Training(), []
    with recorded(tmp_path):
        for batch in DataLoader(training.data, 8):
            loss = training.loss(batch)
            loss.backward()
            training.optimizer.step()
            losses.append(loss.item())
            multicard.log(loss=loss.item())
    assert column(tmp_path, "loss") == pytest.approx(losses)


def test_a_script_ends_after_its_steps(tmp_path: Path):
    training = Training()
    with recorded(tmp_path, "steps=4") as reports, pytest.raises(EndedError):
        try:
            training.train()
        except Exception:
            pytest.fail("a framework would have caught it")
    assert reports[0].epochs[0].steps == 4 and says(seen_by(reports[0]), "script.stopped", step=4)


def test_marks_do_nothing_outside_of_a_run():
    with multicard.step(samples=1) as step:
        step.loss = torch.tensor(1.0)
    multicard.log(loss=1.0)


def test_sizes_of_batches():
    images, labels = torch.zeros(8, 3), torch.zeros(8)
    assert (
        samples([images, labels], 8)
        == samples({"x": images, "y": labels}, 8)
        == samples(images, None)
        == 8
    )
    assert samples([(torch.zeros(3, 5), 1)] * 8, 8) == 8
    assert samples([images[:3], labels[:3]], 8) == 3
    assert samples(object(), 8) is samples("text", None) is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "collate",
    [len, lambda rows: {"packed": torch.zeros(1, 64)}, lambda rows: tuple(zip(*rows, strict=True))],
)
def test_samples_are_those_drawn_however_a_batch_is_made(
    tmp_path: Path, workers: int, collate: Callable[..., Any]
):
    training = Training()
    batches = DataLoader(
        training.data, 10, collate_fn=collate, num_workers=workers, persistent_workers=workers > 0
    )
    with recorded(tmp_path):
        for most in (3, 9):  # a pass that is broken off, and a whole one
            for _, _ in zip(range(most), batches, strict=False):
                training.optimizer.step()
    assert column(tmp_path, "samples") == [10] * 3 + [10] * 4 + [8]


def test_two_threads_that_close_wait_for_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, begun, training = Recorder._write, threading.Event(), Training()

    def slow(*arguments: Any) -> None:
        begun.set()
        time.sleep(0.2)
        write(*arguments)

    monkeypatch.setattr(Recorder, "_write", slow)
    rank = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
    Board(tmp_path, 1, create=True)
    recorder = Recorder(rank, typed(), tmp_path)
    with hooks.installed(recorder):
        training.train()
    threading.Thread(target=recorder.close).start()  # on the controller's word
    assert begun.wait(60)
    recorder.close()  # by the script's end
    assert rank_files.read_reports(tmp_path)[0].epochs[0].steps == 6


def test_ranks_may_join_after_steps_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    training = Training()
    with recorded(tmp_path) as reports:
        training.train()
        monkeypatch.setattr("multicard.script.trained_together.has_joined_ranks", lambda: True)
        training.train()
    assert reports[0].grouped
