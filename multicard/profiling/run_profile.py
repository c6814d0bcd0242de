"""The record's `profile`: metrics of the profiled steps, the cost of profiling, and copies against those counted."""

from pathlib import Path
from typing import Any

from multicard.config.keys import require
from multicard.profiling.load import read
from multicard.profiling.names import COPIES
from multicard.profiling.profile_data import Profile


def of_run(folder: Path, ranks: list[dict[str, Any]], result: dict[str, Any]) -> dict[str, Any]:
    """The record's `profile`; with `error` alone if the profiler left nothing readable.

    Args:
        ranks: `capture.Window.result` of each rank.
        result: the rest of the record.
    """
    files = sorted(path for path in (folder / "profile").iterdir() if path.name.endswith((".json.gz", ".nsys-rep")))
    steps = ranks[0]["steps"]
    try:
        profile = read(files)
        recorded = {rank.steps for rank in profile.ranks}
        require(recorded == {steps}, f"{folder / 'profile'}: holds {recorded} steps a rank, not the window's {steps}")
    except ValueError as error:
        return {"error": str(error)}
    steps_s = result.get("step_s") or result["iteration_s"]
    inside_s = max(rank["window_s"] for rank in ranks) / steps
    outside_s = steps_s["mean"]
    return {
        **profile.as_dict(),
        "files": [str(path.relative_to(folder)) for path in files],
        "first_step": ranks[0]["first_step"],
        "steps": steps,
        # the cost of profiling: a step in the window over an unprofiled step of the run
        "step_s": {"inside": inside_s, "outside": outside_s, "ratio": outside_s and inside_s / outside_s},
        "h2d": _h2d_bytes(profile, ranks, steps, steps_s["count"] + steps_s["warmup_count"]),
    }


def _h2d_bytes(profile: Profile, ranks: list[dict[str, Any]], steps: int, run_steps: int) -> dict[str, Any]:
    """Bytes from host to device in the window, summed over ranks: counted by the loop, and profiled.

    The profiled bytes are also scaled to all steps of the run; they are None where the profiler saw no device.
    """
    counted = sum(rank["counted_h2d_bytes"] for rank in ranks)
    profiled = next((row.bytes for row in profile.of(None) if row.metric == COPIES["HtoD"]), None)
    return {
        "counted_bytes": counted,
        "profiled_bytes": profiled,
        "disagreement": (profiled - counted) / counted if profiled is not None and counted else None,
        "whole_run_bytes": None if profiled is None else round(profiled / steps * run_steps),
        "source": "the profiler's window, scaled by steps",
    }
