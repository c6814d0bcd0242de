"""Scripts in which another thread than that of the training draws batches."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from multicard.records.schema import ScriptRecord
from multicard.script.recorder import EndedError
from tests.helpers.messages import says
from tests.script.patterns import BATCH, Loop, in_thread, none
from tests.script.test_recorder import column, recorded, seen_by
from tests.script.test_script_runs import measured

Read = Callable[[Iterable[Any]], Iterator[Any]]


def by_pool(batches: Iterable[Any]) -> Iterator[Any]:
    """As super-gradients reads: a pool of one thread draws the next batch."""
    source = iter(batches)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, source, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, source, None)
            yield batch


READS: dict[str, Read] = {"thread": in_thread, "pool": by_pool}


def train(loop: Loop, read: Read, epochs: int = 3) -> None:
    for _ in range(epochs):
        for batch in read(DataLoader(loop.data, BATCH)):
            loop.step(batch)


@pytest.mark.parametrize("name", READS)
def test_waits_for_a_thread_that_reads_are_not_known(tmp_path: Path, name: str):
    with recorded(tmp_path) as reports:
        train(Loop(none), READS[name])
    (report,) = reports
    assert (report.loads, report.waits_known) == (True, False)
    assert all(math.isnan(wait) for wait in column(tmp_path, "data_s"))
    assert says(seen_by(report), "script.waits-unknown")


def test_waits_are_known_of_a_training_that_is_itself_in_a_thread(tmp_path: Path):
    with recorded(tmp_path) as reports:
        thread = threading.Thread(target=train, args=(Loop(none), iter))
        thread.start()
        thread.join()
    waits = column(tmp_path, "data_s")
    assert reports[0].waits_known and all(wait > 0 for wait in waits[1:])
    assert reports[0].left_out == [0]  # of which the first wait is not known
    assert not says(seen_by(reports[0]), "script.waits-unknown")


@pytest.mark.parametrize("name", READS)
def test_an_evaluation_whose_data_a_thread_reads_is_in_no_time(tmp_path: Path, name: str):
    loop = Loop(none)
    with recorded(tmp_path) as reports:
        for _ in range(3):
            train(loop, iter, epochs=1)
            with torch.no_grad():
                for inputs, _ in READS[name](DataLoader(loop.held_out, BATCH)):
                    loop.model(inputs)
                    time.sleep(0.02)
    (report,) = reports
    assert report.waits_known and report.evaluate_s is None
    assert report.left_out == [7, 14]
    assert says(seen_by(report), "script.evaluations", evaluations=3)
    assert says(seen_by(report), "script.evaluations-unknown")
    assert column(tmp_path, "samples") == [8, 8, 8, 8, 8, 8, 3] * 3


@pytest.mark.parametrize("name", READS)
def test_what_lies_between_passes_that_a_thread_reads_is_in_no_time(tmp_path: Path, name: str):
    loop = Loop(none)
    with recorded(tmp_path) as reports:
        for _ in range(3):
            train(loop, READS[name], epochs=1)
            time.sleep(0.02)
    assert reports[0].left_out == [7, 14]
    assert says(seen_by(reports[0]), "script.steps-of") and not says(
        seen_by(reports[0]), "script.evaluations"
    )


def accumulate(
    loop: Loop, read: Read, epochs: int = 4, leaks: bool = True, keeps: Callable[[int], bool] = bool
) -> None:
    """Steps of two batches. The last of a pass is stepped with the first of the next one,
    where it leaks.
    """
    samples = number = 0
    for _ in range(epochs):
        for place, batch in enumerate(read(DataLoader(loop.data, BATCH)), 1):
            if not keeps(place):
                continue
            loop.backward(batch)
            samples, number = samples + len(batch[1]), number + 1
            if number % 2 == 0 or (place == 7 and not leaks):
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                loop.steps.append(samples)
                samples = number = 0


def slowly(read: Read, reads_s: float, trains_s: float) -> Read:
    """The thread, or the training, waits for the other."""

    class Slow:
        def __init__(self, batches: Iterable[Any]) -> None:
            self.batches = batches

        def __iter__(self) -> Iterator[Any]:
            for batch in self.batches:
                time.sleep(reads_s)
                yield batch

    def read_slowly(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in read(Slow(batches)):
            time.sleep(trains_s)
            yield batch

    return read_slowly


@pytest.mark.parametrize("paces", [(0.0, 0.0), (0.003, 0.0), (0.0, 0.003)])
@pytest.mark.parametrize("leaks", [True, False])
@pytest.mark.parametrize("name", READS)
def test_what_a_thread_draws_is_trained_on_in_its_turn(
    tmp_path: Path, name: str, leaks: bool, paces: tuple[float, float]
):
    loop = Loop(none)
    with recorded(tmp_path):
        accumulate(loop, slowly(READS[name], *paces), leaks=leaks)
    assert column(tmp_path, "samples") == loop.steps
    assert sum(column(tmp_path, "samples")) == 4 * len(loop.data)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    "keeps", [lambda place: place % 2, lambda place: place < 7, lambda place: place > 1]
)
def test_samples_of_a_script_that_skips_batches_of_a_thread_are_not_known(
    tmp_path: Path, name: str, keeps: Callable[[int], bool]
):
    loop = Loop(none)
    with recorded(tmp_path) as reports:
        accumulate(loop, READS[name], keeps=keeps)
    steps = len(loop.steps)
    assert (column(tmp_path, "samples"), column(tmp_path, "batches")) == ([0] * steps, [0] * steps)
    assert reports[0].samples_unknown == [*range(steps)]
    assert says(seen_by(reports[0]), "script.samples-unknown", steps=steps)


@pytest.mark.parametrize("name", READS)
def test_batches_that_are_dropped_where_a_loop_breaks_leave_the_samples_unknown(
    tmp_path: Path, name: str
):
    loop = Loop(none)
    with recorded(tmp_path):
        for _ in range(3):
            for number, batch in enumerate(READS[name](DataLoader(loop.data, BATCH))):
                if number == 4:
                    break
                loop.step(batch)
    assert set(column(tmp_path, "samples")) == {0}


def test_a_run_that_is_stopped_has_the_samples_of_a_thread(tmp_path: Path):
    loop = Loop(none)
    with recorded(tmp_path, "steps=20"), suppress(EndedError):
        train(loop, slowly(in_thread, 0.0, 0.003), epochs=9)
    assert column(tmp_path, "samples") == ([8] * 6 + [3]) * 2 + [8] * 6


@pytest.mark.parametrize("name", READS)
def test_two_losses_of_each_batch_of_a_thread_are_of_one_step(tmp_path: Path, name: str):
    loop = Loop(none)
    with recorded(tmp_path):
        for _ in range(3):
            for batch in READS[name](DataLoader(loop.data, BATCH)):
                loop.backward(batch)
                loop.step(batch)
    assert column(tmp_path, "samples") == ([8] * 6 + [3]) * 3


BODY = """
from concurrent.futures import ThreadPoolExecutor
def ahead(batches):
    source = iter(batches)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, source, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, source, None)
            yield batch
held_out = TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
for epoch in range(3):
    for batch in ahead(DataLoader(data, 8)):
        loss_of(batch).backward()
        optimizer.step()
    with torch.no_grad():
        for batch in ahead(DataLoader(held_out, 8)):
            model(batch[0])
"""


@pytest.mark.process
@pytest.mark.usefixtures("processes")
def test_a_record_has_no_times_that_are_not_known(script: Callable[[str], str]):
    record = measured(script(BODY), "warmup_steps=1").record
    assert isinstance(record, ScriptRecord) and (record.status, record.cause) == ("ok", None)
    assert (record.data_s, record.evaluate_s) == (None, None)
    assert record.samples_per_s and record.epochs[0].samples == 3 * 96
