"""`multicard evidence`: the order of its steps, what it keeps, how it goes on,
and what its runs say.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from analysis.claims.comparison import FAILS, HOLDS, UNDECIDED
from analysis.evidence import command, drive, findings, job, needs, page
from analysis.evidence.findings import ComparedRates, Finding
from analysis.evidence.place import Circumstances
from analysis.evidence.steps import STEPS, Step
from multicard.estimate import shared_rows
from multicard.machine import rates
from multicard.records import run_folder
from tests.conftest import PATIENCE_S, ROOT, assert_gone, awaited, typed, typed_llm
from tests.helpers import records
from tests.helpers.messages import find, says

SILENT = drive.StepProgress()


def gpus(tmp_path: Path, count: int = 4, memory_bytes: float = 80e9) -> Circumstances:
    return Circumstances(tmp_path, count, is_cuda=True, memory_bytes=memory_bytes)


def cpu(tmp_path: Path) -> Circumstances:
    return Circumstances(tmp_path, 2, is_cuda=False)


def step(name: str, code: str, seconds: float = 1, **options: Any) -> Step:
    """A step that runs Python code; it finds the last line of its log."""

    def read(_: Path, log: str) -> list[Finding]:
        return [Finding("says", log.splitlines()[-1])]

    made = Step(
        name, f"the step {name}", lambda *_: [sys.executable, "-c", code], read, lambda _: seconds
    )
    return replace(made, **options)


def statuses(place: Circumstances, own: list[Step]) -> list[str]:
    return [drive.record_of(place, one).status for one in own]


def named(name: str) -> Step:
    (one,) = [one for one in STEPS if one.name == name]
    return one


@pytest.mark.usefixtures("processes")
def test_a_step_that_fails_does_not_stop_the_others_and_comes_last_next_time(tmp_path: Path):
    bad = step("bad", "print('reason'); raise SystemExit(3)", read=lambda *_: [])
    wrong = [Finding("a check", "wrong", verdict=FAILS, is_failure=True)]
    checked = step("checked", "print(1)", read=lambda *_: wrong)
    good, later = step("good", "print(40 + 2)"), step("later", "print(1)")
    place = cpu(tmp_path)
    drive.take_all(place, [bad, checked, good], 10, SILENT)
    assert statuses(place, [bad, checked, good]) == ["failed", "failed", "ok"]
    record = drive.record_of(place, bad)
    assert (record.code, record.tail, record.attempts) == (
        3,
        ["reason"],
        1,
    ) and "SystemExit(3)" in record.command
    assert (
        drive.findings_of(place, good)[0].value == "42" and drive.record_of(place, good).seconds > 0
    )
    assert says(drive.outcome(place, checked, 0)[1], "evidence.failed", findings=["a check"])
    assert [left.name for left in drive.undone(place, [bad, good, later])] == ["later", "bad"]


@pytest.mark.usefixtures("processes")
def test_what_does_not_fit_waits_and_a_step_has_twice_its_estimate_at_first(tmp_path: Path):
    slow = step("slow", "import time; time.sleep(2); print('done')", 0.5, repeats=False)
    skipped = step("skipped", "print(1)", skip=lambda _: "a reason")
    own = [slow, step("long", "", 5000), step("short", "print(1)", 200, repeats=False), skipped]
    place = gpus(tmp_path)
    drive.take_all(place, own, 10, SILENT)
    assert statuses(place, own) == ["stopped", "left", "ok", "skipped"]
    assert drive.record_of(place, skipped).why == "a reason"
    drive.take_all(place, [slow], 10, SILENT)
    record = drive.record_of(place, slow)
    assert (record.status, record.attempts) == ("ok", 2) and record.seconds > 3  # of both attempts


@pytest.mark.usefixtures("processes")
def test_time_that_is_left_repeats_what_was_measured_the_least(tmp_path: Path):
    one, other = step("one", "print(1)", 5), step("other", "print(1)", 5)
    once = step("once", "print(1)", 5, repeats=False)
    place = gpus(tmp_path)
    asked: list[tuple[str, int]] = []

    class Said(drive.StepProgress):
        def began(self, step: Step, repeat: int) -> None:
            asked.append((step.name, repeat))
            if len(asked) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive.take_all(place, [one, other, once], 10, Said())
    assert asked == [("one", 1), ("other", 1), ("once", 1), ("one", 2), ("other", 2)]
    assert [drive.record_of(place, own).repeats for own in (one, other, once)] == [2, 1, 1]


@pytest.mark.usefixtures("processes")
def test_a_repetition_that_fails_leaves_what_was_measured_and_the_others(tmp_path: Path):
    file = tmp_path / "ran"
    code = (
        f"from pathlib import Path; f = Path({str(file)!r}); assert not f.exists(); f.touch();"
        " print(1)"
    )
    once = step("once", code)
    often = step("often", "print(1)")
    place = gpus(tmp_path / "out")
    place.out.mkdir()
    drive.take_all(place, [once, often], 10, SILENT)
    record = drive.record_of(place, once)
    assert (record.status, record.repeats, record.attempts) == ("ok", 1, 2)
    assert 0 < record.measured_s < record.seconds
    assert drive.estimate_s(place, once) == record.measured_s
    # the others are repeated all the same
    assert drive.record_of(place, often).repeats == drive.MOST_REPEATS


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_call_that_is_killed_leaves_a_record_and_no_process(sent: signal.Signals, tmp_path: Path):
    code = f"""
