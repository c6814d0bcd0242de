"""Versions, `nvidia-smi`, and the bandwidth of copies within the device, from the host and to it.

    python -m benchmarks.bandwidth [--megabytes 2048]

The last line is JSON. A copy within the device reads and writes, and both count; a copy from or to the host counts its
bytes once. Each is the fastest of ten, timed by CUDA events. Without a GPU: copies within the host's memory.
"""

import json
import shutil
import subprocess

import torch

from benchmarks.common import device_here, machine, parser
from multicard.machine import environment
from multicard.measure import timing

TIMES = 10


def copy_s(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> float:
    """Seconds of the fastest of `TIMES` copies, after one that has all pages in place."""
    marks = timing.Marks(device)
    target.copy_(source)
    marks.add()
    for _ in range(TIMES):
        target.copy_(source, non_blocking=True)
        marks.add()
    return float(min(marks.seconds()))


def default_size(device: torch.device) -> int:
    """Bytes of a copy that is larger than all caches."""
    return 2**31 if device.type == "cuda" else 2**28


def within_bytes_per_s(device: torch.device, size: int) -> float:
    """Bytes read and written by a copy of `size` bytes."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    return 2 * size / copy_s(torch.empty_like(source), source, device)


def all_bytes_per_s(device: torch.device, size: int) -> dict[str, float]:
    """Rates of every kind of copy that the device has."""
    rates = {"within the device": within_bytes_per_s(device, size)}
    if device.type == "cuda":
        on_device = torch.ones(size, dtype=torch.uint8, device=device)
        for memory, locked in (("page-locked", True), ("pageable", False)):
            on_host = torch.ones(size, dtype=torch.uint8, pin_memory=locked)
            rates[f"host to device, {memory}"] = size / copy_s(on_device, on_host, device)
            rates[f"device to host, {memory}"] = size / copy_s(on_host, on_device, device)
    return rates


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--megabytes", type=int, help="of a copy: 2048, or 256 without a GPU")
    args = options.parse_args()
    device = device_here()
    if shutil.which("nvidia-smi"):
        print(subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout)
    size = args.megabytes * 2**20 if args.megabytes else default_size(device)
    facts = environment.collect()
    versions = facts["packages"] | {"python": facts["python"], "CUDA": torch.version.cuda}
    versions |= {"cuDNN": torch.backends.cudnn.version(), "driver": (facts["gpus"] or [{}])[0].get("driver")}
    figures = {"hardware": machine(device), "versions": versions, "bytes_per_s": all_bytes_per_s(device, size)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
