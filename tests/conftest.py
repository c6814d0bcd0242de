"""Fixtures: configurations composed as the command line does, and runs measured in this process."""

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from multicard import workloads
from multicard.config.llm import LlmConfig
from multicard.config.vision import VisionConfig
from multicard.controller import run, session
from multicard.llm import workload as llm
from multicard.ranks import elastic, interruption
from multicard.vision.workload import WORKLOAD

ROOT = Path(__file__).parent.parent
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

workloads.register()

os.environ["MULTICARD_STRICT"] = "1"  # a record that does not match its schema fails the test

# Each worker of pytest-xdist keeps to a core of its own: threads that wait for one another across tests would spin
_worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
if _worker:
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[int(_worker) % len(_cores)]})


def composed(*overrides: str, entry: str = "train_vision") -> DictConfig:
    """The configuration as `train_vision.py`, or another entry, gets it from these words."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(entry, list(overrides))


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


def has_dali() -> bool:
    """Whether NVIDIA DALI is installed (make dali); a test of it is skipped otherwise."""
    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def warm_up() -> None:
    """Have this process's ranks forked with everything imported: the first call decides."""
    elastic.warm_up("cpu", [*llm.WORKLOAD.preload, *WORKLOAD.preload, "tests.rank_work", "tests.rank_work_llm"])


def shared(name: str) -> Path:
    """A folder of the real data; the test is skipped where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Measures one small run per call, in a folder of its own; the record holds `folder`."""
    calls = []
    warm_up()

    def measure(*overrides: str) -> dict[str, Any]:
        calls.append(overrides)
        cfg = composed(*SMALL, *overrides)
        return run.measure(WORKLOAD, cfg, tmp_path / "sweep" / str(len(calls)), keep_refused=True)

    return measure


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The same for `tune_llm.py`: a few steps of the tiny model, where the words say no more."""
    calls = []
    warm_up()

    def measure(*overrides: str) -> dict[str, Any]:
        calls.append(overrides)
        cfg = composed("tracker.mode=disabled", "max_steps=4", "skip_steps=1", *overrides, entry="tune_llm")
        return run.measure(llm.WORKLOAD, cfg, tmp_path / "sweep" / str(len(calls)), keep_refused=True)

    return measure


def command(
    *words: str, entry: str = "train_vision.py", timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`python train_vision.py WORDS`, to its end."""
    line = [sys.executable, str(ROOT / entry), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, **options)


@pytest.fixture
def called(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """The same within this process, whose fork server has imported everything: exit code, and what was printed."""

    def call(*words: str, entry: str = "train_vision.py") -> tuple[int, str]:
        warm_up()
        session.SESSION.__init__()
        monkeypatch.setattr(sys, "argv", [entry, *words])
        monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / entry), run_name="__main__")
        printed = capfd.readouterr()
        return int(str(ended.value)), printed.out + printed.err

    numbers = (*interruption.SIGNALS, signal.SIGALRM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield call
    session.SESSION.records.clear()  # of this command alone
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


SLOW = ("test_digits_are_learnt", "test_a_documented", "test_compiling", "test_resume")  # half a minute or more


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests first: one that starts last keeps a worker busy while the others have nothing left."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in SLOW))
