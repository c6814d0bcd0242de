"""Topology of this machine: links between GPUs and to the host, and their NUMA nodes."""

from contextlib import suppress
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from multicard.machine import devices

SYS = Path("/sys")

# By NVML's level (nvmlGpuTopologyLevel_t), the names of `nvidia-smi
# topo -m`: the farthest that a pair's PCIe path goes
PATHS = {0: "SAME", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
SWITCH = "switch"


def collect(uuids: list[str]) -> dict[str, Any]:
    """The topology, of these GPUs among others: JSON-ready,
    with None for values that cannot be known here.

    The current PCIe generation is that of now: a link goes down to the first while its GPU idles.
    """
    with devices.nvml() as library:
        known = {} if library is None else _handles(library, uuids)
        gpus = [_gpu(library, uuid, handle) for uuid, handle in known.items()]
        links = _links(library, known, {gpu["uuid"]: gpu["pci"] for gpu in gpus})
    return {"gpus": gpus, "links": links}


def _handles(library: Any, uuids: list[str]) -> dict[str, Any]:
    handles = {
        uuid: devices.ask(library, library.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids
    }
    return {uuid: handle for uuid, handle in handles.items() if handle is not None}


def _gpu(library: Any, uuid: str, handle: Any) -> dict[str, Any]:
    ask = partial(devices.ask, library)
    pci = _bus_id(ask(library.nvmlDeviceGetPciInfo, handle))
    limit_mw = ask(library.nvmlDeviceGetEnforcedPowerLimit, handle)
    default_mw = ask(library.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    return {
        "uuid": uuid,
        "index": ask(library.nvmlDeviceGetIndex, handle),
        "pci": pci,
        "numa_node": numa_node(SYS, pci),
        "pcie_generation": ask(library.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_generation_max": ask(library.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width": ask(library.nvmlDeviceGetCurrPcieLinkWidth, handle),
        "pcie_width_max": ask(library.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "power_limit_w": None if limit_mw is None else limit_mw / 1e3,  # in force
        "power_limit_default_w": None if default_mw is None else default_mw / 1e3,
    }


def _bus_id(info: Any) -> str | None:
    """A PCI address as in sysfs: "0000:3b:00.0"."""
    return None if info is None else f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def numa_node(sys: Path, pci: str | None) -> int | None:
    """The NUMA node that a PCI device hangs on; None where the machine has no such notion,
    or does not say.

    NVML's own `nvmlDeviceGetNumaNodeId` is another thing: the node that a GPU's memory is,
    on Grace Hopper.
    """
    with suppress(OSError, ValueError):
        node = int((sys / f"bus/pci/devices/{pci}/numa_node").read_text())
        return node if node >= 0 else None
    return None


@cache
def cpus_near(uuid: str) -> set[int]:
    """The cores of the NUMA node that a GPU hangs on; empty where the machine does not say."""
    with devices.nvml() as library:
        if library is None:
            return set()
        handle = _handles(library, [uuid]).get(uuid)
        pci = (
            None
            if handle is None
            else _bus_id(devices.ask(library, library.nvmlDeviceGetPciInfo, handle))
        )
    with suppress(OSError, ValueError):
        text = (SYS / f"bus/pci/devices/{pci}/local_cpulist").read_text().strip()  # "0-7,16-23"
        spans = [part.partition("-") for part in text.split(",")]
        cpus = set[int]()
        for first, _, last in spans:
            cpus.update(range(int(first), int(last or first) + 1))
        return cpus
    return set()


def _links(
    library: Any, handles: dict[str, Any], pci: dict[str, str | None]
) -> list[dict[str, Any]]:
    """Each pair of the GPUs with its path over PCIe and its NVLinks; `link` is the better,
    as nvidia-smi prints it.
    """
    remotes = {uuid: _nvlinks(library, handle) for uuid, handle in handles.items()}
    links = []
    for one, other in combinations(handles, 2):
        level = devices.ask(
            library, library.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other]
        )
        path = PATHS.get(level)
        count = nvlinks_between(remotes[one], remotes[other], pci[other])
        links.append(
            {
                "gpus": [one, other],
                "link": f"NV{count}" if count else path,
                "path": path,
                "nvlinks": count,
            }
        )
    return links


def _nvlinks(library: Any, handle: Any) -> list[str]:
    """The far end of each active NVLink of a GPU: `SWITCH`, or the PCI address of another GPU."""
    ask = partial(devices.ask, library)
    ends = []
    for link in range(library.NVML_NVLINK_MAX_LINKS):
        if not ask(library.nvmlDeviceGetNvLinkState, handle, link):
            continue  # inactive, or this GPU has not so many
        kind = ask(library.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = _bus_id(ask(library.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        remote = SWITCH if kind == library.NVML_NVLINK_DEVICE_TYPE_SWITCH else remote
        ends += [remote] if remote is not None else []
    return ends


def nvlinks_between(one: list[str], other: list[str], other_pci: str | None) -> int:
    """NVLinks that a pair can use at once, by the far ends of each GPU's links and the address of
    the second: those from GPU to GPU, or those that both have to the machine's switches.
    """
    return one.count(other_pci) if other_pci in one else min(one.count(SWITCH), other.count(SWITCH))
