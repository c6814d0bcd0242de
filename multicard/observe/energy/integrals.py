"""Energy, power, clocks and temperature of a GPU in a span of time, from its samples.

Energy between two instants is the difference of NVML's counter there, interpolated linearly between the readings around
each. Ranks read it where a span begins and ends (`counters`), so that the error is what the counter lags behind.
Without these readings, it is at most the energy from an end to the nearest sample, and none where power is steady.
"""

from typing import Any

import numpy as np

from multicard.observe.energy.readings import COLUMNS

# nvml.h: why clocks are below their maximum. The first means that nothing runs
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

# Seconds by which a figure may lag: NVML renews the counter 10 times a second or more often (arXiv 2312.02741, of A100
# and H100), and its power is a mean of the last second
COUNTER_LAG_S, POWER_LAG_S = 0.1, 1.0
SKEW_JOULES = 100.0  # by which a reading may be below an earlier one, of another process that waited for its answer

Span = tuple[float, float]  # from, to, in seconds on the samples' clock
NO_ROWS = {name: np.empty(0) for name in COLUMNS}


def between(times_s: np.ndarray, joules: np.ndarray, span: Span) -> float | None:
    """Joules in `span` by a counter (n,) read at `times_s` (n,); None unless it was read before and after."""
    valid = ~np.isnan(joules)
    times_s, joules = times_s[valid], joules[valid]
    if not len(times_s) or times_s[0] > span[0] or times_s[-1] < span[1]:
        return None
    first, last = np.interp(span, times_s, joules)
    return float(last - first)


def integrated(times_s: np.ndarray, power_w: np.ndarray) -> np.ndarray:
    """Joules since the first sample (n,), by the trapezoidal rule; NaN where power was not sampled."""
    valid = ~np.isnan(power_w)
    seconds, watts = np.diff(times_s[valid]), power_w[valid]
    joules = np.full(len(power_w), np.nan)
    joules[valid] = np.concatenate([[0.0], np.cumsum(seconds * (watts[1:] + watts[:-1]) / 2)])[: valid.sum()]
    return joules


def joules_of(rows: dict[str, np.ndarray], span: Span) -> tuple[float | None, str | None]:
    """Joules of one GPU in `span`, and their source: `counter`, or `power_samples` where it has none."""
    counter = rows["energy_joules"]
    if (np.diff(counter[~np.isnan(counter)]) >= -SKEW_JOULES).all():  # it restarts from 0 when the driver is reloaded
        joules = between(rows["time_s"], counter, span)
        if joules is not None:
            return joules, "counter"
    joules = between(rows["time_s"], integrated(rows["time_s"], rows["power_w"]), span)
    return joules, None if joules is None else "power_samples"


def doubtful_share(parts: list[tuple[dict[str, np.ndarray], Span]]) -> float:
    """By how much the energy of spans may be wrong: the time from their ends to the nearest readings, or by which the
    figure lags if that is more, as a share of their time. A pause between spans counts as its length at most.

    Args:
        parts: as in `device`, whose energy is known.
    """
    doubtful_s, earlier = 0.0, None
    for rows, (start_s, end_s) in parts:
        by_counter = joules_of(rows, (start_s, end_s))[1] == "counter"
        times_s = rows["time_s"][~np.isnan(rows["energy_joules" if by_counter else "power_w"])]
        lag_s = COUNTER_LAG_S if by_counter else POWER_LAG_S
        before_s, after_s = (max(lag_s, np.abs(times_s - end).min()) for end in (start_s, end_s))
        if earlier is not None and earlier[0] is rows:
            pause_s, open_s = start_s - earlier[1], earlier[2] + before_s
            doubtful_s += min(pause_s, open_s) - open_s
        doubtful_s += before_s + after_s
        earlier = rows, end_s, after_s
    return float(doubtful_s / sum(end_s - start_s for _, (start_s, end_s) in parts))


def decode(reasons: int) -> dict[int, str]:
    """The bits that are set, with their names; an unknown one is named by its position."""
    bits = [1 << place for place in range(reasons.bit_length()) if reasons >> place & 1]
    return {bit: REASONS.get(bit, f"bit_{bit.bit_length() - 1}") for bit in bits}


def shares(reasons: np.ndarray) -> dict[str, float] | None:
    """The share of samples (n,) with each reason that occurs; None without samples of reasons."""
    known = reasons[~np.isnan(reasons)].astype(np.int64)
    if not len(known):
        return None
    return {name: float((known & bit != 0).mean()) for bit, name in decode(int(np.bitwise_or.reduce(known))).items()}


def device(parts: list[tuple[dict[str, np.ndarray], Span]]) -> dict[str, Any]:
    """Energy and state of one GPU over the spans in which it worked for a run.

    `power_mean_w` is energy / time. All other figures are of the samples within the spans; None where there are none.

    Args:
        parts: for each span, one at least, the GPU's rows (COLUMNS, n), `NO_ROWS` where there are none.
    """
    energies = [joules_of(rows, span) for rows, span in parts]
    known = [joules for joules, _ in energies if joules is not None]
    source = "power_samples" if "power_samples" in {source for _, source in energies} else "counter"
    seconds = sum(end - start for _, (start, end) in parts)
    joules = sum(known) if seconds > 0 and len(known) == len(parts) else None
    inside = {name: [rows[name][_within(rows["time_s"], span)] for rows, span in parts] for name in COLUMNS}
    samples = {name: np.concatenate(columns) for name, columns in inside.items()}

    def figure(name: str, reduce: Any) -> float | None:
        values = samples[name][~np.isnan(samples[name])]
        return float(reduce(values)) if len(values) else None

    return {
        "samples": len(samples["time_s"]),
        "energy_joules": joules,
        "energy_source": None if joules is None else source,
        "power_mean_w": None if joules is None else joules / seconds,
        "power_max_w": figure("power_w", np.max),
        "sm_clock_mean_mhz": figure("sm_clock_mhz", np.mean),
        "sm_clock_min_mhz": figure("sm_clock_mhz", np.min),
        "memory_clock_mean_mhz": figure("memory_clock_mhz", np.mean),
        "temperature_max_c": figure("temperature_c", np.max),
        "utilisation_mean": figure("utilisation", np.mean),
        "throttle": shares(samples["reasons"]),
    }


def _within(times_s: np.ndarray, span: Span) -> np.ndarray:
    return (times_s >= span[0]) & (times_s <= span[1])
