"""Read the parts of a record, besides its columns, that figures and the report show.

Figures and the report read records only here.
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
    """A run of the report with the parts of its record that are not columns, read once.

    recipe: torchtune's recipe as it was asked for.
    phases_s: the seconds of a step by phase.
    diagnosis: a sentence on what limits the run.
    bound: the parts of that diagnosis; None if the run was not diagnosed.
    """

    recipe: str | None = None
    phases_s: dict[str, float] = field(default_factory=dict)
    diagnosis: str | None = None
    bound: Bound | None = None
    surroundings: Environment = field(default_factory=Environment, repr=False)


def read_details(runs: Sequence[Run]) -> list[DetailedRun]:
    return list(map(_read, runs))


def _read(run: Run) -> DetailedRun:
    try:
        record = run.record()
    except (OSError, ValueError):
        # The run was removed, or measured again, after it had been listed.
        return DetailedRun(run.folder, run.columns, run.prediction, run.limits)
    recorded_phases = _recorded_phases_s(record) if isinstance(record, VisionRecord) else {}
    phases = {name: recorded_phases[name] for name in PHASES if name in recorded_phases}
    recipe = record.config.get("recipe")
    bound = bounds.of(record)
    run_fields = (run.folder, run.columns, run.prediction, run.limits)
    return DetailedRun(
        *run_fields, recipe, phases, bound and bound.sentence, bound, run.environment()
    )


def epoch_values(run: Run, measure: str) -> list[tuple[int, float]]:
    """Return each epoch that has the measure, counted from 1, with its value."""
    numbered_values = [
        (epoch.epoch, getattr(epoch, measure, None)) for epoch in run.record().epochs
    ]
    return [
        (number + 1, value)
        for number, value in numbered_values
        if number is not None and value is not None
    ]


def held_out_losses(run: Run) -> list[tuple[int, float]]:
    """Return the step and the loss of each evaluation of a tuning run's held-out rows."""
    held_out = getattr(run.record(), "held_out", None)
    evaluations = held_out.evaluations if held_out is not None else []
    return [
        (evaluation.step, evaluation.loss)
        for evaluation in evaluations
        if evaluation.step is not None and evaluation.loss is not None
    ]


def held_out_loss_fell(run: Run) -> bool:
    """Return True if a run's held-out loss fell by more than losses differ that count as equal."""
    losses = [loss for _, loss in held_out_losses(run)]
    return len(losses) > 1 and is_less(losses[-1], losses[0])


def int4_groupsize(run: Run) -> int | None:
    """Return how many weights shared a scale when the held-out rows were scored in int4.

    The result is None if they were not scored in int4.
    """
    held_out = getattr(run.record(), "held_out", None)
    in_int4 = None if held_out is None else held_out.in_int4
    return None if in_int4 is None else in_int4.groupsize


def simulated_int4(run: Run) -> bool:
    """Return True if the linear layers simulated the quantisation in tuning (method=qat)."""
    return bool(getattr(run.record(), "fake_quantised_linears", None))


def window_losses(run: Run, windows: int) -> list[tuple[int, float]]:
    """Return the last step of each window of a run's steps, and its mean loss on rank 0.

    The list is empty if the run has no steps.parquet.
    """
    try:
        table = pq.read_table(run.folder / STEPS, columns=["epoch", "rank", "step", "loss"])
    # Arrow raises UnicodeError for a path that is not UTF-8.
    except (OSError, pa.ArrowException, KeyError, UnicodeError):
        return []
    table = table.filter(pc.field("rank") == 0).sort_by(
        [(key, "ascending") for key in ("epoch", "step")]
    )
    losses = table["loss"].drop_null().to_numpy()
    windows_of_losses = np.array_split(losses[np.isfinite(losses)], windows)
    ends = np.cumsum([len(part) for part in windows_of_losses]).tolist()
    return [
        (end, float(part.mean()))
        for end, part in zip(ends, windows_of_losses, strict=True)
        if len(part)
    ]


def phases_s(run: Run) -> dict[str, float]:
    """Return the mean seconds of a step by phase, and the rest of the mean step.

    The result is empty if the record has no phase.
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
    """GPU samples of a run's last start. Their clock begins at 0.

    samples: the columns of gpu.parquet, with `gpu` as a name.
    spans: the start and the end of each epoch, and when its evaluation begins. The end includes the
        evaluation. The third is None if the epoch had no evaluation, or if its time is unknown.
    """

    samples: dict[str, np.ndarray]
    spans: list[tuple[float, float, float | None]]

    def by_window(self, column: str, window_s: float) -> np.ndarray:
        """Return the means of a column (windows, GPUs) over parts of the epochs.

        The parts are about `window_s` long. A part in which a GPU has no sample is left out.
        """
        is_known = np.isfinite(self.samples[column].astype(float))
        time_s, values, gpus = (self.samples[name][is_known] for name in ("time_s", column, "gpu"))
        means = [np.empty((0, len({*gpus})))]
        for start_s, end_s, _ in self.spans:
            edges_s = np.linspace(start_s, end_s, max(1, round((end_s - start_s) / window_s)) + 1)
            samples_by_gpu = [
                (time_s[gpus == gpu], values[gpus == gpu]) for gpu in dict.fromkeys(gpus)
            ]
            sums = np.array(
                [
                    np.histogram(times_s, edges_s, weights=gpu_values)[0]
                    for times_s, gpu_values in samples_by_gpu
                ]
            )
            counts = np.array([np.histogram(times_s, edges_s)[0] for times_s, _ in samples_by_gpu])
            means.append((sums / np.maximum(counts, 1)).T[(counts > 0).all(axis=0)])
        return np.concatenate(means)


def timeline(run: Run) -> SampleTimeline | None:
    """Return the run's GPU samples, or None if there are none that can be read."""
    record = run.record()
    devices = record.gpu.devices if record.gpu else []
    # Each start has its own clock, so only the last one is shown.
    last_part = record.gpu.parts[-1] if record.gpu and record.gpu.parts else GpuPart()
    try:
        table = pq.read_table(run.folder / SAMPLES)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException, UnicodeError):
        return None
    if not {"gpu", "start", "time_s"} <= columns.keys():
        return None
    is_of_start = (
        columns["start"] == last_part.start
        if last_part.start is not None
        else np.ones(table.num_rows, bool)
    )
    samples = {name: column[is_of_start] for name, column in columns.items()}
    spans = list(_spans(record, last_part))
    origin_s = min(
        [float(np.min(samples["time_s"], initial=np.inf)), *(start_s for start_s, _, _ in spans)]
    )
    samples["time_s"] = samples["time_s"] - origin_s
    has_several_hosts = len({device.host for device in devices}) > 1
    names: dict[str | None, str] = {}
    for device in devices:
        name = f"GPU {device.uuid if device.index is None else device.index}"
        names[device.uuid] = f"{device.host}: {name}" if has_several_hosts else name
    samples["gpu"] = np.array(
        [names.get(uuid, uuid) for uuid in samples["gpu"].tolist()], dtype=object
    )
    spans_from_origin = [
        (
            start_s - origin_s,
            end_s - origin_s,
            None if evaluation_s is None else evaluation_s - origin_s,
        )
        for start_s, end_s, evaluation_s in spans
    ]
    return SampleTimeline(samples, spans_from_origin)


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
