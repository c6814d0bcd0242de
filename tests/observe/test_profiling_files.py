"""Which files the reader of profiles takes, its command, what profilers call things,
and traces of real GPUs.
"""

import csv
import gzip
import json
import os
import re
import shlex
import shutil
import sqlite3
import tarfile
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicard.messages import Refusal
from multicard.observe.profiles import kineto, nsys
from multicard.observe.profiles.command import lines_of, main, profile_tables
from multicard.observe.profiles.events import (
    COLUMNS,
    EventKind,
    Metric,
    api,
    collective,
    covered,
    covered_by_group,
    metric,
)
from multicard.observe.profiles.metrics import OTHER, read_profile
from multicard.records.output import FORMATS
from multicard.records.schema_parts import ProfileDerived
from tests.conftest import shared
from tests.helpers.messages import Told, find, remedies, says, told
from tests.helpers.profiler_files import (
    ALL_REDUCE,
    BASE_US,
    Event,
    nsys_program,
    raw,
    write_kineto,
    write_nsys,
)
from tests.observe.test_profiling import MADE, figures, rows_of


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Told:
    """What the command says in its one line, having failed."""
    assert main([str(word) for word in words]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    (message,) = told(said.err)
    return message


def made_by_torch(path: Path) -> Path:
    """A trace of two steps on CPU, by torch.profiler itself."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2)
    ) as profiler:
        for _ in range(4):
            with record_function("forward"):
                torch.ones(8, 8).mm(torch.ones(8, 8))
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def test_a_trace_of_a_cpu_has_phases_and_steps_and_no_cuda(tmp_path: Path):
    profile = read_profile([made_by_torch(tmp_path / "cpu.json")])
    (rank,) = profile.ranks
    assert (rank.steps, rank.devices) == (2, [])
    assert rows_of(profile)["phase", "forward"].calls == 2
    assert rank.derived == ProfileDerived()
    assert profile.not_recorded == ()
    assert not {row.group for row in profile.rows} & {"api", "copy", "kernel", "derived"}


def test_gloo_is_told_as_communication_on_cpu(tmp_path: Path):
    """Two collectives that overlap on two threads, as c10d starts them from a third."""
    ranges = [
        Event("range", "ProfilerStep#1", 0, 1000, 1),
        Event("range", "gloo:all_reduce", 100, 300, 2),
    ]
    calls = [raw("cpu_op", "c10d::allreduce_", 90, 5)]
    profile = read_profile(
        [
            write_kineto(
                tmp_path / "a", [*ranges, Event("range", "gloo:all_reduce", 200, 300, 3), *calls]
            )
        ]
    )
    rows = rows_of(profile)
    reduce = rows["collective", "gloo all_reduce"]
    assert (reduce.calls, reduce.total_s) == (2, pytest.approx(600e-6))
    assert rows["annotation", "c10d::allreduce_"].calls == 1
    derived = profile.ranks[0].derived
    assert derived.communication_s == pytest.approx(400e-6)
    assert derived.exposed_communication_s is None


AWKWARD = [
    *MADE,
    raw("user_annotation", 'a},{"ph": "X"}] \\" \u00e9 \u4e2d', 1, 1),
    raw("kernel", "k", 3.5, 2, pid=0, args={"device": 0, "nested": [{"a": [1, 2]}, {"b": "}, {"}]}),
    {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": "x", "ts": 1.5},
    {"name": "process_name", "ph": "M", "ts": 0, "pid": 1, "tid": 0, "args": {"name": "python"}},
]


def test_awkward_names_nested_arguments_and_what_only_python_calls_json_are_read(tmp_path: Path):
    path = write_kineto(tmp_path / "a.json", AWKWARD, distributedInfo={"rank": 3})
    whole = read_profile([path])
    assert ("annotation", 'a},{"ph": "X"}] \\" \u00e9 \u4e2d') in rows_of(whole)
    assert rows_of(whole)["kernel", "k"].calls == 1
    assert [one.rank for one in whole.ranks] == [3]
    content = json.loads(path.read_text())
    content["traceEvents"][0]["args"] |= {"bandwidth": float("nan"), "text": "tab"}
    text = json.dumps(content, ensure_ascii=False)
    assert "NaN" in text
    path.write_bytes(text.replace('"tab"', '"\t"').encode() + b"\n")
    assert figures(read_profile([path])) == figures(whole)


def test_ranks_come_from_a_folder_or_several_files(tmp_path: Path):
    longer = [*MADE, Event("range", "ProfilerStep#7", 2000, 500, 1)]
    for rank, events in ((0, MADE), (2, MADE), (10, longer)):
        write_kineto(tmp_path / f"worker{rank}.json", events)
    first = tmp_path / "worker0.json"
    first.with_suffix(".json.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    (tmp_path / "notes.txt").write_text("nothing")
    profile = read_profile([tmp_path])
    assert [one.rank for one in profile.ranks] == [0, 2, 10]
    assert [one.window_s for one in profile.ranks] == pytest.approx([2e-3, 2e-3, 2.5e-3])
    assert figures(read_profile(sorted(tmp_path.glob("*.json*")))) == figures(profile)


def run_with_trace(folder: Path) -> Path:
    (folder / "profile").mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    write_kineto(folder / "profile" / "r00.json", MADE)
    (folder / "wandb" / "media" / "profile").mkdir(parents=True)
    (folder / "wandb" / "media" / "profile" / "table.json").write_text("{}")
    return folder


def test_a_trace_is_found_from_the_folder_or_name_of_its_run_or_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    cell = run_with_trace(Path("multirun/mine/lr=0.1 a"))
    for place in (cell / "profile", cell, "multirun/mine", "mine", "name=mine"):
        assert main([str(place)]) == 0
        assert "forward" in capsys.readouterr().out
    theirs = Path("theirs/rank 0")
    theirs.mkdir(parents=True)
    write_kineto(theirs / "trace.json", MADE)
    (theirs / "trace.json.gz").write_bytes(gzip.compress((theirs / "trace.json").read_bytes()))
    (theirs / "trace.json").unlink()
    assert main(["theirs"]) == 0
    run_with_trace(Path("multirun/mine/lr=0.2"))
    capsys.readouterr()
    message = refused(capsys, "mine")
    assert message.code == "trace.of-several-runs"
    assert len(message.facts["commands"]) == 2
    for command in message.facts["commands"]:
        assert main(shlex.split(command.partition(" profile ")[2])) == 0


def test_the_time_that_no_range_names_is_a_row_and_may_be_the_most(tmp_path: Path):
    events = [
        Event("range", "ProfilerStep#0", 0, 1000, 1),
        Event("range", "ProfilerStep#1", 1000, 1000, 1),
        Event("range", "data", 0, 100, 1),
        Event("range", "mine", 1000, 200, 1),
        Event("range", "mine", 1100, 50, 1),  # within the one before
        Event("range", "theirs", 300, 700, 2),  # of another thread
    ]
    profile = read_profile([write_kineto(tmp_path / "a.json", events)])
    other = rows_of(profile)["phase", OTHER]
    assert (other.calls, other.total_s) == (None, pytest.approx((2000 - 100 - 200) * 1e-6))
    _, metrics = profile_tables(profile, 10)
    told = find("\n".join(metrics.below), "profile.most-time")
    assert told.facts == {"part": OTHER, "share": 0.85}


def test_on_a_gpu_the_most_time_is_of_what_the_gpu_did(tmp_path: Path):
    profile = read_profile([write_kineto(tmp_path / "a.json", MADE)])
    assert ("phase", OTHER) not in rows_of(profile)
    _, metrics = profile_tables(profile, 10)
    assert says("\n".join(metrics.below), "profile.most-time", part="GPU computing", share=0.375)


def test_the_rank_is_the_files_own_then_its_names_then_its_place(tmp_path: Path):
    said = write_kineto(
        tmp_path / "rank7.json",
        MADE,
        distributedInfo={"backend": "nccl", "rank": 2, "world_size": 4},
    )
    named = write_kineto(tmp_path / "trace_r01.json", MADE)
    silent = [write_kineto(tmp_path / name, MADE) for name in ("first.json", "second.json")]
    ranks = read_profile([silent[0], said, named, silent[1]]).ranks
    assert [(one.rank, Path(one.where).name) for one in ranks] == [
        (0, "first.json"),
        (1, "trace_r01.json"),
        (2, "rank7.json"),
        (3, "second.json"),
    ]


def test_a_process_that_used_no_gpu_is_no_rank(tmp_path: Path):
    launcher = [Event("api", "cudaGetDeviceCount_v3020", 0, 10, 1)]
    profile = read_profile([write_nsys(tmp_path / "a.sqlite", {5: launcher, 9: MADE})])
    assert len(profile.ranks) == 1
    assert ("api", "cudaGetDeviceCount") not in rows_of(profile)
    alone = read_profile([write_nsys(tmp_path / "b.json", {5: launcher})])  # told by its content
    assert alone.source == "nsys" and [one.devices for one in alone.ranks] == [[]]


def test_what_cannot_be_read_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = write_kineto(tmp_path / "whole.json", MADE)
    content = whole.read_bytes()

    def written(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    packed = gzip.compress(content)
    sqlite = write_nsys(tmp_path / "a.sqlite", {1: MADE})
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER)")
    older = write_nsys(tmp_path / "older.sqlite", {9: MADE})
    with closing(sqlite3.connect(older)) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    cases: dict[Path, tuple[str, dict[str, Any]]] = {
        tmp_path / "absent.json": ("trace.no-file", {}),
        written("empty.json", b""): ("trace.empty-file", {}),
        written("binary", b"\x00" + os.urandom(64) + b"\xff"): ("trace.unknown-form", {}),
        written("object.json", b'{"a": [1, {"b": 2}]}'): ("trace.no-trace-events", {}),
        written("wrong.json", content.replace(b'"dur": 400', b'"dur": four', 1)): (
            "trace.no-json",
            {},
        ),
        written("types.json", content.replace(b'"dur": 400', b'"dur": "4"', 1)): (
            "trace.not-kineto",
            {},
        ),
        write_kineto(tmp_path / "none.json", []): ("trace.no-events", {}),
        written("bad.json.gz", packed[:100] + b"\0" * 50 + packed[150:]): ("trace.damaged", {}),
        tmp_path / "other.sqlite": ("nsys.no-cupti", {}),
        older: ("nsys.unknown-schema", {"reason": "no such column: globalPid"}),
        written("cut.sqlite", sqlite.read_bytes()[:9000]): ("nsys.sqlite", {}),
        write_nsys(tmp_path / "idle.sqlite", {}): ("trace.no-events", {}),
    }
    for path, (code, facts) in cases.items():
        message = refused(capsys, path)
        assert message.code == code and message.has({"file": str(path)} | facts), message
    (tmp_path / "folder").mkdir()
    assert refused(capsys, tmp_path / "folder") == Told(
        "trace.none-in-folder", None, {"folder": f"{tmp_path}/folder"}
    )
    both = refused(capsys, sqlite, whole)
    assert both.code == "trace.of-both-profilers"
    assert both.has({"file": str(sqlite), "other": str(whole), "source": "nsys"})
    (tmp_path / "elsewhere").mkdir()
    again = shutil.copy(write_kineto(tmp_path / "rank1.json", MADE), tmp_path / "elsewhere")
    same = refused(capsys, tmp_path / "rank1.json", again)
    assert same == Told(
        "trace.same-rank", None, {"file": str(again), "other": f"{tmp_path}/rank1.json", "rank": 1}
    )
    absent = refused(capsys, whole, "--rank", "5")
    assert absent == Told("profile.no-rank", "--rank", {"value": 5, "ranks": [0]})
    with pytest.raises(SystemExit, match="1"):
        main([str(whole), "--top", "0"])
    # within the text that argparse makes of it
    assert "profile.bad-number" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main([str(whole), "--json", str(tmp_path / "no" / "a.json")])
    said = capsys.readouterr().err
    assert "output.no-folder" in said and str(tmp_path / "no") in said


def test_a_trace_cut_off_anywhere_is_known_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    content = write_kineto(tmp_path / "a.json", AWKWARD).read_bytes()
    for share in (0.02, 0.3, 0.95, 0.999):
        (tmp_path / "cut.json").write_bytes(content[: int(len(content) * share)])
        message = refused(capsys, tmp_path / "cut.json")
        assert (message.code, message.facts["bytes"]) == (
            "trace.cut-off",
            int(len(content) * share),
        )


def test_the_table_fits_and_says_what_it_must(tmp_path: Path):
    width = 100
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::Functor<float>,"
        " at::detail::Array<int> >(int)"
    )
    paths = [
        write_kineto(tmp_path / f"r{i}.json", [*MADE, Event("kernel", name, 10, 5 + i, 7)])
        for i in range(2)
    ]
    lines = lines_of(profile_tables(read_profile(paths), top=3), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for words in ("  cudaEventDestroy: ", "nccl AllReduce  RING LL", "Kernels", "exposed"):
        assert words in text
    assert says(text, "profile.summed")
    assert "cudaEventDestroy" in find(text, "profile.not-recorded", source="kineto").facts["names"]
    launches = next(line for line in lines if line.startswith("  cudaLaunchKernel  "))
    assert launches.split()[1:6] == ["4", "24", "us", "6.001", "us"]
    # its name gives way to its figures
    kernel = next(line for line in lines if line.startswith("  at::native"))
    assert kernel.partition("…")[2].split()[:5] == ["2", "11", "us", "5.5", "us"]
    alone = lines_of(profile_tables(read_profile(paths), top=2, rank=1), width)
    assert next(line for line in alone if line.startswith("  cudaLaunchKernel  ")).split()[1] == "2"
    assert "Kernels, 2 of 3" in alone
    assert "(int)" not in text


def test_json_and_csv_hold_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = [write_kineto(tmp_path / f"r{rank}.json", MADE) for rank in range(2)]
    words = [
        *map(str, paths),
        "--json",
        str(tmp_path / "out.json"),
        "--csv",
        str(tmp_path / "out.csv"),
        "--top",
        "1",
    ]
    assert main(words) == 0
    assert "API calls" in capsys.readouterr().out
    profile = read_profile(paths)
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(
        json.dumps(profile.as_dict(1))
    )
    with (tmp_path / "out.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["rank", "metric", "calls", "total_s", "bytes"]
    rows = [
        ("all" if row.rank is None else row.rank, row.metric, row.calls, row.total_s, row.bytes)
        for row in profile.rows
    ]
    rows += [(None, name, None, None, None) for name in profile.not_recorded]
    expected = [
        [rank, *("" if cell is None else str(cell) for cell in cells)] for rank, *cells in rows
    ]
    assert [[*line.values()] for line in lines] == [
        ["all" if r is None else str(r), *cells] for r, *cells in expected
    ]
    said = {}
    for form in FORMATS:
        assert main([*map(str, paths), "--top", "1", f"--{form}", "-"]) == 0
        said[form] = capsys.readouterr().out
    assert (
        said["json"] == (tmp_path / "out.json").read_text()
        and said["csv"] == (tmp_path / "out.csv").read_text()
    )
    assert re.search(r"^\| *cudaLaunchKernel +\| +4 \|", said["markdown"], re.MULTILINE)
    assert said["latex"].count(r"\begin{table}") == 2 and "cudaLaunchKernel" in said["latex"]


def test_a_report_is_exported_by_nsys_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    export = write_nsys(tmp_path / "made", {1: MADE})
    report = tmp_path / "job_rank3.nsys-rep"
    report.write_bytes(b"NVTX")
    assert refused(capsys, report) == Told("nsys.not-on-path", None, {"file": str(report)})
    with pytest.raises(Refusal) as caught:
        read_profile([report])
    assert remedies(caught.value) == ["nsys export --type sqlite job_rank3.nsys-rep"]
    # its arguments: export --type sqlite --force-overwrite true -o TARGET REPORT
    checks = f'[ "$1 $2 $3 $6" = "export --type sqlite -o" ] && [ "$8" = "{report}" ]'
    nsys_program(tmp_path / "bin", f'{checks} && cp "{export}" "$7"', monkeypatch)
    profile = read_profile([report])
    assert [(one.rank, one.where) for one in profile.ranks] == [(3, str(report))]
    assert profile.ranks[0].derived == read_profile([export]).ranks[0].derived
    assert not report.with_suffix(".sqlite").exists()  # nothing is left beside it
    nsys_program(tmp_path / "bin", 'echo "FATAL: no such report format" >&2; exit 1', monkeypatch)
    failed = refused(capsys, report)
    assert failed == Told(
        "nsys.export-failed", None, {"file": str(report), "reason": "FATAL: no such report format"}
    )
    shutil.copy(export, report.with_suffix(".sqlite"))
    assert len(read_profile([tmp_path]).ranks) == 1  # the export that is there already


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
        (
            "ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(x<(unsigned long)4096>)",
            "AllReduce",
            "TREE LL128",
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "AllReduce", "RING LL"),
        (
            "ncclKernel_AllReduce_COLLNET_DIRECT_SIMPLE_Sum_half(ncclDevComm*)",
            "AllReduce",
            "COLLNET DIRECT SIMPLE",
        ),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_SIMPLE(x)", "ReduceScatter", "RING SIMPLE"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "SendRecv", ""),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork",
            "SendRecv",
            "RING SIMPLE",
        ),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "Generic", ""),
        ("ncclSomethingNew", "other", ""),
    ],
)
def test_nccl_kernels_are_known_by_their_collective(name: str, does: str, detail: str):
    assert collective(name) == Metric("collective", f"nccl {does}", detail)


def test_a_kernel_counts_for_one_metric():
    assert metric(EventKind.KERNEL, "void at::native::reduce_kernel<ncclFake>(int)") == Metric(
        "kernel", "void at::native::reduce_kernel<ncclFake>(int)"
    )
    assert metric(EventKind.KERNEL, ALL_REDUCE) == Metric("collective", "nccl AllReduce", "RING LL")
    # the call, not the work
    assert metric(EventKind.RANGE, "nccl:all_reduce") == Metric("annotation", "nccl:all_reduce")
    assert metric(EventKind.RANGE, "gloo:all_reduce") == Metric("collective", "gloo all_reduce")


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
    assert covered_by_group(start, end, group).tolist() == [
        marked(np.flatnonzero(group == one)) for one in range(5)
    ]


def test_times_are_exact_to_the_nanosecond():
    """Microseconds with three digits behind the point, as torch writes them."""
    random = np.random.default_rng(1)
    for base_us in (BASE_US, 8_000_000_000_000):
        ns = base_us * 1000 + np.sort(random.integers(0, 10**9, 500))
        same = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 0.001, "ts": '
        lines = [f"{same}{Decimal(int(time_ns)) / 1000}}}" for time_ns in ns]
        content = f'{{"traceEvents": [{",".join(lines)}]}}'
        columns = kineto.read_trace(content.encode(), "a").columns
        assert {name: column.dtype for name, column in columns.items()} == COLUMNS
        assert columns["start_ns"].tolist() == ns.tolist()
        assert columns["end_ns"].tolist() == (ns + 1).tolist()


def test_names_of_nvtx_ranges_lose_what_emit_nvtx_adds():
    assert nsys._event_name(EventKind.RANGE, "forward, op_id = 17") == "forward"
    assert (
        nsys._event_name(EventKind.RANGE, "ProfilerStep#3, seq = 4, op_id = 1") == "ProfilerStep#3"
    )
    assert nsys._event_name(EventKind.RANGE, "aten::mul, op_id = 322567") is None
    assert nsys._event_name(EventKind.RANGE, "my range") == "my range"


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
def test_calls_of_real_traces(file: str, ranks: int, calls: dict[Any, int], tmp_path: Path):
    paths = [shared("traces") / file]
    if ranks > 1:
        with tarfile.open(*paths) as archive:
            archive.extractall(tmp_path, filter="data")
        paths = sorted(tmp_path.rglob("*.json*"))
    profile = read_profile(paths)
    total = rows_of(profile)
    assert {key: total[key].calls for key in calls} == calls
    assert [rank.rank for rank in profile.ranks] == [*range(ranks)]


def test_an_export_of_nsys_with_two_gpus():
    path = shared("traces") / "nsys_2gpu_1s.sqlite"
    profile = read_profile([path])
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
            query = (
                'SELECT count(*), sum("end" - start) / 1e9, sum(bytes) FROM'
                " CUPTI_ACTIVITY_KIND_MEMCPY "
            )
            row = rows["copy", f"memcpy {name}"]
            assert (row.calls, pytest.approx(row.total_s), row.bytes) == database.execute(
                f"{query} WHERE copyKind = {kind}"
            ).fetchone()
        (kernels,) = database.execute(
            'SELECT sum("end" - start) / 1e9 FROM CUPTI_ACTIVITY_KIND_KERNEL'
        ).fetchone()
        assert sum(row.total_s for row in rows.values() if row.group == "kernel") == pytest.approx(
            kernels
        )
    # emit_nvtx's operators are none
    assert not any(row.group == "annotation" for row in rows.values())
