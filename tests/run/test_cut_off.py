"""A controller that is killed once its ranks have ended: the next start writes the same record."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from multicard.records import run_folder
from multicard.run import attempts, outcome
from multicard.run import controller as run
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, composed, warm_up
from tests.helpers.records import GONE, claim

WORDS = (*SMALL, "name=cut-off", "epochs=2", "dataset.train_limit=32", "dataset.test_limit=16", "model.width=0.25")
CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}  # audit events


def measure_until(cfg: DictConfig, folder: Path, change: int) -> None:
    """Measure, but be killed just before a change to a file of `folder`, or to its claim.

    Args:
        change: its number, from 0.
    """
    changes = count()

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        path, last = arguments[0], arguments[-1]
        writes = event != "open" or bool(last & (os.O_WRONLY | os.O_RDWR))
        within = isinstance(path, str | os.PathLike) and (
            str(folder.parent) in str(path) or not Path(path).is_absolute()
        )
        if writes and within and next(changes) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    run.measure(WORKLOAD, cfg, folder, keep_refused=True)


def start(cfg: DictConfig, folder: Path, workload: Any = WORKLOAD) -> dict[str, Any] | None:
    """As the same command does that was killed before. Returns what is in result.json then."""
    if run_folder.finished(folder) is None:
        run.measure(workload, cfg, folder, keep_refused=True)
    else:
        outcome.release_finished(folder)
    return run_folder.read_json(folder / "result.json")


class Trained:
    """A run, its record, and copies of its folder just before and after its end was noted."""

    def __init__(self, root: Path) -> None:
        self.root, self.numbers = root, count()
        self.cfg, self.folder = composed(*WORDS), root / "cut-off" / "cell"
        note = attempts.end

        def note_end(*arguments: Any) -> None:
            self._copy(root / "ended")
            note(*arguments)
            self._copy(root / "noted")

        warm_up()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attempts, "end", note_end)
            assert run.measure(WORKLOAD, self.cfg, self.folder, keep_refused=True).status == "ok"
        self.record = run_folder.read_json(self.folder / "result.json")

    def _copy(self, target: Path) -> None:
        shutil.copytree(self.folder, target)

    def killed(self, name: str) -> Path:
        """A folder as a killed controller left it."""
        cell = self.root / str(next(self.numbers)) / self.folder.parent.name / "cell"
        shutil.copytree(self.root / name, cell)
        claim(cell, pid=GONE)
        return cell


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def trained(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("runs"))


def test_killed_at_any_change_of_its_folder_the_next_start_writes_the_same_record(trained: Trained):
    context = multiprocessing.get_context("forkserver")
    steps = run_folder.read_steps(trained.folder)
    for change in count():
        folder = trained.killed("noted")
        process = context.Process(target=measure_until, args=(trained.cfg, folder, change))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        assert start(trained.cfg, folder) == trained.record, change
        assert (files(folder.parent), run_folder.read_steps(folder)) == (files(trained.folder.parent), steps), change
        if process.exitcode == 0:
            break
    assert change > 15


def test_killed_before_the_end_was_noted_only_what_was_measured_beside_is_lost(trained: Trained):
    folder = trained.killed("ended")
    record = start(trained.cfg, folder)
    assert record is not None and trained.record is not None
    lost = {"ended_at", "load", "beside"}
    assert [record[key] for key in ("load", "beside")] == [None, None]
    assert {key for key in record if record[key] != trained.record[key]} - {"segments"} <= lost
    assert files(folder) == files(trained.folder)


def test_an_error_while_recording_leaves_the_cause_and_what_the_record_is_made_of(trained: Trained):
    def fail(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError("weights sum to zero")

    folder = trained.killed("noted")
    for _ in range(2):
        record = start(trained.cfg, folder, replace(WORKLOAD, summarise=fail))
        assert record is not None
        assert (record["status"], record["cause"]["kind"]) == ("failed", "record")
        assert "ZeroDivisionError: weights sum to zero); its measurements are kept" in record["cause"]["message"]
        assert "in fail" in "".join(record["cause"]["log_tail"])
    assert start(trained.cfg, folder) == trained.record
    assert files(folder) == files(trained.folder)


def test_what_was_trained_is_measured_again_only_where_that_is_asked_for(trained: Trained, monkeypatch):
    monkeypatch.setattr(run, "_run_ranks", lambda *_: pytest.fail("trained again"))
    folder = trained.killed("noted")
    json.dump({"segments": []}, (folder / "segments.json").open("w"))
    with pytest.raises(pytest.fail.Exception):
        start(trained.cfg, folder)
    again = composed(*WORDS, "rerun=true")
    with pytest.raises(pytest.fail.Exception):
        start(again, trained.killed("noted"))
    assert start(trained.cfg, trained.killed("noted")) == trained.record
