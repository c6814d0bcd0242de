"""What W&B has of each kind of run, its history and its clock, and what a failure of W&B is."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import wandb

from multicard.config import schema
from multicard.config.base import TrackerMode
from multicard.config.roles import Role
from multicard.records import run_folder
from multicard.records.run_folder import RecordedRun
from multicard.run import outcome
from multicard.sweep.command import Command
from multicard.tracking import history, keys, run_record, upload
from multicard.tracking.history import RunClock, step_figures, unix
from multicard.tracking.wandb_run import WandbRun, WandbTarget
from multicard.vision.workload import WORKLOAD
from tests.cli.test_network import served
from tests.conftest import ROOT, Measured, command, ok, typed
from tests.helpers import records, wandb_file
from tests.helpers.messages import says, told
from tests.helpers.records import as_record

OFFLINE = ("tracker.mode=offline", "tracker.project=trial", "tracker.tags=[a,b]")
PERCENT = 0.01


def mirrored(
    folder: Path, record: dict[str, Any], columns: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The offline file of a made record."""
    records.write(folder, record, columns)
    typed = records.as_record(record)
    run = WandbRun.open(
        run_record.run_info(folder, typed),
        WandbTarget(TrackerMode.offline, "trial", None, 60.0),
        folder,
    )
    upload.finish(run, folder, typed, run_folder.read_steps(folder))
    return wandb_file.read(folder)


def rows_with(key: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in content["history"] if key in row]


def of_epoch(result: dict[str, Any], epoch: dict[str, Any], name: str) -> Any:
    """A figure of an epoch of a record; of tuning, what its evaluations of held-out rows found."""
    if result["kind"] == "vision" or name not in ("held_out_loss", "evaluate_s"):
        return epoch.get(name)
    evaluations = result["held_out"]["evaluations"] if result.get("held_out") else []
    own = [each for each in evaluations if each["epoch"] == epoch["epoch"]]
    if name == "held_out_loss":
        return own[-1]["loss"] if own else None
    return sum(each["evaluate_s"] for each in own) if own else None


def assert_history(
    content: dict[str, Any], result: dict[str, Any], steps: list[dict[str, Any]]
) -> None:
    """Rows by step agree with steps.parquet, each has the run's own clock,
    and the run lasted as its record says.
    """
    started_at = content["run"].start_time.ToMicroseconds() / 1e6
    assert started_at == unix(result["segments"][0]["started_at"])
    whole_s = result["startup_s"] + result["total_s"]
    # times of day are to a second
    assert content["summary"]["_wandb"] == {"runtime": pytest.approx(whole_s, abs=2.0)}
    order = [row["_runtime"] for row in content["history"]]
    assert order == sorted(order)
    assert [row["_timestamp"] - started_at for row in content["history"]] == pytest.approx(
        order, abs=1e-3
    )
    rows, ends_s = rows_with("train/loss", content), []
    for epoch in result["epochs"]:
        own = [step for step in steps if step["epoch"] == epoch["epoch"]]
        by_rank_s = [
            [step["step_s"] for step in own if step["rank"] == rank]
            for rank in {s["rank"] for s in own}
        ]
        # ends of the steps by the slowest rank's clock
        slowest_s = np.cumsum(by_rank_s, axis=1).max(axis=0)
        evaluated_s = of_epoch(result, epoch, "evaluate_s") or 0.0
        began_s = result["startup_s"] + epoch["ended_s"] - epoch["train_s"] - evaluated_s
        ends_s += (began_s + np.minimum(slowest_s, epoch["train_s"])).tolist()
    assert [row["train/step"] for row in rows] == list(range(len(ends_s)))
    assert [row["_runtime"] for row in rows] == pytest.approx(ends_s, rel=PERCENT, abs=1e-3)
    assert {*keys.names(keys.BY_STEP, result["kind"]), keys.STEP, keys.EPOCH} - {
        *keys.REWARDS
    } <= set(rows[0])
    epochs = rows_with("epoch/train_s", content)
    ends_s = [result["startup_s"] + epoch["ended_s"] for epoch in result["epochs"]]
    assert [row["_runtime"] for row in epochs] == pytest.approx(ends_s, rel=PERCENT)
    for name in keys.names(keys.BY_EPOCH, result["kind"]):
        figures = [
            of_epoch(result, epoch, name.removeprefix("epoch/")) for epoch in result["epochs"]
        ]
        assert [row.get(name) for row in epochs] == figures, name
    for axis, table in ((keys.STEP, keys.BY_STEP), (keys.EPOCH, keys.BY_EPOCH)):
        declared = {name for name, own in content["axes"].items() if own == axis}
        assert declared == set(keys.names(table, result["kind"]))


