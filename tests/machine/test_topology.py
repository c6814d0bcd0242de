"""How GPUs, sockets and NUMA nodes are joined, from a stand-in of NVML and a made-up sysfs."""

from pathlib import Path

import pynvml
import pytest

from multicard.machine import topology
from tests.helpers.nvml_stand_in import Gpu, Nvml, install

TO_GPU, TO_SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sockets of three cores of two threads, two NUMA nodes with CPUs and one of memory alone."""
    for thread in range(12):
        folder = tmp_path / f"devices/system/cpu/cpu{thread}/topology"
        write(folder / "physical_package_id", f"{thread % 2}\n")
        write(folder / "core_id", f"{thread // 2 % 3}\n")
    for node, cpus in {0: "0-5", 1: "6-11", 10: ""}.items():
        write(tmp_path / f"devices/system/node/node{node}/cpulist", f"{cpus}\n")
        write(tmp_path / f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       {node + 1} kB\n")
    write(tmp_path / "bus/pci/devices/0000:03:00.0/numa_node", "1\n")
    write(tmp_path / "bus/pci/devices/0000:1b:00.0/numa_node", "-1\n")
    monkeypatch.setattr(topology, "SYS", tmp_path)
    return tmp_path


def test_sockets_cores_threads_and_numa_nodes(sys: Path):
    cpu = topology.cpu(sys)
    assert (cpu["sockets"], cpu["cores_per_socket"], cpu["threads"]) == (2, 3, 12)
    assert cpu["numa_nodes"] == [
        {"node": 0, "cpus": "0-5", "memory_bytes": 1024},
        {"node": 1, "cpus": "6-11", "memory_bytes": 2048},
        {"node": 10, "cpus": "", "memory_bytes": 11 * 1024},
    ]


def test_gpus_with_their_numa_node_and_pcie(sys: Path, monkeypatch: pytest.MonkeyPatch):
    known = Gpu("GPU-a", bus=0x03)
    poor = Gpu("GPU-b", bus=0x1B, lacks=("CurrPcieLinkGeneration", "EnforcedPowerLimit", "TopologyCommonAncestor"))
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
    assert content["links"] == [{"gpus": ["GPU-b", "GPU-a"], "link": None, "path": None, "nvlinks": 0}]
    assert nvml.open == 0


def test_the_cores_near_a_gpu(sys: Path, monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(Gpu("GPU-a", bus=0x03), Gpu("GPU-b", bus=0x1B)))
    write(sys / "bus/pci/devices/0000:03:00.0/local_cpulist", "6-8,11\n")
    assert topology.cpus_near("GPU-a") == {6, 7, 8, 11}
    assert topology.cpus_near("GPU-b") == topology.cpus_near("GPU-gone") == set()  # not said, and unknown


def test_links_between_gpus(sys: Path, monkeypatch: pytest.MonkeyPatch):
    a = Gpu("GPU-a", bus=1, nvlinks=[(TO_GPU, 2)] * 4 + [(TO_GPU, 3)] * 2)
    b = Gpu("GPU-b", bus=2, nvlinks=[(TO_GPU, 1)] * 4)
    c = Gpu("GPU-c", bus=3, nvlinks=[(TO_GPU, 1)] * 2)
    install(monkeypatch, Nvml(a, b, c))
    links = {tuple(link.pop("gpus")): link for link in topology.collect(["GPU-a", "GPU-b", "GPU-c"])["links"]}
    assert links == {
        ("GPU-a", "GPU-b"): {"link": "NV4", "path": "SYS", "nvlinks": 4},
        ("GPU-a", "GPU-c"): {"link": "NV2", "path": "SYS", "nvlinks": 2},
        ("GPU-b", "GPU-c"): {"link": "SYS", "path": "SYS", "nvlinks": 0},
    }


def test_links_through_switches(sys: Path, monkeypatch: pytest.MonkeyPatch):
    switched = [Gpu(f"GPU-{bus}", bus=bus, nvlinks=[(TO_SWITCH, 0x80 + link) for link in range(18)]) for bus in (1, 2)]
    install(monkeypatch, Nvml(*switched, Gpu("GPU-3", bus=3)))
    links = topology.collect(["GPU-1", "GPU-2", "GPU-3"])["links"]
    assert [link["link"] for link in links] == ["NV18", "SYS", "SYS"]


def test_without_nvml_the_host_is_still_described(sys: Path, monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, Nvml(driver=False))
    content = topology.collect([])
    assert content["gpus"] == content["links"] == [] and content["cpu"]["sockets"] == 2


def test_a_host_that_shows_nothing_gives_null(tmp_path: Path):
    nothing = {"sockets": None, "cores_per_socket": None, "threads": None, "numa_nodes": []}
    assert topology.cpu(tmp_path) == nothing
