"""Which GPUs a run may use, and what is recorded of the machine and of how its parts are joined."""

import os
import socket
import subprocess
from pathlib import Path
from sys import executable
from typing import Any

import pynvml
import pytest

from multicard.config.placement import place
from multicard.machine import devices, environment, shares, topology
from tests.conftest import ROOT, typed
from tests.helpers.messages import codes, refused
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
    assert topology.collect([]) == {"gpus": [], "links": []}


def test_a_gpu_that_this_user_may_not_use_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(
        monkeypatch, Nvml(Gpu(UUIDS[0], forbids=("HandleByIndex",)), Gpu(UUIDS[1]), Gpu(UUIDS[2]))
    )
    assert devices.visible_gpus() == UUIDS[1:]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # CUDA counts those that it may use
    assert devices.visible_gpus() == UUIDS[2:]
    nvml = install(monkeypatch, Nvml(Gpu(UUIDS[0])))
    # an error
    monkeypatch.setattr(nvml, "nvmlShutdown", lambda: nvml.nvmlDeviceGetHandleByUUID("GPU-gone"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.visible_gpus() == UUIDS[:1]


def test_cuda_shows_a_process_one_mig_instance(monkeypatch: pytest.MonkeyPatch):
    instances = ["MIG-1111", "MIG-2222"]
    divided = Gpu(UUIDS[0], instances=[Gpu(uuid, lacks=("MigMode",)) for uuid in instances])
    install(
        monkeypatch, Nvml(divided, Gpu(UUIDS[1], lacks=("MigMode",)), Gpu(UUIDS[2], instances=[]))
    )
    for setting, named, visible in (
        ("0", instances, instances[:1]),
        (UUIDS[0], instances, instances[:1]),
        ("MIG-2222,MIG-1111", instances[::-1], instances[1:]),
        ("1", UUIDS[1:2], UUIDS[1:2]),
        ("1,0", [UUIDS[1], *instances], UUIDS[1:2]),
        ("2", [], []),  # divided into nothing
        # as drivers before 470 name them
        ("MIG-GPU-aaaa-1/3/0", ["MIG-GPU-aaaa-1/3/0"], ["MIG-GPU-aaaa-1/3/0"]),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
        assert (devices.named_gpus(), devices.visible_gpus()) == (named, visible), setting
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with refused("placement.too-few-gpus", key="gpus", value=2):  # CUDA shows one device
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


def test_the_commit_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert environment.git(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    assert environment.git(tmp_path) == {
        "commit": git("rev-parse", "HEAD"),
        "dirty": False,
        "changes": None,
    }
    (tmp_path / "new").write_text("untracked files do not count")
    assert environment.git(tmp_path) == {
        "commit": git("rev-parse", "HEAD"),
        "dirty": False,
        "changes": None,
    }
    (tmp_path / "a").write_text("2")
    changed = environment.git(tmp_path)
    assert changed is not None and changed["dirty"]
    (tmp_path / "a").write_bytes(b"caf\xe9")  # no UTF-8
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    again = environment.git(tmp_path) or {}
    assert again["commit"] == changed["commit"] and again["changes"] != changed["changes"]
    (tmp_path / "installed").mkdir()
    assert environment.git(tmp_path / "installed") is None  # nothing in it is the repository's


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("a" * 40, {"commit": "a" * 40, "dirty": False, "changes": None}),
        (f" {'a' * 40}+0123abcd\n", {"commit": "a" * 40, "dirty": True, "changes": "0123abcd"}),
        ("", None),
        ("HEAD", None),
        ("a" * 7, None),
    ],
)
def test_the_commit_travels_with_a_copy_in_a_variable(
    named: str,
    expected: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """A checkout knows its own, whatever the variable says."""
    environment._commit_in_variable.cache_clear()
    monkeypatch.setenv("MULTICARD_COMMIT", named)
    assert environment.git(tmp_path) == environment.git(tmp_path) == expected
    is_wrong = bool(named) and expected is None
    assert codes(capsys.readouterr().err) == ["environment.commit"] * is_wrong  # said once
    here = environment.git(ROOT)
    assert here is None or here["commit"] != "a" * 40


def test_what_is_recorded_is_complete():
    content: dict[str, Any] = environment.collect()
    assert content["packages"]["torch"].startswith("2.11.0") and content["packages"]["wandb"]
    assert content["cpu"]["cores"] >= 1 and content["cpu"]["memory_bytes"] > 2**30
    assert content["recorded_at"].endswith("Z") and content["host"]


def test_what_torch_compiles_with_is_asked_for_before_a_run_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    environment.require_compilers(True, "cpu")  # this machine has them: other tests compile
    monkeypatch.setattr(environment.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    absent = {"cpu": ["g++"], "cuda": ["gcc", "Python.h"]}
    for device, missing in absent.items():
        monkeypatch.setattr(environment.shutil, "which", lambda name: None)
        with refused("compile.no-compiler", key="compile", value="true") as refusal:
            environment.require_compilers(True, device)
        assert [named.split()[0] for named in refusal.value.facts["missing"]] == missing
    monkeypatch.setattr(
        environment.shutil, "which", lambda name: f"/bin/{name}" if name == "clang" else None
    )
    (tmp_path / "Python.h").touch()
    environment.require_compilers("reduce-overhead", "cuda")


TO_GPU, TO_SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two PCI devices, one on NUMA node 1."""
    write(tmp_path / "bus/pci/devices/0000:03:00.0/numa_node", "1\n")
    write(tmp_path / "bus/pci/devices/0000:1b:00.0/numa_node", "-1\n")
    monkeypatch.setattr(topology, "SYS", tmp_path)
    return tmp_path


def test_gpus_with_their_numa_node_and_pcie(sys: Path, monkeypatch: pytest.MonkeyPatch):
    known = Gpu("GPU-a", bus=0x03)
    poor = Gpu(
        "GPU-b",
        bus=0x1B,
        lacks=("CurrPcieLinkGeneration", "EnforcedPowerLimit", "TopologyCommonAncestor"),
    )
    nvml = install(monkeypatch, Nvml(known, poor))
    content = topology.collect(["GPU-b", "GPU-a", "MIG-gone"])
    assert [gpu["uuid"] for gpu in content["gpus"]] == ["GPU-b", "GPU-a"]
    assert content["gpus"][1] == {
        "uuid": "GPU-a",
        "index": 3,
        "pci": "0000:03:00.0",
        "numa_node": 1,
        "pcie_generation": 4,
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
        "power_limit_w": 650.0,
        "power_limit_default_w": 700.0,
    }
    first = content["gpus"][0]
    assert first["numa_node"] is first["pcie_generation"] is first["power_limit_w"] is None
    assert first["pci"] == "0000:1b:00.0" and first["pcie_width"] == 8
    assert content["links"] == [
        {"gpus": ["GPU-b", "GPU-a"], "link": None, "path": None, "nvlinks": 0}
    ]
    assert nvml.open == 0


def test_the_cores_near_a_gpu(sys: Path, monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(Gpu("GPU-a", bus=0x03), Gpu("GPU-b", bus=0x1B)))
    write(sys / "bus/pci/devices/0000:03:00.0/local_cpulist", "6-8,11\n")
    assert topology.cpus_near("GPU-a") == {6, 7, 8, 11}
    # not said, and unknown
    assert topology.cpus_near("GPU-b") == topology.cpus_near("GPU-gone") == set()


def test_links_between_gpus_and_through_switches(sys: Path, monkeypatch: pytest.MonkeyPatch):
    a = Gpu("GPU-a", bus=1, nvlinks=[(TO_GPU, 2)] * 4 + [(TO_GPU, 3)] * 2)
    b = Gpu("GPU-b", bus=2, nvlinks=[(TO_GPU, 1)] * 4)
    c = Gpu("GPU-c", bus=3, nvlinks=[(TO_GPU, 1)] * 2)
    install(monkeypatch, Nvml(a, b, c))
    links = {
        tuple(link.pop("gpus")): link
        for link in topology.collect(["GPU-a", "GPU-b", "GPU-c"])["links"]
    }
    assert links == {
        ("GPU-a", "GPU-b"): {"link": "NV4", "path": "SYS", "nvlinks": 4},
        ("GPU-a", "GPU-c"): {"link": "NV2", "path": "SYS", "nvlinks": 2},
        ("GPU-b", "GPU-c"): {"link": "SYS", "path": "SYS", "nvlinks": 0},
    }
    switched = [
        Gpu(f"GPU-{bus}", bus=bus, nvlinks=[(TO_SWITCH, 0x80 + link) for link in range(18)])
        for bus in (1, 2)
    ]
    install(monkeypatch, Nvml(*switched, Gpu("GPU-3", bus=3)))
    links = topology.collect(["GPU-1", "GPU-2", "GPU-3"])["links"]
    assert [link["link"] for link in links] == ["NV18", "SYS", "SYS"]


@pytest.mark.core
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("in_job", [True, False])
def test_slurms_variables_count_within_their_job_alone(in_job: bool, tmp_path: Path):
    """They also reach a shell that outlived its job, or one of `salloc` on a login node."""
    daemon = tmp_path / ("slurmstepd" if in_job else "bash")
    daemon.write_text('#!/bin/sh\n"$@"\n')
    daemon.chmod(0o755)
    code = (
        "from multicard.machine import environment as here; job ="
        " here.of_slurm_job().get('SLURM_JOB_ID'); "
    )
    code += "print(here.cores(), here.host(), job)"
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURMD_NODENAME": "node7",
        "SLURM_PROCID": "0",
    }
    done = subprocess.run(
        [daemon, executable, "-c", code],
        env=os.environ | job,
        capture_output=True,
        text=True,
        check=True,
    )
    outside = f"{len(os.sched_getaffinity(0))} {socket.gethostname()} None"
    assert done.stdout.strip() == ("1 node7 7" if in_job else outside)
