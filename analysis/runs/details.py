"""Parts of a record, beside its columns, that figures and the report show.
They read records here alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multicard.measure.timing import PHASES
from multicard.records import bounds
from multicard.records.bounds import Bound
from multicard.records.schema import AnyRecord, VisionEpoch, VisionRecord
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import GpuPart
from multicard.records.steps import STEPS

from .load import Run
from .quality import is_less

SAMPLES = "gpu.parquet"
REST = "rest of the step"


@dataclass(frozen=True)
class DetailedRun(Run):
    """A run of the report's table with the parts of its record that are no columns, read once.

    recipe: torchtune's as it was asked for. phases_s: seconds of a step by phase.
    diagnosis: a sentence on what limits it. bound: its parts; None where nobody knows.
    """

    recipe: str | None = None
    phases_s: dict[str, float] = field(default_factory=dict)
    diagnosis: str | None = None
    bound: Bound | None = None
    surroundings: Environment = field(default_factory=Environment, repr=False)


def read(runs: Sequence[Run]) -> list[DetailedRun]:
    return list(map(_read, runs))


def _read(run: Run) -> DetailedRun:
    try:
        record = run.record()
    except (OSError, ValueError):  # removed, or measured again, since it was listed
        return DetailedRun(run.folder, run.columns, run.prediction, run.limits)
    known = _recorded_phases_s(record) if isinstance(record, VisionRecord) else {}
    phases = {name: known[name] for name in PHASES if name in known}
    recipe = record.config.get("recipe")
    bound = bounds.of(record)
    own = (run.folder, run.columns, run.prediction, run.limits)
    return DetailedRun(*own, recipe, phases, bound and bound.sentence, bound, run.environment())


def epoch_values(run: Run, measure: str) -> list[tuple[int, float]]:
    """Each epoch, from 1, that has the measure, with its value."""
    known = [(epoch.epoch, getattr(epoch, measure, None)) for epoch in run.record().epochs]
    return [
        (number + 1, value) for number, value in known if number is not None and value is not None
    ]


def held_out_losses(run: Run) -> list[tuple[int, float]]:
    """The loss of each evaluation of a tuning run's held-out rows,
    by the steps that it had taken.
    """
    held_out = getattr(run.record(), "held_out", None)
    evaluations = held_out.evaluations if held_out is not None else []
    return [
        (one.step, one.loss) for one in evaluations if one.step is not None and one.loss is not None
    ]


def held_out_loss_fell(run: Run) -> bool:
    """True where a run's held-out loss ended lower, by more than losses count as equal,
    than it was at first.
    """
    losses = [loss for _, loss in held_out_losses(run)]
    return len(losses) > 1 and is_less(losses[-1], losses[0])


def int4_groupsize(run: Run) -> int | None:
    """The weights that shared a scale where a run's held-out rows were scored in int4;
    None where they were not.
    """
    held_out = getattr(run.record(), "held_out", None)
    in_int4 = None if held_out is None else held_out.in_int4
    return None if in_int4 is None else in_int4.groupsize


def simulated_int4(run: Run) -> bool:
    """True where the linears of a tuning run simulated the quantisation (method=qat)."""
    return bool(getattr(run.record(), "fake_quantised_linears", None))


def window_losses(run: Run, windows: int) -> list[tuple[int, float]]:
    """The last step of each window of a run's steps and its mean loss on rank 0;
    empty without steps.parquet.
    """
    try:
        table = pq.read_table(run.folder / STEPS, columns=["epoch", "rank", "step", "loss"])
    # Arrow opens no path that is no UTF-8
    except (OSError, pa.ArrowException, KeyError, UnicodeError):
        return []
    table = table.filter(pc.field("rank") == 0).sort_by(
        [(key, "ascending") for key in ("epoch", "step")]
    )
    losses = table["loss"].drop_null().to_numpy()
    parts = np.array_split(losses[np.isfinite(losses)], windows)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [(end, float(part.mean())) for end, part in zip(ends, parts, strict=True) if len(part)]


def phases_s(run: Run) -> dict[str, float]:
    """Mean seconds of a step by phase, with the rest of the mean step;
    empty where the record has no phase.
    """
    phases = _recorded_phases_s(run.record())
    rest = (run["step_s"] or 0.0) - sum(phases.values())
    return phases | ({REST: rest} if phases and rest > 0 else {})


def _recorded_phases_s(record: AnyRecord) -> dict[str, float]:
    if isinstance(record, VisionRecord):
        return record.phases_s or {}
    return {} if record.data_s is None else {"data": record.data_s}


@dataclass(frozen=True)
class SampleTimeline:
    """GPU samples of a run's last start, on one clock that begins with the first of them.

    samples: columns of gpu.parquet, with `gpu` as a name. spans: start and end of each epoch, its
    evaluation included, and the time at which the evaluation begins, None where it is not known.
    """

    samples: dict[str, np.ndarray]
    spans: list[tuple[float, float, float | None]]

    def by_window(self, column: str, window_s: float) -> np.ndarray:
        """Means of a column (windows, GPUs) over parts of the epochs of about so many seconds, of
        which each GPU has a sample.
        """
        known = np.isfinite(self.samples[column].astype(float))
        time_s, values, gpus = (self.samples[name][known] for name in ("time_s", column, "gpu"))
        means = [np.empty((0, len({*gpus})))]
        for start_s, end_s, _ in self.spans:
            edges_s = np.linspace(start_s, end_s, max(1, round((end_s - start_s) / window_s)) + 1)
            own = [(time_s[gpus == gpu], values[gpus == gpu]) for gpu in dict.fromkeys(gpus)]
            sums = np.array(
                [np.histogram(times_s, edges_s, weights=found)[0] for times_s, found in own]
            )
            counts = np.array([np.histogram(times_s, edges_s)[0] for times_s, _ in own])
            means.append((sums / np.maximum(counts, 1)).T[(counts > 0).all(axis=0)])
        return np.concatenate(means)


def timeline(run: Run) -> SampleTimeline | None:
    """The run's GPU samples; None where there are none that can be read."""
    record = run.record()
    devices = record.gpu.devices if record.gpu else []
    # each start has its own clock
    part = record.gpu.parts[-1] if record.gpu and record.gpu.parts else GpuPart()
    try:
        table = pq.read_table(run.folder / SAMPLES)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException, UnicodeError):
        return None
    if not {"gpu", "start", "time_s"} <= columns.keys():
        return None
    own = (
        columns["start"] == part.start if part.start is not None else np.ones(table.num_rows, bool)
    )
    samples = {name: column[own] for name, column in columns.items()}
    spans = list(_spans(record, part))
    origin_s = min(
        [float(np.min(samples["time_s"], initial=np.inf)), *(start_s for start_s, _, _ in spans)]
    )
    samples["time_s"] = samples["time_s"] - origin_s
    several = len({device.host for device in devices}) > 1
    names = {
        device.uuid: (
            f"{device.host}: " * several
            + f"GPU {device.uuid if device.index is None else device.index}"
        )
        for device in devices
    }
    samples["gpu"] = np.array(
        [names.get(uuid, uuid) for uuid in samples["gpu"].tolist()], dtype=object
    )
    shifted = [
        (a - origin_s, b - origin_s, None if begins is None else begins - origin_s)
        for a, b, begins in spans
    ]
    return SampleTimeline(samples, shifted)


def _spans(record: AnyRecord, part: GpuPart) -> Iterator[tuple[float, float, float | None]]:
    if part.covers != "training":
        return
    for (start_s, end_s), epoch in zip(
        part.spans_s, record.epochs[-len(part.spans_s) :], strict=False
    ):
        has_evaluation = isinstance(epoch, VisionEpoch) and None not in (
            epoch.train_s,
            epoch.evaluate_s,
        )
        yield start_s, end_s, start_s + (epoch.train_s or 0.0) if has_evaluation else None
