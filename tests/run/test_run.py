"""Whole runs on CPU ranks, in this process: what is recorded, and that it is right."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from multicard.config import hydra_config
from multicard.ranks import elastic
from multicard.ranks.failures import Failure
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import VisionReport
from multicard.run import attempts, controller, outcome
from multicard.sweep import command, task
from multicard.sweep.command import Command
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, Measured, composed, ok, shared
from tests.helpers import cells
from tests.helpers.messages import find

STEPS = (
    "epoch",
    "rank",
    "step",
    "samples",
    "loaded",
    "h2d_images_bytes",
    "h2d_labels_bytes",
    "loss",
)


def steps(result: dict[str, Any]) -> list[dict[str, Any]]:
    return run_folder.read_steps(Path(result["folder"])).select(STEPS).to_pylist()


@pytest.mark.core
def test_the_record_is_whole(once: Measured):
    result = ok(once("gpus=2", "epochs=2", "target_accuracy=0.01"))
    folder = Path(result["folder"])
    record = json.loads((folder / "result.json").read_text())
    assert record == {key: value for key, value in result.items() if key != "folder"}
    files = ["config.yaml", "environment.json", "logs", "result.json", "steps.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert (record["schema_version"], record["kind"], record["cause"]) == (1, "vision", None)
    axes = {
        "precision": "fp32",
        "gpus": 2,
        "strategy": "ddp_ds",
        "batch_size": 16,
        "scale": "full",
        "device": "cpu",
    }
    assert record["axes"] | axes == record["axes"]
    assert [epoch["epoch"] for epoch in record["epochs"]] == [0, 1]
    assert all(epoch["samples"] == epoch["samples_trained"] == 96 for epoch in record["epochs"])
    assert all(
        epoch["test_right"] == round(50 * epoch["test_accuracy"]) for epoch in record["epochs"]
    )
    assert record["test_accuracy"] == record["epochs"][-1]["test_accuracy"]
    assert record["time_to_target_s"] == record["epochs"][0]["ended_s"]
    trained, evaluated = (
        sum(epoch[key] for epoch in record["epochs"]) for key in ("train_s", "evaluate_s")
    )
    assert record["train_s"] == trained and record["evaluate_s"] == evaluated
    # each by its slowest rank
    assert max(trained, evaluated) < record["total_s"] == record["epochs"][-1]["ended_s"]
    assert record["step_s"]["count"] == 5 and record["step_s"]["warmup_count"] == 1
    assert record["startup_s"] > 0
    assert record["gpu"] is record["joules_per_image"] is None
    memory = record["peak_memory_bytes"]
    assert (
        memory["kind"] == "rss"
        and memory["max"] == max(memory["per_rank"])
        and len(memory["per_rank"]) == 2
    )
    rows = [
        row
        for row in run_folder.read_steps(folder).to_pylist()
        if (row["epoch"], row["step"]) > (0, 0)
    ]
    assert sum(record["phases_s"].values()) == pytest.approx(
        sum(row["step_s"] for row in rows) / len(rows)
    )
    last = [row for row in rows if row["epoch"] == 1]
    losses = sum(row["loss"] * row["samples"] for row in last) / sum(row["samples"] for row in last)
    assert record["epochs"][1]["train_loss"] == pytest.approx(losses)


def test_another_seed_gives_other_losses(once: Measured):
    first, other = (ok(once(word))["epochs"][0]["train_loss"] for word in ("seed=0", "seed=1"))
    assert first != other


def test_communication_bytes_in_closed_form(once: Measured):
    result = ok(once("gpus=2", "epochs=2", "target_accuracy=0.01"))
    parameters = 4 * result["parameters"]
    statistics = 4 * 2 * 17056  # running mean and variance of MobileNetV2's 17,056 channels
    buffers = statistics + 8 * 52  # and 52 batch counters
    assert result["communication_bytes"]["all_reduce"] == 6 * parameters  # 2 (w - 1) / w = 1
    assert (
        result["communication_bytes"]["broadcast"]
        == parameters + buffers + 6 * buffers + 2 * statistics
    )
    alone = ok(once())
    assert (
        alone["communication_bytes"]["all_reduce"] == alone["communication_bytes"]["broadcast"] == 0
    )


@pytest.mark.core
@pytest.mark.parametrize(
    ("strategy", "loaded", "trained", "rounds"),
    [("ddp_ds", 2 * 51, 2 * 51, 4), ("ddp_rr", 2 * 101, 101, 4), ("ddp", 2 * 101, 2 * 101, 7)],
)
def test_strategies_load_move_and_train_as_they_say(
    measured, strategy: str, loaded: int, trained: int, rounds: int
):
    # 101 samples in batches of 16 are 7 batches, the last of 5; the sampler repeats one on 2 ranks
    result = ok(measured(f"strategy={strategy}", "gpus=2", "dataset.train_limit=101"))
    rows = steps(result)
    assert sum(row["loaded"] for row in rows) == loaded
    assert sum(row["samples"] for row in rows) == trained
    assert sum(row["h2d_images_bytes"] for row in rows) == loaded * 3 * 32 * 32 * 4
    assert result["transfer_bytes"]["h2d_images"]["train"] == loaded * 3 * 32 * 32 * 4
    assert len(rows) == 2 * rounds
    (epoch,) = result["epochs"]
    assert (epoch["samples"], epoch["samples_trained"]) == (101, trained)
    assert result["trained_images_per_s"] / result["images_per_s"] == pytest.approx(trained / 101)


def test_a_last_batch_that_cannot_be_trained_on_is_named(measured: Measured):
    result = measured("dataset.train_limit=97")
    assert result["status"] == "failed"
    assert (
        result["cause"]["message"].startswith("rank 0: ")
        and "batch_size" in result["cause"]["message"]
    )


def test_the_flags_in_force_are_recorded(measured: Measured):
    for precision, conv, matmul in [("fp32", True, False), ("fp32_ieee", False, False)]:
        folder = Path(ok(measured(f"precision={precision}"))["folder"])
        environment = json.loads((folder / "environment.json").read_text())
        assert environment["flags"]["cudnn_allow_tf32"] is conv
        assert environment["flags"]["matmul_allow_tf32"] is matmul
        assert environment["malloc"] == "tuned" and environment["git"]["commit"]
        assert environment["ranks"][0]["device"] == "cpu"
        assert (
            {name: os.environ[name] for name in environment["openmp"]}
            == environment["openmp"]
            != {}
        )


def test_training_can_stop_at_its_target_and_has_no_time_to_one_out_of_reach(measured: Measured):
    assert (
        len(ok(measured("epochs=3", "target_accuracy=0.001", "stop_at_target=true"))["epochs"]) == 1
    )
    assert ok(measured("target_accuracy=1.0"))["time_to_target_s"] is None


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ["layout=nhwc", "optimizer=adam", "schedule=cosine", "loader=batched"],
            marks=pytest.mark.core,
        ),
        [
            "optimizer=adamw",
            "num_workers=2",
            "malloc=system",
            "strategy.gradient_as_bucket_view=true",
            "gpus=2",
        ],
        ["model.name=resnet18"],
        ["model.name=vit_b_16", "dataset.train_limit=4", "dataset.test_limit=2"],
        ["batch_size=96", "num_workers=1"],
        ["dataset=mnist", "gpus=2"],  # the real one
    ],
    ids=" ".join,
)
def test_other_options_train_too(measured: Measured, words: list[str]):
    root = [f"dataset.root={shared('mnist')}"] if "dataset=mnist" in words else []
    result = ok(measured(*words, *root))
    assert 0 <= result["test_accuracy"] <= 1


def test_a_refusal_in_a_sweep_is_recorded(measured: Measured):
    for words, said in (("gpus=0", ("gpus",)), ("model.name=resnet5", ("model", "resnet50"))):
        record = json.loads((Path(measured(words)["folder"]) / "result.json").read_text())
        assert record["status"] == "refused" and all(
            word in record["cause"]["message"] for word in said
        )
        assert record["axes"]["precision"] == "fp32" and record["axes"]["gpus"] == (
            0 if words == "gpus=0" else 1
        )


def test_a_folder_that_is_a_link_is_refused_with_the_reason(measured: Measured, tmp_path: Path):
    """Python's own error has no reason of the system's."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "1").symlink_to(tmp_path)
    record = measured()
    cause = record["cause"]
    assert (record["status"], cause["code"], cause["key"]) == (
        "refused",
        "folder.unwritable",
        "hydra.run.dir",
    )
    assert (
        cause["facts"]["folder"] == f"{tmp_path}/sweep/1"
        and "symbolic link" in cause["facts"]["reason"]
    )


