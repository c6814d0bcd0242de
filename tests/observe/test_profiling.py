"""The metrics of profiler files, in closed form on made ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from multicard.observe.profiles.metrics import Profile, read_profile
from multicard.records.schema_parts import ProfileRow
from tests.helpers.profiler_files import ALL_REDUCE, BASE_US, Event, raw, write_kineto, write_nsys

# Two steps, of 1000 us each. On the device, of 2000 us from the first copy: compute in 200-900 and
# 1600-1650, and until 100 what began before the steps; communication in 800-1200 and 1500-1700;
# copies in 100-150, 1250-1300 and 1900-2100.
MADE = [
    Event("range", "ProfilerStep#5", 0, 1000, 1),
    Event("range", "ProfilerStep#6", 1000, 1000, 1),
    Event("range", "forward", 0, 400, 1),
    Event("range", "forward", 100, 100, 1),  # within the one before
    Event("range", "backward", 400, 350, 2),
    Event("range", "mine", 1000, 10, 2),
    Event("api", "cudaLaunchKernel_v7000", -50, 10, 1),  # of the warm-up
    Event("api", "cudaLaunchKernel_v7000", 10, 5.001, 1),
    Event("api", "cudaLaunchKernel_v7000", 20, 7, 1),
    Event("api", "cudaLaunchKernelExC_v11060", 30, 3, 1),
    Event("api", "cudaMemcpyAsync_v3020", 90, 4, 1),
    Event("api", "cudaStreamSynchronize_v3020", 1000, 100, 1),
    Event("api", "cudaEventSynchronize_v3020", 1050, 100, 1),  # overlaps the one before
    Event("api", "cudaDeviceSynchronize_v3020", 1950, 200, 2),  # half a step beyond the end
    Event("api", "cudaDeviceSynchronize_v3020", 2500, 100, 1),  # the profiler's own
    Event("kernel", "void gemm<float>(float*)", -100, 200, 7),
    Event("kernel", "void gemm<float>(float*)", 200, 300, 7),
    Event("kernel", "void gemm<float>(float*)", 600, 300, 7),
    Event("kernel", "relu", 400, 300, 8),
    Event("kernel", "relu", 1600, 50, 8),
    Event("kernel", ALL_REDUCE, 800, 400, 20),
    Event("kernel", ALL_REDUCE, 1500, 200, 20),
    Event("copy", "Memcpy HtoD (Pinned -> Device)", 100, 50, 9, 4096),
    Event("copy", "Memcpy HtoD (Pageable -> Device)", 1250, 50, 9, 1000),
    Event("copy", "Memcpy DtoH (Device -> Pinned)", 1900, 200, 9, 64),
    Event("memset", "Memset (Device)", 1300, 10, 7, 512),
]


def rows_of(profile: Profile, rank: int | None = None) -> dict[tuple[str, str], ProfileRow]:
    return {(row.group, row.metric): row for row in profile.rank_rows(rank)}


def figures(profile: Profile) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """All that the rows of all ranks say, without the calls
    that only one of the profilers records.
    """
    rows = [row for row in profile.rows if row.metric != "cudaEventDestroy"]
    return {
        (row.rank, row.group, row.metric): (
            row.calls,
            row.total_s,
            row.bytes,
            row.detail,
            row.share,
        )
        for row in rows
    }


def read_as(source: str, folder: Path, events: Sequence[Event]) -> Profile:
    """The profile of events as one of both profilers writes them."""
    path = folder / "made"
    path.unlink(missing_ok=True)
    return read_profile(
        [write_kineto(path, events) if source == "kineto" else write_nsys(path, {77: events})]
    )


@pytest.mark.parametrize("source", ["kineto", "nsys"])
def test_overlap_exposure_and_gaps_have_their_closed_form(tmp_path: Path, source: str):
    profile = read_as(source, tmp_path, MADE)
    (rank,) = profile.ranks
    assert (profile.source, rank.rank, rank.steps, rank.devices) == (source, 0, 2, [0])
    assert rank.window_s == pytest.approx(2e-3)
    busy = 50 + 1000 + 60 + 200 + 200
    derived = rank.derived
    assert derived.gpu_busy_share == pytest.approx(busy / 2000)
    assert derived.compute_s == pytest.approx((700 + 50) * 1e-6)
    assert derived.communication_s == pytest.approx(600e-6)
    assert derived.exposed_communication_s == pytest.approx((300 + 150) * 1e-6)
    assert derived.overlap_share == pytest.approx(1 - 450 / 600)
    assert derived.launch_gap_s == pytest.approx((2000 - busy) * 1e-6)
    assert derived.blocked_s == pytest.approx((150 + 50) * 1e-6)
    rows = rows_of(profile)
    launches = rows["derived", "launches"]
    assert (launches.calls, launches.total_s) == (3, pytest.approx(15.001e-6))
    assert launches.detail == "cudaLaunchKernel, cudaLaunchKernelExC"
    assert rows["derived", "GPU busy"].total_s == pytest.approx(busy * 1e-6)
    gemm = rows["kernel", "void gemm<float>(float*)"]
    assert (gemm.calls, gemm.bytes) == (2, None)
    assert (gemm.total_s, gemm.mean_s, gemm.share) == pytest.approx((600e-6, 300e-6, 0.3))
    reduce = rows["collective", "nccl AllReduce"]
    assert (reduce.calls, reduce.total_s, reduce.detail) == (2, pytest.approx(600e-6), "RING LL")
    h2d, d2h = rows["copy", "memcpy Host-to-Device"], rows["copy", "memcpy Device-to-Host"]
    assert (h2d.calls, h2d.bytes, h2d.detail) == (2, 5096, "pageable, pinned")
    assert (d2h.calls, d2h.total_s, d2h.bytes) == (1, pytest.approx(200e-6), 64)
    assert rows["copy", "memcpy Peer-to-Peer"].calls == 0
    assert rows["api", "cudaDeviceSynchronize"].calls == 1
    forward = rows["phase", "forward"]
    assert (forward.calls, forward.total_s) == (2, pytest.approx(400e-6))
    assert ("annotation", "mine") in rows
    assert not any("ProfilerStep" in name for _, name in rows)


# A step of 1000 us of a compiled model: one kernel of cuBLAS, three of Triton, a graph,
# and a callback, no launch
COMPILED = [
    Event("range", "ProfilerStep#0", 0, 1000, 1),
    Event("api", "cudaLaunchKernel_v7000", 10, 5, 1),
    *(
        Event("api", name, 20 + 10 * i, 4 + i, 1)
        for i, name in enumerate(["cuLaunchKernel", "cuLaunchKernel"])
    ),
    Event("api", "cuLaunchKernelEx", 50, 7, 1),
    Event("api", "cudaGraphLaunch_v10000", 70, 11, 1),
    Event("api", "cudaLaunchHostFunc_v10000", 90, 100, 1),
    Event("api", "cuLaunchKernel", 1200, 50, 1),  # after the steps
    Event("kernel", "triton_poi_fused_add_0", 100, 30, 7),
]


@pytest.mark.parametrize("source", ["kineto", "nsys"])
def test_launches_through_the_driver_and_of_graphs_count(tmp_path: Path, source: str):
    rows = rows_of(read_as(source, tmp_path, COMPILED))
    launches = rows["derived", "launches"]
    assert (launches.calls, launches.total_s) == (5, pytest.approx((5 + 4 + 5 + 7 + 11) * 1e-6))
    assert launches.detail == "cuLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, cudaLaunchKernel"
    assert rows["api", "cuLaunchKernel"].calls == 2


def lagging(steps: int) -> list[Event]:
    """Steps of 1000 us, each with a copy, a memset and a graph of
    two kernels that the device runs a step later.

    The markers leave out the first step, a warm-up, and the last, which comes after them.
    """
    events = []
    for step in range(steps):
        at, number = 1000.0 * step, 100 + 10 * step
        events += (
            [Event("range", f"ProfilerStep#{step}", at, 1000, 1)] if 0 < step < steps - 1 else []
        )
        events += [Event("api", "cudaMemcpyAsync_v3020", at + 10, 5, 1, launch=number)]
        events += [Event("api", "cudaMemsetAsync_v3020", at + 20, 5, 2, launch=number + 1)]
        events += [Event("api", "cudaGraphLaunch_v10000", at + 30, 5, 1, launch=number + 2)]
        size = 2**step  # so that a sum of bytes tells which steps are in it
        later = at + 1000
        events += [
            Event("copy", "Memcpy HtoD (Pinned -> Device)", later + 100, 50, 9, size, launch=number)
        ]
        events += [Event("memset", "Memset (Device)", later + 200, 50, 7, size, launch=number + 1)]
        events += [
            Event("kernel", "relu", later + 300 + 100 * i, 50 + step, 7, launch=number + 2)
            for i in range(2)
        ]
    return events[::-1]  # in no order of time


@pytest.mark.parametrize("source", ["kineto", "nsys"])
def test_shares_are_of_the_devices_time_where_the_host_is_ahead(tmp_path: Path, source: str):
    """Three steps that the host is done with in 300 us,
    and whose kernels take the device 10 times as long.
    """
    events = []
    for step in range(3):
        events += [Event("range", f"ProfilerStep#{step}", 100 * step, 100, 1)]
        events += [Event("api", "cudaLaunchKernel_v7000", 100 * step + 10, 50, 1, launch=step + 1)]
        events += [Event("kernel", "relu", 40 + 1000 * step, 900, 7, launch=step + 1)]
    profile = read_as(source, tmp_path, events)
    (rank,), rows = profile.ranks, rows_of(profile)
    assert rank.window_s == pytest.approx(2900e-6)
    shares = (rank.derived.gpu_busy_share, rows["kernel", "relu"].share)
    assert shares == (pytest.approx(2700 / 2900), pytest.approx(2700 / 2900))
    assert rank.derived.launch_gap_s == pytest.approx(200e-6)
    assert rows["api", "cudaLaunchKernel"].share == pytest.approx(150 / 2900)


# Kineto drops them and keeps what they launched
@pytest.mark.parametrize("calls_of_the_warm_up", [True, False])
@pytest.mark.parametrize("source", ["kineto", "nsys"])
def test_what_a_lagging_device_runs_counts_for_the_step_that_launched_it(
    tmp_path: Path, source: str, calls_of_the_warm_up: bool
):
    events = [
        one
        for one in lagging(6)
        if calls_of_the_warm_up or one.kind != "api" or one.start_us > 1000
    ]
    profile = read_as(source, tmp_path, events)
    rows = rows_of(profile)
    for name in ("memcpy Host-to-Device", "memset"):
        row = rows["copy", name]
        assert (row.calls, row.bytes, row.total_s) == (
            4,
            2 + 4 + 8 + 16,
            pytest.approx(200e-6),
        ), name
    assert (rows["kernel", "relu"].calls, rows["kernel", "relu"].total_s) == (
        8,
        pytest.approx(2 * 210e-6),
    )
    assert rows["api", "cudaMemcpyAsync"].calls == 4
    # unions of time are of the same steps: busy as long as the rows say,
    # as nothing of them overlaps
    assert profile.ranks[0].window_s == pytest.approx(4e-3)
    assert rows["derived", "GPU busy"].total_s == pytest.approx(
        (4 * 100 + 2 * (51 + 52 + 53 + 54)) * 1e-6
    )


@pytest.mark.parametrize("source", ["kineto", "nsys"])
def test_what_was_launched_by_no_call_in_the_trace_counts_by_its_own_start(
    tmp_path: Path, source: str
):
    """Kineto records few calls of the driver; a correlation of 0 is CUPTI's for none."""
    where = {"none": None, "unknown": 0, "of the driver": 115}
    extra = [
        Event("kernel", name, start, 10, 8, launch=launch)
        for name, launch in where.items()
        for start in (900, 1700, 5100)  # before the markers, within and after them
    ]

    def calls(events: list[Event]) -> list[int | None]:
        rows = rows_of(read_as(source, tmp_path, events))
        return [rows["kernel", name].calls for name in where]

    assert calls(lagging(6) + extra) == [1, 1, 1]
    # where calls are recorded, but none of those that launch, their absence says nothing
    of_profiler = Event("api", "cudaDeviceSynchronize_v3020", 6000, 5, 1, launch=900)
    assert calls([one for one in lagging(6) if one.kind == "range"] + [*extra, of_profiler]) == [
        1,
        1,
        1,
    ]


