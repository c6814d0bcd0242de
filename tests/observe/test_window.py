"""Profiled runs: the steps of the window only, or a training from its start,
and the profile in the record.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.config.base import ProfileName, ProfileWindow, WindowConfig
from multicard.config.placement import Placement
from multicard.machine.slurm import Allocation
from multicard.measure import memory, timing
from multicard.measure.timing import PHASES, Ranges
from multicard.observe.profiles import metrics, nsys
from multicard.observe.profiles.capture import TrainingWindow, Window
from multicard.observe.profiles.metrics import Profile, read_profile
from multicard.ranks import elastic, failures
from multicard.ranks.process import Rank
from multicard.records.schema_parts import ProfileCopies, ProfileCost, ProfileTable, Transfers
from multicard.run import prepare
from multicard.sweep import command
from multicard.vision.workload import WORKLOAD
from tests.conftest import Measured, ok, typed, warm_up
from tests.helpers import records
from tests.helpers.launching import launch
from tests.helpers.messages import codes, refused, remedies, says
from tests.helpers.profiler_files import Event, nsys_program, write_nsys
from tests.helpers.recorded import rows

ALONE = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)


def test_a_profiled_run_on_cpu_ranks(measured: Measured, capsys: pytest.CaptureFixture[str]):
    words = ("gpus=2", "profile=kineto", "profile.skip=1", "profile.warmup=1", "profile.steps=4")
    result = ok(measured(*words))
    profile = result["profile"]
    assert [rank["steps"] for rank in profile["ranks"]] == [4, 4]
    assert (profile["first_step"], profile["steps"], profile["source"]) == (2, 4, "kineto")
    phases = rows(result, "phase")
    assert set(phases) - {metrics.OTHER} == set(PHASES)
    assert phases["forward"]["calls"] == phases["backward"]["calls"] == 4 * 2
    assert sum(row["total_s"] for row in phases.values()) <= sum(
        rank["window_s"] for rank in profile["ranks"]
    )
    collectives = rows(result, "collective")
    assert set(collectives) == {"gloo all_reduce", "gloo broadcast"}
    assert collectives["gloo all_reduce"]["calls"] == 4 * 2  # a bucket a step
    # nothing is invented
    assert not rows(result, "api") and not rows(result, "copy") and not rows(result, "kernel")
    assert profile["h2d"]["profiled_bytes"] is None
    assert profile["h2d"]["counted_bytes"] == 4 * 2 * 16 * (3 * 32 * 32 * 4 + 8)
    inside, outside = profile["step_s"]["inside"], profile["step_s"]["outside"]
    assert outside == result["step_s"]["mean"] and profile["step_s"]["ratio"] == inside / outside
    # 3 steps, one of them warm-up
    assert result["step_s"]["count"] == 2 and len(result["epochs"]) == 1
    folder = Path(result["folder"])
    assert read_profile([folder / "profile"]).as_dict()["rows"] == profile["rows"]
    assert Profile.of(records.as_record(result).profile).as_dict()["rows"] == profile["rows"]
    capsys.readouterr()
    command._show_profiles([records.as_run(result)])
    printed = capsys.readouterr().out
    assert "gloo all_reduce" in printed and "Phases" in printed and says(printed, "profile.summed")


def test_a_window_in_seconds_has_as_many_steps_as_fit(tmp_path: Path):
    config = WindowConfig(ProfileName.kineto, skip=0, warmup=1, steps=99, seconds=0.5)
    window = Window(config, ALONE, tmp_path, Ranges(ALONE.device), step_s=0.15)
    assert (window.steps, window.total) == (4, 5)


def test_the_trace_holds_only_the_steps_of_the_window(tmp_path: Path):
    ranges = Ranges(ALONE.device)
    window = Window(
        WindowConfig(ProfileName.kineto, skip=2, warmup=1, steps=3), ALONE, tmp_path, ranges, 1.0
    )
    steps, started_s = 0, timing.clock_s()
    while window.boundary():
        timing.pause(0.1 if steps == 4 else 0.01)
        ranges.open("forward")
        torch.ones(8).add(steps)
        window.count(10**steps)
        steps += 1
    assert steps == 6
    result = window.result()
    assert (
        result["counted_h2d_bytes"] == 111000
        and 0.12 <= result["window_s"] <= timing.clock_s() - started_s
    )
    with gzip.open(window.file) as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert sorted(name for name in names if name.startswith("ProfilerStep#")) == [
        f"ProfilerStep#{i}" for i in (3, 4, 5)
    ]
    assert names.count("forward") == names.count("data") == names.count("aten::add") == 3


def test_nsys_brackets_the_window_and_marks_its_steps(tmp_path: Path, nsys_calls: list[str]):
    config = WindowConfig(ProfileName.nsys, skip=1, warmup=1, steps=1)
    window = Window(config, ALONE, tmp_path, Ranges(ALONE.device, nvtx=True), 1.0)
    while window.boundary():
        pass
    assert nsys_calls == [
        *["data", "pop"] * 2,
        "start",
        "ProfilerStep#2",
        "data",
        "pop",
        "pop",
        "stop",
    ]


def test_nsys_is_refused_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for device, code in {"cuda": "nsys.not-installed", "cpu": "nsys.on-cpu"}.items():
        with refused(code, key="profile") as caught:
            nsys.refuse_unavailable(device)
        assert remedies(caught.value) == ["profile=kineto"]


def test_ranks_are_bound_to_a_numa_node_but_under_nsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """torch would ask for the GPU of a rank that is a command in the controller,
    and so start CUDA there.
    """
    monkeypatch.setattr(prepare.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(elastic, "_start_method", lambda _: "forkserver")
    placement, bound = Placement("cuda", "nccl", 1, False), {}
    for profile in ("none", "kineto", "nsys"):
        config = typed("numa=node", f"profile={profile}")
        job = prepare.job_of(WORKLOAD, config, placement, tmp_path, Allocation())
        bound[profile] = elastic._config(placement, job, tmp_path).numa_options is not None
        assert bound[profile] is prepare.binds(config, placement)  # as it is recorded
    assert bound == {"none": True, "kineto": True, "nsys": False}


STAND_IN = """# profile: run the command and leave a report; export: the export that was made before
if [ "$1" = profile ]; then
  out=$(echo "$2" | sed s/--output=//)
  while [ "${1#/}" = "$1" ]; do shift; done
  "$@" || exit $?
  echo report > "$out.nsys-rep"
else
  for last; do :; done
  while [ "$1" != -o ]; do shift; done
  cp "$(dirname "$last")/../$(basename "$last" .nsys-rep).made" "$2"
fi"""


def wrapped(folder: Path, work: str, ranks: int) -> failures.Failure | None:
    """Launch ranks, each under nsys."""
    warm_up()
    for part in ("profile", "ranks"):
        (folder / part).mkdir(parents=True)
    return launch(work, folder, "hello", folder=folder, ranks=ranks, wrapper=nsys.command(folder))


@pytest.mark.usefixtures("processes")
def test_ranks_start_as_commands_under_a_profiler_and_say_why_they_fail(
    tmp_path: Path, monkeypatch
):
    nsys_program(tmp_path / "bin", STAND_IN, monkeypatch)
    folder = tmp_path / "run"
    assert wrapped(folder, "says_hello", 2) is None
    assert [(folder / f"{rank}.txt").read_text() for rank in (0, 1)] == ["hello", "hello"]
    assert (folder / "logs" / "r01.log").read_text() == "rank 1 of 2: hello\n"
    assert sorted(path.name for path in (folder / "profile").iterdir()) == [
        "r00.nsys-rep",
        "r01.nsys-rep",
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        "0.txt",
        "1.txt",
        "logs",
        "profile",
        "ranks",
    ]
    failure = wrapped(tmp_path / "failed", "no_such_function", 1)
    assert (
        failure is not None
        and "no_such_function" in failure.message
        and failure.kind == "exception"
    )


def test_reports_of_nsys_join_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nsys_program(tmp_path / "bin", STAND_IN, monkeypatch)
    step = Event("range", "ProfilerStep#3", 0, 100, 1)
    copy = Event("copy", "Memcpy HtoD (Pinned -> Device)", 10, 20, 7, 1000)
    within = Event("copy", "Memcpy DtoD (Device -> Device)", 40, 20, 7, 70)
    (tmp_path / "profile").mkdir()
    for rank in (0, 1):
        write_nsys(tmp_path / f"r0{rank}.made", {1: [step, copy, within]})
        (tmp_path / "profile" / f"r0{rank}.nsys-rep").write_text("report")
    ranks = [
        {"first_step": 3, "steps": 1, "window_s": 2e-4, "counted_h2d_bytes": counted}
        for counted in (990, 960)
    ]
    moved = {"h2d": 0, "d2h": None, "d2d": None, "source": "counted"}
    steps = {"mean": 1e-4, "count": 8, "warmup_count": 2}
    record = records.as_record({"step_s": steps, "transfer_bytes": moved})
    record.profile = profile = metrics.profile_of_run(tmp_path, ranks, record)
    assert profile.step_s == ProfileCost(2e-4, 1e-4, pytest.approx(2.0))
    copies = profile.h2d
    assert copies is not None and copies.source
    assert copies == ProfileCopies(1950, 2000, pytest.approx(50 / 1950), 20000, copies.source)
    assert profile.files == ["profile/r00.nsys-rep", "profile/r01.nsys-rep"]
    metrics.add_copies(record)
    joined = record.transfer_bytes
    assert joined is not None and joined.source is not None
    assert (joined.h2d, joined.d2h, joined.d2d) == (0, 0, 2 * 70 * 10)
    assert joined.source.startswith("counted") and joined.source.endswith(copies.source)
    unread = records.as_record(
        {"step_s": steps, "transfer_bytes": moved, "profile": {"error": "nothing readable"}}
    )
    metrics.add_copies(unread)
    assert unread.transfer_bytes == Transfers(h2d=0, source="counted")
    for rank in ranks:
        rank["steps"] = 2
    error = metrics.profile_of_run(tmp_path, ranks, record).error
    assert says(str(error), "profile.steps", recorded=[1, 1], expected=[2, 2])


def window(tmp_path: Path, **options: Any) -> TrainingWindow:
    name = options.pop("name", ProfileName.kineto)
    config = WindowConfig(name, window=ProfileWindow.start, **options)
    return TrainingWindow(
        config, ALONE, tmp_path, Ranges(ALONE.device, nvtx=name is ProfileName.nsys)
    )


def test_a_training_is_profiled_from_its_start_to_its_end(measured: Measured):
    result = ok(
        measured("gpus=2", "epochs=2", "profile=auto", "profile.window=start", "profile.steps=null")
    )
    profile, steps = result["profile"], result["step_s"]["count"] + result["step_s"]["warmup_count"]
    assert (profile["window"], profile["ended"], profile["first_step"], profile["steps"]) == (
        "start",
        "run",
        0,
        steps,
    )
    assert [rank["steps"] for rank in profile["ranks"]] == [steps, steps]
    phases = rows(result, "phase")
    assert set(phases) - {metrics.OTHER} == {*PHASES, "evaluate"}
    assert phases["forward"]["calls"] == 2 * steps and phases["evaluate"]["calls"] == 2 * 2
    assert profile["h2d"]["counted_bytes"] == result["transfer_bytes"]["h2d"]  # evaluation's too
    assert "step_s" not in profile  # there is no step without the profiler to compare with


def test_a_tuning_is_profiled_for_its_first_steps(tuned: Measured):
    words = ("max_steps=3", "epochs=2", "gradient_accumulation_steps=2", "dataset.rows=40")
    result = ok(tuned(*words, "profile=kineto", "profile.window=start", "profile.steps=4"))
    profile, phases = result["profile"], rows(result, "phase")
    assert (profile["ended"], profile["steps"]) == ("steps", 4)  # one of the second epoch
    assert phases["backward"]["calls"] == 2 * 4 and phases["optimizer"]["calls"] == 4
    assert profile["h2d"]["whole_run_bytes"] is None and 0 < profile["h2d"]["counted_bytes"]
    assert profile["h2d"]["counted_bytes"] < result["transfer_bytes"]["h2d"]


@pytest.mark.parametrize(
    ("options", "steps", "ended"), [({"seconds": 3.5}, 3, "seconds"), ({"steps": 9}, 2, "budget")]
)
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
    assert (result["steps"], result["ended"], result["counted_h2d_bytes"]) == (
        steps,
        ended,
        int("1" * steps),
    )
    with gzip.open(mine.file) as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    markers = sorted(name for name in names if name.startswith("Profiler"))
    assert markers == [*(f"ProfilerStep#{number}" for number in range(steps)), "ProfilerWindow"]
    # nothing is recorded after its end
    assert names.count("forward") == names.count("aten::add") == steps


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
    assert metrics.profile_of_run(
        tmp_path, [{"error": "lost"}], records.as_record({})
    ) == ProfileTable(error="lost")


@pytest.mark.parametrize(
    ("device", "installed", "name"),
    [("cuda", True, "nsys"), ("cuda", False, "kineto"), ("cpu", True, "kineto")],
)
def test_auto_is_nsys_where_it_is_installed(
    device: str, installed: bool, name: str, monkeypatch, capsys
):
    monkeypatch.setattr(nsys, "installed", lambda: installed)
    config = typed("profile=auto", "profile.window=start", "profile.steps=null")
    own = prepare._with_profiler(config, Placement(device, "gloo", 1, False))
    assert own.profile == replace(config.profile, name=ProfileName(name))
    assert (
        own.identity()
        == typed(f"profile={name}", "profile.window=start", "profile.steps=null").identity()
    )
    assert own.identity() != typed(f"profile={name}").identity()
    said = codes(capsys.readouterr().out)
    assert said == (["profile.no-nsys"] if (device, name) == ("cuda", "kineto") else [])
