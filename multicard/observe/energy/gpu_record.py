"""The record's `gpu`: energy and state of the GPUs over all starts and nodes of a run.

Energy between two instants is the difference of a GPU's energy curve there, linear between its readings: of NVML's
counter, which ranks read where a span begins and ends (`readings.Counters`), so that the error is what the counter lags
behind; where a GPU has none, the integral of its sampled power, off by an interval's energy at each end at most.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multicard.observe.energy import parts, sampler
from multicard.observe.energy.parts import Samples, Span
from multicard.observe.energy.readings import COLUMNS

# nvml.h: why clocks are below their maximum, by bit. The first means that nothing runs
REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)
# Seconds by which a figure may lag: NVML renews the counter 10 times a second or more often (arXiv 2312.02741, of A100
# and H100), and its power is a mean of the last second
LAG_S = {"counter": 0.1, "power_samples": 1.0}
SKEW_JOULES = 100.0  # by which a reading may be below an earlier one, of another process that waited for its answer
TOO_SHORT = "too short"
MOST_DOUBTFUL = 0.1  # of a run's energy
NO_ROWS = {name: np.empty(0) for name in COLUMNS}
Rows = dict[str, np.ndarray]  # COLUMNS (n,) of one GPU


class EnergyCurve(NamedTuple):
    """Joules of a GPU since some instant (n,) at times (n,), and their source: `counter` or `power_samples`."""

    times_s: np.ndarray
    joules: np.ndarray
    source: str

    def between(self, span: Span) -> float | None:
        """Joules in a span; None unless the curve is known before and after."""
        if not len(self.times_s) or self.times_s[0] > span[0] or self.times_s[-1] < span[1]:
            return None
        first, last = np.interp(span, self.times_s, self.joules)
        return float(last - first)


def energy_curve(rows: Rows) -> EnergyCurve:
    """A GPU's energy: by its counter, or integrated by trapezoids where it has none or restarted it, as a driver does
    that is loaded again."""
    known = ~np.isnan(rows["energy_joules"])
    counter = rows["energy_joules"][known]
    if len(counter) and (np.diff(counter) >= -SKEW_JOULES).all():
        return EnergyCurve(rows["time_s"][known], counter, "counter")
    known = ~np.isnan(rows["power_w"])
    times_s, watts = rows["time_s"][known], rows["power_w"][known]
    joules = np.concatenate([[0.0], np.cumsum(np.diff(times_s) * (watts[1:] + watts[:-1]) / 2)])[: len(times_s)]
    return EnergyCurve(times_s, joules, "power_samples")


def doubtful_share(worked: list[tuple[EnergyCurve, Span]]) -> float:
    """The share of the energy of spans that may be wrong: the time from their ends to the nearest readings, or by which
    the figure lags if that is more, relative to their time. A pause between spans counts as its length at most."""
    doubtful_s, earlier = 0.0, None
    for curve, (start_s, end_s) in worked:
        before_s, after_s = (max(LAG_S[curve.source], np.abs(curve.times_s - end).min()) for end in (start_s, end_s))
        if earlier is not None and earlier[0] is curve:
            pause_s, open_s = start_s - earlier[1], earlier[2] + before_s
            doubtful_s += min(pause_s, open_s) - open_s
        doubtful_s += before_s + after_s
        earlier = curve, end_s, after_s
    return float(doubtful_s / sum(end_s - start_s for _, (start_s, end_s) in worked))


def energy(worked: list[tuple[EnergyCurve, Span]]) -> dict[str, Any]:
    """Energy of one GPU over the spans, one at least, in which it worked for a run, with its source and its mean power;
    None where it is not known, or too much of it is in doubt."""
    joules = [curve.between(span) for curve, span in worked]
    known = [each for each in joules if each is not None]
    seconds = sum(end_s - start_s for _, (start_s, end_s) in worked)
    figures: dict[str, Any] = {"energy_joules": None, "energy_source": None, "power_mean_w": None}
    if seconds <= 0 or len(known) < len(joules):
        return figures
    if doubtful_share(worked) > MOST_DOUBTFUL:
        return figures | {"energy_source": TOO_SHORT}
    source = max(curve.source for curve, _ in worked)  # power_samples, if any is
    return {"energy_joules": sum(known), "energy_source": source, "power_mean_w": sum(known) / seconds}


def throttle(reasons: np.ndarray) -> dict[str, float] | None:
    """The share of samples (n,) with each reason that occurs; None without samples of reasons."""
    known = reasons[~np.isnan(reasons)].astype(np.int64)
    if not len(known):
        return None
    bits = [bit for bit in range(int(known.max()).bit_length()) if (known >> bit & 1).any()]
    names = {bit: REASONS[bit] if bit < len(REASONS) else f"bit_{bit}" for bit in bits}
    return {names[bit]: float((known >> bit & 1).mean()) for bit in bits}


def state(worked: list[tuple[Rows, Span]]) -> dict[str, Any]:
    """Figures of one GPU's samples within spans; None where there are none."""
    inside = [(rows["time_s"] >= start_s) & (rows["time_s"] <= end_s) for rows, (start_s, end_s) in worked]
    pairs = list(zip(worked, inside, strict=True))
    samples = {name: np.concatenate([rows[name][within] for (rows, _), within in pairs]) for name in COLUMNS}

    def figure(name: str, reduce: Any) -> float | None:
        values = samples[name][~np.isnan(samples[name])]
        return float(reduce(values)) if len(values) else None

    return {
        "samples": len(samples["time_s"]),
        "power_max_w": figure("power_w", np.max),
        "sm_clock_mean_mhz": figure("sm_clock_mhz", np.mean),
        "sm_clock_min_mhz": figure("sm_clock_mhz", np.min),
        "memory_clock_mean_mhz": figure("memory_clock_mhz", np.mean),
        "temperature_max_c": figure("temperature_c", np.max),
        "utilisation_mean": figure("utilisation", np.mean),
        "throttle": throttle(samples["reasons"]),
    }


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
    worked: dict[tuple[str, str], list[tuple[Rows, EnergyCurve, Span]]] = {}
    for part, part_spans in zip(parts, spans, strict=True):
        for device in part["devices"]:
            key = part["host"], device["uuid"]
            devices[key] = {"host": part["host"], **device}
            rows = samples.get((part["start"], part["node"], device["uuid"]), NO_ROWS)
            curve = energy_curve(rows)
            worked.setdefault(key, []).extend((rows, curve, span) for span in part_spans)
    figures = [
        device
        | state([(rows, span) for rows, _, span in worked[key]])
        | energy([(curve, span) for _, curve, span in worked[key]])
        for key, device in devices.items()
    ]
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


def _spans(part: dict[str, Any], samples: Samples) -> list[Span]:
    """The spans that a part's figures cover, one at least."""
    if part["trained_s"]:
        return [(start_s, end_s) for start_s, end_s in part["trained_s"]]
    key = (part["start"], part["node"])
    times = [rows["time_s"] for (start, node, _), rows in samples.items() if (start, node) == key]
    first_s, last_s = (max(time[0] for time in times), min(time[-1] for time in times)) if times else (0.0, 0.0)
    return [(float(first_s), float(max(first_s, last_s)))]


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
