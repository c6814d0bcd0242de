"""Times that belong to no step: between passes over the data, and in evaluation mode."""

import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.helpers.messages import find, says
from tests.script.patterns import one_ahead
from tests.script.test_recorder import Training, column, recorded, seen_by

GAP_S = 0.4


@pytest.mark.parametrize("read", [iter, one_ahead])
def test_what_lies_between_two_passes_is_in_no_step(tmp_path: Path, read):
    training = Training()
    with recorded(tmp_path) as reports:
        for _ in range(3):
            for batch in read(DataLoader(training.data, 8)):
                training.loss(batch).backward()
                training.optimizer.step()
            time.sleep(GAP_S)  # images are sampled, or the model is saved
    (report,) = reports
    assert (len(column(tmp_path, "step_s")), report.left_out) == (18, [])
    assert report.epochs[0].ended_s > 2 * GAP_S and max(column(tmp_path, "step_s")) < GAP_S
    assert find(seen_by(report), "script.between-passes").facts["seconds"] >= 2 * GAP_S


def test_batches_that_are_kept_are_trained_on_without_a_gap(tmp_path: Path):
    training = Training()
    with recorded(tmp_path) as reports:
        for _ in range(2):
            batches = list(DataLoader(training.data, 8))
            for batch in batches:
                time.sleep(GAP_S / 8)
                training.loss(batch).backward()
                training.optimizer.step()
    assert column(tmp_path, "batches") == [1] * 12
    assert (
        min(column(tmp_path, "step_s")) >= GAP_S / 8
        and "script.between-passes" not in reports[0].seen_codes
    )


def steps_without_a_loader(training: Training, evaluate, every: int) -> None:
    for number in range(12):
        training.loss(training.data[:8]).backward()
        training.optimizer.step()
        if number % every == every - 1:
            evaluate()


def test_an_evaluation_without_a_loader_is_in_no_step(tmp_path: Path):
    training = Training()

    def estimate() -> None:
        training.model.eval()
        time.sleep(GAP_S)
        training.model.train()

    with recorded(tmp_path) as reports:
        steps_without_a_loader(training, estimate, every=5)
    (report,) = reports
    assert report.left_out == [0, 5, 10] and max(column(tmp_path, "step_s")) < GAP_S
    assert 2 * GAP_S <= report.evaluate_s < 3 * GAP_S
    assert says(seen_by(report), "script.evaluations", evaluations=2)


def test_what_comes_before_every_step_is_part_of_it(tmp_path: Path):
    training = Training()

    def roll_out() -> None:
        training.model.eval()
        time.sleep(GAP_S / 8)
        training.model.train()

    with recorded(tmp_path) as reports:
        steps_without_a_loader(training, roll_out, every=1)
    assert reports[0].left_out == [0] and min(column(tmp_path, "step_s")[1:]) >= GAP_S / 8


def test_modules_that_stay_in_evaluation_mode_are_not_evaluated(tmp_path: Path):
    training, teacher = Training(), torch.nn.Linear(2, 2)
    with recorded(tmp_path) as reports:
        for batch in DataLoader(training.data, 8):
            training.model.train()
            teacher.eval()
            training.loss(batch).backward()
            training.optimizer.step()
    assert reports[0].left_out == [] and "script.evaluations" not in reports[0].seen_codes


def test_steps_on_batches_that_nobody_handed_out_are_not_known(tmp_path: Path):
    training = Training()
    with recorded(tmp_path) as reports:
        batches = list(DataLoader(training.data, 8))
        for batch in batches * 2:
            training.loss(batch).backward()
            training.optimizer.step()
    assert column(tmp_path, "samples") == [8] * 6 + [0] * 6
    assert reports[0].samples_unknown == [6, 7, 8, 9, 10, 11]
    assert says(seen_by(reports[0]), "script.samples-unknown", steps=6)