def test_a_refusal_after_the_folder_was_taken_leaves_its_record_alone(
    measured: Measured, tmp_path: Path, monkeypatch
):
    def refuse(*_: object) -> None:
        raise ValueError("batch_size=16: this cannot be")

    monkeypatch.setattr(attempts, "begin", refuse)
    result = measured()
    assert (result["status"], result["cause"]["message"]) == (
        "refused",
        "batch_size=16: this cannot be",
    )
    assert [path.name for path in Path(result["folder"]).iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("before", "job", "written"),
    [
        (None, None, True),
        ({"status": "failed", "job": "6"}, "7", True),  # of an earlier submission
        ({"status": "failed", "job": "7"}, "7", False),  # by the controller itself, who knows more
        ({"status": "ok", "job": "6"}, "7", False),
    ],
)
def test_the_end_of_a_job_is_recorded_over_what_an_earlier_one_left(
    tmp_path: Path, before: dict[str, Any] | None, job: str | None, written: bool
):
    if before is not None:
        run_folder.write_json(tmp_path / "result.json", before)
    outcome.fail(
        outcome.begin(WORKLOAD, composed(*SMALL), tmp_path, job),
        Failure("slurm", "gone"),
        "timeout",
    )
    record = run_folder.read_json(tmp_path / "result.json")
    assert record is not None
    assert (record["status"] == "timeout") is written