def test_both_profilers_give_equal_figures(tmp_path: Path):
    other = [
        event._replace(device=1, us=2 * event.us, name=event.name.replace("relu", "gelu"))
        for event in MADE
    ]
    first = read_profile(
        [write_kineto(tmp_path / f"rank{i}.json", part) for i, part in enumerate([MADE, other])]
    )
    second = read_profile([write_nsys(tmp_path / "a.sqlite", {90: other, 91: MADE})])
    assert [one.devices for one in second.ranks] == [[0], [1]]  # by device, not by process
    assert figures(first) == figures(second)
    assert [one.derived for one in first.ranks] == [one.derived for one in second.ranks]


def test_a_call_that_kineto_drops_is_not_told_as_zero(tmp_path: Path):
    events = [*MADE, Event("api", "cudaEventDestroy_v3020", 50, 2, 1)]
    assert (
        rows_of(read_profile([write_nsys(tmp_path / "a", {1: events})]))[
            "api", "cudaEventDestroy"
        ].calls
        == 1
    )
    profile = read_profile([write_kineto(tmp_path / "b", MADE)])
    assert "cudaEventDestroy" in profile.not_recorded
    assert ("api", "cudaEventDestroy") not in rows_of(profile)
    assert (
        rows_of(read_profile([write_nsys(tmp_path / "c", {1: MADE})]))[
            "api", "cudaEventDestroy"
        ].calls
        == 0
    )
    recorded = read_profile([write_kineto(tmp_path / "d", events)])  # should a later Kineto keep it
    assert "cudaEventDestroy" not in recorded.not_recorded
    assert rows_of(recorded)["api", "cudaEventDestroy"].calls == 1


