"""Compute the history of a run: a row for each step and each epoch, and samples of its GPUs.

A record counts training in seconds from its start, over all attempts (`ended_s`, `total_s`). It
also has the time of day at which each attempt started, with a resolution of one second. Like
W&B's, our runtime leaves out the time between two attempts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from multicard.measure import formulas
from multicard.observe.gpu_record import MERGED
from multicard.records.schema import AnyRecord, LlmRecord, Record
from multicard.records.schema_parts import Gpu, Segment
from multicard.tracking import keys

RESOLUTION_S = 1.0  # The resolution of the record's times of day.
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Moment:
    """A moment of a run: the Unix time `at`, and the seconds on the run's clock."""

    at: float
    runtime_s: float


@dataclass(frozen=True)
class AttemptClock:
    """One attempt at a run: Unix times of its start and of the start of its training.

    `trained_s` counts the seconds of training before the attempt.
    """

    started_at: float
    training_at: float
    trained_s: float


@dataclass(frozen=True)
class RunClock:
    """The clock of a run.

    `attempts` has at least one entry. They are numbered like the record's `segments`.
    """

    attempts: Sequence[AttemptClock]
    startup_s: float
    runtime_s: float

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the clock of a record, or of the part that is known while the run goes on."""
        startup_s = record.startup_s or 0.0
        total_s = record.total_s or 0.0
        segments = record.segments or [Segment(record.started_at, trained_s=total_s)]
        attempts = []
        trained_s = 0.0
        lasted_s = 0.0
        for number, segment in enumerate(segments, 1):
            started_at = unix(segment.started_at)
            segment_trained_s = segment.trained_s or 0.0
            training_at = started_at + startup_s
            if segment.ended_at:
                ended_at = unix(segment.ended_at)
                lasted_s += ended_at - started_at - RESOLUTION_S
                training_at = (
                    training_at
                    if number == len(segments)
                    else max(started_at, ended_at - segment_trained_s)
                )
            attempts.append(AttemptClock(started_at, training_at, trained_s))
            trained_s += segment_trained_s
        return cls(attempts, startup_s, max(startup_s + total_s, lasted_s))

    @property
    def started_at(self) -> float:
        """Unix time at which the first attempt started."""
        return self.attempts[0].started_at

    @property
    def end(self) -> Moment:
        last = self.attempts[-1]
        return Moment(
            last.training_at - self.startup_s - last.trained_s + self.runtime_s, self.runtime_s
        )

    def moment(self, trained_s: float) -> Moment:
        """Return the moment after `trained_s` seconds of training."""
        begun = [attempt for attempt in self.attempts if attempt.trained_s < trained_s]
        attempt = begun[-1] if begun else self.attempts[0]
        return Moment(
            attempt.training_at + trained_s - attempt.trained_s, self.startup_s + trained_s
        )


def unix(text: str | None) -> float:
    """Convert a record's time of day to Unix time; 0 if it has none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class HistoryRow(NamedTuple):
    """A row of the history: its moment, and its values by key."""

    moment: Moment
    values: dict[str, Any]


def rows(record: AnyRecord, steps: Any) -> list[HistoryRow]:
    """Return all rows of a run, in the order of their moments.

    Args:
        record: the record, or the part that is known while the run goes on.
        steps: an Arrow table of the steps of all ranks, or None.
    """
    timeline = RunClock.of(record)
    columns = {} if steps is None else {name: steps[name].to_numpy() for name in steps.column_names}
    all_rows: list[HistoryRow] = []
    number = 0
    ended_s = 0.0
    for epoch in record.epochs:
        held_out_figures = held_out(record, epoch.epoch)
        train_s = epoch.train_s or 0.0
        evaluate_s = getattr(epoch, "evaluate_s", None) or held_out_figures.get(
            "epoch/evaluate_s", 0.0
        )
        ended_s = ended_s + train_s + evaluate_s if epoch.ended_s is None else epoch.ended_s
        epoch_columns = {
            name: column[columns["epoch"] == epoch.epoch] for name, column in columns.items()
        }
        if epoch_columns and len(epoch_columns["step"]):
            figures = step_figures(epoch_columns)
            ends_s = (
                ended_s
                - evaluate_s
                - train_s
                + np.minimum(figures["train/step_s"].cumsum(), train_s)
            )
            figures[keys.STEP] = number + np.arange(len(ends_s))
            for place, end_s in enumerate(ends_s.tolist()):
                values = {name: column[place].item() for name, column in figures.items()}
                all_rows.append(
                    HistoryRow(timeline.moment(end_s), values | {keys.EPOCH: epoch.epoch})
                )
            number += len(ends_s)
        epoch_values = {
            name: getattr(epoch, name.removeprefix(f"{keys.EPOCH}/"), None)
            for name in keys.BY_EPOCH
        }
        values = {
            name: value for name, value in epoch_values.items() if value is not None
        } | held_out_figures
        all_rows.append(HistoryRow(timeline.moment(ended_s), values | {keys.EPOCH: epoch.epoch}))
    return all_rows