@pytest.mark.parametrize(
    "words",
    [
        ("loader=torch", "num_workers=2"),
        ("loader=device", "gpus=2", "layout=nhwc", "strategy=ddp_rr"),
    ],
)
def test_real_photographs_train(measured: Measured, tmp_path: Path, words: tuple[str, ...]):
    cached = "gpus=2" in words
    words += (f"dataset.cache_dir={tmp_path}", f"dataset.cache={'mmap' if cached else 'none'}")
    result = ok(measured("dataset=images", f"dataset.root={shared('clothing')}", *words))
    assert result["axes"]["dataset"] == "images" and result["epochs"][0]["test_samples"] == 50
    assert len(list(tmp_path.glob("*.u8"))) == 2 * cached
    assert not cached or result["input"]["decoded"]["train"]["bytes"] == 96 * 32 * 32 * 3


@pytest.mark.core
def test_the_input_of_a_run_is_recorded(measured: Measured):
    result = ok(measured("loader=device", "gpus=2", "epochs=2", "dataset.device_budget_bytes=3072"))
    test = {"mode": "resident", "bytes": 25 * 64, "budget_bytes": 3072}
    assert result["input"] == {
        "loader": "device",
        "train": {"mode": "shard", "bytes": 3072, "budget_bytes": 3072},
        "test": test,
    }
    moved = result["transfer_bytes"]
    # an order of the test set each time
    assert moved["h2d_images"] == {"train": 2 * 96 * 64, "evaluate": 2 * 50 * 8}
    assert moved["h2d_labels"] == {"train": 2 * 96 * 8, "evaluate": 0}
    assert moved["h2d_setup"] == {"train": 0, "evaluate": 50 * (64 + 8)}
    assert moved["h2d"] == 2 * 96 * 72 + 2 * 50 * 8 + 50 * 72
    first, second = result["epochs"]
    assert first["gap_s"] is None and second["gap_s"] >= second["first_batch_s"] > 0
    assert all(
        0 < epoch["evaluate_first_batch_s"] < epoch["evaluate_s"] for epoch in (first, second)
    )


