"""Errors that end a rank: which of them mean that memory ran out."""

import json
from pathlib import Path

import pytest
import torch

from multicard.measure.memory import DeviceMemory
from multicard.ranks import failures, process
from multicard.ranks.process import Job


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (torch.distributed.DistBackendError("NCCL error ... Cuda failure 2 'out of memory'"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"), True),
        (RuntimeError("OOM trying to allocate workspace for cublaslt"), True),
        (MemoryError(), True),
        (RuntimeError("Connection closed by peer"), False),
        (ValueError("out of memory is only a word here"), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error: BaseException, expected: bool):
    assert failures.is_oom(error) is expected
    assert failures.is_oom(error, DeviceMemory(0, 80 << 30, 1)) is expected  # these need no memory to be told


@pytest.mark.parametrize(
    "message",
    [
        "GET was unable to find an engine to execute this computation",
        "FIND was unable to find an engine to execute this computation",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    ],
)
def test_an_engine_that_is_not_there_is_oom_where_memory_was_full(message: str):
    error, total = RuntimeError(message), 80 << 30
    assert not failures.is_oom(error)
    assert not failures.is_oom(error, DeviceMemory(40 << 30, total, 0))  # bf16 on an old GPU, say
    assert failures.is_oom(error, DeviceMemory(1 << 30, total, 0))  # under 2 % of 80 GiB
    assert not failures.is_oom(error, DeviceMemory(1 << 30, 24 << 30, 0))
    assert failures.is_oom(error, DeviceMemory((1 << 30) - 1, 24 << 30, 0))
    assert failures.is_oom(error, DeviceMemory(40 << 30, total, 1))  # torch could not allocate the workspace


def test_a_rank_reports_an_engine_that_is_not_there_by_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    job = Job(tmp_path, "cuda", "nccl", 1, 1, "system")
    (tmp_path / "ranks").mkdir()
    monkeypatch.setattr(process, "held_memory_bytes", lambda _: 79 << 30)
    reports = []
    for memory in (DeviceMemory(250_000_000, 80_000_000_000, 0), DeviceMemory(40 << 30, 80 << 30, 0), None):
        monkeypatch.setattr(process, "device_memory", lambda _, memory=memory: memory)
        process._report(job, 0, error)
        reports.append(json.loads(process.error_file(tmp_path, 0).read_text()))
    full, roomy, unknown = reports
    assert (full["kind"], full["memory_bytes"]) == ("oom", 79 << 30)
    assert full["message"] == f"RuntimeError: {error} (250 MB of 80 GB free)"
    assert roomy == unknown == {"kind": "exception", "message": f"RuntimeError: {error}", "memory_bytes": None}
