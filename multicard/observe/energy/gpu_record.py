"""The record's `gpu`: energy and state of the GPUs over all starts and nodes of a run."""

from pathlib import Path
from typing import Any

from multicard.observe.energy import integrals, parts, sampler
from multicard.observe.energy.integrals import Span
from multicard.observe.energy.parts import Samples

TOO_SHORT = "too short"
MOST_DOUBTFUL = 0.1  # of a run's energy


def merge(folder: Path, expected: list[tuple[int, int]], wait: bool) -> dict[str, Any]:
    """The record's `gpu`, from the parts of all starts and nodes; their samples go to one file. See `parts.merge`."""
    by_key, samples = parts.merge(folder, expected, wait)
    missing = [f"no samples of start {start} on node {node}" for (start, node), part in by_key.items() if part is None]
    return summarise([part for part in by_key.values() if part is not None], samples, missing)


def summarise(parts: list[dict[str, Any]], samples: Samples, missing: list[str]) -> dict[str, Any]:
    """The record's `gpu`.

    `covers` says what the figures cover: `training`, or `sampled`, the whole time for which the ranks ran, where a
    node does not know when it trained. Times are those of gpu.parquet (`time_s`), where each part has its own zero.

    Args:
        missing: descriptions of missing parts; with any, the energy of all GPUs is None.
    """
    spans = [_spans(part, samples) for part in parts]
    devices: dict[tuple[str, str], dict[str, Any]] = {}
    worked: dict[tuple[str, str], list[Any]] = {}
    for part, part_spans in zip(parts, spans, strict=True):
        for device in part["devices"]:
            key = part["host"], device["uuid"]
            devices[key] = {"host": part["host"], **device}
            rows = samples.get((part["start"], part["node"], device["uuid"]), integrals.NO_ROWS)
            worked.setdefault(key, []).extend((rows, span) for span in part_spans)
    figures = [devices[key] | _unless_too_short(integrals.device(worked[key]), worked[key]) for key in devices]
    joules = [device["energy_joules"] for device in figures]
    problems = [*missing, *(f"node {p['node']}, start {p['start']}: {p['problem']}" for p in parts if p["problem"])]
    if any(device["energy_source"] == TOO_SHORT for device in figures):
        problems.append(f"too short for energy, which may be off by more than {MOST_DOUBTFUL:.0%}; train longer")
    return {
        "energy_joules": None if missing or not joules or None in joules else sum(joules),
        "covers": "training" if parts and all(part["trained_s"] for part in parts) else "sampled",
        "sampling_s": sampler.INTERVAL_S,
        "parts": [
            {
                "start": part["start"],
                "node": part["node"],
                "host": part["host"],
                "covers": "training" if part["trained_s"] else "sampled",
                "spans_s": part_spans,
            }
            for part, part_spans in zip(parts, spans, strict=True)
        ],
        "devices": figures,
        "disturbed_by": _disturbers(parts, spans),
        "problem": "; ".join(problems) or None,
    }


def _unless_too_short(figures: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    """A GPU's figures, without its energy where too much of it is in doubt."""
    if figures["energy_joules"] is None or integrals.doubtful_share(parts) <= MOST_DOUBTFUL:
        return figures
    return figures | {"energy_joules": None, "energy_source": TOO_SHORT, "power_mean_w": None}


def training_joules(gpu: dict[str, Any] | None) -> float | None:
    """The energy of the training alone; None where it is unknown or includes more than the training."""
    return gpu["energy_joules"] if gpu is not None and gpu["covers"] == "training" else None


def _spans(part: dict[str, Any], samples: Samples) -> list[Span]:
    """The spans that a part's figures cover, one at least."""
    if part["trained_s"]:
        return [(start_s, end_s) for start_s, end_s in part["trained_s"]]
    key = (part["start"], part["node"])
    times = [rows["time_s"] for (start, node, _), rows in samples.items() if (start, node) == key]
    first_s, last_s = (max(time[0] for time in times), min(time[-1] for time in times)) if times else (0.0, 0.0)
    return [(first_s, max(first_s, last_s))]


def _disturbers(parts: list[dict[str, Any]], spans: list[list[Span]]) -> list[dict[str, Any]]:
    """Foreign processes that overlap the spans, once for each GPU."""
    disturbers: dict[tuple[str, str, int], dict[str, Any]] = {}
    for part, part_spans in zip(parts, spans, strict=True):
        for process in part["processes"]:
            first_s, last_s = process["seen_s"]
            if any(first_s <= end_s and last_s >= start_s for start_s, end_s in part_spans):
                described = {key: value for key, value in process.items() if key != "seen_s"}
                disturbers[part["host"], process["gpu"], process["pid"]] = {"host": part["host"], **described}
    return list(disturbers.values())