import sys
from analysis.evidence import command
from tests.analysis.test_evidence import step
command.STEPS = [step("slow", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")]
sys.exit(command.main(["--out", {str(tmp_path)!r}]))
"""
    call = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    pid = int(
        awaited(lambda: (tmp_path / "slow.log").exists() and (tmp_path / "slow.log").read_text())
    )
    slow = psutil.Process(pid)
    call.send_signal(sent)
    assert call.wait(PATIENCE_S) != 0
    assert_gone([slow])
    record = json.loads((tmp_path / "slow.json").read_text())
    assert (
        record["status"] == ("stopped" if sent == signal.SIGTERM else "running")
        and record["attempts"] == 1
    )
    assert (tmp_path / page.PAGE).exists() == (sent == signal.SIGTERM)
    assert [one.name for one in drive.undone(cpu(tmp_path), [step("slow", "")])] == ["slow"]


def test_tests_that_passed_are_not_run_again(tmp_path: Path):
    place = gpus(tmp_path)
    passed = "tests/gpu/test_a.py::test_x[fp64-a b]"
    lines = [f"{passed} PASSED [ 1%]", "tests/gpu/test_a.py::test_y FAILED [ 2%]"]
    place.log("tests").write_text("\n".join([*lines, "tests/gpu/test_a.py::test_z ", ""]))
    words = named("tests").command(place, 1)
    assert [word for word in words if "deselect" in word] == [f"--deselect={passed}"]
    found = drive.findings_of(place, named("tests"))
    assert [(one.verdict, one.is_failure) for one in found] == [(FAILS, True), (FAILS, True)]


def overrides(words: list[str]) -> dict[str, str]:
    return dict(
        word.split("=", 1)
        for word in words
        if "=" in word and not word.startswith(("hydra.", "TORCH_"))
    )


SWEEPS = [one for one in STEPS if one.name not in ("machine", "tests")]


@pytest.mark.parametrize("is_cuda", [True, False])
@pytest.mark.parametrize("one", SWEEPS, ids=lambda one: one.name)
def test_the_commands_compose_and_name_the_data(one: Step, is_cuda: bool, tmp_path: Path):
    for name in ("MNIST/raw", "text/alpaca_500.jsonl", "tokenizer/tokenizer.model"):
        (tmp_path / name).mkdir(parents=True)
    place = Circumstances(tmp_path, 4 if is_cuda else 2, is_cuda, 80e9, tmp_path)
    if one.skip(place):
        pytest.skip("left out there")
    words = one.command(place, 3)
    own = overrides(words)
    assert own["repeat"] == "3" and own["tracker.mode"] == "disabled"
    first = [f"{key}={value.partition(',')[0]}" for key, value in own.items()]
    is_tuning = "tune" in words
    config = typed_llm(*first) if is_tuning else typed(*first)
    assert (config.device == "cpu") == (not is_cuda)
    if is_cuda and not is_tuning:
        assert config.dataset.root == str(tmp_path)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_most_valuable_come_first_and_an_hour_takes_all_on_four_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(needs.memory, "free_shared_memory_bytes", lambda: 10**10)
    place = gpus(tmp_path)
    assert [one.name for one in STEPS][:4] == ["machine", "fast", "tuning", "scaling"]
    ends_s = 0.0
    in_half_an_hour = []
    for one in STEPS:
        ends_s += one.estimate_s(place)
        if ends_s <= 1800:
            in_half_an_hour.append(one.name)
    assert {"tests", "shardings", "strategies", "table2", "table5"} <= {*in_half_an_hour}
    assert ends_s <= 3600


def test_what_a_place_has_not_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert says(named("scaling").skip(gpus(tmp_path, 1)), "evidence.needs-several")
    assert says(named("table5").skip(gpus(tmp_path, 4, 24e9)), "evidence.needs-8b")
    assert says(named("whole").skip(cpu(tmp_path)), "evidence.needs-gpu")
    assert says(named("table2").skip(gpus(tmp_path, 4, 24e9)), "evidence.needs-memory")
    monkeypatch.setattr(needs.memory, "free_shared_memory_bytes", lambda: 2 * 10**9)
    monkeypatch.setattr(needs.environment, "cores", lambda: 16)
    assert says(
        named("table2").skip(gpus(tmp_path)), "evidence.shared-memory", free_bytes=2 * 10**9
    )
    assert not named("scaling").skip(gpus(tmp_path, 2))


@pytest.mark.parametrize(
    ("memory_bytes", "model"),
    [(141e9, "llama3_8b"), (80e9, "llama3_8b"), (48e9, "llama3_2_3b"), (24e9, "llama3_2_1b")],
)
def test_the_language_model_is_one_that_a_gpu_has_room_for(
    memory_bytes: float, model: str, tmp_path: Path
):
    assert gpus(tmp_path, 1, memory_bytes).model == model


@pytest.mark.parametrize(
    ("count", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])]
)
def test_numbers_of_gpus_double(count: int, counts: list[int]):
    assert rates.counts(count) == counts


def test_bus_bandwidth_is_that_of_a_ring():
    # Of 4 ranks each sends 3 quarters of the values twice: to sum them, and to spread the sums
    assert rates.bus_bytes_per_s(size=400, ranks=4, seconds=2.0) == pytest.approx(2 * 300 / 2.0)
    assert rates.bus_bytes_per_s(size=400, ranks=2, seconds=1.0) == pytest.approx(400)


def test_the_extrapolation_is_exact_where_images_take_the_same_time():
    once_s, epoch_s, image_s, test_s = 7.0, 0.5, 0.002, 0.0005
    train_s, evaluate_s = epoch_s + 600 * image_s, 100 * test_s
    last = {"train_s": train_s, "evaluate_s": evaluate_s, "samples": 600, "test_samples": 100}
    record = {"images_per_s": 1 / image_s, "epochs": [last | {"train_s": train_s + once_s}, last]}
    total_s, formula = findings.extrapolated_s(record)
    assert total_s == pytest.approx(once_s + 20 * (epoch_s + 60_000 * image_s + 10_000 * test_s))
    figures = [float(figure.replace(",", "")) for figure in re.findall(r"[\d,.]+", formula)]
    assert figures == [7, 20, 0.5, 60_000, 500, 10_000, 2_000]


def test_repeated_trainings_are_extrapolated_to_their_mean(tmp_path: Path):
    for number, image_s in enumerate((0.001, 0.003)):
        last = {"train_s": 600 * image_s, "evaluate_s": 0.1, "samples": 600, "test_samples": 100}
        record = {"status": "ok", "images_per_s": 1 / image_s, "epochs": [last, last]}
        record |= {"axes": {"precision": "fp16", "gpus": 1, "device": "cuda"}}
        run_folder.write_json(tmp_path / str(number) / "result.json", record)
    (found,) = findings.extrapolated(tmp_path, "")
    expected_s = 20 * (60_000 * 0.002 + 10_000 * 0.001)
    assert (
        found.value.startswith(f"{expected_s:,.0f} s")
        and found.runs == 2
        and "2,477" in found.beside
    )


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., dict[str, Finding]]:
    """The findings of runs of some settings, each with its images a second,
    by the end of their label.
    """

    def found(*runs: dict[str, Any], **options: Any) -> dict[str, Finding]:
        for number, run in enumerate(runs):
            records.write(tmp_path / str(number), records.vision(**run))
        claim = ComparedRates("layout", "nchw", "faster than nchw", "images_per_s", **options)
        return {one.what: one for one in claim.read(tmp_path, "")}

    return found


def run(layout: str, rate: float, repetition: int = 1, **options: Any) -> dict[str, Any]:
    return {"layout": layout, "images_per_s": rate, "repetition": repetition} | options


def test_a_claim_holds_where_the_whole_interval_is_above_one(
    compared: Callable[..., dict[str, Finding]],
):
    runs = [run("nchw", 100 + small, number) for number, small in enumerate((0, 1, 2), 1)]
    runs += [run("nhwc", 150 + small, number) for number, small in enumerate((0, 1, 2), 1)]
    found = compared(*runs)
    assert found["layout=nchw"].verdict == "" and found["layout=nchw"].runs == 3
    other = found["layout=nhwc: faster than nchw"]
    assert (other.verdict, other.runs) == (HOLDS, 3) and "1.50x" in other.gain


def test_a_claim_fails_below_one_and_is_open_within_noise(
    compared: Callable[..., dict[str, Finding]],
):
    found = compared(run("nchw", 100), run("nhwc", 50), run("other", 100.5))
    assert found["layout=nhwc: faster than nchw"].verdict == FAILS
    assert found["layout=other: faster than nchw"].verdict == UNDECIDED


def test_what_a_limit_forbids_is_not_told(compared: Callable[..., dict[str, Finding]]):
    found = compared(run("nchw", 100), run("nhwc", 150, load=records.load(others_cores=12.0)))
    assert found["layout=nhwc: faster than nchw"].verdict == UNDECIDED


@pytest.mark.parametrize(
    ("status", "is_failure"),
    [("diverged", True), ("failed", True), ("oom", False), ("refused", False)],
)
def test_a_run_out_of_memory_is_an_answer_and_one_that_diverged_a_failure(
    status: str, is_failure: bool, compared: Callable[..., dict[str, Finding]]
):
    found = compared(run("nchw", 100), run("nhwc", 150, status=status))
    assert found["layout=nhwc"].is_failure is is_failure


@pytest.mark.parametrize("slow", [[], [7, 21]])
def test_steps_that_stalled_are_named(slow: list[int], tmp_path: Path):
    """An older record has no `slow_steps`."""
    times = {"mean": 0.5, "median": 0.4, "p95": 1.8} | ({"slow_steps": slow} if slow else {})
    record = {"status": "ok", "axes": {"engine": "trl"}, "iteration_s": times}
    run_folder.write_json(tmp_path / "a" / "result.json", record)
    (found,) = findings.slow_steps(tmp_path, "")
    assert "4.50" in found.value and ("7, 21" in found.value) == bool(slow)


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_data_is_refused(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert command.main(["--list", "--data", str(tmp_path / folder)]) == 1
    assert find(capsys.readouterr().err, "evidence.no-data", key="--data")
    (tmp_path / "texts" / "tokenizer.model").mkdir(parents=True)
    assert command.main(["--list", "--data", str(tmp_path), "--only", "fast", "qlora"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["fast", "qlora"]


@pytest.mark.parametrize("out", ["/proc/nowhere", "/etc/passwd"])
def test_a_folder_that_cannot_be_written_is_refused(out: str, capsys: pytest.CaptureFixture[str]):
    assert command.main(["--out", out]) == 1
    assert find(capsys.readouterr().err, "evidence.refused").facts["reason"].key == "--out"


@pytest.mark.parametrize("minutes", ["0", "-3", "nan", "inf"])
def test_no_time_is_refused(minutes: str, capsys: pytest.CaptureFixture[str]):
    assert command.main(["--minutes", minutes]) == 1
    assert find(capsys.readouterr().err, "evidence.minutes", key="--minutes")


def test_a_folder_of_another_machine_or_commit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = command.EvidenceMachine("NVIDIA H100", 4, "0" * 40, None)
    run_folder.write_text(tmp_path / command.MACHINE, msgspec.json.encode(before).decode())
    assert command.main(["--out", str(tmp_path)]) == 1
    found = find(capsys.readouterr().err, "evidence.other-machine", key="--out")
    assert {"hardware", "commit"} <= {*found.facts["other"]}


def test_two_commands_in_one_folder_are_one_too_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with command.locked(cpu(tmp_path)):
        assert command.main(["--out", str(tmp_path)]) == 1
    assert find(capsys.readouterr().err, "evidence.locked", key="--out")


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, which keeps what it is asked."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sbatch"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat > {tmp_path}/script\necho "17;cluster"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path


def test_a_job_of_slurm_runs_the_same_command(sbatch: Path, capsys: pytest.CaptureFixture[str]):
    out = sbatch / "out"
    words = ["--minutes", "15", "--slurm", "partition=gpu", "gpus=4", "--out", str(out)]
    assert command.main(words) == 0
    message = find(capsys.readouterr().out, "evidence.submitted", job="17")
    assert message.facts["asks_for_gpus"] and message.facts["log"] == str(out / "slurm-17.log")
    asked, script = (sbatch / "asked").read_text(), (sbatch / "script").read_text()
    assert "--time=20" in asked and "--partition=gpu --gpus=4" in asked and "--nodes=1" in asked
    assert f"-m multicard evidence --minutes 15 --out {out}\n" in script and "--slurm" not in script


def test_what_sbatch_refuses_is_said_whole(sbatch: Path, capsys: pytest.CaptureFixture[str]):
    program = sbatch / "bin" / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    assert command.main(["--slurm", "partition=x"]) == 1
    assert (
        "no such partition"
        in find(capsys.readouterr().err, "evidence.sbatch", key="--slurm").facts["reason"]
    )


def test_without_slurm_there_is_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", "/nowhere")
    assert command.main(["--slurm", "partition=x"]) == 1
    assert find(capsys.readouterr().err, "evidence.no-sbatch", key="--slurm")


@pytest.mark.parametrize(
    "words", [["--gpus=2"], ["-G", "4"], ["--gres=gpu:h100:2"], ["--gpus-per-node=1"]]
)
def test_options_that_ask_for_gpus_are_known(words: list[str]):
    assert job.asks_for_gpus(words) and not job.asks_for_gpus(["--partition=cpu"])


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_a_pass_on_cpu_ranks_ends_with_a_page_and_a_file_and_goes_on_after_a_kill(tmp_path: Path):
    words = [
        sys.executable,
        "-m",
        "multicard",
        "evidence",
        "--out",
        str(tmp_path / "out"),
        "--only",
        "machine",
        "fast",
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as first:
        awaited((tmp_path / "out" / "fast.log").exists)
        first.kill()
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    find(done.stdout, "evidence.no-gpu")
    assert find(done.stdout, "evidence.summary", measured=2, steps=2)
    text = (tmp_path / "out" / page.PAGE).read_text()
    assert "preset=fast" in text
    if says(done.stdout, "export.nothing"):
        return  # other programs were busy beside both runs
    shared = shared_rows.decode((tmp_path / "out" / page.SHARED).read_bytes())
    assert {row.settings["loader.name"] for row in shared.rows} <= {"torch", "device"}
