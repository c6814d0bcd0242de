"""The history that W&B gets, its clock, and what a run is called there."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from multicard.records import run_folder
from multicard.tracking import history, keys, run_record
from multicard.tracking.history import Timeline, step_figures
from tests.conftest import ROOT
from tests.helpers import records
from tests.helpers.records import as_record

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
    assert figures["train/step_s"].tolist() == [3.0, 1.0] and figures["train/loss"].tolist() == [1.75, 2.0]
    assert figures["train/images_per_s"].tolist() == [4 / 3, 2.0] and "train/tokens_per_s" not in figures
    # a mean over the ranks that are well would hide it
    first, second = step_figures(columns(loss=[1.0, 2.0, NAN, NAN]))["train/loss"]
    assert np.isnan(first) and second == 2.0
    tuning = step_figures(columns(tokens=[1] * 4, non_padding=[6, 5, 6, 5]))
    assert tuning["train/loss"].tolist() == [1.0, 2.0]
    assert tuning["train/tokens_per_s"].tolist() == [4.0, 10.0] and "train/images_per_s" not in tuning


def clock(**content: Any) -> Timeline:
    return Timeline.of(as_record(content))


def test_the_clock_of_a_run_leaves_out_the_time_between_its_attempts():
    first = records.segment() | {"ended_at": "2026-11-21T09:42:35Z", "trained_s": 60.0}
    second = records.segment(12) | {"started_at": "2026-11-21T10:41:29Z", "ended_at": None, "trained_s": 40.0}
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
    assert len({run_record.run_id(as_record(other)) for other in [record, *others]}) == 1 + len(others)
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


def test_a_summary_is_flat_and_keeps_lists():
    content = {"a": {"b": {"c": 2}, "d": None}, "e": [1, {"f": 2}], "g": ["x", "y"]}
    assert dict(run_record.flat(content)) == {"a.b.c": 2, "e.0": 1, "e.1.f": 2, "g": "x, y"}


@pytest.mark.parametrize("folder", sorted((ROOT / "tests" / "fixtures" / "records_v1").glob("*/*")), ids=str)
def test_records_of_the_first_version_are_runs_too(folder: Path):
    record = run_folder.decode((folder / "result.json").read_bytes())
    about, timeline = run_record.about(folder, record), Timeline.of(record)
    rows = history.rows(record, run_folder.read_steps(folder))
    assert about.id and about.name and about.config["gpus"] == record.axes["gpus"]
    assert len(rows) >= len(record.epochs) and (timeline.runtime_s > 0 or record.status != "ok")
    assert run_record.summary(record)["status"] == record.status


def test_the_page_has_every_key():
    page = (ROOT / "docs" / "wandb.md").read_text()
    runs = {keys.ALL: "all", (keys.VISION,): "vision", (keys.LLM,): "tuning", (keys.SCRIPT,): "script"}
    runs |= {(keys.LLM, keys.SCRIPT): "tuning, script"}
    for name, kinds in (keys.BY_STEP | keys.BY_EPOCH).items():
        assert f"| `{name}` | {runs[kinds]} | " in page
