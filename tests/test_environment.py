"""Which GPUs a run may use, and what is recorded of the machine."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from multicard.machine import environment
from tests.nvml_stand_in import Gpu, Nvml, install

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("0", UUIDS[:1]),
        ("2,0", [UUIDS[2], UUIDS[0]]),
        ("0,7,1", UUIDS[:1]),  # CUDA stops at the first entry that is no device
        ("0,0", []),
        ("GPU-cc", UUIDS[2:]),
        ("GPU-aa", []),  # two begin so
        ("MIG-1234", ["MIG-1234"]),
        (" 1 , 2 ", UUIDS[1:]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting: str | None, expected: list[str]):
    assert environment.select_visible(setting, UUIDS) == expected


def test_gpus_are_asked_of_nvml_and_unknown_figures_are_null(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(Gpu(UUIDS[0]), Gpu(UUIDS[1], lacks=("MaxClockInfo",))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert environment.visible_gpus() == [UUIDS[1], UUIDS[0]]
    second, first = environment.gpus()
    assert first == {
        "uuid": UUIDS[0],
        "name": "H200",
        "memory_bytes": 150_000_000_000,
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 2619,
        "driver": "580.1",
    }
    assert second["memory_clock_max_mhz"] is None


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(driver=False))
    assert environment.visible_gpus() == [] and environment.gpus() == []


def test_the_commit_and_whether_it_was_changed(tmp_path: Path):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert environment.git(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    assert environment.git(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False, "changes": None}
    (tmp_path / "new").write_text("untracked files do not count")
    assert environment.git(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False, "changes": None}
    (tmp_path / "a").write_text("2")
    changed = environment.git(tmp_path)
    assert changed is not None and changed["dirty"]
    (tmp_path / "a").write_text("3")
    assert (environment.git(tmp_path) or {})["changes"] != changed["changes"]


def test_what_is_recorded_is_complete():
    content: dict[str, Any] = environment.collect()
    assert content["packages"]["torch"].startswith("2.11.0") and content["packages"]["wandb"]
    assert content["cpu"]["cores"] >= 1 and content["cpu"]["memory_bytes"] > 2**30
    assert content["recorded_at"].endswith("Z") and content["host"]