def held_out(record: AnyRecord, epoch: int | None) -> dict[str, float]:
    """Return the last loss on held-out rows in an epoch, and the seconds of all its evaluations.

    The result is empty for runs without held-out rows.
    """
    evaluations = (
        record.held_out.evaluations
        if isinstance(record, LlmRecord) and record.held_out is not None
        else []
    )
    epoch_evaluations = [evaluation for evaluation in evaluations if evaluation.epoch == epoch]
    if not epoch_evaluations:
        return {}
    figures = {
        "epoch/evaluate_s": sum(evaluation.evaluate_s or 0.0 for evaluation in epoch_evaluations)
    }
    if epoch_evaluations[-1].loss is not None:
        figures["epoch/held_out_loss"] = epoch_evaluations[-1].loss
    return figures


def step_figures(columns: Columns) -> Columns:
    """Return the figures of an epoch's steps, each of shape (steps,), by key of `keys.BY_STEP`.

    Figures without the columns they need are left out. The time of a step is the slowest rank's.
    Its loss is the mean over ranks, weighted by samples.
    """
    rank = columns["rank"]
    step = columns["step"]
    step_s = formulas.step_times_s(np.zeros_like(step), rank, step, columns["step_s"])
    figures = {"train/step_s": step_s}
    is_first_rank = rank == rank.min()
    is_tuning = "non_padding" in columns
    if "loss" in columns and np.any(columns.get("loss_told", 1)):
        # In tuning, only rank 0 knows the loss.
        is_unknown = ~is_first_rank if is_tuning else columns["samples"] == 0
        weights = (
            columns["loss_told"]
            if "loss_told" in columns
            else np.where(is_unknown, 0, columns["samples"])
        )
        losses = np.where(weights > 0, columns["loss"], 0.0)
        weight_sums = np.bincount(step, weights)
        loss_sums = np.bincount(step, losses * weights)
        unknown_loss = np.full(len(weight_sums), math.nan)
        figures["train/loss"] = np.divide(
            loss_sums, weight_sums, out=unknown_loss, where=weight_sums > 0
        )
    counted_columns = (
        {"train/tokens_per_s": "non_padding"} if is_tuning else {"train/images_per_s": "samples"}
    )
    if "batches" in columns:  # A script's steps have this column.
        counted_columns = {"train/samples_per_s": "samples", "train/tokens_per_s": "tokens"}
    for key, column in counted_columns.items():
        if column in columns:
            figures[key] = np.bincount(step, columns[column]) / np.where(
                step_s > 0, step_s, math.nan
            )
    if "data_s" in columns:
        figures["train/data_wait_s"] = np.bincount(step, columns["data_s"]) / np.bincount(step)
    if "lr" in columns:
        figures["train/lr"] = columns["lr"][is_first_rank]
    if "rewards_chosen" in columns and not np.isnan(columns["rewards_chosen"][is_first_rank]).all():
        names = ("rewards_chosen", "rewards_rejected", "rewards_accuracies")
        chosen, rejected, accuracy = (columns[name][is_first_rank] for name in names)
        figures |= dict(
            zip(keys.REWARDS, (chosen, rejected, chosen - rejected, accuracy), strict=True)
        )
    return figures


def samples(
    folder: Path, gpu: Gpu | None, timeline: RunClock
) -> list[tuple[float, dict[str, float]]]:
    """Return the Unix time and the values of each sample in gpu.parquet, named as W&B's panels.

    GPUs are numbered from 0 within the run, so that a panel shows the runs of a sweep side by side.
    If an attempt ran on several nodes, the host is part of the name, as in W&B's own labels.
    """
    return sorted(_gpu_samples(folder, gpu, timeline), key=lambda sample: sample[0])


def _gpu_samples(
    folder: Path, gpu: Gpu | None, timeline: RunClock
) -> Iterator[tuple[float, dict[str, float]]]:
    path = folder / MERGED
    if gpu is None or not path.exists():
        return
    import pyarrow.parquet as pq

    parts = {}
    for part in gpu.parts:
        attempt = timeline.attempts[min(part.start or 0, len(timeline.attempts) - 1)]
        spans = part.spans_s if part.covers == "training" else None
        # Unix time at which `time_s` is 0.
        zero_at = attempt.training_at - spans[0][0] if spans else attempt.started_at
        hosts = {other.host for other in gpu.parts if other.start == part.start}
        uuids = [device.uuid for device in gpu.devices if device.host in (part.host, None)]
        parts[part.start, part.node] = zero_at, uuids, f"/l:{part.host}" if len(hosts) > 1 else ""
    for row in pq.read_table(path).to_pylist():
        zero_at, uuids, suffix = parts.get((row["start"], row["node"]), (0.0, (), ""))
        if row["gpu"] not in uuids:
            continue
        values = {}
        for column, (name, factor) in keys.GPU_SAMPLES.items():
            value = row.get(column)
            if value is not None and not math.isnan(value):
                values[name] = value * factor
        if values:
            prefix = f"gpu.{uuids.index(row['gpu'])}"
            yield (
                zero_at + row["time_s"],
                {f"{prefix}.{name}{suffix}": value for name, value in values.items()},
            )
