"""The record's `gpu`: energy and state of the GPUs over all starts and nodes of a run.

The energy of a span is the difference of NVML's counter between its ends. Ranks read the counter
there (`readings.Counters`), so that the error is the counter's lag. Between two readings, energy is
interpolated linearly. A GPU without a counter has no energy. Each start of a run leaves a part per
node, with a clock of its own. They are merged at the end of the run.

| file | contents |
|---|---|
| gpu/sSS_nNN.parquet | start SS, node NN: a row per sample and GPU; merged to gpu.parquet |
| gpu/sSS_nNN.json | spans on the samples' clock, GPUs, foreign processes, problems |
"""

from pathlib import Path
from typing import Any

import numpy as np

from multicard.measure.timing import clock_s, pause
from multicard.messages import Message
from multicard.observe.readings import COLUMNS
from multicard.records import rank_files, run_folder

MERGED = "gpu.parquet"
# Why clocks are below their maximum, by bit (nvml.h). The first means that nothing runs.
REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost")
REASONS += ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
REASONS += ("display_clock_setting", "board_limit", "reliability")
SAMPLING_S = 1.0  # Between two samples.
# Seconds by which the counter may lag. NVML updates it 10 times a second or more often (arXiv
# 2312.02741, A100 and H100).
LAG_S = 0.1
# A reading may be below an earlier one by this much: its process waited for the answer.
SKEW_JOULES = 100.0
TOO_SHORT = "too short"
MOST_DOUBTFUL = 0.1  # The largest share of a run's energy that may be uncertain.
Rows = dict[str, np.ndarray]  # COLUMNS (n,) of one GPU in one part.
# For each part of a GPU, its samples and its spans (m, 2), start and end in seconds.
WorkedSpans = list[tuple[Rows, np.ndarray]]


def write_part(folder: Path, part: dict[str, Any], samples: dict[str, np.ndarray]) -> None:
    """Write the part of a start and node, with samples (n, columns) by GPU UUID."""
    import pyarrow as pa

    counts = [len(rows) for rows in samples.values()]
    table = np.concatenate(list(samples.values()))
    columns = {
        "start": np.full(len(table), part["start"], np.int32),
        "node": np.full(len(table), part["node"], np.int32),
        "gpu": pa.array(np.repeat(list(samples), counts).tolist(), pa.string()),
        # NaN becomes null.
        **{name: pa.array(table[:, i], from_pandas=True) for i, name in enumerate(COLUMNS)},
    }
    path = _part_file(folder, part["start"], part["node"])
    run_folder.write_parquet(path.with_suffix(".parquet"), columns)
    run_folder.write_json(path, part)  # Last: its presence says that the part is complete.


def remove_parts(folder: Path) -> None:
    """Remove the parts once the record and the merged file hold them."""
    run_folder.remove_files(folder / "gpu", "s*_n*.*")


def _part_file(folder: Path, start: int, node: int) -> Path:
    return folder / "gpu" / f"s{start:02d}_n{node:02d}.json"