def test_the_sum_over_ranks_is_of_the_rows_and_shares_of_the_summed_windows(tmp_path: Path):
    longer = [*MADE, Event("range", "ProfilerStep#7", 2000, 2000, 1)]
    profile = read_profile(
        [write_kineto(tmp_path / "r0.json", MADE), write_kineto(tmp_path / "r1.json", longer)]
    )
    assert [one.steps for one in profile.ranks] == [2, 3] and profile.steps == 5
    rows = [rows_of(profile, rank)["api", "cudaDeviceSynchronize"] for rank in (0, 1, None)]
    assert [row.calls for row in rows] == [1, 2, 3]
    assert (
        rows[2].total_s == pytest.approx(rows[0].total_s + rows[1].total_s) == pytest.approx(500e-6)
    )
    assert [row.share for row in rows] == pytest.approx([0.1, 0.075, 500 / 6000])


def test_without_step_markers_the_window_is_all_events(tmp_path: Path):
    events = [event for event in MADE if not event.name.startswith("ProfilerStep")]
    lagged = [
        one
        for one in lagging(6)
        if one.kind != "range" and (one.kind != "api" or one.start_us > 1000)
    ]
    for source in ("kineto", "nsys"):
        (rank,) = read_as(source, tmp_path, events).ranks
        assert rank.steps is None and rank.window_s == pytest.approx(2700e-6)  # -100 to 2600
        assert (
            rows_of(read_as(source, tmp_path, lagged))["copy", "memcpy Host-to-Device"].bytes == 63
        )


