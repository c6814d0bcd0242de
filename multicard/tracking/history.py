"""The history of a run: a row for each step of each epoch, and one for each epoch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.measure import formulas
from multicard.tracking import keys, learning_rate

Columns = dict[str, np.ndarray]

OF_EPOCHS = {name: name.removeprefix(f"{keys.EPOCH}/") for name in keys.BY_EPOCH}  # the record's names
REWARDS = {"reward_chosen": "rewards_chosen", "reward_rejected": "rewards_rejected"}


@dataclass(frozen=True)
class Row:
    """One row of the history.

    trained_s: seconds of training at its moment, as the record counts them.
    """

    trained_s: float
    values: dict[str, float]


@dataclass(frozen=True)
class Training:
    """What the history is made of.

    config: of the run.
    epochs: as the record has them, those that all ranks finished.
    steps_per_epoch: of the whole run, where a probe has fewer.
    """

    config: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    steps_per_epoch: int | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Training":
        probe = record.get("probe") or {}
        return cls(record.get("config") or {}, record.get("epochs") or [], probe.get("steps_per_epoch"))


def rows(training: Training, steps: Any) -> list[Row]:
    """All rows, in the order of their moments.

    Args:
        steps: of all ranks (an Arrow table); None where there are none.
    """
    columns: Columns = {} if steps is None else {name: steps[name].to_numpy() for name in steps.column_names}
    every: list[Row] = []
    number, ended_s = 0, 0.0
    for epoch in training.epochs:
        index, evaluate_s = epoch["epoch"], epoch.get("evaluate_s") or 0.0
        train_s = epoch.get("train_s") or 0.0
        known_s = epoch.get("ended_s")
        ended_s = ended_s + train_s + evaluate_s if known_s is None else known_s
        began_s = ended_s - evaluate_s - train_s
        of_epoch = columns["epoch"] == index if columns else np.zeros(0, dtype=bool)
        if of_epoch.any():
            own = {name: column[of_epoch] for name, column in columns.items()}
            for end_s, values in _steps(own, training, number):
                every.append(Row(began_s + min(end_s, train_s), values | {keys.STEP: number, keys.EPOCH: index}))
                number += 1
        figures = {name: epoch.get(key) for name, key in OF_EPOCHS.items()}
        known = {name: value for name, value in figures.items() if value is not None}
        every.append(Row(ended_s, known | {keys.EPOCH: index}))
    return every


def step_figures(columns: Columns, config: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """The figures of an epoch's steps (steps,), by the keys of `keys.BY_STEP`, as far as there are columns for them.

    The time of a step is by the slowest rank's clock, its loss the mean weighted by samples.
    """
    rank, step = columns["rank"], columns["step"]
    step_s = formulas.step_times_s(np.zeros_like(step), rank, step, columns["step_s"])
    figures = {"train/step_s": step_s}
    first = rank == rank.min()
    if "loss" in columns:
        tuning = "tokens" in columns  # of which only rank 0 knows the loss
        unknown = ~first if tuning else columns["samples"] == 0
        weights = np.where(unknown, 0, columns["samples"])
        losses = np.where(weights > 0, columns["loss"], 0.0)
        figures["train/loss"] = np.bincount(step, losses * weights) / np.bincount(step, weights)
    for key, column in (("train/images_per_s", "samples"), ("train/tokens_per_s", "non_padding")):
        if column in columns and ("tokens" in columns) == (column == "non_padding"):
            figures[key] = np.bincount(step, columns[column]) / np.where(step_s > 0, step_s, math.nan)
    if "data_s" in columns:
        figures["train/data_wait_s"] = np.bincount(step, columns["data_s"]) / np.bincount(step)
    if "lr" in columns:
        figures["train/lr"] = columns["lr"][first]
    if "rewards_chosen" in columns and not np.isnan(columns["rewards_chosen"][first]).all():
        figures |= {f"train/{name}": columns[column][first] for name, column in REWARDS.items()}
        figures["train/reward_margin"] = figures["train/reward_chosen"] - figures["train/reward_rejected"]
        figures["train/reward_accuracy"] = columns["rewards_accuracies"][first]
    return figures


def _steps(columns: Columns, training: Training, number: int) -> Iterator[tuple[float, dict[str, float]]]:
    """When each step of an epoch ended, in seconds since the epoch's training began, and its figures.

    Args:
        columns: of the epoch.
        number: of its first step in the run.
    """
    figures = step_figures(columns)
    ends_s = figures["train/step_s"].cumsum()
    config = training.config
    total = (training.steps_per_epoch or len(ends_s)) * (config.get("epochs") or 1)
    for at, end_s in enumerate(ends_s.tolist()):
        values = {name: column[at].item() for name, column in figures.items()}
        if "train/lr" not in values and number + at < total:
            rate = learning_rate.of_step(config, number + at, total) if "lr" in config else None
            values |= {} if rate is None else {"train/lr": rate}
        yield end_s, values


def last_values(every: Sequence[Row]) -> dict[str, float]:
    """The last value of each key, which W&B shows of a run beside its summary."""
    values: dict[str, float] = {}
    for row in every:
        values |= row.values
    return values


def epochs_so_far(ranks: Sequence[Mapping[str, Any]], steps: Any) -> list[dict[str, Any]]:
    """The epochs that all ranks of a run that goes on have finished, as its record will have them.

    Args:
        ranks: the files of all ranks.
        steps: of all ranks (an Arrow table).
    """
    finished = min((len(rank["epochs"]) for rank in ranks), default=0)
    epochs = []
    for index in range(finished):
        parts = [rank["epochs"][index] for rank in ranks]
        own = {
            name: max((p[name] for p in parts if p[name] is not None), default=None)
            for name in parts[0]
            if name.endswith("_s")
        }
        told = {name: value for name, value in parts[0].items() if not name.endswith("_s")}
        epochs.append(told | own | {"epoch": index, "train_loss": _train_loss(steps, index)})
    return epochs


def _train_loss(steps: Any, epoch: int) -> float | None:
    """The mean of an epoch's losses: weighted by samples, or of rank 0's steps in tuning."""
    if steps is None:
        return None
    columns = {name: steps[name].to_numpy() for name in steps.column_names}
    tuning = "tokens" in columns
    known = (columns["epoch"] == epoch) & (columns["rank"] == 0 if tuning else columns["samples"] > 0)
    if not known.any():
        return None
    weights = np.ones(known.sum()) if tuning else columns["samples"][known]
    return float(np.average(columns["loss"][known], weights=weights))
