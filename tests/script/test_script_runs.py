"""Runs of scripts on two gloo ranks: records, ends, bad scripts, a sweep that is resumed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis.answers import answers
from analysis.runs import load
from multicard.records import run_folder
from multicard.records.content import fingerprint
from multicard.records.schema import ScriptRecord
from multicard.run import controller
from multicard.script.workload import WORKLOAD, code
from tests.conftest import ROOT, command, composed
from tests.helpers.messages import find, says
from tests.script.test_words import typed

pytestmark = pytest.mark.usefixtures("processes")
Script = Callable[[str], str]
LONG_S = f"4217.{os.getpid()}"  # which no other process sleeps
GROUP = """
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), float(sys.argv[2]) if len(sys.argv) > 2 else 0.1)
"""
TRAIN = """
for epoch in range(20):
    for batch in DataLoader(data, 8):
        loss_of(batch).backward(); optimizer.step()
"""
NEIGHBOUR = """
import subprocess
import multicard
for name, text in (("near.py", ""), ("program.py", "import near")):
    open(name, "w").write(text)
subprocess.run([sys.executable, "program.py"], check=True)
assert multicard.__file__.startswith(sys.path[-1])  # after what the script may have by the same name
"""
ENDS_CHILDREN = f"""
import multiprocessing, subprocess, time
forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=({LONG_S},), daemon=True)
programs = [subprocess.Popen(["sleep", "{LONG_S}"]) for _ in range(2)]
forked.start()
time.sleep(0.1)
forked.terminate(); programs[0].terminate(); programs[1].send_signal(2)
forked.join(60)
assert (forked.exitcode, *[each.wait(60) for each in programs]) == (-15, -15, -2)
"""


def measured(script: str, *words: str):
    cfg = composed(
        f"script={script}", "device=cpu", "tracker.mode=disabled", *words, entry="measure_script"
    )
    return controller.measure(
        WORKLOAD, cfg, Path("multirun/one/cell").absolute(), keep_refused=True
    )


@pytest.mark.core
def test_a_script_of_two_ranks_is_measured(script: Script):
    run = measured(
        script(GROUP + TRAIN + "dist.destroy_process_group()"), "args.lr=0.2", "gpus=2", "steps=30"
    )
    record = run.record
    assert (record.status, record.cause) == ("ok", None)
    assert record.axes | {"args.lr": 0.2, "gpus": 2, "script": "train.py"} == record.axes
    assert record.step_s and (record.step_s.count, record.epochs[0].steps) == (25, 30)
    assert record.samples_per_s and record.total_s and record.peak_memory_bytes and record.startup_s
    assert record.seen_codes == ["script.steps-of", "script.stopped", "script.no-loss"]
    assert says(record.seen[0], "script.steps-of", names=["SGD.step"]) and says(
        record.seen[1], "script.stopped", step=30
    )
    assert run_folder.read_steps(run.folder).num_rows == 60


def test_a_profile_from_the_start_has_the_scripts_steps(script: Script):
    run = measured(
        script(TRAIN), "steps=6", "warmup_steps=1", "profile=kineto", "profile.window=start"
    )
    table = run.record.profile
    assert (
        run.record.status == "ok"
        and table is not None
        and not table.error
        and table.window == "start"
    )
    # nobody counts what a script copies
    assert table.h2d is not None and table.h2d.counted_bytes is None


def test_runs_are_repeated_until_sure_and_the_advice_can_be_followed(
    script: Script, tmp_path: Path
):
    words = [
        "-m",
        f"script={tmp_path / script(GROUP + TRAIN)}",
        "device=cpu",
        "tracker.mode=disabled",
        "steps=8",
    ]
    words += [
        "warmup_steps=1",
        "args.lr=0.1,0.2",
        "args.style=hydra",
        "repeat=auto",
        "repeat_max=2",
        "order=typed",
    ]
    ended = command(*words, f"hydra.sweep.dir={tmp_path}/out", entry="measure_script.py")
    assert (ended.returncode, ended.stderr) == (0, "") and says(
        ended.stdout, "repeat.ended", runs=4, cells=2
    )
    (answer,) = answers(load.read_runs([tmp_path / "out"]).runs)
    assert answer.limit.command and answer.limit.command.endswith(
        "profile=kineto profile.window=start"
    )
    advised = " ".join(str(advice) for advice in (answer.limit, answer.next, answer.elsewhere))
    assert "diagnose" not in advised and "epochs=" not in advised and "batch_size=" not in advised


def test_of_a_script_that_skips_batches_no_samples_are_told(script: Script):
    body = """
    for number, batch in enumerate(DataLoader(data, 8)):
        if number % 2 == 0:
            loss_of(batch).backward()
            optimizer.step()
    """
    record = measured(script(textwrap.dedent(body)), "gpus=1", "warmup_steps=1").record
    assert isinstance(record, ScriptRecord) and record.status == "ok"
    assert record.samples_per_s is None and record.epochs[0].samples is None
    assert (
        "script.samples-unknown" in record.seen_codes
        and "script.accumulated" not in record.seen_codes
    )


def test_ranks_without_a_group_are_said(script: Script):
    record = measured(script(TRAIN), "gpus=2", "steps=8", "warmup_steps=1").record
    assert record.status == "ok" and "script.no-process-group" in record.seen_codes
    assert len(record.seen) == len(record.seen_codes)


LAUNCHED = {"key": "script", "value": "train.py"}


@pytest.mark.parametrize(
    ("body", "code", "facts"),
    [
        ("sys.exit(3)", "script.exited", {"exit_code": 3}),
        ("sys.exit(2)", "script.exited", {"exit_code": 2}),
        ("import argparse; argparse.ArgumentParser().error('no --b')", "script.usage", {}),
        ("sys.exit('no data')", "script.exited-saying", {"said": "no data"}),
        ("from . import part", "script.relative-import", {}),
        ("loss_of(data[:8]).backward()", "script.no-step", {}),
        ("print('done')", "script.nothing-left", {"files": []}),
        ("os.execlp('true', 'true')", "script.replaced", {}),
        ("torch.multiprocessing.spawn(print, nprocs=2)", "script.own-ranks", {}),
    ],
)
def test_a_script_that_fails_says_why(script: Script, body: str, code: str, facts: dict[str, Any]):
    record = measured(script(body)).record
    assert record.status == "failed" and record.cause
    assert find(record.cause.message, code, **LAUNCHED, **facts)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("raise KeyError('x')", "failed", "KeyError: 'x'"),
        ("os.kill(os.getpid(), 9)", "failed", "SIGKILL"),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "oom", "CUDA out of memory"),
    ],
)
def test_an_error_of_python_or_the_system_is_told_as_it_is(
    script: Script, body: str, status: str, said: str
):
    record = measured(script(body)).record
    assert record.status == status
    assert record.cause and said in record.cause.message


def test_a_loss_that_is_not_finite_diverged(script: Script):
    body = "import multicard\nfor batch in DataLoader(data, 8):\n"
    body += "    optimizer.step(); multicard.log(loss=float('nan'))"
    assert measured(script(body)).record.status == "diverged"


def test_nothing_that_a_script_starts_outlives_it(script: Script):
    body = (
        f"import subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'sleep {LONG_S} & sleep"
        f" {LONG_S}'])\n" + TRAIN
    )
    assert measured(script(body), "steps=3").record.status == "ok"
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if LONG_S in (each.info["cmdline"] or [])
    ]


@pytest.mark.parametrize(
    "body",
    [
        TRAIN + "os._exit(0)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
        + TRAIN,
        "for code in (0, 4): os.fork() or sys.exit(code)\nos.wait(); os.wait()\n" + TRAIN,
        "os.chdir('/')\nassert os.path.isfile(__file__)\n" + TRAIN,
        NEIGHBOUR + TRAIN,
        "os.environ['MASTER_PORT'] = '0'\ndist.init_process_group('gloo', rank=0, world_size=1)\n"
        + TRAIN,
        TRAIN + ENDS_CHILDREN,
        # without `if __name__ == "__main__"`
        TRAIN.replace("8)", "8, num_workers=1, persistent_workers=True)"),
    ],
    ids=[
        "os._exit",
        "thread",
        "forked",
        "chdir",
        "neighbours",
        "own address",
        "ends its children",
        "workers",
    ],
)
def test_a_script_that_ends_in_its_own_way_is_measured(script: Script, body: str):
    run = measured(script(body), "warmup_steps=1")
    assert run.record.status == "ok" and run.record.epochs[0].steps == 240


def test_a_module_starts_as_python_starts_it(script: Script, tmp_path: Path):
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("print('imported', flush=True)")
    (tmp_path / "pkg" / "sub" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "sub" / "part.py").write_text("lr = 0.1")
    body = (
        "from . import part\nassert sys.argv[0].endswith('sub/__main__.py') and sys.argv[1:] =="
        " ['--lr', '0.2']\n"
    )
    script(body + TRAIN, "pkg/sub/__main__.py")
    record = measured("-m pkg.sub", "args.lr=0.2", "steps=3").record
    assert (record.status, record.cause) == ("ok", None) and record.axes["script"] == "-m pkg.sub"
    cause = measured("-m pkg.none").record.cause
    assert cause and find(cause.message, "script.no-module", key="script", value="-m pkg.none")
    parts = code(typed("script=-m pkg.sub"))  # the whole of the outermost package
    assert [name for name, _ in parts["script"]] == [
        "sub/__main__.py",
        "__init__.py",
        "sub/__init__.py",
        "sub/part.py",
    ]
    assert record.data and record.data.fingerprint == fingerprint(parts).fingerprint
    (tmp_path / "pkg" / "sub" / "part.py").write_text("lr = 0.3")
    assert record.data.fingerprint != fingerprint(parts).fingerprint


def test_what_was_measured_before_a_stop_is_kept_and_a_long_wait_is_said(
    script: Script, tmp_path: Path
):
    body = f"import signal, subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '{LONG_S}'])\n"
    body += "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(4), os.kill(os.getpid(), 9)))\n"
    body += "for number in range(10**9):\n    loss_of(data[:8]).backward(); optimizer.step()\n"
    body += "    number == 60 and open('on', 'w')"
    words = [
        f"script={script(body)}",
        "device=cpu",
        "tracker.mode=disabled",
        f"hydra.run.dir={tmp_path}/out",
    ]
    line = [sys.executable, str(ROOT / "measure_script.py"), *words]
    with subprocess.Popen(
        line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while not Path("on").exists() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=60)[1]
    assert says(printed, "rank.goes-on", seconds=30)
    (made,) = (tmp_path / "out").glob("*/result.json")
    run = run_folder.read_run(made.parent)
    assert (
        run is not None
        and run.record.status == "interrupted"
        and (run.record.epochs[0].steps or 0) > 60
    )
    assert (
        run.record.step_s
        and run_folder.read_steps(run.folder).num_rows == run.record.epochs[0].steps
    )
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if LONG_S in (each.info["cmdline"] or [])
    ]


def test_a_log_keeps_its_ends(script: Script):
    body = (
        "print('begin')\nfor _ in range(60): print('x' * (1 << 20))\nprint('end', flush=True)\n"
        + TRAIN
    )
    run = measured(script(body), "steps=3")
    log = (run.folder / "logs" / "r00.log").read_bytes()
    assert run.record.status == "ok" and len(log) < 40 << 20
    assert log.startswith(b"begin") and b"end\n" in log[-(4 << 20) :]
    assert find(log.decode(), "log.shortened").facts["bytes"] > 20 << 20


def test_workers_of_loaders_are_spawned_from_the_script(script: Script, tmp_path: Path):
    body = """
class Own(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, n):
        return torch.ones(4) * n, 1
if __name__ == "__main__":
    for batch in DataLoader(Own(), 8, num_workers=1, multiprocessing_context="spawn"):
        loss_of(batch).backward(); optimizer.step()
"""
    words = [
        f"script={tmp_path / script(body)}",
        "device=cpu",
        "tracker.mode=disabled",
        "warmup_steps=1",
    ]
    ended = command(*words, f"hydra.run.dir={tmp_path}/out", entry="measure_script.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    (result,) = (tmp_path / "out").glob("*/result.json")
    made = run_folder.read_run(result.parent)
    assert made is not None and made.record.status == "ok" and made.record.samples_per_s
