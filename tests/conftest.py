"""Fixtures: configurations composed as the command line does, and runs measured in this process."""

import gc
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

from multicard.repository import IS_INSTALLED

ROOT = Path(__file__).parent.parent
CACHE = (Path.cwd() if IS_INSTALLED else ROOT) / ".pytest_cache"  # a wheel is not written to
# else each process that starts would compile torch's sources anew, for seconds
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(CACHE / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["MULTICARD_MESSAGES"] = "codes"  # sentences may change: tests ask for codes and facts
os.environ["MULTICARD_SITE"] = ""  # the defaults of this machine's site do not reach tests
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy: on one core threads wait for each other
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(CACHE / "hypothesis")

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from multiprocessing import forkserver
from types import FrameType
from typing import Any

import psutil
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from multicard import messages, workloads
from multicard.config.llm import LlmConfig
from multicard.config.script import ScriptConfig
from multicard.config.vision import VisionConfig
from multicard.llm import workload as llm
from multicard.machine import devices, shares
from multicard.measure.timing import clock_s, pause
from multicard.ranks import elastic, interruption
from multicard.records import run_folder
from multicard.run import controller as run
from multicard.run.workload import Workload
from multicard.vision.workload import WORKLOAD
from tests.helpers import compositions, in_force, wandb_stand_in

# the words of a command to its exit code and what it prints
Called = Callable[..., tuple[int, str]]
Measured = Callable[..., dict[str, Any]]  # the words of a run to its record

SHARED = ROOT.parent / "shared" / "data"  # real data: tests that need it skip where it is absent

SMALL = (
    "device=cpu",
    "dataset.image_size=32",
    "dataset.train_limit=96",
    "dataset.test_limit=50",
    "epochs=1",
    "batch_size=16",
    "warmup_steps=1",
    "tracker.mode=disabled",
)

# for what happens in seconds: a deadline only tells a defect from a machine that is busy
PATIENCE_S = 300.0

workloads.register()
compositions.keep()

# Compositions make and drop many objects, and each full collection would visit those of torch too.
gc.freeze()
gc.set_threshold(50_000, 20, 50)

in_checkout = messages.in_checkout
messages.in_checkout = lambda: True  # hints are those of the checkout, in whatever folder a test is

os.environ["MULTICARD_STRICT"] = "1"  # a record that does not match its schema fails the test

# Each worker of pytest-xdist keeps to a core of its own: threads
# that wait for one another across tests would spin
_worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
os.environ["MULTICARD_LEASES"] = str(CACHE / f"leases{_worker}")  # no test waits for other commands
if _worker:
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[int(_worker) % len(_cores)]})


def composed(*overrides: str, entry: str = "train_vision") -> DictConfig:
    """The configuration as `train_vision.py`, or another entry, gets it from these words."""
    # the command that a stand-in is part of
    running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = compose(entry, list(overrides))
    finally:
        GlobalHydra.instance().hydra = running
    in_force.note(config, overrides)
    return config


def typed(*overrides: str) -> VisionConfig:
    """The same as dataclasses."""
    typed_config = OmegaConf.to_object(composed(*overrides))
    assert isinstance(typed_config, VisionConfig)
    return typed_config


def typed_llm(*overrides: str) -> LlmConfig:
    """As `tune_llm.py` gets it."""
    typed_config = OmegaConf.to_object(composed(*overrides, entry="tune_llm"))
    assert isinstance(typed_config, LlmConfig)
    return typed_config


def typed_script(*overrides: str) -> ScriptConfig:
    """As `measure_script.py` gets it."""
    typed_config = OmegaConf.to_object(composed(*overrides, entry="measure_script"))
    assert isinstance(typed_config, ScriptConfig)
    return typed_config