def assert_record(content: dict[str, Any], folder: Path) -> None:
    """The record is an artifact, whole."""
    record = content["artifacts"][run_record.RECORD]
    files = {entry.path: Path(entry.local_path) for entry in record.manifest.contents}
    there = {name for name in run_record.FILES if (folder / name).exists()}
    assert set(files) == there >= {"result.json", "config.yaml", "environment.json"}
    assert files["result.json"].read_bytes() == (folder / "result.json").read_bytes()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("vision", ("gpus=2", "epochs=2", "precision=bf16")),
        ("llm", ("gpus=2", "dataset.rows=40", "dataset.split=0.1", "epochs=2", "eval_steps=3")),
    ],
)
def test_a_run_key_by_key(kind: str, words: tuple[str, ...], measured: Measured, tuned: Measured):
    result = ok({"vision": measured, "llm": tuned}[kind](*words, *OFFLINE))
    folder = Path(result["folder"])
    content, steps = wandb_file.read(folder), run_folder.read_steps(folder).to_pylist()
    run, config, summary = content["run"], content["config"], content["summary"]
    limited = [limit["code"] for limit in result["limits"] if limit["forbids"]]
    assert (run.project, list(run.tags), run.run_group) == (
        "trial",
        ["a", "b", *limited],
        folder.parent.name,
    )
    assert (run.display_name, run.job_type, content["exit_code"]) == (folder.name, kind, 0)
    assert (
        run.run_id == run_record.run_id(records.as_record(result))
        and run.host == result["segments"][0]["hosts"][0]
    )
    assert {name: config[name] for name in result["axes"]} == result["axes"]
    assert (
        config["hardware"] == result["hardware"] and config["data"] == result["data"]["fingerprint"]
    )
    left_out = set(result["config"]) - set(config["configuration"])
    assert left_out and left_out <= {*schema.keys(Role.forecast), "tracker"}
    assert config["machine"]["cores"] == result["cores"] and config["machine"]["torch"]

    assert_history(content, result, steps)
    elsewhere = {*run_record.KEYS_ELSEWHERE, run_record.LIMITS}
    whole = {key: value for key, value in result.items() if key not in elsewhere}
    flat = dict(run_record.flatten(whole))
    assert {key: summary.get(key) for key in flat} == flat and summary["attempts"] == 1
    assert summary["train/loss"] == rows_with("train/loss", content)[-1]["train/loss"]
    assert "cause.kind" not in summary
    assert_record(content, folder)
    files = {entry.path for entry in content["artifacts"][run_record.RECORD].manifest.contents}
    assert ("torchtune.yaml" in files) is (kind == "llm")


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
    rows = rows_with("train/loss", content)
    assert set(keys.names(keys.BY_STEP, "llm")) <= set(rows[0])
    rewards = [f"train/reward_{name}" for name in ("chosen", "rejected", "margin", "accuracy")]
    assert [[row[name] for name in rewards] for row in rows] == [
        [1.0, 0.5, 0.5, 0.75],
        [2.0, -1.0, 3.0, 1.0],
    ]
    assert content["summary"]["rewards.margin"] == 0.3


