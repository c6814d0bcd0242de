"""What profilers call things, the exact times and unions of what they saw, and traces of real GPUs."""

import sqlite3
import tarfile
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicard.observe.profiles import kineto, nsys
from multicard.observe.profiles.events import COLUMNS, Kind, Metric, api, collective, covered, covered_by_group, metric
from multicard.observe.profiles.metrics import read
from tests.conftest import shared
from tests.helpers.profiler_files import ALL_REDUCE, BASE_US
from tests.observe.test_profiling import rows_of


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo_v2"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync_ptsz"),
        ("cuMemAlloc_v2", "cuMemAlloc_v2"),
        ("my_v7000_call", "my_v7000_call"),
    ],
)
def test_of_a_call_only_cuptis_version_is_left_out(name: str, bare: str):
    assert api(name) == bare


@pytest.mark.parametrize(
    ("name", "does", "detail"),
    [
        (ALL_REDUCE, "AllReduce", "RING LL"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(x<(unsigned long)4096>)", "AllReduce", "TREE LL128"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "AllReduce", "RING LL"),
        ("ncclKernel_AllReduce_COLLNET_DIRECT_SIMPLE_Sum_half(ncclDevComm*)", "AllReduce", "COLLNET DIRECT SIMPLE"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_SIMPLE(x)", "ReduceScatter", "RING SIMPLE"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "SendRecv", ""),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork", "SendRecv", "RING SIMPLE"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "Generic", ""),
        ("ncclSomethingNew", "other", ""),
    ],
)
def test_nccl_kernels_are_known_by_their_collective(name: str, does: str, detail: str):
    assert collective(name) == Metric("collective", f"nccl {does}", detail)


def test_a_kernel_counts_for_one_metric():
    assert metric(Kind.KERNEL, "void at::native::reduce_kernel<ncclFake>(int)") == Metric(
        "kernel", "void at::native::reduce_kernel<ncclFake>(int)"
    )
    assert metric(Kind.KERNEL, ALL_REDUCE) == Metric("collective", "nccl AllReduce", "RING LL")
    assert metric(Kind.RANGE, "nccl:all_reduce") == Metric("annotation", "nccl:all_reduce")  # the call, not the work
    assert metric(Kind.RANGE, "gloo:all_reduce") == Metric("collective", "gloo all_reduce")


def test_unions_of_intervals_equal_those_counted_one_by_one():
    random = np.random.default_rng(0)
    start = random.integers(0, 1000, 60)
    end, group = start + random.integers(0, 40, 60), random.integers(0, 5, 60)

    def marked(chosen: np.ndarray) -> int:
        line = np.zeros(2000, bool)
        for first, last in zip(start[chosen], end[chosen], strict=True):
            line[first:last] = True
        return int(line.sum())

    assert covered(start, end) == marked(np.arange(60)) and covered(start[:0], end[:0]) == 0
    assert covered_by_group(start, end, group).tolist() == [marked(np.flatnonzero(group == one)) for one in range(5)]


def test_times_are_exact_to_the_nanosecond():
    """Microseconds with three digits behind the point, as torch writes them."""
    random = np.random.default_rng(1)
    for base_us in (BASE_US, 8_000_000_000_000):
        ns = base_us * 1000 + np.sort(random.integers(0, 10**9, 500))
        same = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 0.001, "ts": '
        lines = [f"{same}{Decimal(int(time_ns)) / 1000}}}" for time_ns in ns]
        content = f'{{"traceEvents": [{",".join(lines)}]}}'
        columns = kineto.read(content.encode(), "a").columns
        assert {name: column.dtype for name, column in columns.items()} == COLUMNS
        assert columns["start_ns"].tolist() == ns.tolist()
        assert columns["end_ns"].tolist() == (ns + 1).tolist()


def test_names_of_nvtx_ranges_lose_what_emit_nvtx_adds():
    assert nsys._name(Kind.RANGE, "forward, op_id = 17") == "forward"
    assert nsys._name(Kind.RANGE, "ProfilerStep#3, seq = 4, op_id = 1") == "ProfilerStep#3"
    assert nsys._name(Kind.RANGE, "aten::mul, op_id = 322567") is None
    assert nsys._name(Kind.RANGE, "my range") == "my range"


A100 = {
    ("api", "cudaLaunchKernel"): 2550,
    ("api", "cudaDeviceSynchronize"): 0,  # the one in the file is the profiler's, after the steps
    ("copy", "memcpy Device-to-Device"): 960,
    ("collective", "nccl AllReduce"): 15,
    ("collective", "nccl Broadcast"): 6,
}
EIGHT = {("collective", "nccl AllReduce"): 8 * 3, ("collective", "nccl SendRecv"): 8 * 5}


@pytest.mark.parametrize(
    ("file", "ranks", "calls"), [("kineto_ddp_a100.json.gz", 1, A100), ("kineto_dlrm_8rank.tar.gz", 8, EIGHT)]
)
def test_calls_of_real_traces(file: str, ranks: int, calls: dict[Any, int], tmp_path: Path):
    paths = [shared("traces") / file]
    if ranks > 1:
        with tarfile.open(*paths) as archive:
            archive.extractall(tmp_path, filter="data")
        paths = sorted(tmp_path.rglob("*.json*"))
    profile = read(paths)
    total = rows_of(profile)
    assert {key: total[key].calls for key in calls} == calls
    assert [rank.rank for rank in profile.ranks] == [*range(ranks)]


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
