"""A preset names what its file sets, in place of all the keys; what was set otherwise is named."""

from pathlib import Path
from typing import Any

import pytest

from analysis.runs import grouping, load
from multicard import workloads
from multicard.records import comparable
from multicard.sweep import presets
from tests.conftest import composed
from tests.helpers import records

ROWS = [
    # no roles: made rows
    {
        "preset": preset,
        "preset_decides": ["layout", "optimizer.lr"],
        "gpus": gpus,
        "layout": layout,
        "lr": lr,
    }
    for preset, layout, lr in (("papers", "nchw", 0.1), ("fast", "nhwc", 0.2))
    for gpus in (1, 2)
]
KEYS = ["preset", "gpus", "layout", "lr"]


def changed(**columns: Any) -> list[dict[str, Any]]:
    """The rows, with other columns in the last one."""
    return [*ROWS[:-1], ROWS[-1] | columns]


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (ROWS, ["preset", "gpus"]),
        (ROWS[:2], ["gpus"]),
        (changed(lr=0.3), ["preset", "gpus", "lr"]),  # swept beside the preset
        (changed(preset_decides=["layout"]), ["preset", "gpus", "lr"]),  # typed, or not its own
        (changed(preset_decides="['layout', 'optimizer.lr']"), ["preset", "gpus"]),  # a column
        (changed(preset_decides=[]), ["preset", "gpus", "layout", "lr"]),
        (changed(preset=None), ["gpus", "layout", "lr"]),  # an older record
    ],
)
def test_a_preset_stands_for_what_follows_from_it(rows: list[dict[str, Any]], shown: list[str]):
    assert comparable.apart(rows, KEYS) == shown


@pytest.mark.parametrize(
    ("entry", "words", "typed_names"),
    [
        ("train_vision", ["preset=fast", "gpus=2"], []),
        ("train_vision", ["preset=fast", "precision=fp32", "lr=0.1"], ["precision"]),
        ("train_vision", ["preset=papers", "optimizer.fused=true"], ["optimizer.fused"]),
        ("train_vision", ["preset=papers", "optimizer=adam", "model=resnet18"], []),
        ("train_vision", ["preset=fast", "loader.num_workers=4"], ["loader"]),
        (
            "tune_llm",
            ["preset=fast", "+packed=false", "max_seq_len=512"],
            ["max_seq_len", "packed"],
        ),
        ("measure_script", ["args.lr=1"], []),
    ],
)
def test_what_a_command_sets_itself_its_preset_does_not_decide(
    entry: str, words: list[str], typed_names: list[str]
):
    workload = workloads.of_entry(f"{entry}.py")
    everything = presets.decided(workload, [])
    assert {"layout", "precision", "loader"} <= {*everything} or entry != "train_vision"
    left = [name for name in everything if name not in typed_names]
    assert presets.decided(workload, words) == left
    assert len(everything) == len(left) + len(typed_names)


def test_a_preset_sets_keys_of_a_typed_group():
    cfg = composed("preset=fast", "optimizer=adam", "model=resnet18", entry="train_vision")
    assert (cfg.optimizer.name, cfg.optimizer.fused) == ("adam", True)
    assert (cfg.model.name, cfg.model.depthwise) == ("resnet18", "triton")


def test_each_preset_names_itself():
    for entry in ("train_vision", "tune_llm"):
        workload = workloads.of_entry(f"{entry}.py")
        for name in workloads.files(workload, "preset"):
            assert composed(f"preset={name}", entry=entry).preset_chosen == name


def runs_of(folder: Path, *settings: dict[str, Any]) -> list[load.Run]:
    for number, setting in enumerate(settings):
        record = records.vision()
        record["config"] |= setting
        record["axes"] |= {name: value for name, value in setting.items() if name == "layout"}
        records.put(folder / "sweep" / str(number), record)
    return load.read_runs([folder / "sweep"]).runs


@pytest.mark.parametrize(("other", "is_named"), [("fast", True), ("papers", False)])
def test_a_setting_of_two_presets_is_named_by_its_keys(tmp_path: Path, other: str, is_named: bool):
    """Runs of a setting are repetitions, whichever preset sets it."""
    runs = runs_of(
        tmp_path,
        {"preset_chosen": "papers", "preset_decides": ["layout"], "layout": "nchw"},
        {"preset_chosen": other, "preset_decides": ["layout"], "layout": "nhwc"},
        {"preset_chosen": "fast", "preset_decides": ["layout"], "layout": "nhwc"},
    )
    settings = grouping.by_setting(runs)
    assert len(settings) == 2
    shown = grouping.apart([dict(cell) for cell in settings], grouping.settings(runs))
    assert shown == (["preset"] if is_named else ["layout"])
