"""Failures of W&B are errors of the command, and never lose a measurement."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb

from multicard.config.base import TrackerMode
from multicard.run import outcome
from multicard.sweep.command import Command
from multicard.tracking import mirror
from multicard.vision.workload import WORKLOAD
from tests.cli.test_network import served
from tests.conftest import command, composed, typed
from tests.helpers import records, wandb_file

Measured = Callable[..., dict[str, Any]]
OFFLINE = ("tracker.mode=offline", "tracker.project=trial", "tracker.tags=[a,b]")


def test_a_failed_run_is_mirrored_as_failed(measured: Measured):
    result = measured("dataset.train_limit=97", *OFFLINE)
    assert result["status"] == "failed"
    mirrored = wandb_file.read(Path(result["folder"]))
    assert mirrored["exit_code"] == 1 and list(mirrored["run"].tags) == ["a", "b", "failed"]
    summary = mirrored["summary"]
    assert summary["status"] == "failed" and summary["cause.kind"] == result["cause"]["kind"]
    assert summary["cause.message"] == result["cause"]["message"]
    assert summary["cause.log_tail"].splitlines() == list(result["cause"]["log_tail"])


def test_a_tracker_that_fails_is_an_error_and_leaves_the_record(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(settings: wandb.Settings, **_: Any) -> None:
        # W&B's default is to upload for as long as it takes: for ever, where the network is gone by then
        assert settings.finish_timeout == mirror.FINISH_S and settings.finish_timeout_raises
        raise wandb.errors.CommError("no space left on device")

    monkeypatch.setattr(wandb, "init", broken)
    result = measured(*OFFLINE)
    assert result["status"] == "ok" and result["test_accuracy"] >= 0
    assert json.loads((Path(result["folder"]) / "result.json").read_text())["status"] == "ok"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tracker.mode=offline: W&B failed (CommError: no space left on device)")

    command = Command(WORKLOAD)
    command.records.append(result)
    assert command.close() == 1  # though the run itself is fine


@pytest.mark.parametrize(
    ("kind", "is_open", "closed"), [("interrupt", True, 1), ("interrupt", False, 0), ("oom", False, 1)]
)
def test_a_run_that_wandb_has_open_is_ended_when_interrupted(
    kind: str, is_open: bool, closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that is not open yet need not be waited for: `sync` brings it."""
    record = records.vision(cause={"kind": kind, "message": ""})
    monkeypatch.setattr(outcome, "_from_folder", lambda *_: (record, None))
    monkeypatch.setattr(outcome, "clean_up", lambda _: None)
    mirrored: list[Any] = []
    stand_in = SimpleNamespace(is_open=is_open, close=lambda *told: mirrored.append(told))
    run = SimpleNamespace(config=typed(*OFFLINE), folder=tmp_path)
    assert outcome.complete(run, {}, stand_in) is record and len(mirrored) == closed


def test_online_without_a_login_ends_before_anything_is_trained(tmp_path: Path):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    env = {**clean, "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    with served(tmp_path) as url:
        words = (f"hydra.run.dir={tmp_path / 'run'}", "tracker.mode=online")
        done = command(*words, env={**env, "WANDB_BASE_URL": url}, timeout=120)
    assert done.returncode == 1
    (path,) = tmp_path.glob("run/*/result.json")
    result = json.loads(path.read_text())
    assert result["status"] == "failed" and result["epochs"] == []
    message = result["cause"]["message"]
    assert message.startswith("tracker.mode=online") and "cannot reach" not in message
    assert "wandb login" in done.stdout and "\n" not in message


def test_every_mode_composes():
    for mode in TrackerMode:
        assert composed(f"tracker.mode={mode}").tracker.mode is mode
