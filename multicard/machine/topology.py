"""The topology of this machine: links between GPUs and to the host, and the GPUs' NUMA nodes."""

from contextlib import suppress
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from multicard.machine import devices

SYS = Path("/sys")

# Names in `nvidia-smi topo -m` of NVML's levels (nvmlGpuTopologyLevel_t): how far the PCIe path
# between two GPUs goes.
PCIE_PATHS = {0: "SAME", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
SWITCH = "switch"


def collect(uuids: list[str]) -> dict[str, Any]:
    """Return the topology of these GPUs, ready for JSON. Values that cannot be known here are None.

    The PCIe generation is the current one. A link falls back to the first while its GPU idles.
    """
    with devices.nvml() as library:
        handles = {} if library is None else _handles(library, uuids)
        gpus = [_gpu(library, uuid, handle) for uuid, handle in handles.items()]
        links = _links(library, handles, {gpu["uuid"]: gpu["pci"] for gpu in gpus})
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
        "power_limit_w": None if limit_mw is None else limit_mw / 1e3,  # The limit in force.
        "power_limit_default_w": None if default_mw is None else default_mw / 1e3,
    }


def _bus_id(info: Any) -> str | None:
    """Format a PCI address as in sysfs: "0000:3b:00.0"."""
    return None if info is None else f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def numa_node(sys: Path, pci: str | None) -> int | None:
    """Return the NUMA node of a PCI device, or None if the machine does not say.

    NVML's `nvmlDeviceGetNumaNodeId` means something else: the node that a GPU's own memory forms,
    as on Grace Hopper.
    """
    with suppress(OSError, ValueError):
        node = int((sys / f"bus/pci/devices/{pci}/numa_node").read_text())
        return node if node >= 0 else None
    return None


@cache
def cpus_near(uuid: str) -> set[int]:
    """Return the cores of a GPU's NUMA node. The set is empty if the machine does not say."""
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
    """Return each pair of GPUs with its PCIe path and its number of NVLinks.

    `link` is the better of the two, as nvidia-smi prints it.
    """
    remotes = {uuid: _nvlinks(library, handle) for uuid, handle in handles.items()}
    links = []
    for one, other in combinations(handles, 2):
        level = devices.ask(
            library, library.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other]
        )
        path = PCIE_PATHS.get(level)
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
    """Return the far end of each active NVLink: `SWITCH`, or the PCI address of another GPU."""
    ask = partial(devices.ask, library)
    ends = []
    for link in range(library.NVML_NVLINK_MAX_LINKS):
        if not ask(library.nvmlDeviceGetNvLinkState, handle, link):
            continue  # The link is inactive, or this GPU has fewer links.
        kind = ask(library.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = _bus_id(ask(library.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        remote = SWITCH if kind == library.NVML_NVLINK_DEVICE_TYPE_SWITCH else remote
        ends += [remote] if remote is not None else []
    return ends


def nvlinks_between(one: list[str], other: list[str], other_pci: str | None) -> int:
    """Count the NVLinks that a pair of GPUs can use at once.

    They are the links from GPU to GPU, or the links that both have to the machine's switches.

    Args:
        one, other: The far ends of the links of each GPU.
        other_pci: The PCI address of the second GPU.
    """
    return one.count(other_pci) if other_pci in one else min(one.count(SWITCH), other.count(SWITCH))
