"""A run's profile for its record: its table, what profiling cost, and its copies against those counted."""

from pathlib import Path
from typing import Any

from multicard.config.job import require
from multicard.profiling.load import Profile, read
from multicard.profiling.names import COPIES


def of_run(folder: Path, ranks: list[dict[str, Any]], result: dict[str, Any]) -> dict[str, Any]:
    """The record's `profile`; `error` alone where the profiler left nothing that can be read.

    Args:
        ranks: what each rank's window left in its file.
        result: the rest of the record.
    """
    files = sorted(path for path in (folder / "profile").iterdir() if path.name.endswith((".json.gz", ".nsys-rep")))
    steps = ranks[0]["steps"]
    try:
        profile = read(files)
        seen = {rank.steps for rank in profile.ranks}
        require(seen == {steps}, f"{folder / 'profile'}: holds {seen} steps a rank, not the {steps} of the window")
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
        # what profiling cost: a step in the window over a step of the run, which was not profiled
        "step_s": {"inside": inside_s, "outside": outside_s, "ratio": outside_s and inside_s / outside_s},
        "h2d": copies(profile, ranks, steps, steps_s["count"] + steps_s["warmup_count"]),
    }


def copies(profile: Profile, ranks: list[dict[str, Any]], steps: int, of_steps: int) -> dict[str, Any]:
    """Bytes from host to device, over all ranks: counted by the loop in the window's steps, and what the profiler saw
    there; and that scaled to the steps of the whole run. Null where the profiler saw no device."""
    counted = sum(rank["counted_h2d_bytes"] for rank in ranks)
    seen = [row.bytes for row in profile.rows if row.rank is None and row.metric == COPIES["HtoD"]]
    profiled = seen[0] if seen else None
    return {
        "counted_bytes": counted,
        "profiled_bytes": profiled,
        "disagreement": (profiled - counted) / counted if profiled is not None and counted else None,
        "whole_run_bytes": None if profiled is None else round(profiled / steps * of_steps),
        "source": "the profiler's window, scaled by steps",
    }
