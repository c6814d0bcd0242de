"""Samples of a run's GPUs and machine, as W&B's system panels have them: `gpu.0.powerWatts`, `cpu` and the like.

GPUs are numbered from 0 within the run, whichever of the machine's it had, so that a panel has the runs of a sweep side
by side; in an attempt on several nodes the host follows the name, as W&B's own label does.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multicard.observe.energy.parts import MERGED
from multicard.records import run_folder
from multicard.tracking import keys
from multicard.tracking.timeline import Timeline

Sample = tuple[float, dict[str, float]]  # Unix time, and values by W&B's names


def samples(folder: Path, record: Mapping[str, Any], timeline: Timeline) -> list[Sample]:
    """The samples of gpu.parquet and machine.parquet in the order of their times."""
    found = [*_of_gpus(folder, record, timeline), *_of_machine(folder, timeline)]
    return sorted(found, key=lambda sample: sample[0])


def _of_machine(folder: Path, timeline: Timeline) -> Iterator[Sample]:
    table = run_folder.read_machine(folder)
    for row in [] if table is None else table.to_pylist():
        attempt = timeline.attempts[min(row["start"], len(timeline.attempts) - 1)]
        values = {name: 100 * row[column] for column, name in keys.MACHINE_SAMPLES.items()}
        yield attempt.training_at + row["time_s"], values


def _of_gpus(folder: Path, record: Mapping[str, Any], timeline: Timeline) -> list[Sample]:
    gpu, path = record.get("gpu"), folder / MERGED
    if not gpu or not path.exists():
        return []
    import pyarrow.parquet as pq

    parts = {(part["start"], part["node"]): part for part in gpu.get("parts") or ()}
    zeros = {key: _zero(part, timeline) for key, part in parts.items()}
    names = _names(gpu.get("devices") or (), {key: part.get("host") for key, part in parts.items()})
    memory_bytes = _memory_bytes(folder)
    found = []
    for row in pq.ParquetFile(path).read().to_pylist():
        part = row["start"], row["node"]
        if part in zeros and (part, row["gpu"]) in names:
            values = dict(_values(row, memory_bytes.get(row["gpu"])))
            prefix, suffix = names[part, row["gpu"]]
            if values:
                named = {f"{prefix}.{name}{suffix}": value for name, value in values.items()}
                found.append((zeros[part] + row["time_s"], named))
    return found


def _zero(part: Mapping[str, Any], timeline: Timeline) -> float:
    """Unix time of a part's `time_s` 0: its first span begins where the training of its attempt does."""
    attempt = timeline.attempts[min(part["start"], len(timeline.attempts) - 1)]
    spans = part.get("spans_s") or ()
    if part.get("covers") == "training" and spans:
        return attempt.training_at - spans[0][0]
    return attempt.started_at


def _names(devices: Any, hosts: Mapping[tuple[int, int], str | None]) -> dict[Any, tuple[str, str]]:
    """Prefix and suffix of W&B's name, by part and GPU."""
    names: dict[Any, tuple[str, str]] = {}
    for part, host in hosts.items():
        start, _ = part
        several = len({other for (other_start, _), other in hosts.items() if other_start == start}) > 1
        own = [device["uuid"] for device in devices if device.get("host") in (host, None)]
        for number, uuid in enumerate(own):
            names[part, uuid] = f"gpu.{number}", f"/l:{host}" if several else ""
    return names


def _memory_bytes(folder: Path) -> dict[str, int]:
    """The memory of each GPU of the first node, by UUID."""
    gpus = (run_folder.read_json(folder / run_folder.ENVIRONMENT) or {}).get("gpus") or []
    return {gpu["uuid"]: gpu["memory_bytes"] for gpu in gpus if gpu.get("memory_bytes")}


def _values(row: Mapping[str, Any], memory_bytes: int | None) -> Iterator[tuple[str, float]]:
    """What a sample has, by W&B's names and in its units."""
    for column, (name, factor) in keys.GPU_SAMPLES.items():
        value = row.get(column)
        if value is not None and not math.isnan(value):
            yield name, value * factor
            if column == "memory_bytes" and memory_bytes:
                yield keys.GPU_MEMORY_SHARE, 100 * value / memory_bytes
