"""Profiles of a training from its start: `profile.window=start`."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis import experiments
from analysis.runs import load
from multicard.config.base import ProfileName, ProfileWindow, WindowConfig
from multicard.config.placement import Placement
from multicard.measure import memory, timing
from multicard.measure.timing import PHASES, Ranges
from multicard.observe.profiles import nsys, run_profile
from multicard.observe.profiles.capture import TrainingWindow
from multicard.records import comparable
from multicard.records.schema_parts import ProfileTable
from multicard.run import prepare
from tests.conftest import typed
from tests.helpers import records
from tests.observe.test_window import ALONE, rows

Measured = Callable[..., dict[str, Any]]


def window(tmp_path: Path, **options: Any) -> TrainingWindow:
    name = options.pop("name", ProfileName.kineto)
    config = WindowConfig(name, window=ProfileWindow.start, **options)
    return TrainingWindow(config, ALONE, tmp_path, Ranges(ALONE.device, nvtx=name is ProfileName.nsys))


def test_a_training_is_profiled_from_its_start_to_its_end(measured: Measured):
    result = measured("gpus=2", "epochs=2", "profile=auto", "profile.window=start", "profile.steps=null")
    assert result["status"] == "ok", result["cause"]
    profile, steps = result["profile"], result["step_s"]["count"] + result["step_s"]["warmup_count"]
    assert (profile["window"], profile["ended"], profile["first_step"], profile["steps"]) == ("start", "run", 0, steps)
    assert [rank["steps"] for rank in profile["ranks"]] == [steps, steps]
    phases = rows(result, "phase")
    assert set(phases) == {*PHASES, "evaluate"}
    assert phases["forward"]["calls"] == 2 * steps and phases["evaluate"]["calls"] == 2 * 2
    assert profile["h2d"]["counted_bytes"] == result["transfer_bytes"]["h2d"]  # evaluation's too
    assert "step_s" not in profile  # there is no step without the profiler to compare with


def test_a_tuning_is_profiled_for_its_first_steps(tuned: Measured):
    words = ("max_steps=3", "epochs=2", "gradient_accumulation_steps=2", "dataset.rows=40")
    result = tuned(*words, "profile=kineto", "profile.window=start", "profile.steps=4")
    assert result["status"] == "ok", result["cause"]
    profile, phases = result["profile"], rows(result, "phase")
    assert (profile["ended"], profile["steps"]) == ("steps", 4)  # one of the second epoch
    assert phases["backward"]["calls"] == 2 * 4 and phases["optimizer"]["calls"] == 4
    assert profile["h2d"]["whole_run_bytes"] is None and 0 < profile["h2d"]["counted_bytes"]
    assert profile["h2d"]["counted_bytes"] < result["transfer_bytes"]["h2d"]


@pytest.mark.parametrize(("options", "steps", "ended"), [({"seconds": 3.5}, 3, "seconds"), ({"steps": 9}, 2, "budget")])
def test_it_ends_at_a_duration_or_when_its_events_take_too_much_memory(
    options: dict[str, Any], steps: int, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = iter(range(99))
    monkeypatch.setattr(timing, "clock_s", lambda: float(next(now)))
    held = iter(range(0, 99_000_000, 1_000_000))
    budget = 2_500_000 if ended == "budget" else 10**9
    monkeypatch.setattr(memory, "private_memory_bytes", lambda: next(held))
    mine = window(tmp_path, budget_bytes=budget, **options)
    mine.open()
    for number in range(6):
        mine.step()
        mine.ranges.open("forward")
        torch.ones(8).add(number)
        mine.count(10**number)
    mine.pause()
    result = mine.close()
    assert result is not None
    assert (result["steps"], result["ended"], result["counted_h2d_bytes"]) == (steps, ended, int("1" * steps))
    with gzip.open(mine.file) as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    markers = sorted(name for name in names if name.startswith("Profiler"))
    assert markers == [*(f"ProfilerStep#{number}" for number in range(steps)), "ProfilerWindow"]
    assert names.count("forward") == names.count("aten::add") == steps  # nothing is recorded after its end


def test_nsys_brackets_the_training(tmp_path: Path, nsys_calls: list[str]):
    mine = window(tmp_path, name=ProfileName.nsys, seconds=720)
    mine.open()
    mine.step()
    mine.step()
    mine.pause()
    mine.ranges.open("evaluate")
    mine.ranges.close()
    assert mine.close() is not None
    steps = [word for number in (0, 1) for word in (f"ProfilerStep#{number}", "data", "pop", "pop")]
    assert nsys_calls == ["start", "ProfilerWindow", *steps, "evaluate", "pop", "pop", "stop"]


def test_a_profile_that_was_lost_when_the_run_was_stopped_is_an_error_in_the_record(tmp_path: Path):
    assert run_profile.of_run(tmp_path, [{"error": "lost"}], records.as_record({})) == ProfileTable(error="lost")


def test_trainings_that_were_traced_are_in_no_table_of_times(tmp_path: Path):
    for number, (precision, start) in enumerate([("fp64", False), ("fp32", False), ("fp64", True), ("fp32", True)]):
        record = records.vision(precision=precision, gpus=1, dataset="mnist", strategy="ddp_ds")
        profile = {"name": "kineto", "window": "start" if start else "after", "steps": 10}
        record["config"]["profile"] = profile
        records.write(tmp_path / str(number), record)
    runs = load.read([tmp_path]).runs
    assert [run["marks"].count(comparable.PROFILED) for run in runs] == [0, 0, 1, 1]
    (panel,) = experiments.panels(experiments.load("table2"), runs)
    assert [run.folder.name for run in panel.runs] == ["0", "1"]


@pytest.mark.parametrize(
    ("device", "installed", "name"), [("cuda", True, "nsys"), ("cuda", False, "kineto"), ("cpu", True, "kineto")]
)
def test_auto_is_nsys_where_it_is_installed(
    device: str, installed: bool, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(nsys, "installed", lambda: installed)
    config = typed("profile=auto", "profile.window=start", "profile.steps=null")
    own = prepare._with_profiler(config, Placement(device, "gloo", 1, False))
    assert own.profile == replace(config.profile, name=ProfileName(name))
    assert own.identity() == typed(f"profile={name}", "profile.window=start", "profile.steps=null").identity()
    assert own.identity() != typed(f"profile={name}").identity()
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if line.startswith("profile=auto: no nsys") and "cudaEventDestroy" in line]
    assert len(lines) == len(said) == (1 if (device, name) == ("cuda", "kineto") else 0)


def test_steps_are_without_end_from_the_start_alone():
    with pytest.raises(ValueError, match=r"^profile\.steps=null: give the steps, or profile\.seconds"):
        typed("profile=kineto", "profile.steps=null")