@pytest.mark.slow
def test_digits_are_learnt(measured: Measured):
    """By a small model in few epochs: 0.93 and more; the defaults come to 0.97."""
    words = (
        "model.width=0.5",
        "dataset.train_limit=null",
        "dataset.test_limit=null",
        "gpus=2",
        "epochs=6",
    )
    assert ok(measured(*words, "preset=fast", "precision=fp32"))["test_accuracy"] >= 0.85


def test_start_up_counts_from_the_command_for_its_first_run_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "process_started_s", lambda: -1e6)
    began = []
    monkeypatch.setattr(
        controller,
        "measure",
        lambda *_, started_s, **__: began.append(started_s) or {"status": "ok"},
    )
    mine = Command(WORKLOAD)
    mine.foreseen_s = 7.0
    for seed in ("seed=0", "seed=1"):
        task.run(mine, cells.cell(cfg=composed(seed)))
    assert began[0] == -1e6 + 7.0 and began[1] >= 0


def test_a_folder_that_is_removed_while_the_ranks_run_ends_the_run_alone(
    measured: Measured, monkeypatch
):
    def remove(_: str, arguments: tuple[Any, ...], *__: Any) -> None:
        shutil.rmtree(arguments[1])

    monkeypatch.setattr(elastic, "launch", remove)
    record = measured()
    assert (record["status"], record["cause"]["kind"]) == ("failed", "disk")
    assert (record["cause"]["code"], record["cause"]["key"]) == (
        "folder.not-recorded",
        "hydra.run.dir",
    )
    assert not Path(record["folder"]).exists()


@pytest.mark.parametrize(("left", "missing"), [((0, 1), None), ((0,), 1), ((), 0)], ids=str)
def test_a_run_without_the_reports_of_all_its_ranks_has_failed(
    left: tuple[int, ...], missing: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def launch(_: str, arguments: tuple[Any, ...], *__: Any) -> None:
        for rank in left:
            rank_files.write(arguments[1], VisionReport(rank=rank))

    monkeypatch.setattr(elastic, "warm_up", lambda *_: None)
    monkeypatch.setattr(elastic, "launch", launch)
    monkeypatch.setattr(rank_files, "SEEN_S", 0.0)
    run = controller.measure(
        WORKLOAD, composed(*SMALL, "gpus=2"), tmp_path / "s" / "cell", keep_refused=True
    )
    record, cause = run.record, run.record.cause
    if missing is None:
        assert (record.status, cause) == ("ok", None)
        return
    assert record.status == "failed" and cause is not None
    assert (cause.kind, cause.code) == ("record", "run.no-report")
    assert (cause.facts["rank"], cause.facts["ranks"]) == (missing, 2)
    written = run_folder.read_json(run.folder / "result.json")
    assert written is not None and written["status"] == "failed"


def test_a_failure_on_a_full_disk_is_said_where_it_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder, "write_result", full)
    run = outcome.fail(
        outcome.begin(WORKLOAD, composed(*SMALL), tmp_path / "s" / "cell"), Failure("slurm", "gone")
    )
    assert (
        run.status == "failed"
        and run.record.cause is not None
        and run.record.cause.message == "gone"
    )


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_sweep_in_a_folder_that_cannot_be_written_to_is_refused_in_a_line(
    called, tmp_path, monkeypatch, number: int
):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(hydra_config.tempfile, "TemporaryFile", fail)
    code, printed = called("-m", f"hydra.sweep.dir={tmp_path}", *SMALL, "seed=1,2")
    assert code == 1 and not list(tmp_path.iterdir())
    said = find(printed, "folder.read-only", key="hydra.sweep.dir", value=str(tmp_path))
    assert said.facts["reason"] == os.strerror(number) and printed.count("\n") == 1
