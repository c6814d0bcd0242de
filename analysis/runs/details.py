"""What figures and the report read of a record beyond its columns. No other file of theirs knows the record's parts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.runs.load import Run
from multicard.measure.timing import PHASES
from multicard.records.steps import STEPS

SAMPLES = "gpu.parquet"
PROFILE_GROUPS = ("derived", "api", "copy", "collective")  # of a profile's rows; kernels are too many
REST = "rest of the step"


@dataclass(frozen=True)
class DetailedRun(Run):
    """A run of the report's table with what its record says beyond columns, read once.

    config: of the record. recipe: torchtune's as it was asked for, not as it was chosen. phases_s: seconds of a step by
    phase. first_loss, last_loss: training losses of the first and last epoch, of tuning of the first step and the last
    tenth. bound, diagnosis: what holds it back, in a word and a sentence. profile_rows: of all ranks together;
    profile_steps: over all ranks.
    """

    config: dict[str, Any] = field(default_factory=dict, repr=False)
    recipe: str | None = None
    phases_s: dict[str, float] = field(default_factory=dict)
    first_loss: float | None = None
    last_loss: float | None = None
    bound: str | None = None
    diagnosis: str | None = None
    profile_rows: list[dict[str, Any]] = field(default_factory=list)
    profile_steps: int | None = None
    surroundings: dict[str, Any] = field(default_factory=dict, repr=False)


def read(runs: Sequence[Run]) -> list[DetailedRun]:
    """The runs with their details, in their order."""
    return [_read(run) for run in runs]


def _read(run: Run) -> DetailedRun:
    try:
        record = run.record()
    except (OSError, ValueError):  # removed, or measured again, since it was listed
        record = {}
    config, diagnosis, profile = (record.get(key) or {} for key in ("config", "diagnosis", "profile"))
    phases = record.get("phases_s") or {}
    rows = [row for row in profile.get("rows") or () if row.get("group") in PROFILE_GROUPS]
    losses = [loss for epoch in record.get("epochs") or () if (loss := epoch.get("train_loss")) is not None]
    is_tuning = run["kind"] == "llm"
    return DetailedRun(
        run.folder,
        run.columns,
        run.prediction,
        config,
        config.get("recipe"),
        {name: phases[name] for name in PHASES if phases.get(name) is not None},
        run["loss_first"] if is_tuning else losses[0] if losses else None,
        run["loss_last_tenth"] if is_tuning else losses[-1] if losses else None,
        diagnosis.get("bound"),
        diagnosis.get("sentence"),
        [row for row in rows if row.get("rank") is None] or rows,
        profile.get("steps") or None,
        run.environment(),
    )


def epoch_values(run: Run, measure: str) -> list[tuple[int, float]]:
    """Each epoch, from 1, that has the measure, with its value."""
    known = [(epoch.get("epoch"), epoch.get(measure)) for epoch in _epochs(run)]
    return [(number + 1, value) for number, value in known if number is not None and value is not None]


def lost_losses(run: Run) -> tuple[int, int]:
    """The number of epochs whose loss was not finite, and the number of all epochs."""
    epochs = _epochs(run)
    return sum(epoch.get("train_loss", 0.0) is None for epoch in epochs), len(epochs)


def window_losses(run: Run, windows: int) -> list[tuple[int, float]]:
    """The last step of each window of a run's steps and its mean loss on rank 0; empty without steps.parquet."""
    try:
        table = pq.read_table(run.folder / STEPS, columns=["epoch", "rank", "step", "loss"])
    except (OSError, pa.ArrowException, KeyError):
        return []
    table = table.sort_by([(key, "ascending") for key in ("epoch", "step")])
    ranks, losses = (table[name].to_pylist() for name in ("rank", "loss"))
    finite = [
        loss for rank, loss in zip(ranks, losses, strict=True) if rank == 0 and loss is not None and math.isfinite(loss)
    ]
    size = max(1, -(-len(finite) // windows))
    parts = [(start, finite[start : start + size]) for start in range(0, len(finite), size)]
    return [(start + len(part), sum(part) / len(part)) for start, part in parts]


def phases_s(run: Run) -> dict[str, float]:
    """Mean seconds of a step by phase, with the rest of the mean step; empty where the record has no phase."""
    record = run.record()
    recorded = record.get("phases_s") or {"data": record.get("data_s")}
    phases = {phase: seconds for phase, seconds in recorded.items() if seconds is not None}
    rest = (run["step_s"] or 0.0) - sum(phases.values())
    return phases | ({REST: rest} if phases and rest > 0 else {})


@dataclass(frozen=True)
class Timeline:
    """GPU samples of a run's last start, on one clock that begins with the first of them.

    samples: columns of gpu.parquet, with `gpu` as a name. spans: start and end of each epoch, its evaluation included,
    and the time at which the evaluation begins, None where it is not known.
    """

    samples: dict[str, np.ndarray]
    spans: list[tuple[float, float, float | None]]


def timeline(run: Run) -> Timeline | None:
    """The run's GPU samples; None where there are none that can be read."""
    gpu = run.record().get("gpu") or {}
    part = (gpu.get("parts") or [{}])[-1]  # of the last start; each has a clock of its own
    try:
        table = pq.read_table(run.folder / SAMPLES)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException):
        return None
    if not {"gpu", "start", "time_s"} <= columns.keys():
        return None
    start = part.get("start")
    own = columns["start"] == start if start is not None else np.ones(table.num_rows, bool)
    samples = {name: column[own] for name, column in columns.items()}
    spans = list(_spans(run, part))
    origin_s = min([float(np.min(samples["time_s"], initial=np.inf)), *(start_s for start_s, _, _ in spans)])
    samples["time_s"] = samples["time_s"] - origin_s
    names = {device["uuid"]: _gpu_name(device, gpu["devices"]) for device in gpu.get("devices", ())}
    samples["gpu"] = np.array([names.get(uuid, uuid) for uuid in samples["gpu"].tolist()], dtype=object)
    return Timeline(
        samples,
        [
            (start_s - origin_s, end_s - origin_s, None if trained_s is None else trained_s - origin_s)
            for start_s, end_s, trained_s in spans
        ],
    )


def _spans(run: Run, part: dict[str, Any]) -> Iterator[tuple[float, float, float | None]]:
    if part.get("covers") != "training":
        return
    spans, epochs = part.get("spans_s") or [], _epochs(run)
    for (start_s, end_s), epoch in zip(spans, epochs[-len(spans) :], strict=False):
        train_s = epoch.get("train_s")
        has_evaluation = train_s is not None and epoch.get("evaluate_s") is not None
        yield start_s, end_s, start_s + train_s if has_evaluation else None


def _gpu_name(device: dict[str, Any], devices: Sequence[dict[str, Any]]) -> str:
    index = device.get("index")
    name = f"GPU {device['uuid'] if index is None else index}"
    several = len({other.get("host") for other in devices}) > 1
    return f"{device.get('host')}: {name}" if several else name


def _epochs(run: Run) -> list[Mapping[str, Any]]:
    return list(run.record().get("epochs") or ())


def mapping(value: Any) -> dict[str, Any]:
    """An object of environment.json; empty where something else stands in its place."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """A list of objects of environment.json; empty where something else stands in its place."""
    return list(map(mapping, value)) if isinstance(value, list) else []