def merge(folder: Path, expected: list[tuple[int, int]], wait: bool) -> dict[str, Any]:
    """Return the record's `gpu`, and merge the samples of all parts into one file.

    Parts stay until `remove_parts`.

    Args:
        expected: the start and node of each expected part.
        wait: True to wait for the parts of other nodes, which may appear here with a delay.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    deadline_s = clock_s() + (rank_files.SEEN_S if wait else 0.0)
    while not all(_part_file(folder, *key).exists() for key in expected) and clock_s() < deadline_s:
        pause(0.1)
    by_key = {key: run_folder.read_json(_part_file(folder, *key)) for key in expected}
    missing = [_unsampled(start, node) for (start, node), part in by_key.items() if part is None]
    tables = [pq.ParquetFile(path).read() for path in sorted(folder.glob("gpu/s*_n*.parquet"))]
    samples: dict[tuple[int, int, str], Rows] = {}
    for table in tables:
        uuids = np.array(table["gpu"].to_pylist())
        columns = {name: table[name].to_numpy().astype(float) for name in COLUMNS}
        for uuid in dict.fromkeys(uuids.tolist()):
            key = table["start"][0].as_py(), table["node"][0].as_py(), uuid
            samples[key] = {name: column[uuids == uuid] for name, column in columns.items()}
    if tables:
        merged = pa.concat_tables(tables)
        run_folder.write_parquet(
            folder / MERGED, {name: merged[name] for name in merged.column_names}
        )
    return summarise([part for part in by_key.values() if part is not None], samples, missing)


def _unsampled(start: int, node: int) -> Message:
    return Message(
        "gpus.unsampled", f"no samples of start {start} on node {node}", start=start, node=node
    )


def summarise(
    parts: list[dict[str, Any]], samples: dict[tuple[int, int, str], Rows], missing: list[Message]
) -> dict[str, Any]:
    """Return the record's `gpu`.

    `covers` is `training`, or `sampled` if a node does not know when it trained. The figures then
    cover the whole time for which the ranks ran. Times are those of gpu.parquet (`time_s`), where
    each part has its own zero. If parts are missing, the energy of all GPUs is None.
    """
    device_by_gpu: dict[tuple[str, str], dict[str, Any]] = {}
    worked_by_gpu: dict[tuple[str, str], WorkedSpans] = {}
    disturbers = {}
    for part in parts:
        disturbers |= {
            (part["host"], other["gpu"], other["pid"]): other for other in part["disturbed_by"]
        }
        for device in part["devices"]:
            key = part["host"], device["uuid"]
            device_by_gpu[key] = device
            rows = samples.get(
                (part["start"], part["node"], device["uuid"]),
                {name: np.empty(0) for name in COLUMNS},
            )
            worked_by_gpu.setdefault(key, []).append((rows, np.array(part["spans_s"])))
    figures = [
        device | state(worked_by_gpu[key]) | energy(worked_by_gpu[key])
        for key, device in device_by_gpu.items()
    ]
    joules = [device["energy_joules"] for device in figures]
    problems = [
        *missing,
        *(
            f"node {part['node']}, start {part['start']}: {part['problem']}"
            for part in parts
            if part["problem"]
        ),
    ]
    if any(device["energy_source"] == TOO_SHORT for device in figures):
        problems.append(
            Message(
                "gpus.too-short",
                f"too short for energy, which may be off by more than {MOST_DOUBTFUL:.0%}; train"
                " longer",
                doubtful=MOST_DOUBTFUL,
            )
        )
    return {
        "energy_joules": None if missing or not joules or None in joules else sum(joules),
        "covers": (
            "training"
            if parts and all(part["covers"] == "training" for part in parts)
            else "sampled"
        ),
        "sampling_s": SAMPLING_S,
        "parts": [
            {key: part[key] for key in ("start", "node", "host", "covers", "spans_s")}
            for part in parts
        ],
        "devices": figures,
        "disturbed_by": list(disturbers.values()),
        "problem": "; ".join(problems) or None,
    }


def energy(worked: WorkedSpans) -> dict[str, Any]:
    """Return the energy of one GPU over a run's spans, with its source and its mean power.

    None if energy is not known, or if too much of it is uncertain.
    """
    figures: dict[str, Any] = {"energy_joules": None, "energy_source": None, "power_mean_w": None}
    seconds = sum(float(np.diff(spans).sum()) for _, spans in worked)
    energies = [
        energy_in_spans
        for rows, spans in worked
        if (energy_in_spans := joules_within(rows, spans)) is not None
    ]
    if seconds <= 0 or len(energies) < len(worked):
        return figures
    if sum(doubtful_s for _, doubtful_s in energies) > MOST_DOUBTFUL * seconds:
        return figures | {"energy_source": TOO_SHORT}
    joules = sum(joules for joules, _ in energies)
    return {"energy_joules": joules, "energy_source": "counter", "power_mean_w": joules / seconds}


def joules_within(rows: Rows, spans: np.ndarray) -> tuple[float, float] | None:
    """Return the joules of a GPU in spans (m, 2) of one part, and the seconds that are uncertain.

    At each end of a span, the time to the nearest reading is uncertain, or the counter's lag if
    that is more. A pause between spans counts as its length at most.

    Returns None unless the counter was read before and after, and if a reloaded driver reset it.
    """
    has_energy = ~np.isnan(rows["energy_joules"])
    times_s = rows["time_s"][has_energy]
    joules = rows["energy_joules"][has_energy]
    if not len(times_s) or times_s[0] > spans[0, 0] or times_s[-1] < spans[-1, 1]:
        return None
    if (np.diff(joules) < -SKEW_JOULES).any():
        return None
    used_joules = np.diff(np.interp(spans, times_s, joules)).sum()
    doubtful_s = np.array(
        [[max(LAG_S, np.abs(times_s - end_s).min()) for end_s in span] for span in spans]
    )
    pauses_s = spans[1:, 0] - spans[:-1, 1]
    doubtful_pauses_s = doubtful_s[:-1, 1] + doubtful_s[1:, 0]
    return float(used_joules), float(
        doubtful_s[0, 0] + np.minimum(pauses_s, doubtful_pauses_s).sum() + doubtful_s[-1, 1]
    )


def state(worked: WorkedSpans) -> dict[str, Any]:
    """Return the figures of one GPU's samples within spans. A figure without samples is None."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for rows, spans in worked:
        is_inside = ((rows["time_s"] >= spans[:, :1]) & (rows["time_s"] <= spans[:, 1:])).any(
            axis=0
        )
        for name, column in columns.items():
            column.append(rows[name][is_inside])
    samples = {name: np.concatenate(parts) for name, parts in columns.items()}

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


def throttle(reasons: np.ndarray) -> dict[str, float] | None:
    """Return the share of samples (n,) with each reason that occurs, or None without reasons."""
    known_reasons = reasons[~np.isnan(reasons)].astype(np.int64)
    if not len(known_reasons):
        return None
    bits = [
        bit
        for bit in range(int(known_reasons.max()).bit_length())
        if (known_reasons >> bit & 1).any()
    ]
    names = {bit: REASONS[bit] if bit < len(REASONS) else f"bit_{bit}" for bit in bits}
    return {names[bit]: float((known_reasons >> bit & 1).mean()) for bit in bits}
