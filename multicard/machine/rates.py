"""Measure how many bytes a machine moves per second: in copies and in all-reduces among its GPUs.

    python -m multicard.machine.rates [--gpus N] [--cpu]

prints versions, links and rates as one line of JSON. Copies run within a device, to it and from
it. Each rate is the fastest of ten repetitions after one warm-up, timed by CUDA events on a GPU.
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
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # Larger than all caches.
REDUCED_BYTES = {"cuda": 2**28, "cpu": 2**24}
WITHIN_DEVICE = "within the device"
ALL_REDUCE = "all-reduce"


def fastest_s(device: torch.device, operation: Any) -> float:
    """Return the seconds of the fastest of `REPETITIONS` calls of `repeated`, after one warm-up."""
    operation()
    laps = timing.Laps(device)
    for _ in range(REPETITIONS):
        operation()
        laps.end()
    return min(lap_s for _, lap_s in laps.known(wait=True))


def within_bytes_per_s(device: torch.device) -> float:
    """Return the rate of copying within the device. Bytes read and bytes written both count."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / fastest_s(device, lambda: target.copy_(source))


def copies_bytes_per_s(device: torch.device) -> dict[str, float]:
    """Return the rate of each kind of copy. Bytes to and from the host count once."""
    rates = {WITHIN_DEVICE: within_bytes_per_s(device)}
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
    """Return how many bytes each rank sends and receives per second in an all-reduce.

    A ring all-reduce of `size` bytes moves 2 (n - 1) / n of them over each link, whatever the
    number n of ranks. NCCL's tests call this the bus bandwidth (github.com/NVIDIA/nccl-tests,
    doc/PERFORMANCE.md).
    """
    return 2 * (ranks - 1) / ranks * size / seconds


def all_reduce_bytes_per_s(ranks: int, kind: str) -> float:
    """Return the bus rate of an all-reduce among GPUs of this machine, or among CPU ranks.

    The slowest rank counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_all_reduce_as_rank, (ranks, kind, folder), nprocs=ranks)
        slowest_s = max(float(file.read_text()) for file in Path(folder).glob("seconds-*"))
    return bus_bytes_per_s(REDUCED_BYTES[kind], ranks, slowest_s)


def _all_reduce_as_rank(rank: int, ranks: int, kind: str, folder: str) -> None:
    """Run one rank's all-reduces, and write the seconds of the fastest to a file in `folder`."""
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
    """Return the numbers of GPUs that are worth measuring: 1, 2, 4 ... and all."""
    powers = [2**power for power in range(gpus.bit_length())]
    return sorted({*(count for count in powers if count <= gpus), gpus})


def versions() -> dict[str, Any]:
    """Return the versions of the packages, CUDA, cuDNN and the driver."""
    facts = environment.collect()
    gpus = facts["gpus"] or [{}]
    other_versions = {
        "python": facts["python"],
        "CUDA": torch.version.cuda,
        "driver": gpus[0].get("driver"),
    }
    return facts["packages"] | other_versions | {"cuDNN": torch.backends.cudnn.version()}


def collect(gpus: int, kind: str) -> dict[str, Any]:
    """Return hardware, versions, links and rates of this machine, ready for JSON."""
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    rates = copies_bytes_per_s(device)
    for count in counts(gpus)[1:]:
        rates[f"{ALL_REDUCE}, {count} ranks"] = all_reduce_bytes_per_s(count, kind)
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
