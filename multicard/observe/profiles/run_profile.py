"""The record's `profile`: metrics of the profiled steps, the cost of profiling, and copies against those counted."""

from pathlib import Path
from typing import Any

from multicard.config.base import ProfileWindow
from multicard.config.keys import require
from multicard.observe.profiles.load import read
from multicard.observe.profiles.names import COPIES, RUN
from multicard.observe.profiles.profile_data import Profile


def of_run(folder: Path, ranks: list[dict[str, Any]], result: dict[str, Any]) -> dict[str, Any]:
    """The record's `profile`; with `error` alone if the profiler left nothing readable.

    Args:
        ranks: `capture.Window.result` of each rank, or `training_window.TrainingWindow.close`.
        result: the rest of the record.
    """
    if "error" in ranks[0]:
        return {"error": ranks[0]["error"]}
    files = sorted(path for path in (folder / "profile").iterdir() if path.name.endswith((".json.gz", ".nsys-rep")))
    steps = [rank["steps"] for rank in ranks]
    try:
        profile = read(files)
        recorded = [rank.steps for rank in profile.ranks]
        problem = f"{folder / 'profile'}: holds {recorded} steps, by rank, not the window's {steps}"
        require(recorded == steps, problem)
    except ValueError as error:
        return {"error": str(error)}
    steps_s = result.get("step_s") or result["iteration_s"]
    content = {
        **profile.as_dict(),
        "files": [str(path.relative_to(folder)) for path in files],
        "first_step": ranks[0]["first_step"],
        "steps": steps[0],
    }
    if ranks[0].get("window") == ProfileWindow.start:
        ended = sorted({rank["ended"] for rank in ranks})
        content |= {"window": ProfileWindow.start.value, "ended": ", ".join(ended)}
        return content | {"h2d": _h2d_bytes(profile, ranks, _scale(content, result), "the profiler's window")}
    inside_s = max(rank["window_s"] for rank in ranks) / steps[0]
    outside_s = steps_s["mean"]
    # the cost of profiling: a step in the window over an unprofiled step of the run
    cost = {"inside": inside_s, "outside": outside_s, "ratio": outside_s and inside_s / outside_s}
    source = "the profiler's window, scaled by steps"
    return content | {"step_s": cost, "h2d": _h2d_bytes(profile, ranks, _scale(content, result), source)}


def whole_run_copies(content: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """What a profile adds to the record's `transfer_bytes`: bytes of copies from the devices and within them, summed
    over ranks; nothing where the profiler saw no device, or its window does not tell of the whole run.

    Args:
        content: of `of_run`.
        result: the rest of the record.
    """
    sizes = {row["metric"]: row["bytes"] or 0 for row in content.get("rows", ()) if row["rank"] is None}
    scale = _scale(content, result) if COPIES["DtoH"] in sizes else None
    if scale is None:
        return {}
    source = f"{result['transfer_bytes']['source']}; d2h and d2d: {content['h2d']['source']}"
    copied = {"d2h": COPIES["DtoH"], "d2d": COPIES["DtoD"]}
    return {way: round(sizes[metric] * scale) for way, metric in copied.items()} | {"source": source}


def _scale(content: dict[str, Any], result: dict[str, Any]) -> float | None:
    """From the profiler's window to the whole run; None where the window does not tell."""
    if content.get("window") == ProfileWindow.start:
        return 1.0 if content["ended"] == RUN else None
    steps_s = result.get("step_s") or result["iteration_s"]
    return (steps_s["count"] + steps_s["warmup_count"]) / content["steps"]


def _h2d_bytes(profile: Profile, ranks: list[dict[str, Any]], scale: float | None, source: str) -> dict[str, Any]:
    """Bytes from host to device in the window, summed over ranks: counted by the loop, and profiled.

    Args:
        scale: from the window to the whole run; None where the window does not tell.
    """
    counted = sum(rank["counted_h2d_bytes"] for rank in ranks)
    profiled = next((row.bytes for row in profile.of(None) if row.metric == COPIES["HtoD"]), None)
    return {
        "counted_bytes": counted,
        "profiled_bytes": profiled,
        "disagreement": (profiled - counted) / counted if profiled is not None and counted else None,
        "whole_run_bytes": None if profiled is None or scale is None else round(profiled * scale),
        "source": source,
    }
