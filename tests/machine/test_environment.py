"""Which GPUs a run may use, and what is recorded of the machine."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from multicard.config.placement import place
from multicard.machine import devices, environment, shares
from tests.conftest import typed
from tests.helpers.nvml_stand_in import Gpu, Nvml, install

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
    assert devices.select_visible(setting, UUIDS) == expected


def test_gpus_are_asked_of_nvml_and_unknown_figures_are_null(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(Gpu(UUIDS[0]), Gpu(UUIDS[1], lacks=("MaxClockInfo",))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert devices.visible_gpus() == [UUIDS[1], UUIDS[0]]
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
    assert devices.visible_gpus() == [] and environment.gpus() == []


def test_a_gpu_that_this_user_may_not_use_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, Nvml(Gpu(UUIDS[0], forbids=("HandleByIndex",)), Gpu(UUIDS[1]), Gpu(UUIDS[2])))
    assert devices.visible_gpus() == UUIDS[1:]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # CUDA counts those that it may use
    assert devices.visible_gpus() == UUIDS[2:]
    nvml = install(monkeypatch, Nvml(Gpu(UUIDS[0])))
    monkeypatch.setattr(nvml, "nvmlShutdown", lambda: nvml.nvmlDeviceGetHandleByUUID("GPU-gone"))  # an error
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.visible_gpus() == UUIDS[:1]


def test_cuda_shows_a_process_one_mig_instance(monkeypatch: pytest.MonkeyPatch):
    instances = ["MIG-1111", "MIG-2222"]
    divided = Gpu(UUIDS[0], instances=[Gpu(uuid, lacks=("MigMode",)) for uuid in instances])
    install(monkeypatch, Nvml(divided, Gpu(UUIDS[1], lacks=("MigMode",)), Gpu(UUIDS[2], instances=[])))
    for setting, named, visible in (
        ("0", instances, instances[:1]),
        (UUIDS[0], instances, instances[:1]),
        ("MIG-2222,MIG-1111", instances[::-1], instances[1:]),
        ("1", UUIDS[1:2], UUIDS[1:2]),
        ("1,0", [UUIDS[1], *instances], UUIDS[1:2]),
        ("2", [], []),  # divided into nothing
        ("MIG-GPU-aaaa-1/3/0", ["MIG-GPU-aaaa-1/3/0"], ["MIG-GPU-aaaa-1/3/0"]),  # as drivers before 470 name them
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
        assert (devices.named_gpus(), devices.visible_gpus()) == (named, visible), setting
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ValueError, match="gpus=2: 1 CUDA device"):
        place(typed("gpus=2"), len(devices.visible_gpus()))
    assert shares.machine().gpus == instances  # each cell of a packed sweep may have one
    assert devices.variables()["CUDA_VISIBLE_DEVICES"] == "MIG-1111"


def test_cuda_numbers_gpus_as_nvml_does_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(*map(Gpu, UUIDS)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert environment.collect()["cuda_device_order"] == "PCI_BUS_ID"
    assert devices.variables() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert devices.variables() == {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert environment.collect()["cuda_device_order"] == "FASTEST_FIRST"


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
    assert content["topology"]["cpu"]["sockets"] >= 1
    assert content["recorded_at"].endswith("Z") and content["host"]


def test_what_torch_compiles_with_is_asked_for_before_a_run_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    environment.require_compilers(True, "cpu")  # this machine has them: other tests compile
    monkeypatch.setattr(environment.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    absent = {
        "cpu": r"compile=true: .* with g\+\+ \(package g\+\+\)",
        "cuda": r"gcc \(package gcc\) and Python.h \(.*-dev",
    }
    for device, message in absent.items():
        monkeypatch.setattr(environment.shutil, "which", lambda name: None)
        with pytest.raises(ValueError, match=message):
            environment.require_compilers(True, device)
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/bin/{name}" if name == "clang" else None)
    (tmp_path / "Python.h").touch()
    environment.require_compilers("reduce-overhead", "cuda")