def has_dali() -> bool:
    """Whether NVIDIA DALI is installed (make dali); a test of it is skipped otherwise."""
    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def free_port(first: int) -> int:
    """A free port from `first` on, of which each worker has a thousand: below those that Linux
    hands out by itself, to any process at any time.
    """
    first += 1000 * int(_worker or 0)
    for port in range(first, first + 1000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise AssertionError("no port is free")


def warm_up() -> None:
    """Have this process's ranks forked with everything imported: the first call decides."""
    # as users do: what starts CUDA in the fork server is left to the ranks
    if devices.visible_gpus():
        elastic.warm_up("cuda", [*llm.WORKLOAD.cuda_preload, *WORKLOAD.cuda_preload])
        return
    elastic.warm_up(
        "cpu",
        [
            *llm.WORKLOAD.preload,
            *WORKLOAD.preload,
            "tests.helpers.rank_work",
            "tests.helpers.fork_server",
        ],
    )


def shared(name: str) -> Path:
    """A folder of the real data; the test is skipped where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


@pytest.fixture(autouse=True)
def _nothing_in_force() -> None:
    """What an earlier test composed is not what this one is refused of."""
    in_force.forget()


@pytest.fixture(scope="session")
def processes() -> None:
    """Marks the tests that use it, themselves or through another fixture, as starting ranks,
    commands or a browser.
    """


class Measuring:
    """Measures one small run of `train_vision.py` per call, in a folder of its own;
    the record holds `folder`.
    """

    entry, small = "train_vision", SMALL

    @property
    def workload(self) -> Workload:
        return WORKLOAD

    def __init__(self, folder: Path) -> None:
        self.folder, self.numbers = folder, count(1)
        warm_up()

    def __call__(self, *overrides: str) -> dict[str, Any]:
        cfg = composed(*self.small, *overrides, entry=self.entry)
        return as_dict(
            run.measure(
                self.workload,
                cfg,
                self.folder / "sweep" / str(next(self.numbers)),
                keep_refused=True,
            )
        )


class Tuning(Measuring):
    """The same of `tune_llm.py`: a few steps of the tiny model, where the words say no more."""

    entry, small = "tune_llm", ("tracker.mode=disabled", "max_steps=4", "skip_steps=1")

    @property
    def workload(self) -> Workload:
        """That of the moment: tests replace what its ranks do."""
        return llm.WORKLOAD


@pytest.fixture(scope="session")
def once(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """The same for tests that only read: what was measured with
    the same words before is not measured again.
    """
    return cache(Measuring(tmp_path_factory.mktemp("once")))


@pytest.fixture
def measured(processes: None, tmp_path: Path) -> Measuring:
    return Measuring(tmp_path)


@pytest.fixture
def tuned(processes: None, tmp_path: Path) -> Tuning:
    return Tuning(tmp_path)


def as_dict(measured: run_folder.RecordedRun) -> dict[str, Any]:
    """What result.json has of a run, with its `folder`, and `tracker_error` where W&B failed."""
    problem = {} if measured.tracker_error is None else {"tracker_error": measured.tracker_error}
    return run_folder.content_of(measured.record) | {"folder": str(measured.folder), **problem}


def refusal(start: str) -> "pytest.RaisesExc[ValueError]":
    """Expects a refusal: one line that starts so."""
    return pytest.raises(ValueError, match=rf"^{re.escape(start)}.*\Z")


def ok(result: dict[str, Any]) -> dict[str, Any]:
    """The record of a run that went well."""
    assert result["status"] == "ok", result["cause"]
    return result


def awaited(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds; its value."""
    ends_s = clock_s() + PATIENCE_S
    while not (value := condition()):
        assert clock_s() < ends_s, "it did not come to be"
        pause(0.02)
    return value


def assert_gone(processes: list[psutil.Process]) -> None:
    """Wait until they have ended. Some stay as zombies
    where process 1 does not wait for orphans.
    """

    def remains(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    awaited(lambda: not any(map(remains, processes)))


def calls_of(work: Callable[[], object]) -> int:
    """The calls of functions that Python makes for `work`: a
    measure of it on a machine that is busy.
    """
    calls, before = [0], sys.getprofile()

    def note(_: FrameType, event: str, __: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls[0]


def command(
    *words: str, entry: str = "train_vision.py", timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`python train_vision.py WORDS`, to its end."""
    line = [sys.executable, str(ROOT / entry), *words]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, **options
    )


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Called]:
    """The same within this process, whose fork server has imported everything: exit code, and what
    was printed. The entry may be a module.
    """

    def call(*words: str, entry: str = "train_vision.py") -> tuple[int, str]:
        warm_up()
        monkeypatch.setattr(sys, "argv", [entry, *words])
        monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
        capfd.readouterr()
        code = 0
        try:
            if entry.endswith(".py"):
                runpy.run_path(str(ROOT / entry), run_name="__main__")
            else:
                runpy.run_module(entry, run_name="__main__")
        except SystemExit as ended:
            code = int(str(ended.code or 0))
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    numbers = (*interruption.SIGNALS, signal.SIGALRM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield call
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[shares.Pool], shares.MachineShares]:
    """Commands on a machine with these GPUs and cores, whose leases are those of the test."""
    monkeypatch.setenv(shares.VARIABLE, str(tmp_path / "leases"))

    def command_on(pool: shares.Pool) -> shares.MachineShares:
        monkeypatch.setattr(shares, "machine", lambda: shares.Pool([*pool.gpus], [*pool.cpus]))
        return shares.MachineShares()

    return command_on


@pytest.fixture
def nsys_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Nsight Systems would be told, in its order:
    "start", the names of ranges, "pop", "stop".
    """
    import torch

    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    return calls


@pytest.fixture
def wandb_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[wandb_stand_in.Server]:
    """A server that stands in for W&B's, to which W&B of this process is logged in."""
    import wandb

    wandb.teardown()  # of an earlier test, with the name of its process in the environment
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    with wandb_stand_in.running() as state:
        monkeypatch.setenv("WANDB_BASE_URL", state.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb_config"))
        wandb.teardown()  # it reads its settings once
        yield state
        wandb.teardown()


@pytest.fixture(scope="module")
def browser(processes: None) -> Iterator[Any]:
    """Of the pages that `report` writes."""
    from tests.helpers import report_view

    yield from report_view.launched()


# marks of the tests that may start Python processes
STARTERS = {"process", "gpu", "slurm", "faults"}
starter: list[str] = []  # the test that is running, where it may not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by their fixtures, and take the slow ones first: one that starts last keeps a
    worker busy while the others have nothing left.
    """
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            item.add_marker("process")
        if item.get_closest_marker("nightly") is not None:
            item.add_marker("slow")  # no part of `make test`
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hold the test to its tier: without a mark it starts neither ranks nor another Python."""
    starter[:] = [] if STARTERS & {mark.name for mark in item.iter_markers()} else [item.nodeid]


def _refuse_in_pure_tests(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen" or not starter:
        return
    # Vega's script for a page: once a worker
    bundles = any("vl_convert" in str(word) for word in arguments[1])
    if sys.executable in (arguments[0], *arguments[1]) and not bundles:
        raise AssertionError(f"{starter[0]} starts a process: it is to use the fixture `processes`")


def _connect_unless_pure(*arguments: Any, connect: Any = forkserver.connect_to_new_process) -> Any:
    _refuse_in_pure_tests("subprocess.Popen", (sys.executable, ()))
    return connect(*arguments)


sys.addaudithook(_refuse_in_pure_tests)
forkserver.connect_to_new_process = _connect_unless_pure
