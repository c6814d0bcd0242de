"""The record's `gpu`: energy and state of the GPUs over all starts and nodes of a run.

The energy of a span is the difference of NVML's counter between its ends, which ranks read there
(`readings.Counters`), so that the error is what the counter lags behind; between two readings it is
linear. A GPU without a counter has no energy. Each start of a run and node leaves a part, whose
clock is its own; at the end of the run they are merged.

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
# nvml.h: why clocks are below their maximum, by bit. The first means that nothing runs
REASONS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost")
REASONS += ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
REASONS += ("display_clock_setting", "board_limit", "reliability")
SAMPLING_S = 1.0  # between two samples
# Seconds by which the counter may lag: NVML renews it 10 times a second or more often (arXiv
# 2312.02741, A100 and H100)
LAG_S = 0.1
# by which a reading may be below an earlier one, of another process that waited for its answer
SKEW_JOULES = 100.0
TOO_SHORT = "too short"
MOST_DOUBTFUL = 0.1  # of a run's energy
Rows = dict[str, np.ndarray]  # COLUMNS (n,) of one GPU in one part
# of each part of a GPU, its samples and spans (m, 2) from, to in seconds
Worked = list[tuple[Rows, np.ndarray]]


def write_part(folder: Path, part: dict[str, Any], samples: dict[str, np.ndarray]) -> None:
    """Write the part of a start and node, with samples (n, columns) by UUID of one GPU at least."""
    import pyarrow as pa

    counts = [len(rows) for rows in samples.values()]
    table = np.concatenate(list(samples.values()))
    columns = {
        "start": np.full(len(table), part["start"], np.int32),
        "node": np.full(len(table), part["node"], np.int32),
        "gpu": pa.array(np.repeat(list(samples), counts).tolist(), pa.string()),
        # NaN is null
        **{name: pa.array(table[:, i], from_pandas=True) for i, name in enumerate(COLUMNS)},
    }
    path = _part_file(folder, part["start"], part["node"])
    run_folder.write_parquet(path.with_suffix(".parquet"), columns)
    run_folder.write_json(path, part)  # last: its presence says that the part is complete


def remove_parts(folder: Path) -> None:
    """Remove the parts, which the record and the merged file hold."""
    run_folder.remove_files(folder / "gpu", "s*_n*.*")


def _part_file(folder: Path, start: int, node: int) -> Path:
    return folder / "gpu" / f"s{start:02d}_n{node:02d}.json"


def merge(folder: Path, expected: list[tuple[int, int]], wait: bool) -> dict[str, Any]:
    """The record's `gpu`, from the expected parts, each of a start and node; their samples go to
    one file. With `wait` those of other nodes may take a while to appear here.
    Parts stay until `remove_parts`.
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
    """The record's `gpu`.

    `covers` says what the figures cover: `training`, or `sampled`, the whole time for which the
    ranks ran, where a node does not know when it trained. Times are those of gpu.parquet
    (`time_s`), where each part has its own zero. Where parts are missing,
    the energy of all GPUs is None.
    """
    described: dict[tuple[str, str], dict[str, Any]] = {}
    worked: dict[tuple[str, str], Worked] = {}
    disturbers = {}
    for part in parts:
        disturbers |= {
            (part["host"], other["gpu"], other["pid"]): other for other in part["disturbed_by"]
        }
        for device in part["devices"]:
            key = part["host"], device["uuid"]
            described[key] = device
            rows = samples.get(
                (part["start"], part["node"], device["uuid"]),
                {name: np.empty(0) for name in COLUMNS},
            )
            worked.setdefault(key, []).append((rows, np.array(part["spans_s"])))
    figures = [
        device | state(worked[key]) | energy(worked[key]) for key, device in described.items()
    ]
    joules = [device["energy_joules"] for device in figures]
    problems = [
        *missing,
        *(f"node {p['node']}, start {p['start']}: {p['problem']}" for p in parts if p["problem"]),
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


def energy(worked: Worked) -> dict[str, Any]:
    """Energy of one GPU over the spans in which it worked for a run, with its source and its mean
    power; None where it is not known, or too much of it is in doubt.
    """
    figures: dict[str, Any] = {"energy_joules": None, "energy_source": None, "power_mean_w": None}
    seconds = sum(float(np.diff(spans).sum()) for _, spans in worked)
    known = [within for rows, spans in worked if (within := joules_within(rows, spans)) is not None]
    if seconds <= 0 or len(known) < len(worked):
        return figures
    if sum(doubtful_s for _, doubtful_s in known) > MOST_DOUBTFUL * seconds:
        return figures | {"energy_source": TOO_SHORT}
    joules = sum(joules for joules, _ in known)
    return {"energy_joules": joules, "energy_source": "counter", "power_mean_w": joules / seconds}


def joules_within(rows: Rows, spans: np.ndarray) -> tuple[float, float] | None:
    """Joules of a GPU in spans (m, 2) of one part, and the seconds whose energy is in doubt: from
    the ends of spans to the nearest readings, or by which the counter lags if that is more; a pause
    between spans counts as its length at most. None unless the counter was read before and after,
    and where a driver that was loaded again restarted it.
    """
    known = ~np.isnan(rows["energy_joules"])
    times_s = rows["time_s"][known]
    joules = rows["energy_joules"][known]
    if not len(times_s) or times_s[0] > spans[0, 0] or times_s[-1] < spans[-1, 1]:
        return None
    if (np.diff(joules) < -SKEW_JOULES).any():
        return None
    used = np.diff(np.interp(spans, times_s, joules)).sum()
    ends_s = np.array(
        [[max(LAG_S, np.abs(times_s - end_s).min()) for end_s in span] for span in spans]
    )
    pauses_s = spans[1:, 0] - spans[:-1, 1]
    open_s = ends_s[:-1, 1] + ends_s[1:, 0]
    return float(used), float(ends_s[0, 0] + np.minimum(pauses_s, open_s).sum() + ends_s[-1, 1])


def state(worked: Worked) -> dict[str, Any]:
    """Figures of one GPU's samples within spans; None where there are none."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for rows, spans in worked:
        inside = ((rows["time_s"] >= spans[:, :1]) & (rows["time_s"] <= spans[:, 1:])).any(axis=0)
        for name, column in columns.items():
            column.append(rows[name][inside])
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
    """The share of samples (n,) with each reason that occurs; None without samples of reasons."""
    known = reasons[~np.isnan(reasons)].astype(np.int64)
    if not len(known):
        return None
    bits = [bit for bit in range(int(known.max()).bit_length()) if (known >> bit & 1).any()]
    names = {bit: REASONS[bit] if bit < len(REASONS) else f"bit_{bit}" for bit in bits}
    return {names[bit]: float((known >> bit & 1).mean()) for bit in bits}
