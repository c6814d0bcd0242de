"""Scripts that go on from what an earlier run left in the working folder."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multicard.records import limits
from multicard.records.limits import Forbids
from multicard.records.rank_files import ScriptReport
from tests.helpers import records
from tests.helpers.messages import find, says
from tests.script.test_recorder import Training, recorded, seen_by
from tests.script.test_script_runs import measured

OLD_S = 3600


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What an earlier run left."""
    training = Training()
    training.train()
    path = tmp_path / "ck.pt"
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save(state, path)
    before_s = time.time() - OLD_S
    os.utime(path, (before_s, before_s))
    return path


def with_state(training: Training, path: Path) -> None:
    training.optimizer.load_state_dict(torch.load(path)["optimizer"])
    training.train()


def written_anew(training: Training, path: Path) -> None:
    training.model.load_state_dict(torch.load(path)["model"])
    training.train()
    torch.save(training.model.state_dict(), path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def open_file(training: Training, path: Path) -> None:
    with path.open("rb") as file:
        training.optimizer.load_state_dict(torch.load(file)["optimizer"])
    training.train()


def from_weights(training: Training, path: Path) -> None:
    """As a fine-tuning begins."""
    training.model.load_state_dict(torch.load(path)["model"])
    training.train()
    torch.save(training.model.state_dict(), path.with_name("tuned.pt"))


def of_this_run(training: Training, path: Path) -> None:
    own = path.with_name("own.pt")
    torch.save(training.optimizer.state_dict(), own)
    training.optimizer.load_state_dict(torch.load(own))
    training.train()


def back_to_the_start(training: Training, path: Path) -> None:
    """As after a search for a learning rate."""
    training.model.load_state_dict(torch.load(path)["model"])
    state = training.optimizer.state_dict()
    training.train()
    training.optimizer.load_state_dict(state)
    training.train()


Run = Callable[[Training, Path], None]


def report_of(run: Run, folder: Path, checkpoint: Path) -> ScriptReport:
    with recorded(folder) as reports:
        run(Training(), checkpoint)
    return reports[0]


@pytest.mark.parametrize("run", [with_state, written_anew, open_file])
def test_a_script_that_goes_on_says_from_which_file(tmp_path: Path, checkpoint: Path, run: Run):
    report = report_of(run, tmp_path, checkpoint)
    assert find(seen_by(report), "script.went-on").facts == {"files": ["ck.pt"]}
    record = records.as_record(records.script() | {"seen_codes": report.seen_codes})
    found = limits.forbidding(limits.of(record), Forbids.prediction)
    assert [limit.code for limit in found] == ["went-on"]


@pytest.mark.parametrize("run", [from_weights, of_this_run, back_to_the_start])
def test_other_files_are_no_start(tmp_path: Path, checkpoint: Path, run: Run):
    assert not says(seen_by(report_of(run, tmp_path, checkpoint)), "script.went-on")


NOTHING_LEFT = """
if os.path.exists("ck.pt"):
    torch.load("ck.pt")
    epochs = 0
else:
    epochs = 1
    torch.save(model.state_dict(), "ck.pt")
for epoch in range(epochs):
    for batch in DataLoader(data, 8):
        loss_of(batch).backward(); optimizer.step()
"""


@pytest.mark.usefixtures("processes")
def test_a_script_without_anything_left_to_train_is_told_of_what_it_found(
    script: Callable[[str], str],
):
    name = script(NOTHING_LEFT)
    assert measured(name).record.status == "ok"
    shutil.rmtree("multirun")
    again = measured(name).record
    assert again.status == "failed" and again.cause is not None
    facts = find(again.cause.message, "script.nothing-left").facts
    assert facts["files"] == ["ck.pt"]
