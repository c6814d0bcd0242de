"""`benchmarks.on_gpu`: the order of its steps, what it keeps of them, how it goes on, and a pass on CPU ranks."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import gpu_steps, on_gpu
from benchmarks.gpu_steps import STEPS, Finding, Pass, Step
from benchmarks.step import options as step_options
from multicard.records import run_folder
from tests.conftest import PATIENCE_S, ROOT, Called, assert_gone, awaited, typed, typed_llm, warm_up
from tests.helpers import launching
from tests.helpers.messages import says

TUNING = ["attention", "fast", "liger", "lora", "qlora", "dpo", "lora_fp32", "packed"]
VISION = [step.name for step in STEPS if step.name not in TUNING]


def step(name: str, code: str, estimate_s: float = 1, **options: Any) -> Step:
    """A step that runs Python code; it finds the last line of its log."""

    def read(_: Path, log: str) -> list[Finding]:
        return [Finding("says", log.splitlines()[-1])]

    return Step(name, f"the step {name}", estimate_s, lambda run: [sys.executable, "-c", code], read, **options)


def statuses(run: Pass, steps: list[Step]) -> list[str]:
    return [on_gpu.record_of(run, step)["status"] for step in steps]


@pytest.mark.usefixtures("processes")
def test_a_step_that_fails_does_not_stop_the_others_is_named_and_comes_last_next_time(tmp_path: Path, capsys):
    bad = step("bad", "print('reason'); raise SystemExit(3)")
    checked = replace(step("checked", "print(1)"), read=lambda *_: [Finding("a check", "wrong", passed=False)])
    good, later = step("good", "print(40 + 2)"), step("later", "print(1)")
    run = Pass(tmp_path, cuda=False)
    on_gpu.take_all(run, [bad, checked, good], minutes=10)
    assert statuses(run, [bad, checked, good]) == ["failed", "failed", "ok"]
    record, found = on_gpu.record_of(run, bad), on_gpu.record_of(run, good)
    assert record["rc"] == 3 and record["tail"] == ["reason"] and "SystemExit(3)" in record["command"]
    assert found["rc"] == 0 and found["findings"][0]["value"] == "42" and found["seconds"] > 0
    capsys.readouterr()
    assert on_gpu.show(run, [bad, checked, good]) == 1
    printed = capsys.readouterr().out
    assert str(tmp_path / "bad.log") in printed and "a check" in on_gpu.record_of(run, checked)["why"]
    records = [on_gpu.record_of(run, each) for each in (bad, checked, good)]
    assert max(map(len, on_gpu.table(records))) <= on_gpu.WIDTH
    assert [left.name for left in on_gpu.queue(run, [bad, good, later])] == ["later", "bad"]


@pytest.mark.usefixtures("processes")
def test_what_does_not_fit_or_is_skipped_waits_and_a_step_has_twice_its_estimate_at_first(tmp_path: Path):
    slow = step("slow", "import time; time.sleep(2); print('done')", estimate_s=0.5)
    skipped = step("skipped", "print(1)", skip=lambda _: "a reason")
    steps = [slow, step("long", "", estimate_s=5000), step("short", "print(1)", estimate_s=200), skipped]
    run = Pass(tmp_path, cuda=True)
    on_gpu.take_all(run, steps, minutes=10)
    assert statuses(run, steps) == ["stopped", "left", "ok", "skipped"]
    assert "a reason" in "\n".join(on_gpu.table([on_gpu.record_of(run, skipped)]))
    on_gpu.take_all(run, [slow], minutes=10)
    record = on_gpu.record_of(run, slow)
    assert (record["status"], record["attempts"], record["findings"][0]["value"]) == ("ok", 2, "done")
    assert record["seconds"] > 3  # of both attempts


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_call_that_is_killed_leaves_a_record_and_no_process(sent: signal.Signals, tmp_path: Path):
    code = f"""
