"""Keys that earlier versions had: their records are read,
and count as runs of today where they did the same.
"""

from pathlib import Path
from typing import Any

import pytest

from analysis.runs import grouping, load
from multicard.config import schema
from multicard.config.roles import Role
from multicard.estimate import shared_rows
from multicard.records import comparable
from tests.helpers import past_runs, records

MODEL = {"name": "mobilenet_v2", "width": 1.0}


def older(blocks: str | None, **changes: Any) -> dict[str, Any]:
    """A record; of a version that had `model.blocks` where that is given."""
    record = records.vision(**changes)
    if blocks is not None:
        record["config"]["model"]["blocks"] = blocks
    return record


def test_a_value_by_which_all_runs_train_now_is_left_out_and_another_is_kept():
    plain, fused = (
        {"model": MODEL | {"blocks": blocks}, "gpus": 1} for blocks in ("plain", "fused")
    )
    assert schema.nested_without_older(plain) == {"model": MODEL, "gpus": 1}
    assert schema.nested_without_older(fused) == fused
    flat = {"model.blocks": "plain", "model.width": 1.0, "blocks": "plain"}
    assert schema.without_older(flat) == {"model.width": 1.0, "blocks": "plain"}
    assert schema.of("model.blocks") == Role.identity | Role.memory | Role.speed


def test_runs_of_a_version_that_had_the_key_group_with_those_of_today(tmp_path: Path):
    for seed, blocks in enumerate((None, "plain", "fused")):
        records.write(tmp_path / "sweep" / str(seed), older(blocks, seed=seed))
    runs = load.read_runs([tmp_path]).runs
    groups = grouping.by_setting(runs)
    assert sorted(sorted(run["seed"] for run in group) for group in groups.values()) == [
        [0, 1],
        [2],
    ]
    now, plain, fused = (run.record() for run in sorted(runs, key=lambda run: run["seed"]))
    settings = [
        comparable.measured_settings(record.config | {"seed": 0}) for record in (now, plain, fused)
    ]
    assert settings[0] == settings[1] == {key: settings[2][key] for key in settings[0]}
    assert settings[2].keys() - settings[0].keys() == {"model.blocks"}


@pytest.mark.parametrize(
    ("blocks", "basis"), [(None, "measured"), ("plain", "measured"), ("fused", "unknown")]
)
def test_a_run_of_today_is_predicted_by_those_that_did_the_same(blocks: str | None, basis: str):
    record = past_runs.vision(0.25)
    now = past_runs.config(record)
    if blocks is not None:
        record["config"]["model"]["blocks"] = blocks
    assert past_runs.predicted(now, past_runs.past(record)).basis == basis


@pytest.mark.parametrize(
    ("value", "is_known"), [("plain", True), ("fused", True), ("secret", False), (3, False)]
)
def test_rows_that_others_shared_may_have_the_key(value: Any, is_known: bool):
    assert shared_rows.is_public("vision", "model.blocks", value) is is_known
