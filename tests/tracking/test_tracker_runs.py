"""What W&B has of each kind of run: its offline file, read back key by key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.config import base
from multicard.config.base import TrackerMode
from multicard.records import run_folder
from multicard.tracking import artifacts, identity, keys, upload
from multicard.tracking.timeline import unix
from multicard.tracking.wandb_run import Target, WandbRun
from tests.conftest import typed
from tests.helpers import records, wandb_file
from tests.tracking.test_tracker import OFFLINE

Measured = Callable[..., dict[str, Any]]
PERCENT = 0.01


def mirrored(folder: Path, record: dict[str, Any], columns: dict[str, Any] | None = None) -> dict[str, Any]:
    """The offline file of a made record."""
    records.write(folder, record, columns)
    run = WandbRun.open(identity.about(folder, record), Target(TrackerMode.offline, "trial", None, 60.0), folder)
    upload.finish(run, folder, record, run_folder.read_steps(folder))
    return wandb_file.read(folder)


def rows_with(key: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in content["history"] if key in row]


def assert_times(content: dict[str, Any], result: dict[str, Any]) -> None:
    """Every row has the run's own clock, and the run lasted as long as its record says."""
    started_at = content["run"].start_time.ToMicroseconds() / 1e6
    assert started_at == unix(result["segments"][0]["started_at"])
    whole_s = result["startup_s"] + result["total_s"]
    assert content["summary"]["_wandb"] == {"runtime": pytest.approx(whole_s, rel=PERCENT)}
    for row in content["history"]:
        assert row["_timestamp"] - started_at == pytest.approx(row["_runtime"], abs=1e-3)
    epochs = rows_with("epoch/train_s", content)
    ends_s = [result["startup_s"] + epoch["ended_s"] for epoch in result["epochs"]]
    assert [row["_runtime"] for row in epochs] == pytest.approx(ends_s, rel=PERCENT)
    order = [row["_runtime"] for row in content["history"]]
    assert order == sorted(order)