from pathlib import Path
from benchmarks import on_gpu
from tests.benchmarks.test_on_gpu import step
on_gpu.STEPS[:] = [step("slow", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")]
import sys
sys.argv = ["on_gpu", "--out", {str(tmp_path)!r}]
on_gpu.main()
"""
    call = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    pid = int(awaited(lambda: (tmp_path / "slow.log").exists() and (tmp_path / "slow.log").read_text()))
    slow = psutil.Process(pid)
    call.send_signal(sent)
    assert call.wait(PATIENCE_S) != 0
    assert_gone([slow])
    record = json.loads((tmp_path / "slow.json").read_text())
    assert record["status"] == ("stopped" if sent == signal.SIGTERM else "running") and record["attempts"] == 1
    assert [s.name for s in on_gpu.queue(Pass(tmp_path, cuda=False), [step("slow", "")])] == ["slow"]


def test_tests_that_passed_are_not_run_again(tmp_path: Path):
    (tests,) = [step for step in STEPS if step.name == "tests"]
    run = Pass(tmp_path, cuda=True)
    passed = "tests/gpu/test_a.py::test_x[fp64-a b]"
    lines = [f"{passed} PASSED [ 1%]", "tests/gpu/test_a.py::test_y FAILED [ 2%]"]
    run.log("tests").write_text("\n".join([*lines, "tests/gpu/test_a.py::test_z ", ""]))
    assert [word for word in tests.command(run) if "deselect" in word] == [f"--deselect={passed}"]
    assert [finding.passed for finding in tests.read(tmp_path, run.log("tests").read_text())] == [False, False]


def program(command: list[str]) -> list[str]:
    """A command without the variables that are set before it."""
    return command[2:] if command[0] == "env" else command


@pytest.mark.parametrize("step", [step for step in STEPS if step.name != "tests"], ids=lambda step: step.name)
def test_the_commands_for_a_gpu_compose(step: Step, tmp_path: Path):
    for name in ("MNIST/raw", "text/alpaca_500.jsonl", "tokenizer/tokenizer.model"):
        (tmp_path / name).mkdir(parents=True)
    command = program(step.command(Pass(tmp_path, cuda=True, data=tmp_path)))
    assert (ROOT / command[1]).exists() or find_spec(command[2])
    if command[2] == "benchmarks.step":
        args = step_options().parse_args(command[3:])
        assert args.bandwidth or args.image_size == 500
    words = [word.partition(",")[0] for word in command if "=" in word and not word.startswith("hydra.")]
    config = typed_llm(*words) if command[1] == "tune_llm.py" else typed(*words)
    if "dataset=mnist" in words:
        assert config.dataset.root == str(tmp_path)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_headline_comes_first_and_every_step_has_a_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    run = Pass(tmp_path, cuda=True)
    monkeypatch.setattr(gpu_steps.memory, "free_shared_memory_bytes", lambda: 2 * 10**9)
    monkeypatch.setattr(gpu_steps.environment, "cores", lambda: 16)
    (papers,) = [step for step in STEPS if step.name == "papers"]
    assert says(papers.skip(run), "gpu-steps.shared-memory", free_bytes=2 * 10**9)
    monkeypatch.setattr(gpu_steps.memory, "free_shared_memory_bytes", lambda: 4 * 10**9)
    calls = on_gpu.calls_of(run, STEPS, minutes=9)
    first = [name for name, call in calls.items() if call == 1]
    assert first[:5] == ["machine", "fused", "goal", "attention", "fast"]
    (attention,) = [step for step in STEPS if step.name == "attention"]
    assert "TORCH_CUDNN_SDPA_DEPRIORITIZED=1" in attention.command(run)
    assert {step.name for step in STEPS} - {"dali", "liger"} <= {*calls} and max(calls.values()) <= 4
    assert on_gpu.calls_of(run, STEPS, minutes=0.7) == {"machine": 1}  # 27 s after the grace: too short for others


def test_the_extrapolation_is_exact_where_images_take_the_same_time():
    once_s, epoch_s, image_s, test_s = 7.0, 0.5, 0.002, 0.0005
    train_s, evaluate_s = epoch_s + 600 * image_s, 100 * test_s
    last = {"train_s": train_s, "evaluate_s": evaluate_s, "samples": 600, "test_samples": 100}
    record = {"images_per_s": 1 / image_s, "epochs": [last | {"train_s": train_s + once_s}, last]}
    total_s, formula = gpu_steps.extrapolated_s(record)
    assert total_s == pytest.approx(once_s + 20 * (epoch_s + 60_000 * image_s + 10_000 * test_s))
    figures = [float(figure.replace(",", "")) for figure in re.findall(r"[\d,.]+", formula)]
    assert figures == [7, 20, 0.5, 60_000, 500, 10_000, 2_000]


@pytest.mark.parametrize(
    ("name", "status", "passed"),
    [
        *((name, "diverged", False) for name in ("goal", "papers", "whole")),
        *(("packed", "oom", None), ("packed", "failed", False), ("memory", "oom", True)),
    ],
)
def test_a_run_that_diverged_is_no_pass_and_one_out_of_memory_an_answer_of_tuning(
    name: str, status: str, passed: bool | None, tmp_path: Path
):
    axes = {"precision": "fp16", "engine": "trl", "method": "lora", "batch_size": 6}
    run_folder.write_json(tmp_path / "a" / "result.json", {"status": status, "cause": {"message": "why"}, "axes": axes})
    (read,) = [step.read for step in STEPS if step.name == name]
    (finding,) = read(tmp_path, "")
    assert finding.passed is passed and (name == "memory" or finding.value == f"{status}: why")


@pytest.mark.parametrize("slow", [[], [7, 21]])
def test_steps_that_stalled_are_named(slow: list[int], tmp_path: Path):
    """An older record has no `slow_steps`."""
    steps = {"mean": 0.5, "median": 0.4, "p95": 1.8} | ({"slow_steps": slow} if slow else {})
    axes = {"precision": "bf16", "engine": "trl", "method": "lora", "batch_size": 2}
    figures = {"tokens_per_s": {"non_padding": 827.0}, "peak_memory_bytes": {"max": 23 * 10**9}, "iteration_s": steps}
    run_folder.write_json(tmp_path / "a" / "result.json", {"status": "ok", "axes": axes} | figures)
    (read,) = [step.read for step in STEPS if step.name == "attention"]
    rate, stalls = read(tmp_path, "")
    assert rate.what == "trl, lora, bf16, batch 2" and stalls.what == "trl"
    assert "4.50" in stalls.value and ("7, 21" in stalls.value) == bool(slow)


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
@pytest.mark.parametrize("names", [VISION, TUNING], ids=["vision", "tuning"])
def test_a_pass_on_cpu_ranks(names: list[str], tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch):
    """Its commands run where torch is imported already."""

    def run_command(command: list[str], output: Any, _: float) -> int | None:
        first, *words = program(command)[1:]
        if first == "-m" and words[0] == "benchmarks.step":  # they change settings of torch's
            return launching.in_own_process(words[0], words[1:], Path(output.name))
        code, printed = called(*words[1:], entry=words[0]) if first == "-m" else called(*words, entry=first)
        output.write(printed)
        output.flush()
        return code

    warm_up()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(on_gpu, "run_command", run_command)
    run, steps = Pass(tmp_path, cuda=False), [step for step in STEPS if step.name in names]
    on_gpu.take_all(run, steps, minutes=600)
    for record in [on_gpu.record_of(run, step) for step in steps]:
        assert record["status"] in ("ok", "skipped"), record
        assert record["findings"] if record["status"] == "ok" else record["why"]
    assert on_gpu.show(run, steps) == 0 and "skipped" in statuses(run, steps)


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_data_is_refused(folder: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--list", "--data", str(tmp_path / folder)])
    with pytest.raises(SystemExit, match="2"):
        on_gpu.main()
    (tmp_path / "texts" / "tokenizer.model").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--list", "--data", str(tmp_path), "--only", "goal", "lora"])
    capsys.readouterr()
    on_gpu.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["goal", "lora"]