def test_operators_that_no_metric_counts_widen_the_window_only(tmp_path: Path):
    ops = [
        raw("cpu_op", "aten::mm", -4000, 10),
        raw("Trace", "PyTorch Profiler (0)", 0, 9, pid="Spans", tid="x", ts=0),
    ]
    profile = read_profile(
        [write_kineto(tmp_path / "a", [*ops, Event("range", "mine", 0, 1000, 1)])]
    )
    assert profile.ranks[0].window_s == pytest.approx(5e-3)
    assert list(rows_of(profile)) == [("annotation", "mine")]


def test_an_annotation_on_the_device_is_a_metric_of_its_own(tmp_path: Path):
    device = raw("gpu_user_annotation", "forward", 60, 900, pid=0)
    # is no step and no window
    marker = device | {"name": "ProfilerStep#5", "ts": BASE_US, "dur": 9000}
    rows = rows_of(read_profile([write_kineto(tmp_path / "a", [*MADE, device, marker])]))
    assert rows["phase", "forward"].calls == 2
    assert (rows["phase", "forward (device)"].calls, rows["phase", "forward (device)"].total_s) == (
        1,
        900e-6,
    )
    assert rows["derived", "GPU busy"].total_s == pytest.approx(1510e-6)


def test_the_record_for_a_run_holds_the_longest_kernels_only(tmp_path: Path):
    many = [Event("kernel", f"k{index}", 10 * index, index, 7) for index in range(1, 31)]
    record = json.loads(json.dumps(read_profile([write_kineto(tmp_path / "a", many)]).as_dict()))
    for rank in (0, None):
        kernels = [
            row["metric"]
            for row in record["rows"]
            if row["rank"] == rank and row["group"] == "kernel"
        ]
        assert kernels == [f"k{index}" for index in range(30, 10, -1)]
    derived = record["ranks"][0]["derived"]
    # no communication, and no API calls in it
    assert derived["overlap_share"] is derived["blocked_s"] is None
