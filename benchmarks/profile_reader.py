"""Speed and memory of the reader of Kineto traces.

    python -m benchmarks.profile_reader [--megabytes 200] [--rounds 3] [--file TRACE]

The trace is synthetic, with Kineto's layout and mix of events (of 10, three are operators, two CUDA calls, two arrows,
two kernels and one a copy) and the names of some hundred kernels. Each round reads it in a new process, whose peak is
its resident set (VmHWM), imports included. --file reads a trace of your own instead.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, machine, parser
from multicard.measure import memory, timing

BASE_US = 4392593071980
STEP_US = 100_000
GAP_US = 10.125  # between events, so that times have Kineto's three digits
CALL = '"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 9, "tid": 9,\n    "ts": {ts:.3f}, "dur": 4.251'
KERNEL = '"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},\n    "ts": {ts:.3f}, "dur": 9.504'
OP = '"ph": "X", "cat": "cpu_op", "name": "aten::{name}", "pid": 9, "tid": 9,\n    "ts": {ts:.3f}, "dur": 7.133'
OP_ARGS = '"External id": {id},"Record function id": 0, "Sequence number": {id}, "Fwd thread id": 0, "Ev Idx": {id}'
DEVICE_ARGS = '"External id": {id},\n      "device": 0, "context": 1,\n      "stream": {stream}, "correlation": {call}'
SIZES = '\n      "registers per thread": 40,\n      "grid": [512, 1, 1],\n      "block": [512, 1, 1]'


def write(path: Path, size_bytes: int) -> int:
    """Write a trace of at least this size.

    Returns:
        The number of its events.
    """
    count = written = 0
    with path.open("w") as file:
        file.write('\n{\n  "schemaVersion": 1,\n  "distributedInfo": {"rank": 0},\n  "traceEvents": [')
        while written < size_bytes:
            file.write(",\n" if count else "\n")
            written += file.write(f"  {{\n    {_event(count)}\n  }}")
            count += 1
        file.write('\n  ],\n  "traceName": "made.json",\n  "displayTimeUnit": "ms"\n}\n')
    return count


def _event(index: int) -> str:
    ts, stream = BASE_US + index * GAP_US, 7 if index % 20 else 40
    if index % 10_000 == 0:
        step = f'"name": "ProfilerStep#{index // 10_000}", "pid": 9, "tid": 9'
        return f'"ph": "X", "cat": "user_annotation", {step}, "ts": {ts:.3f}, "dur": {STEP_US}.0, "args": {{}}'
    which = index % 10
    if which < 3:
        return OP.format(name=f"op{index % 50}", ts=ts) + f',\n    "args": {{\n      {OP_ARGS.format(id=index)}\n    }}'
    if which < 5:
        name = "cudaLaunchKernel" if which == 3 else f"cudaCall{index % 13}"
        args = f'"External id": {index}, "cbid": 211, "correlation": {index}'
        return CALL.format(name=name, ts=ts) + f',\n    "args": {{\n      {args}\n    }}'
    if which < 7:
        return f'"ph": "s", "id": {index}, "pid": 9, "tid": 9, "ts": {ts:.3f},\n    "cat": "ac2g", "name": "ac2g"'
    args = DEVICE_ARGS.format(id=index, stream=stream, call=index - min(which - 3, 5))
    if which < 9:
        name = f"void at::native::vectorized_elementwise_kernel<4, Functor{index % 300}<float> >(int, float*)"
        name = name if index % 200 else "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return KERNEL.format(name=name, ts=ts, stream=stream) + f',\n    "args": {{\n      {args},{SIZES}\n    }}'
    copied = KERNEL.replace("kernel", "gpu_memcpy").format(name="Memcpy HtoD (Pinned -> Device)", ts=ts, stream=stream)
    return f'{copied},\n    "args": {{\n      {args}, "bytes": 4096\n    }}'


def measured(path: Path) -> dict[str, Any]:
    """Read a file in a new process: seconds from its start, seconds of reading alone, and its peak in bytes."""
    line = [sys.executable, "-m", "benchmarks.profile_reader", "--read", str(path)]
    started_s = timing.clock_s()
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout) | {"process_s": timing.clock_s() - started_s}


def _read(path: Path) -> None:
    """The work of the process that `measured` starts."""
    from multicard.observe.profiles import load

    started_s = timing.clock_s()
    profile = load.read([path])
    read_s = timing.clock_s() - started_s
    figures = {"read_s": read_s, "peak_memory_bytes": memory.peak_resident_bytes(), "rows": len(profile.rows)}
    print(json.dumps(figures))


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--megabytes", type=int, default=200)
    options.add_argument("--file", type=Path)
    options.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.read is not None:
        _read(args.read)
        return
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        path = args.file or Path(folder) / "made.json"
        if args.file is None:
            print(f"{write(path, args.megabytes * 1_000_000):,} events, {path.stat().st_size / 1e6:.0f} MB")
        rounds = [measured(path) for _ in range(args.rounds)]
    megabytes = (args.file.stat().st_size if args.file else args.megabytes * 1_000_000) / 1e6
    for name in ("read_s", "process_s"):
        seconds = statistics.median(figures[name] for figures in rounds)
        print(f"{name}: median {seconds:.2f} of {args.rounds} rounds, {megabytes / seconds:.0f} MB/s")
    print(f"peak memory: {max(figures['peak_memory_bytes'] for figures in rounds) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
