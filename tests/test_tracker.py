"""W&B holds what the record holds, and its failures are errors."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import wandb

from multicard.config import base
from multicard.config.base import TrackerMode
from multicard.controller.session import SESSION, close
from multicard.records import run_folder
from multicard.tracking import wandb_mirror
from multicard.tracking.wandb_mirror import charted, step_rows
from tests import wandb_file
from tests.conftest import command, composed, typed
from tests.test_network import served

Measured = Callable[..., dict[str, Any]]
OFFLINE = ("tracker.mode=offline", "tracker.project=trial", "tracker.tags=[a,b]")


def test_the_offline_file_holds_what_the_record_holds(measured: Measured):
    words = ("gpus=2", "epochs=2", "precision=bf16", *OFFLINE)
    result = measured(*words)
    assert result["status"] == "ok", result["cause"]
    folder = Path(result["folder"])
    mirrored = wandb_file.read(folder)

    assert mirrored["run"].project == "trial" and list(mirrored["run"].tags) == ["a", "b"]
    assert mirrored["run"].run_group == "sweep" and mirrored["run"].display_name == folder.name
    assert mirrored["run"].job_type == "vision" and mirrored["exit_code"] == 0
    expected = base.plain(typed("epochs=1", *words))
    assert mirrored["config"]["precision"] == {"name": "bf16"} and mirrored["config"]["gpus"] == 2
    assert set(expected) <= set(mirrored["config"])
    assert {**mirrored["config"]["dataset"], "name": "digits"} == mirrored["config"]["dataset"]

    rows = [row for row in mirrored["history"] if "train/loss" in row]
    steps = run_folder.read_steps(folder).to_pylist()
    assert [row["train/step"] for row in rows] == list(range(6))
    for row, (epoch, step) in zip(rows, [(e, s) for e in range(2) for s in range(3)], strict=True):
        of_step = [s for s in steps if (s["epoch"], s["step"]) == (epoch, step)]
        weighted = sum(s["loss"] * s["samples"] for s in of_step) / sum(s["samples"] for s in of_step)
        assert row["train/loss"] == pytest.approx(weighted)
    steps.sort(key=lambda s: s["step"])
    by_rank_s = [[[s["step_s"] for s in steps if (s["epoch"], s["rank"]) == (e, r)] for r in (0, 1)] for e in (0, 1)]
    ends_s = np.cumsum(by_rank_s, axis=2).max(axis=1)  # by the slowest rank's clock
    assert [row["train/step_s"] for row in rows] == pytest.approx(np.diff(ends_s, prepend=0.0).ravel().tolist())
    epochs = [row for row in mirrored["history"] if "test/accuracy" in row]
    assert [row["test/accuracy"] for row in epochs] == [epoch["test_accuracy"] for epoch in result["epochs"]]
    assert [row["test/loss"] for row in epochs] == [epoch["test_loss"] for epoch in result["epochs"]]

    summary = mirrored["summary"]
    for key in ("total_s", "train_s", "evaluate_s", "startup_s", "test_accuracy", "images_per_s", "status"):
        assert summary[key] == result[key], key
    assert summary["peak_memory_bytes.max"] == result["peak_memory_bytes"]["max"]
    assert summary["transfer_bytes.h2d_images.train"] == result["transfer_bytes"]["h2d_images"]["train"]
    assert summary["communication_bytes.all_reduce"] == result["communication_bytes"]["all_reduce"]
    assert summary["step_s.p99"] == result["step_s"]["p99"]


def test_a_failed_run_is_mirrored_as_failed(measured: Measured):
    result = measured("dataset.train_limit=97", *OFFLINE)
    assert result["status"] == "failed"
    mirrored = wandb_file.read(Path(result["folder"]))
    assert mirrored["exit_code"] == 1 and mirrored["summary"]["status"] == "failed"


def test_a_tracker_that_fails_is_an_error_and_leaves_the_record(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(settings: wandb.Settings, **_: Any) -> None:
        # W&B's default is to upload for as long as it takes: for ever, where the network is gone by then
        assert settings.finish_timeout == wandb_mirror.FINISH_S and settings.finish_timeout_raises
        raise wandb.errors.CommError("no space left on device")

    monkeypatch.setattr(wandb, "init", broken)
    result = measured(*OFFLINE)
    assert result["status"] == "ok" and result["test_accuracy"] >= 0
    assert json.loads((Path(result["folder"]) / "result.json").read_text())["status"] == "ok"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tracker.mode=offline: W&B failed (CommError: no space left on device)")

    monkeypatch.setattr(SESSION, "records", [result])
    assert close() == 1  # though the run itself is fine


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


def test_a_step_is_by_the_slowest_ranks_clock_and_its_loss_the_weighted_mean():
    nan = float("nan")
    steps = pa.table(
        {
            "epoch": [0, 0, 0, 0, 1, 1],
            "rank": [0, 0, 1, 1, 0, 1],
            "step": [0, 1, 0, 1, 0, 0],
            "step_s": [1.0, 2.0, 3.0, 1.0, 5.0, 4.0],
            "loss": [1.0, 2.0, 4.0, nan, 1.0, 1.0],  # the last round had no batch for rank 1
            "samples": [3, 2, 1, 0, 1, 1],
        }
    )
    assert step_rows(steps, {0}) == [{"step_s": 3.0, "loss": 1.75}, {"step_s": 1.0, "loss": 2.0}]
    assert step_rows(steps, {0, 1})[-1] == {"step_s": 5.0, "loss": 1.0}
    diverged = steps.set_column(4, "loss", pa.array([1.0, 2.0, nan, nan, 1.0, 1.0]))
    first, second = step_rows(diverged, {0})
    assert np.isnan(first["loss"]) and second["loss"] == 2.0  # a mean over the ranks that are well would hide it
    tuning = steps.append_column("tokens", pa.array([1] * 6))
    assert [row["loss"] for row in step_rows(tuning, {0})] == [1.0, 2.0]


def test_flat_keys():
    assert charted({"a": 1, "b": {"c": {"d": 2}, "e": None}, "f": [1]}) == {"a": 1, "b.c.d": 2}


def test_every_mode_composes():
    for mode in TrackerMode:
        assert composed(f"tracker.mode={mode}").tracker.mode is mode
