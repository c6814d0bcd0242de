"""Signals that ask the command to end: one line or record in each case, no process left,
and none is lost.
"""

import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import time
import weakref
from itertools import cycle
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, OmegaConf
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from multicard.ranks import failures, interruption
from multicard.ranks.failures import Interrupted
from multicard.sweep import cells
from multicard.sweep.executor import Executor
from tests.conftest import ROOT, Called, typed, warm_up
from tests.helpers.launching import launch

DEADLINE_S = 60.0


def wait_for_interruption() -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        time.sleep(0.01)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("number", "entry"),
    [*zip(interruption.SIGNALS, cycle(["train_vision.py", "tune_llm.py"]), strict=False)],
    ids=lambda value: getattr(value, "name", value),
)
def test_while_a_command_imports_a_signal_ends_it_with_a_line(
    number: signal.Signals, entry: str, tmp_path: Path
):
    interrupted = (
        f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep({DEADLINE_S})\n"
    )
    (tmp_path / "hydra.py").write_text(interrupted)  # what the entry imports next
    done = subprocess.run(
        [sys.executable, str(ROOT / entry)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # it may be ignored here
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"interrupted by {number.name}\n")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_lead_nowhere(closed: str, tmp_path: Path):
    """Else a file of a record has the number of standard output."""
    code = f"""
import sys
from multicard.ranks import interruption
interruption.end_at_once()
print("out", flush=True), print("error", file=sys.stderr, flush=True), sys.stdin.read()
sys.stdout.isatty()
with open({str(tmp_path / "file")!r}, "w") as file:
    file.write(str(file.fileno()))
"""
    line = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    subprocess.run(line, check=True, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)
    assert int((tmp_path / "file").read_text()) > 2


def test_while_a_sweep_is_composed_it_is_a_line(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        cells, "compose", lambda *_: signal.raise_signal(signal.SIGTERM) or wait_for_interruption()
    )
    code, printed = called("-m", "gpus=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert code == 1 and "SIGTERM" in printed and printed.count("\n") == 1


def test_an_interruption_that_python_drops_is_raised_again():
    class Target:
        pass

    target = Target()
    reference = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match="SIGINT"), failures.interruptible():
        del target  # what the callback raises is printed and dropped
        assert reference() is None
        wait_for_interruption()


def test_an_import_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = (
        "import signal\nfor _ in range(2):\n    signal.raise_signal(signal.SIGHUP)\nwhole = True\n"
    )
    (tmp_path / "interrupted_module.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted, match="SIGHUP"), failures.interruptible():
            importlib.import_module("interrupted_module")
            wait_for_interruption()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert sys.modules.pop("interrupted_module").whole


def test_a_composition_is_not_interrupted(monkeypatch: pytest.MonkeyPatch):
    compose, composed = ConfigLoaderImpl._load_configuration_impl, list[Any]()

    def interrupted(loader: ConfigLoaderImpl, *arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        composed.append(compose(loader, *arguments, **options))
        return composed[0]

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", interrupted)
    with pytest.raises(Interrupted, match="SIGINT"), failures.interruptible():
        typed("gpus=1")
        wait_for_interruption()
    assert composed and interruption.WAITS_IN >= {ConfigLoaderImpl.load_sweep_config.__name__}


def test_a_configuration_is_not_left_half_set(monkeypatch: pytest.MonkeyPatch):
    cfg, set_item = OmegaConf.create({"gpus": 1}), DictConfig._set_item_impl

    def interrupted(own: DictConfig, key: Any, value: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        set_item(own, key, value)

    monkeypatch.setattr(DictConfig, "_set_item_impl", interrupted)
    with pytest.raises(Interrupted, match="SIGINT"), failures.interruptible():
        cfg.gpus = 2
        wait_for_interruption()
    assert cfg.gpus == 2


def test_a_second_signal_does_not_disturb_what_follows_and_a_hang_up_that_nohup_ignores_stays_ignored():
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    with failures.interruptible():
        with pytest.raises(Interrupted, match="SIGINT"):
            signal.raise_signal(signal.SIGINT)
        for number in (*[signal.SIGINT] * 10, signal.SIGTERM, signal.SIGQUIT):
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with failures.interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, hang_up)


@pytest.mark.usefixtures("processes")
def test_ranks_that_are_being_started_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    warm_up()
    assert interruption.WAITS_IN >= {
        LocalElasticAgent._start_workers.__name__,
        Executor.submit_process.__name__,
    }
    server = psutil.Process(multiprocessing.forkserver._forkserver._forkserver_pid)  # pyright: ignore[reportAttributeAccessIssue]
    before = {child.pid for child in server.children()}
    started, start = [], ForkServerProcess.start

    def interrupted_start(process: ForkServerProcess) -> None:
        start(process)
        started.append(process.pid)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ForkServerProcess, "start", interrupted_start)
    with failures.interruptible():
        failure = launch("leave_environment", tmp_path, folder=tmp_path, ranks=2)
    assert failure is not None and failure.message == "SIGINT"
    assert len(started) == 2
    left = [child for child in server.children() if child.pid not in before]
    assert not psutil.wait_procs(left, timeout=DEADLINE_S)[1]


# Ends by SIGKILL while a semaphore of it is registered; before,
# its helpers get every signal that a terminal sends
HELPERS = """
import multiprocessing, os, signal
from multiprocessing import forkserver, resource_tracker
from multicard.ranks import elastic
elastic.warm_up("cpu", [])
for pid in (resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid):
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.kill(pid, number)
context = multiprocessing.get_context("forkserver")
lock = context.Lock()
child = context.Process(target=print, args=("alive",))
child.start()
child.join()
assert resource_tracker._resource_tracker._check_alive()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("processes")
def test_a_terminals_signals_leave_the_helpers_alone_and_a_killed_command_says_nothing():
    done = subprocess.run(
        [sys.executable, "-c", HELPERS], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "alive\n", "")
