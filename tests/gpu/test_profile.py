"""Profiled and diagnosed runs on a CUDA device."""

from typing import Any

import pytest

from tests.conftest import Measured, ok
from tests.gpu.test_cuda import CUDA, pytestmark  # noqa: F401 - marks this module too


def rows(result: dict[str, Any], group: str) -> dict[str, dict[str, Any]]:
    """The rows of a group, summed over ranks."""
    profile = ok(result)["profile"]
    assert "rows" in profile, profile
    return {row["metric"]: row for row in profile["rows"] if row["group"] == group and row["rank"] is None}


@pytest.mark.parametrize("pin_memory", ["true", "false"])
def test_what_kineto_sees_of_training_is_what_was_counted(measured: Measured, pin_memory: str):
    result = measured(CUDA, "profile=kineto", "diagnose=true", f"pin_memory={pin_memory}", "dataset.image_size=64")
    calls, copies = rows(result, "api"), rows(result, "copy")
    assert calls["cudaLaunchKernel"]["calls"] > 100 and calls["cudaMemcpyAsync"]["calls"] > 0
    assert "cudaEventDestroy" in result["profile"]["not_recorded"] and "cudaEventDestroy" not in calls
    assert abs(result["profile"]["h2d"]["disagreement"]) <= 0.02
    assert copies["memcpy Host-to-Device"]["detail"] == ("pinned" if pin_memory == "true" else "pageable")
    assert {"data", "h2d", "forward", "backward", "optimizer"} <= set(rows(result, "phase"))
    (rank,) = result["profile"]["ranks"]
    assert 0 < rank["derived"]["gpu_busy_share"] <= 1
    assert rank["steps"] == 10
    assert set(result["diagnosis"]["step_s"]) == {"whole", "host", "device", "input", "half"}


def test_what_kineto_sees_of_tuning_is_what_was_counted(tuned: Measured):
    result = tuned(CUDA, "profile=kineto", "profile.steps=3", "precision=bf16", "diagnose=true")
    assert rows(result, "api")["cudaLaunchKernel"]["calls"] > 100
    assert {"data", "forward", "backward", "optimizer"} <= set(rows(result, "phase"))
    assert abs(result["profile"]["h2d"]["disagreement"]) <= 0.02
    assert result["diagnosis"]["step_s"]["device"] > 0
