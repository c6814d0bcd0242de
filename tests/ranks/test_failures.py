"""What ends a rank, above all for want of memory, and what it leaves: checkpoints and logs."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest
import torch

from multicard.measure import memory
from multicard.measure.memory import DeviceMemory
from multicard.messages import Refusal
from multicard.ranks import checkpoint, elastic, failures, process
from multicard.ranks.failures import Failure
from multicard.ranks.process import Rank, RankSettings
from tests.conftest import warm_up
from tests.helpers.launching import launch
from tests.helpers.messages import Told, refused, told


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "gpu"),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            "gpu",
        ),
        (
            torch.distributed.DistBackendError("NCCL error ... Cuda failure 2 'out of memory'"),
            "gpu",
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
            ),
            "host",
        ),
        (
            RuntimeError(
                "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling"
                " `cusolverDnCreate(handle)`"
            ),
            "gpu",
        ),
        (RuntimeError("OOM trying to allocate workspace for cublaslt"), "gpu"),
        (
            RuntimeError(
                "unable to mmap 40 bytes from file <model.safetensors>: Cannot allocate memory (12)"
            ),
            "host",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host"),
        (MemoryError(), "host"),
        (RuntimeError("Connection closed by peer"), None),
        (ValueError("out of memory is only a word here"), None),
    ],
)
def test_out_of_memory_errors_are_recognised(error: BaseException, ran_out: str | None):
    assert failures.is_oom(error) is (ran_out is not None)
    assert ran_out is None or failures.is_host_oom(error) is (ran_out == "host")
    assert "2.15 GB" in failures.in_a_line(error) or "GiB" not in str(error)
    assert failures.is_oom(error, DeviceMemory(0, 80 << 30, 1)) is (
        ran_out is not None
    )  # these need no memory to be told


def test_colours_of_an_error_are_not_kept():
    error = ValueError("\x1b[1m\x1b[31mno such layer\x1b[0m\nmore")
    assert failures.in_a_line(error) == "no such layer"


@pytest.mark.parametrize(
    "message",
    [
        "GET was unable to find an engine to execute this computation",
        (
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a"
            " non-contiguous input."
        ),
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        (
            "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for"
            " details)"
        ),
    ],
)
def test_an_engine_that_is_not_there_is_oom_where_memory_was_full(message: str):
    error, total = RuntimeError(message), 80 << 30
    assert not failures.is_oom(error)
    assert not failures.is_oom(error, DeviceMemory(40 << 30, total, 0))  # bf16 on an old GPU, say
    assert failures.is_oom(error, DeviceMemory(1 << 30, total, 0))  # under 2 % of 80 GiB
    assert not failures.is_oom(error, DeviceMemory(1 << 30, 24 << 30, 0))
    assert failures.is_oom(error, DeviceMemory((1 << 30) - 1, 24 << 30, 0))
    # torch could not allocate the workspace
    assert failures.is_oom(error, DeviceMemory(40 << 30, total, 1))


def test_a_rank_reports_an_engine_that_is_not_there_by_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    (tmp_path / "ranks").mkdir()
    monkeypatch.setattr(process, "held_memory_bytes", lambda _: 79 << 30)

    def reported(held: DeviceMemory | None) -> Failure:
        monkeypatch.setattr(process, "device_memory", lambda _: held)
        process._report(RankSettings(tmp_path, "cuda", "nccl", 1, 1, "system"), 0, error)
        return msgspec.json.decode(process.error_file(tmp_path, 0).read_bytes(), type=Failure)

    full = reported(DeviceMemory(250_000_000, 80_000_000_000, 0))
    assert (full.kind, full.ran_out, full.memory_bytes) == ("oom", "gpu", 79 << 30)
    memory_bytes = {"free_bytes": 250_000_000, "total_bytes": 80_000_000_000}
    assert (
        full.code == "rank.gpu-full"
        and full.facts == {"reason": f"RuntimeError: {error}"} | memory_bytes
    )
    for held in (DeviceMemory(40 << 30, 80 << 30, 0), None):
        assert reported(held) == Failure("exception", f"RuntimeError: {error}")


def test_a_refusal_of_a_rank_keeps_its_code_on_the_way_to_the_record(tmp_path: Path):
    (tmp_path / "ranks").mkdir()
    refusal = Refusal("batch.too-large", "batch_size=9: too large", key="batch_size", value=9)
    process._report(RankSettings(tmp_path, "cpu", "gloo", 1, 1, "system"), 0, refusal)
    failure = elastic._failure(tmp_path, 0, 1)
    assert (failure.kind, failure.code, failure.key, failure.facts) == (
        ("exception", "batch.too-large", "batch_size", {"value": 9})
    )
    assert failure.message == f"rank 0: {refusal}"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("opens", [False, True])
def test_a_full_disk_as_ranks_start_is_one_line_that_names_it(tmp_path: Path, capfd, opens: bool):
    """A rank whose log cannot be opened, and one that cannot print: without a report,
    and with one.
    """
    warm_up()
    folder = tmp_path / "cell"
    (folder / "logs").mkdir(parents=True)
    if not opens:
        process.log_file(folder, 0).mkdir()
    capfd.readouterr()
    failure = launch("print_to_a_full_disk", folder=folder)
    assert failure is not None and failure.kind == "disk"
    assert failure.code == ("disk.full" if opens else "folder.unwritable")
    named = {"reason": os.strerror(errno.ENOSPC)} if opens else {"folder": str(folder), "rank": 0}
    assert failure.facts | named == failure.facts and len(failure.message.splitlines()) == 1
    assert "".join(capfd.readouterr()) == ""


def test_a_full_disk_that_its_error_does_not_name_is_the_fullest_of_those_that_ranks_write_to(
    tmp_path, monkeypatch
):
    """Tensors of a loader's workers do not fit /dev/shm, and the error names no file."""
    shared, job = tmp_path / "shm", RankSettings(tmp_path / "cell", "cpu", "gloo", 1, 1, "system")
    shared.mkdir()
    (job.folder / "ranks").mkdir(parents=True)
    free = {job.folder: 10**9, shared: 0}
    monkeypatch.setattr(failures, "SHARED_MEMORY", shared)
    monkeypatch.setattr(
        failures.shutil,
        "disk_usage",
        lambda path: SimpleNamespace(free=free.get(Path(path), 10**10)),
    )
    error = OSError(errno.ENOSPC, "No space left on device")
    process._report(job, 0, error)
    report = msgspec.json.decode(process.error_file(job.folder, 0).read_bytes(), type=Failure)
    assert (report.kind, report.code) == ("disk", "disk.full")
    assert report.facts == {"path": str(shared), "reason": "No space left on device"}
    monkeypatch.setattr(elastic, "_config", mock.Mock(side_effect=error))  # before there is a rank
    assert launch("fail", folder=job.folder) == report