@pytest.mark.parametrize("hosts", [("node1", "node1"), ("node1", "node2")])
def test_a_preempted_run_has_the_times_of_its_attempts(hosts: tuple[str, str], tmp_path: Path):
    """Two attempts of 60 s and 40 s, an hour apart; of each, two GPUs were sampled."""
    first = records.segment() | {
        "ended_at": "2026-11-21T09:42:35Z",
        "end": "preempted",
        "trained_s": 60.0,
    }
    second = records.segment(12) | {
        "started_at": "2026-11-21T10:41:29Z",
        "ended_at": "2026-11-21T10:42:15Z",
    }
    device = records.gpu()["devices"][0]
    gpu = records.gpu() | {
        "devices": [
            device | {"uuid": f"GPU-{host}-{n}", "host": host}
            for host in dict.fromkeys(hosts)
            for n in (1, 2)
        ],
        "parts": [
            {
                "start": start,
                "node": 0,
                "host": host,
                "covers": "training",
                "spans_s": [[4.0, 50.0]],
            }
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
    given = {
        "power_w": 500.0,
        "utilisation": 0.5,
        "memory_bytes": 7e9,
        "temperature_c": 60.0,
        "sm_clock_mhz": 1900.0,
    }
    rows = [
        {
            "start": start,
            "node": 0,
            "gpu": f"GPU-{host}-{n}",
            "time_s": 4.0 + start,
            "energy_joules": 1.0,
            **given,
        }
        for start, host in enumerate(hosts)
        for n in (1, 2)
    ]
    energy_alone = rows[0] | dict.fromkeys(given)
    pq.write_table(pa.Table.from_pylist([*rows, energy_alone]), folder / "gpu.parquet")
    content = mirrored(folder, record, records.steps([4.5] * 20, per_epoch=10))

    assert content["exit_code"] == 0 and list(content["run"].tags) == ["preempted"]
    assert content["run"].start_time.ToMicroseconds() / 1e6 == unix(first["started_at"])
    epochs = rows_with("epoch/train_s", content)
    # 50 s of training: in the first attempt, which ended after 60;
    # 100: at the end of the second one's 40
    ends = [unix(first["ended_at"]) - 10, unix(second["started_at"]) + 5 + 40]
    assert [row["_timestamp"] for row in epochs] == pytest.approx(ends)
    assert [row["_runtime"] for row in epochs] == pytest.approx([55.0, 105.0])
    # with what it took to stop
    assert content["summary"]["_wandb"]["runtime"] == pytest.approx(110.0, rel=0.05)
    began = [unix(first["ended_at"]) - 60, unix(second["started_at"]) + 5]
    at, values = zip(*content["system"], strict=True)
    assert at == pytest.approx([began[0], began[0], began[1] + 1, began[1] + 1])
    expected = {
        "powerWatts": 500.0,
        "gpu": 50.0,
        "memoryAllocatedBytes": 7e9,
        "temp": 60.0,
        "smClock": 1900.0,
    }
    for number, sample in zip([0, 1, 0, 1], values, strict=True):
        assert sample == {f"gpu.{number}.{name}": value for name, value in expected.items()}


def test_a_profiled_run_has_its_metrics_as_a_table(tmp_path: Path):
    told = [{("api", "cudaLaunchKernel"): 0.25, ("copy", "memcpy Host-to-Device"): 0.125}]
    content = mirrored(
        tmp_path / "cell", records.vision() | {"profile": records.profile(told, [0.0])}
    )
    table = content["summary"][keys.PROFILE_TABLE]
    assert (table["_type"], table["ncols"], table["nrows"]) == (
        "table-file",
        len(run_record.PROFILE_COLUMNS),
        2,
    )
    (row,) = rows_with(keys.PROFILE_TABLE, content)
    assert (
        row["_runtime"] == pytest.approx(100.9)
        and row[keys.PROFILE_TABLE]["sha256"] == table["sha256"]
    )
    (path,) = (tmp_path / "cell").glob(f"wandb/offline-run-*/files/{table['path']}")
    assert ["0", "api", "cudaLaunchKernel", 10, 0.25, 0.025, 0.25, None, ""] in json.loads(
        path.read_text()
    )["data"]
    assert content["summary"]["profile.ranks.0.derived.gpu_busy_share"] == 0.9


def test_a_failed_run_is_mirrored_as_failed(tmp_path: Path):
    cause = {"kind": "exception", "message": "an error", "log_tail": ["one", "two"]}
    content = mirrored(
        tmp_path / "cell", records.vision(status="failed", cause=cause, tracker__tags=["a"])
    )
    assert content["exit_code"] == 1 and list(content["run"].tags) == ["a", "failed"]
    summary = content["summary"]
    assert [summary[f"cause.{name}"] for name in cause] == ["exception", "an error", "one\ntwo"]


def completed(
    record: dict[str, Any], stand_in: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> RecordedRun:
    """A run once its record is written and mirrored."""
    begun = records.as_run(record)
    monkeypatch.setattr(outcome, "_from_folder", lambda *_: (begun.record, None))
    monkeypatch.setattr(outcome, "clean_up", lambda _: None)
    run: Any = SimpleNamespace(config=typed(*OFFLINE), folder=folder)
    return outcome.complete(run, begun, stand_in)


def test_a_tracker_that_fails_is_an_error_and_leaves_the_record(
    tmp_path: Path, monkeypatch, capsys
):
    def broken(settings: wandb.Settings, **_: Any) -> None:
        # W&B's default is to upload for as long as it takes: for ever,
        # where the network is gone by then
        assert settings.finish_timeout == upload.FINISH_S and settings.finish_timeout_raises
        raise wandb.errors.CommError("no space left on device")

    monkeypatch.setattr(wandb, "init", broken)
    stand_in = upload.Mirror(typed(*OFFLINE).tracker, tmp_path, Mock())
    result = completed(
        records.vision() | {"folder": str(tmp_path)}, stand_in, tmp_path, monkeypatch
    )
    assert (
        result.status == "ok"
        and json.loads((tmp_path / "result.json").read_text())["status"] == "ok"
    )
    (said,) = told(capsys.readouterr().err)
    assert (said.code, said.key, said.facts["value"]) == (
        "tracker.failed",
        "tracker.mode",
        "offline",
    )
    assert said.facts["reason"] == "CommError: no space left on device" and said.facts[
        "folder"
    ] == str(tmp_path)
    command = Command(WORKLOAD)
    command.runs.append(result)
    assert command.close() == 1  # though the run itself is fine


@pytest.mark.parametrize(
    ("kind", "is_open", "closed"),
    [("interrupt", True, 1), ("interrupt", False, 0), ("oom", False, 1)],
)
def test_a_run_that_wandb_has_open_is_ended_when_interrupted(
    kind: str, is_open: bool, closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that is not open yet need not be waited for: `sync` brings it."""
    record, calls = records.vision(cause={"kind": kind, "message": ""}), list[Any]()
    stand_in: Any = SimpleNamespace(is_open=is_open, close=lambda *told: calls.append(told))
    assert (
        completed(record, stand_in, tmp_path, monkeypatch).record.cause is not None
        and len(calls) == closed
    )


@pytest.mark.usefixtures("processes")
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
    cause = result["cause"]
    assert (cause["code"], cause["key"], cause["facts"]["value"]) == (
        "tracker.not-opened",
        "tracker.mode",
        "online",
    )
    assert not says(cause["message"], "network.unreachable")
    assert says(done.stdout, "tracker.not-opened") and "\n" not in cause["message"]


NAN = float("nan")
STEPS = {
    "rank": [0, 0, 1, 1],
    "step": [0, 1, 0, 1],
    "step_s": [1.0, 2.0, 3.0, 1.0],
    "loss": [1.0, 2.0, 4.0, NAN],  # the last round had no batch for rank 1
    "samples": [3, 2, 1, 0],
}


def columns(**changes: Any) -> dict[str, np.ndarray]:
    table = pa.table(STEPS | changes)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_a_step_is_by_the_slowest_ranks_clock_and_its_loss_the_weighted_mean():
    figures = step_figures(columns())
    assert figures["train/step_s"].tolist() == [3.0, 1.0] and figures["train/loss"].tolist() == [
        1.75,
        2.0,
    ]
    assert (
        figures["train/images_per_s"].tolist() == [4 / 3, 2.0]
        and "train/tokens_per_s" not in figures
    )
    # a mean over the ranks that are well would hide it
    first, second = step_figures(columns(loss=[1.0, 2.0, NAN, NAN]))["train/loss"]
    assert np.isnan(first) and second == 2.0
    with np.errstate(all="raise"):  # a script that tells its loss once an epoch
        first, second = step_figures(columns(loss_told=[0, 1, 0, 0]))["train/loss"]
    assert np.isnan(first) and second == 2.0
    tuning = step_figures(columns(tokens=[1] * 4, non_padding=[6, 5, 6, 5]))
    assert tuning["train/loss"].tolist() == [1.0, 2.0]
    assert (
        tuning["train/tokens_per_s"].tolist() == [4.0, 10.0] and "train/images_per_s" not in tuning
    )


def clock(**content: Any) -> RunClock:
    return RunClock.of(as_record(content))


def test_the_clock_of_a_run_leaves_out_the_time_between_its_attempts():
    first = records.segment() | {"ended_at": "2026-11-21T09:42:35Z", "trained_s": 60.0}
    second = records.segment(12) | {
        "started_at": "2026-11-21T10:41:29Z",
        "ended_at": None,
        "trained_s": 40.0,
    }
    timeline = clock(segments=[first, second], startup_s=5.0, total_s=100.0)
    runtime_s = [timeline.moment(trained_s).runtime_s for trained_s in (0.0, 60.0, 60.1, 100.0)]
    assert runtime_s == [5.0, 65.0, 65.1, 105.0] and timeline.runtime_s == 105.0
    gap_s = timeline.moment(60.001).at - timeline.moment(60.0).at
    assert gap_s == pytest.approx(3600 - 66 + 5, abs=0.01)  # the second attempt's start-up included
    # without training, a run lasted as long as its attempts; their times of day are to a second
    ended = records.segment() | {"ended_at": "2026-11-21T09:43:29Z", "trained_s": None}
    assert clock(segments=[ended]).runtime_s == 119.0
    assert clock(started_at=ended["started_at"]).runtime_s == 0.0


def test_a_record_is_the_same_run_however_often_it_is_uploaded_and_another_start_is_another():
    record = records.vision()
    assert run_record.run_id(as_record(record)) == run_record.run_id(as_record(records.vision()))
    again = records.segment() | {"started_at": "2026-11-21T09:41:30Z"}
    others = [
        records.vision(segments=[again]),
        records.vision(repetition=2),
        records.vision(probe__enabled=True),
        records.vision() | {"name": "other"},
        records.vision(identity="0badcafe"),
    ]
    assert len({run_record.run_id(as_record(other)) for other in [record, *others]}) == 1 + len(
        others
    )
    requeued = records.vision(segments=[records.segment(), again], started_at=again["started_at"])
    assert run_record.run_id(as_record(requeued)) == run_record.run_id(as_record(record))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("gpus=2,precision=bf16-00000001", "gpus=2, precision=bf16"),
        ("gpus=2,precision=bf16-00000001-r2-probe", "gpus=2, precision=bf16 r2 probe"),
        ("my run", "my run"),
        (f"{'a' * 70}=1-12345678", f"{'a' * 55} 12345678"),
    ],
)
def test_a_run_is_named_by_its_settings(folder: str, name: str):
    assert run_record.short_name(folder) == name


def test_a_long_name_begins_with_what_its_sweep_varies(tmp_path: Path):
    settings = [f"a_key_{letter}=value" for letter in "abcdef"] + ["precision=fp32", "width=0.35"]
    sweep = {"overrides": {"task": ["model.width=0.35,0.5", "+x=[1,2]", *settings[:6]]}}
    sweep["sweeper"] = {"params": {"precision": "fp32,bf16"}}
    (tmp_path / "multirun.yaml").write_text(json.dumps({"hydra": sweep}))
    swept = run_record.varied_keys(tmp_path)
    assert swept == {"width", "precision"} and run_record.varied_keys(tmp_path / "none") == set()
    name = run_record.short_name(f"{','.join(settings)}-12345678-r2", swept)
    assert name.startswith("precision=fp32, width=0.35, a_key_a=value") and name.endswith(
        " r2 12345678"
    )
    assert len(name) == 64


def test_a_summary_is_flat_and_keeps_lists():
    content = {"a": {"b": {"c": 2}, "d": None}, "e": [1, {"f": 2}], "g": ["x", "y"]}
    assert dict(run_record.flatten(content)) == {"a.b.c": 2, "e.0": 1, "e.1.f": 2, "g": "x, y"}


@pytest.mark.parametrize(
    "folder",
    sorted((ROOT / "tests" / "fixtures" / "records_v1").glob("*/*")),
    ids=lambda folder: f"{folder.parent.name}-{folder.name}",
)
def test_records_of_the_first_version_are_runs_too(folder: Path):
    record = run_folder.decode((folder / "result.json").read_bytes())
    about, timeline = run_record.run_info(folder, record), RunClock.of(record)
    rows = history.rows(record, run_folder.read_steps(folder))
    assert about.id and about.name and about.config["gpus"] == record.axes["gpus"]
    assert len(rows) >= len(record.epochs) and (timeline.runtime_s > 0 or record.status != "ok")
    assert run_record.summary(record)["status"] == record.status


def test_the_page_has_every_key():
    page = (ROOT / "docs" / "wandb.md").read_text()
    runs = {
        keys.ALL: "all",
        (keys.VISION,): "vision",
        (keys.LLM,): "tuning",
        (keys.SCRIPT,): "script",
    }
    runs |= {(keys.LLM, keys.SCRIPT): "tuning, script", (keys.VISION, keys.LLM): "vision, tuning"}
    for name, kinds in (keys.BY_STEP | keys.BY_EPOCH).items():
        assert f"| `{name}` | {runs[kinds]} | " in page
