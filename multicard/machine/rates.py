"""What a machine moves in a second: copies within a device, to and from it,
and all-reduces among its GPUs.

    python -m multicard.machine.rates [--gpus N] [--cpu]

prints versions, links and rates as one line of JSON. Every rate is that of the fastest of ten
repetitions after one that has all pages in place, timed by CUDA events on a GPU.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

from multicard.machine import devices, environment, topology
from multicard.measure import timing

REPETITIONS = 10
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # larger than all caches
REDUCED_BYTES = {"cuda": 2**28, "cpu": 2**24}
WITHIN = "within the device"
REDUCED = "all-reduce"


def fastest_s(device: torch.device, repeated: Any) -> float:
    """Seconds of the fastest of `REPETITIONS` calls of `repeated`,
    after one that is not counted.
    """
    repeated()
    laps = timing.Laps(device)
    for _ in range(REPETITIONS):
        repeated()
        laps.end()
    return min(lap_s for _, lap_s in laps.known(wait=True))


def within_bytes_per_s(device: torch.device) -> float:
    """Bytes read and written by a copy within the device: both count."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / fastest_s(device, lambda: target.copy_(source))


def copies_bytes_per_s(device: torch.device) -> dict[str, float]:
    """Rates of every kind of copy that the device has; bytes to and from the host count once."""
    rates = {WITHIN: within_bytes_per_s(device)}
    if device.type != "cuda":
        return rates
    size = COPY_BYTES[device.type]
    on_device = torch.ones(size, dtype=torch.uint8, device=device)
    for memory, is_locked in (("page-locked", True), ("pageable", False)):
        on_host = torch.ones(size, dtype=torch.uint8, pin_memory=is_locked)
        to_device_s = fastest_s(
            device, lambda host=on_host: on_device.copy_(host, non_blocking=True)
        )
        to_host_s = fastest_s(device, lambda host=on_host: host.copy_(on_device, non_blocking=True))
        rates[f"host to device, {memory}"] = size / to_device_s
        rates[f"device to host, {memory}"] = size / to_host_s
    return rates


def bus_bytes_per_s(size: int, ranks: int, seconds: float) -> float:
    """Bytes that each rank sends and receives in an all-reduce, in a second.

    An all-reduce of `size` bytes by a ring moves 2 (n - 1) / n of them over each link, whatever the
    number of ranks (NCCL's tests call it bus bandwidth: github.com/NVIDIA/nccl-tests,
    doc/PERFORMANCE.md).
    """
    return 2 * (ranks - 1) / ranks * size / seconds


def all_reduce_bytes_per_s(ranks: int, kind: str) -> float:
    """The bus rate of an all-reduce among so many GPUs of this machine,
    or among CPU ranks: that of the slowest.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_reduce, (ranks, kind, folder), nprocs=ranks)
        slowest_s = max(float(file.read_text()) for file in Path(folder).glob("seconds-*"))
    return bus_bytes_per_s(REDUCED_BYTES[kind], ranks, slowest_s)


def _reduce(rank: int, ranks: int, kind: str, folder: str) -> None:
    """One rank: writes the seconds of its fastest all-reduce to a file of the folder."""
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    store = f"file://{folder}/store"
    distributed.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    values = (
        torch.ones(REDUCED_BYTES[kind], dtype=torch.uint8, device=device)
        .view(torch.float32)
        .zero_()
    )
    seconds = fastest_s(device, lambda: distributed.all_reduce(values))
    Path(folder, f"seconds-{rank}").write_text(str(seconds))
    distributed.destroy_process_group()


def counts(gpus: int) -> list[int]:
    """1, 2, 4 ... and all GPUs: the numbers of them that are worth measuring."""
    powers = [2**power for power in range(gpus.bit_length())]
    return sorted({*(count for count in powers if count <= gpus), gpus})


def versions() -> dict[str, Any]:
    """Versions of the packages, of CUDA, of cuDNN and of the driver."""
    facts = environment.collect()
    gpus = facts["gpus"] or [{}]
    own = {"python": facts["python"], "CUDA": torch.version.cuda, "driver": gpus[0].get("driver")}
    return facts["packages"] | own | {"cuDNN": torch.backends.cudnn.version()}


def collect(gpus: int, kind: str) -> dict[str, Any]:
    """Hardware, versions, links and rates of this machine with so many GPUs, or CPU ranks;
    JSON-ready.
    """
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    rates = copies_bytes_per_s(device)
    for count in counts(gpus)[1:]:
        rates[f"{REDUCED}, {count} ranks"] = all_reduce_bytes_per_s(count, kind)
    name = torch.cuda.get_device_name(device) if kind == "cuda" else environment.cpu_model()
    links = topology.collect(devices.visible_gpus())["links"] if kind == "cuda" else []
    return {
        "hardware": name,
        "gpus": gpus if kind == "cuda" else 0,
        "cores": environment.cores(),
        "memory_bytes": (
            torch.cuda.mem_get_info(device)[1] if kind == "cuda" else environment.memory_bytes()
        ),
        "links": [link.get("link") for link in links],
        "versions": versions(),
        "bytes_per_s": rates,
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpus", type=int, default=len(devices.visible_gpus()) or 1)
    options.add_argument("--cpu", action="store_true", help="CPU ranks in place of GPUs")
    args = options.parse_args()
    print(json.dumps(collect(args.gpus, "cpu" if args.cpu else "cuda")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