def test_a_full_disk_is_found_behind_other_errors():
    full = OSError(errno.ENOSPC, "No space left on device", "/data/r00.pt")
    try:
        try:
            raise full
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # torch.save's writer, as it is closed
    except RuntimeError as error:
        assert failures.disk_full(error) is full
    assert (
        failures.disk_full(OSError(errno.ENOENT, "No such file"))
        is failures.disk_full(RuntimeError())
        is None
    )


GROUPS = {
    "version 2": ("0::/job_7/step_0", "job_7/memory.events", "low 0\nmax 9\noom 3\noom_kill {}\n"),
    "version 2 in a container": ("0::/", "memory.events", "oom_kill {}\noom_group_kill 0\n"),
    "version 1": (
        "9:cpu:/\n4:memory:/slurm/job_7",
        "memory/slurm/job_7/memory.oom_control",
        "oom_kill {}\n",
    ),
    "version 1 in a container": (
        "4:memory:/docker/0a1b\n0::/",
        "memory/memory.oom_control",
        "oom_kill {}\n",
    ),
}


@pytest.mark.parametrize(("own", "file", "text"), GROUPS.values(), ids=GROUPS)
def test_a_rank_that_the_kernel_killed_for_want_of_memory_is_oom(
    tmp_path, monkeypatch, own: str, file: str, text: str
):
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(memory, "PROCESS_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    assert memory.oom_kills() is None
    count = tmp_path / file
    count.parent.mkdir(parents=True, exist_ok=True)
    count.write_text(text.format(2))
    assert memory.oom_kills() == 2

    def judged(failure: Failure) -> Failure | None:
        return elastic._oom_if_killed(failure, 2)

    killed, crashed = (
        elastic._failure(tmp_path, 1, -number) for number in (signal.SIGKILL, signal.SIGSEGV)
    )
    assert killed.code == "rank.killed" and judged(killed) == killed
    count.write_text(text.format(3))
    of_torch = Failure(
        "exception", "rank 1: RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. "
    )
    older = Failure("signal", "rank 1 was killed by SIGKILL")  # of a record without codes
    for ended in (killed, of_torch, older):
        failure = judged(ended)
        assert failure is not None and (failure.kind, failure.ran_out, failure.rank) == (
            "oom",
            "host",
            ended.rank,
        )
        assert failure.code == "rank.out-of-memory" and failure.key == "memory_gb"
        assert failure.facts == {"reason": ended.message}
    assert crashed.facts["signal"] == "SIGSEGV" and judged(crashed) == crashed
    assert elastic._oom_if_killed(None, 2) is None


def alone(world_size: int = 1) -> Rank:
    return Rank(0, 0, world_size, torch.device("cpu"), "gloo", 1)


def test_the_last_checkpoint_replaces_those_before(tmp_path: Path):
    assert checkpoint.latest(tmp_path) is checkpoint.load_checkpoint(tmp_path, alone()) is None
    for steps in (3, 20):
        # saved when its run was killed
        half = tmp_path / "checkpoint" / f"s{steps - 1:08d}" / "r01.pt"
        half.parent.mkdir(parents=True)
        half.touch()
        checkpoint.save(
            tmp_path, alone(), steps, {"weights": torch.arange(steps), "name": "x", "none": None}
        )
        assert checkpoint.latest(tmp_path) == steps
    assert sorted(path.name for path in (tmp_path / "checkpoint").rglob("*")) == [
        "latest.json",
        "r00.pt",
        "s00000020",
    ]
    state = checkpoint.load_checkpoint(tmp_path, alone())
    assert state is not None and state["weights"].tolist() == list(range(20))
    assert (state["name"], state["none"]) == ("x", None)
    checkpoint.remove(tmp_path)
    checkpoint.remove(tmp_path)  # nothing is there, and nothing is wrong
    assert checkpoint.latest(tmp_path) is None and not list(tmp_path.iterdir())


def test_another_number_of_ranks_is_refused(tmp_path: Path):
    checkpoint.save(tmp_path, alone(), 5, {})
    with refused("checkpoint.other-ranks", key="gpus", before=1, now=3):
        checkpoint.load_checkpoint(tmp_path, alone(world_size=3))


@pytest.mark.parametrize("seen", [0, 5])
def test_a_rank_that_sees_an_older_checkpoint_than_the_others_is_refused(
    tmp_path, monkeypatch, seen: int
):
    if seen:
        checkpoint.save(tmp_path, alone(), seen, {})
    monkeypatch.setattr(checkpoint, "max_over_ranks", lambda rank, steps: max(steps, 9))
    with refused("checkpoint.late", rank=0, seen=seen, newest=9):
        checkpoint.load_checkpoint(tmp_path, alone())


@pytest.mark.usefixtures("processes")
def test_the_controller_needs_no_torch_for_it():
    line = "import sys, multicard.ranks.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0


def test_a_long_log_keeps_its_first_and_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elastic, "MAX_LOG_BYTES", 100)
    monkeypatch.setattr(elastic, "LOG_PART_BYTES", 10)
    log = process.log_file(tmp_path, 0)
    log.parent.mkdir()
    log.write_bytes(b"first part" + bytes(101) + b"last part.")
    elastic.shorten_logs(tmp_path, {})
    kept = log.read_text()
    assert kept.startswith("first part\n") and kept.endswith("\nlast part.")
    assert told(kept) == [Told("log.shortened", facts={"bytes": 101})]
