"""The metrics of traces that profilers wrote on real GPUs, against sums made here over the same files."""

import gzip
import json
import sqlite3
import tarfile
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from multicard.observe.profiles.load import read
from tests.conftest import shared
from tests.observe.test_profiling import rows_of


def raw_sums(trace: dict[str, Any]) -> tuple[dict[tuple[str, str], list[float]], Counter[str]]:
    """By category and name: calls, seconds and bytes of what the steps started or launched; summed here alone."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = [e for e in events if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    first, last = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")}
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0])
    everywhere: Counter[str] = Counter()
    for event in events:
        everywhere[event["name"]] += 1
        at = event["ts"]
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            number = event["args"]["correlation"]
            at = calls.get(number, at if number > min(calls) else first - 1)
        if first <= at < last:
            entry = sums[event["cat"], event["name"]]
            entry[0] += 1
            entry[1] += event["dur"] / 1e6
            entry[2] += event.get("args", {}).get("bytes", 0)
    return sums, everywhere


def test_a_trace_of_ddp_on_a100():
    path = shared("traces") / "kineto_ddp_a100.json.gz"
    sums, everywhere = raw_sums(json.loads(gzip.decompress(path.read_bytes())))
    profile = read([path])
    rows = rows_of(profile, 0)
    assert rows["api", "cudaLaunchKernel"].calls == everywhere["cudaLaunchKernel"] == 2550
    for (category, name), (calls, total_s, _) in sums.items():
        if category in ("cuda_runtime", "kernel") and not name.startswith("nccl"):
            row = rows["api" if category == "cuda_runtime" else "kernel", name]
            assert (row.calls, row.total_s) == (calls, pytest.approx(total_s)), name
    copies = rows["copy", "memcpy Device-to-Device"]
    calls, total_s, size = sums["gpu_memcpy", "Memcpy DtoD (Device -> Device)"]
    assert (copies.calls, copies.total_s, copies.bytes) == (960, pytest.approx(total_s), size)
    assert calls == 960
    collectives = [row for row in rows.values() if row.group == "collective"]
    assert {row.metric: (row.calls, row.detail) for row in collectives} == {
        "nccl AllReduce": (15, "RING LL"),
        "nccl Broadcast": (6, "RING LL"),
    }
    nccl_s = sum(
        total_s for (category, name), (_, total_s, _) in sums.items() if category == "kernel" and "nccl" in name
    )
    assert sum(row.total_s for row in collectives) == pytest.approx(nccl_s)
    assert rows["api", "cudaDeviceSynchronize"].calls == 0  # the one in the file is the profiler's, after the steps
    assert everywhere["cudaDeviceSynchronize"] == 1
    assert profile.ranks[0].steps == 3


def test_busy_and_exposed_time_of_a_real_trace_equal_those_counted_in_a_sweep():
    """All starts and ends of device operations in order, with how many of each sort are running in between."""
    path = shared("traces") / "kineto_ddp_a100.json.gz"
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    points = []
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            sort = "talk" if event["name"].startswith("nccl") else "compute" if event["cat"] == "kernel" else "copy"
            points += [(event["ts"], 1, sort), (event["ts"] + event["dur"], -1, sort)]
    running, busy_us, exposed_us, before = Counter[str](), 0.0, 0.0, 0.0
    for at, change, sort in sorted(points):
        busy_us += (at - before) * (sum(running.values()) > 0)
        exposed_us += (at - before) * (running["talk"] > 0 and running["compute"] == 0)
        running[sort] += change
        before = at
    (rank,) = read([path]).ranks  # all device operations of this file are within its steps
    assert rank.derived.gpu_busy_share == pytest.approx(busy_us / 1e6 / rank.window_s, rel=1e-5)
    assert rank.derived.exposed_communication_s == pytest.approx(exposed_us / 1e6, rel=1e-5)


def test_a_trace_of_an_mi250():
    path = shared("traces") / "kineto_mi250.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    sums, everywhere = raw_sums(trace)
    rows = rows_of(read([path]))
    launches = rows["derived", "launches"]
    assert launches.calls == everywhere["hipLaunchKernel"] + everywhere["hipExtModuleLaunchKernel"] == 12 + 2
    of_calls = [sums["cuda_runtime", name][1] for name in ("hipLaunchKernel", "hipExtModuleLaunchKernel")]
    assert launches.total_s == pytest.approx(sum(of_calls)) == pytest.approx(6638.561e-6)
    sizes = [int(e["args"]["size"]) for e in trace["traceEvents"] if e["name"] == "hipMemcpyWithStream"]
    copies = rows["copy", "memcpy Host-to-Device"]
    assert (copies.calls, copies.bytes, copies.total_s) == (2, sum(sizes), pytest.approx(38.161e-6))
    # the only synchronisation in the file is the profiler's, after the steps
    assert everywhere["hipDeviceSynchronize"] == 1
    assert rows["api", "hipDeviceSynchronize"].calls == 0


def test_traces_of_eight_ranks(tmp_path: Path):
    with tarfile.open(shared("traces") / "kineto_dlrm_8rank.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    paths = sorted(tmp_path.rglob("*.json*"))
    raw = [json.loads(path.read_text()) for path in paths]
    profile = read(paths)
    assert [one.rank for one in profile.ranks] == list(range(8))
    left_over = {}
    for trace in raw:
        rank = trace["distributedInfo"]["rank"]
        sums, _ = raw_sums(trace)
        rows = rows_of(profile, rank)
        assert (rows["collective", "nccl AllReduce"].calls, rows["collective", "nccl SendRecv"].calls) == (3, 5)
        calls, total_s, _ = sums["cuda_runtime", "cudaLaunchKernel"]
        assert (rows["api", "cudaLaunchKernel"].calls, rows["api", "cudaLaunchKernel"].total_s) == (
            calls,
            pytest.approx(total_s),
        )
        sizes = sum(size for (_, name), (_, _, size) in sums.items() if name.startswith("Memcpy HtoD"))
        assert rows["copy", "memcpy Host-to-Device"].bytes == sizes
        kernels = sum(calls for (category, _), (calls, _, _) in sums.items() if category == "kernel")
        assert sum(row.calls or 0 for row in rows.values() if row.group in ("kernel", "collective")) == kernels
        recorded = sum(event.get("cat") == "kernel" for event in trace["traceEvents"])
        left_over[rank] = recorded - kernels
    # what ranks of this job were still running of the warm-up: Kineto has these kernels and not their launches
    assert {rank: count for rank, count in left_over.items() if count} == {1: 64, 3: 64}
    total = rows_of(profile)
    assert (total["collective", "nccl AllReduce"].calls, total["collective", "nccl SendRecv"].calls) == (24, 40)


def test_an_export_of_nsys_with_two_gpus():
    path = shared("traces") / "nsys_2gpu_1s.sqlite"
    profile = read([path])
    assert [(one.rank, one.devices) for one in profile.ranks] == [(0, [0]), (1, [1])]
    rows = rows_of(profile)
    for name, calls, total_ms in [
        ("cudaLaunchKernel", 2788, 509.7),
        ("cudaLaunchKernelExC", 558, 422.5),
        ("cudaMemcpyAsync", 914, 6.94),
        ("cudaStreamSynchronize", 8, 856.9),
    ]:
        row = rows["api", name]
        assert (row.calls, row.total_s * 1e3) == (calls, pytest.approx(total_ms, rel=1e-3))
    assert rows["api", "cudaEventDestroy"].calls == 236
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        for kind, name in ((1, "Host-to-Device"), (2, "Device-to-Host"), (8, "Device-to-Device")):
            query = 'SELECT count(*), sum("end" - start) / 1e9, sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY '
            row = rows["copy", f"memcpy {name}"]
            assert (row.calls, pytest.approx(row.total_s), row.bytes) == database.execute(
                f"{query} WHERE copyKind = {kind}"
            ).fetchone()
        (kernels,) = database.execute('SELECT sum("end" - start) / 1e9 FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
        assert sum(row.total_s for row in rows.values() if row.group == "kernel") == pytest.approx(kernels)
    assert not any(row.group == "annotation" for row in rows.values())  # emit_nvtx's operators are none