def assert_steps(content: dict[str, Any], result: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """The rows by step agree with steps.parquet."""
    ranks = sorted({step["rank"] for step in steps})
    rows = rows_with("train/loss", content)
    assert [row["train/step"] for row in rows] == list(range(len(rows)))
    at = 0
    for epoch in result["epochs"]:
        own = [step for step in steps if step["epoch"] == epoch["epoch"]]
        by_rank_s = [[step["step_s"] for step in own if step["rank"] == rank] for rank in ranks]
        ends_s = np.cumsum(by_rank_s, axis=1).max(axis=0)  # by the slowest rank's clock
        of_epoch = rows[at : at + len(ends_s)]
        assert [row["train/step_s"] for row in of_epoch] == pytest.approx(np.diff(ends_s, prepend=0.0).tolist())
        began_s = result["startup_s"] + epoch["ended_s"] - epoch["train_s"] - epoch.get("evaluate_s", 0.0)
        assert [row["_runtime"] - began_s for row in of_epoch] == pytest.approx(
            np.minimum(ends_s, epoch["train_s"]).tolist(), rel=PERCENT, abs=1e-3
        )
        at += len(ends_s)
    assert at == len(rows)


def assert_axes(content: dict[str, Any], kind: str) -> None:
    for axis, table in ((keys.STEP, keys.BY_STEP), (keys.EPOCH, keys.BY_EPOCH)):
        assert {name for name, own in content["axes"].items() if own == axis} == set(keys.names(table, kind))


def assert_record(content: dict[str, Any], folder: Path) -> None:
    """The record is an artifact, whole, and what the run used is another."""
    record = content["artifacts"][artifacts.RECORD]
    files = {entry.path: Path(entry.local_path) for entry in record.manifest.contents}
    there = {name for name in artifacts.FILES if (folder / name).exists()}
    assert set(files) - {"profile.csv"} == there >= {"result.json", "config.yaml", "environment.json"}
    assert files["result.json"].read_bytes() == (folder / "result.json").read_bytes()
    data = content["artifacts"][artifacts.DATASET]
    assert data.use_after_commit and [entry.path for entry in data.manifest.contents] == ["fingerprint.json"]


def test_a_vision_run_key_by_key(measured: Measured):
    words = ("gpus=2", "epochs=2", "precision=bf16", *OFFLINE)
    result = measured(*words)
    assert result["status"] == "ok", result["cause"]
    folder = Path(result["folder"])
    content = wandb_file.read(folder)

    run = content["run"]
    assert (run.project, list(run.tags), run.run_group) == ("trial", ["a", "b"], "sweep")
    assert (run.display_name, run.job_type, content["exit_code"]) == (folder.name, "vision", 0)
    assert run.run_id == identity.run_id(result) and run.host == result["segments"][0]["hosts"][0]
    config = content["config"]
    assert {name: config[name] for name in result["axes"]} == result["axes"]
    assert (config["precision"], config["device"], config["gpus"]) == ("bf16", "cpu", 2)
    assert config["hardware"] == result["hardware"] and config["data"] == result["data"]["fingerprint"]
    expected = base.plain(typed("epochs=1", *words))
    left_out = set(expected) - set(config["configuration"])
    assert left_out and left_out <= set(identity.OF_COMMANDS)
    assert config["configuration"]["precision"] == {"name": "bf16"}
    assert config["machine"]["cores"] == result["cores"] and config["machine"]["torch"]

    steps = run_folder.read_steps(folder).to_pylist()
    assert_times(content, result)
    assert_steps(content, result, steps)
    assert_axes(content, "vision")
    for row, (epoch, step) in zip(
        rows_with("train/loss", content), [(e, s) for e in range(2) for s in range(3)], strict=True
    ):
        assert {*keys.names(keys.BY_STEP, "vision"), keys.STEP, keys.EPOCH} <= set(row)
        own = [s for s in steps if (s["epoch"], s["step"]) == (epoch, step)]
        samples = sum(s["samples"] for s in own)
        assert row["train/loss"] == pytest.approx(sum(s["loss"] * s["samples"] for s in own) / samples)
        assert row["train/images_per_s"] == pytest.approx(samples / row["train/step_s"])
        assert row["train/data_wait_s"] == pytest.approx(np.mean([s["data_s"] for s in own]))
    epochs = rows_with("epoch/test_accuracy", content)
    for name in keys.names(keys.BY_EPOCH, "vision"):
        of_record = [epoch[name.removeprefix("epoch/")] for epoch in result["epochs"]]
        assert [row.get(name) for row in epochs] == of_record, name

    summary = content["summary"]
    for key in ("total_s", "train_s", "evaluate_s", "startup_s", "test_accuracy", "images_per_s", "status"):
        assert summary[key] == result[key], key
    assert summary["peak_memory_bytes.max"] == result["peak_memory_bytes"]["max"]
    assert summary["peak_memory_bytes.per_rank.1"] == result["peak_memory_bytes"]["per_rank"][1]
    assert summary["transfer_bytes.h2d_images.train"] == result["transfer_bytes"]["h2d_images"]["train"]
    assert summary["communication_bytes.all_reduce"] == result["communication_bytes"]["all_reduce"]
    assert summary["step_s.p99"] == result["step_s"]["p99"] and summary["attempts"] == 1
    assert summary["train/loss"] == rows_with("train/loss", content)[-1]["train/loss"]
    assert "cause.kind" not in summary
    assert_record(content, folder)


def test_a_tuning_run_key_by_key(tuned: Measured):
    result = tuned("gpus=2", "dataset.rows=40", *OFFLINE)
    assert result["status"] == "ok", result["cause"]
    folder = Path(result["folder"])
    content = wandb_file.read(folder)
    config = content["config"]
    assert content["run"].job_type == "llm" and config["template"] == result["axes"]["template"] is not None
    assert config["recipe"] not in (None, "auto") and (config["method"], config["device"]) == ("lora", "cpu")
    steps = run_folder.read_steps(folder).to_pylist()
    assert_times(content, result)
    assert_steps(content, result, steps)
    assert_axes(content, "llm")
    for number, row in enumerate(rows_with("train/loss", content)):
        own = [step for step in steps if step["step"] == number]
        assert row["train/loss"] == own[0]["loss"] and row["train/lr"] == own[0]["lr"]
        assert row["train/tokens_per_s"] == pytest.approx(sum(s["non_padding"] for s in own) / row["train/step_s"])
        assert not {"train/images_per_s", "train/reward_chosen"} & set(row)
    (epoch,) = rows_with("epoch/train_loss", content)
    assert epoch["epoch/train_s"] == result["epochs"][0]["train_s"] and "test/train_s" not in epoch
    summary = content["summary"]
    assert summary["tokens_per_s.non_padding"] == result["tokens_per_s"]["non_padding"]
    assert summary["loss.mean_of_last_tenth"] == result["loss"]["mean_of_last_tenth"]
    assert_record(content, folder)
    assert "torchtune.yaml" in {entry.path for entry in content["artifacts"][artifacts.RECORD].manifest.contents}


def test_dpo_logs_its_rewards(tmp_path: Path):
    columns = {
        **records.steps([[0.5, 0.6], [0.5, 0.5]]),
        **{name: np.arange(4.0) for name in ("loss", "data_s", "lr")},
        **dict.fromkeys(("samples", "tokens", "non_padding"), np.full(4, 2)),
        "rewards_chosen": np.array([1.0, np.nan, 2.0, np.nan]),
        "rewards_rejected": np.array([0.5, np.nan, -1.0, np.nan]),
        "rewards_accuracies": np.array([0.75, np.nan, 1.0, np.nan]),
    }
    content = mirrored(tmp_path / "cell", records.llm(method="dpo"), columns)
    first, second = rows_with("train/loss", content)
    assert set(keys.names(keys.BY_STEP, "llm")) <= set(first)
    rewards = [f"train/reward_{name}" for name in ("chosen", "rejected", "margin", "accuracy")]
    assert [[row[name] for name in rewards] for row in (first, second)] == [
        [1.0, 0.5, 0.5, 0.75],
        [2.0, -1.0, 3.0, 1.0],
    ]
    assert content["summary"]["rewards.margin"] == 0.3


def test_out_of_memory_is_a_measurement_with_its_cause(tmp_path: Path):
    cause = {"kind": "oom", "message": "CUDA out of memory", "rank": 1, "memory_bytes": 7, "log_tail": ["a", "b"]}
    nothing = {"epochs": [], "total_s": None, "train_s": None, "images_per_s": None, "test_accuracy": None}
    content = mirrored(tmp_path / "cell", records.vision() | {"status": "oom", "cause": cause, **nothing})
    assert content["exit_code"] == 0 and list(content["run"].tags) == ["oom"]
    summary = content["summary"]
    assert (summary["status"], summary["cause.kind"]) == ("oom", "oom")
    assert (summary["cause.message"], summary["cause.rank"]) == ("CUDA out of memory", 1)
    assert summary["cause.log_tail"] == "a\nb" and "total_s" not in summary and content["history"] == []
    assert content["config"]["gpus"] == 1 and artifacts.RECORD in content["artifacts"]


@pytest.mark.parametrize(
    ("status", "code"), [("diverged", 0), ("preempted", 0), ("timeout", 1), ("failed", 1), ("refused", 1)]
)
def test_only_what_fails_a_sweep_is_a_failure(status: str, code: int):
    assert identity.exit_code({"status": status}) == code
    assert identity.tags(records.vision(status=status)) == (status,)


@pytest.mark.parametrize("hosts", [("node1", "node1"), ("node1", "node2")])
def test_a_preempted_run_has_the_times_of_its_attempts(hosts: tuple[str, str], tmp_path: Path):
    """Two attempts of 60 s and 40 s, an hour apart; of each, two GPUs were sampled."""
    first = records.segment() | {"ended_at": "2026-11-21T09:42:35Z", "end": "preempted", "trained_s": 60.0}
    second = records.segment(12) | {"started_at": "2026-11-21T10:41:29Z", "ended_at": "2026-11-21T10:42:15Z"}
    device = records.gpu()["devices"][0]
    gpu = records.gpu() | {
        "devices": [
            device | {"uuid": f"GPU-{host}-{n}", "host": host} for host in dict.fromkeys(hosts) for n in (1, 2)
        ],
        "parts": [
            {"start": start, "node": 0, "host": host, "covers": "training", "spans_s": [[4.0, 50.0]]}
            for start, host in enumerate(hosts)
        ],
    }
    record = records.vision(
        status="preempted",
        cause={"kind": "preempted", "message": "the job was stopped"},
        segments=[first, second | {"trained_s": 40.0, "end": "preempted"}],
        started_at=second["started_at"],
        startup_s=5.0,
        gpu=gpu,
    )
    folder = tmp_path / "cell"
    folder.mkdir()
    samples = [(start, f"GPU-{host}-{number}", 4.0 + start) for start, host in enumerate(hosts) for number in (1, 2)]
    given = {"power_w": 500.0, "utilisation": 0.5, "memory_bytes": 7e9, "temperature_c": 60.0, "sm_clock_mhz": 1900.0}
    rows = [
        {"start": start, "node": 0, "gpu": uuid, "time_s": time_s, "energy_joules": 1.0, **given}
        for start, uuid, time_s in samples
    ]
    energy_alone = rows[0] | dict.fromkeys(given)
    pq.write_table(pa.Table.from_pylist([*rows, energy_alone]), folder / "gpu.parquet")
    content = mirrored(folder, record, records.steps([4.5] * 20, per_epoch=10))

    assert content["exit_code"] == 0 and list(content["run"].tags) == ["preempted"]
    started_at = unix(first["started_at"])
    assert content["run"].start_time.ToMicroseconds() / 1e6 == started_at
    epochs = rows_with("epoch/train_s", content)
    # 50 s of training: in the first attempt, which ended after 60; 100: at the end of the second one's 40
    ends = [unix(first["ended_at"]) - 10, unix(second["started_at"]) + 5 + 40]
    assert [row["_timestamp"] for row in epochs] == pytest.approx(ends)
    assert [row["_runtime"] for row in epochs] == pytest.approx([55.0, 105.0])
    assert content["summary"]["_wandb"]["runtime"] == pytest.approx(110.0, rel=0.05)  # with what it took to stop
    began = [unix(first["ended_at"]) - 60, unix(second["started_at"]) + 5]
    at, values = zip(*content["system"], strict=True)
    assert at == pytest.approx([began[0], began[0], began[1] + 1, began[1] + 1])
    expected = {"powerWatts": 500.0, "gpu": 50.0, "memoryAllocatedBytes": 7e9, "temp": 60.0, "smClock": 1900.0}
    for number, sample in zip([0, 1, 0, 1], values, strict=True):
        assert sample == {f"gpu.{number}.{name}": value for name, value in expected.items()}


def test_a_profiled_run_has_its_metrics_as_a_table(tmp_path: Path):
    told = [{("api", "cudaLaunchKernel"): 0.25, ("copy", "memcpy Host-to-Device"): 0.125}]
    record = records.vision() | {"profile": records.profile(told, [0.0])}
    content = mirrored(tmp_path / "cell", record)
    table = content["summary"][keys.PROFILE_TABLE]
    assert (table["_type"], table["ncols"], table["nrows"]) == ("table-file", len(artifacts.PROFILE_COLUMNS), 2)
    (row,) = rows_with(keys.PROFILE_TABLE, content)
    assert row["_runtime"] == pytest.approx(100.9) and row[keys.PROFILE_TABLE]["sha256"] == table["sha256"]
    (path,) = (tmp_path / "cell").glob(f"wandb/offline-run-*/files/{table['path']}")
    assert ["0", "api", "cudaLaunchKernel", 10, 0.25, 0.025, 0.25, None, ""] in json.loads(path.read_text())["data"]
    record_files = {entry.path for entry in content["artifacts"][artifacts.RECORD].manifest.contents}
    assert "profile.csv" in record_files
    assert content["summary"]["profile.ranks.0.derived.gpu_busy_share"] == 0.9
