"""The metrics of traces that profilers wrote on real GPUs, against sums made here over the same files."""

import gzip
import json
import sqlite3
import tarfile
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from multicard.observe.profiles.load import read
from tests.conftest import shared
from tests.observe.test_profiling import rows_of

GROUPS = {"cuda_runtime": "api", "cuda_driver": "api", "kernel": "kernel"}


def raw_sums(trace: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    """By category and name: calls, seconds and bytes of what the steps started or launched; summed here alone."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = [e for e in events if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    first, last = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")}
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0])
    for event in events:
        at = event["ts"]
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            number = event["args"]["correlation"]
            at = calls.get(number, at if number > min(calls) else first - 1)
        if first <= at < last:
            entry = sums[event["cat"], event["name"]]
            entry[0] += 1
            entry[1] += event["dur"] / 1e6
            entry[2] += event.get("args", {}).get("bytes", 0)
    return sums


A100 = {
    ("api", "cudaLaunchKernel"): 2550,
    ("api", "cudaDeviceSynchronize"): 0,  # the one in the file is the profiler's, after the steps
    ("copy", "memcpy Device-to-Device"): 960,
    ("collective", "nccl AllReduce"): 15,
    ("collective", "nccl Broadcast"): 6,
}
EIGHT = {("collective", "nccl AllReduce"): 8 * 3, ("collective", "nccl SendRecv"): 8 * 5}


@pytest.mark.parametrize(
    ("file", "ranks", "calls"),
    [("kineto_ddp_a100.json.gz", 1, A100), ("kineto_dlrm_8rank.tar.gz", 8, EIGHT)],
)
def test_rows_of_traces_equal_the_sums_over_their_events(file: str, ranks: int, calls: dict[Any, int], tmp_path: Path):
    paths = [shared("traces") / file]
    if ranks > 1:
        with tarfile.open(*paths) as archive:
            archive.extractall(tmp_path, filter="data")
        paths = sorted(tmp_path.rglob("*.json*"))
    profile = read(paths)
    total = rows_of(profile)
    assert {key: total[key].calls for key in calls} == calls
    assert [rank.rank for rank in profile.ranks] == [*range(ranks)]
    for rank in profile.ranks:
        content = Path(rank.where).read_bytes()
        trace = json.loads(gzip.decompress(content) if rank.where.endswith(".gz") else content)
        sums, rows = raw_sums(trace), rows_of(profile, rank.rank)
        for (category, name), (count, total_s, _) in sums.items():
            if category in GROUPS and not name.startswith("nccl"):
                row = rows[GROUPS[category], name]
                assert (row.calls, row.total_s) == (count, pytest.approx(total_s)), name
        kernels = [row for row in rows.values() if row.group in ("kernel", "collective")]
        of_trace = [entry for (category, _), entry in sums.items() if category == "kernel"]
        assert sum(row.calls or 0 for row in kernels) == sum(count for count, *_ in of_trace)
        assert sum(row.total_s for row in kernels) == pytest.approx(sum(total_s for _, total_s, _ in of_trace))
        for way, name in (("HtoD", "Host-to-Device"), ("DtoD", "Device-to-Device")):
            moved = sum(size for (_, event), (*_, size) in sums.items() if event.startswith(f"Memcpy {way}"))
            assert (rows["copy", f"memcpy {name}"].bytes or 0) == moved


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
