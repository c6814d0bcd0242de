"""Summarise a training run of image recognition from the reports of its ranks."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from multicard.config.placement import Placement
from multicard.config.vision import AXES, VisionConfig
from multicard.measure import formulas
from multicard.measure.timing import PHASES
from multicard.records.rank_files import VisionReport, of_ended_epochs, peak_memory
from multicard.records.schema import VisionEpoch, VisionRecord
from multicard.records.schema_parts import Communication, Divergence, Parts, Transfers
from multicard.records.steps import Counted
from multicard.run.workload import settings
from multicard.vision.precision import PRECISIONS, value_bytes
from multicard.vision.strategy import STRATEGIES, Traffic

# Times of an epoch, of which the slowest rank's count.
TIMES = ("train_s", "first_batch_s", "evaluate_s", "evaluate_first_batch_s", "ended_s")


def axes(config: Any, device: str) -> dict[str, Any]:
    """Return the settings in which runs of a sweep may differ.

    The configuration may also be one that was composed but refused.
    """
    return settings(config, AXES) | {"device": device}


def summarise(
    record: VisionRecord,
    config: VisionConfig,
    placement: Placement,
    ranks: Sequence[VisionReport],
    steps: Any,
) -> None:
    """Fill in the figures of a run, whether it is complete or not.

    Args:
        record: The record to fill in. Its `gpu` is already there.
        ranks: The reports of all ranks, by rank. Epochs that some rank did not finish are left out.
        steps: The steps of all ranks (an Arrow table), or None before the end of the first epoch.
    """
    finished, table = of_ended_epochs(steps, ranks)
    ranks = [msgspec.structs.replace(rank, epochs=rank.epochs[:finished]) for rank in ranks]
    record.epochs = epochs = [_epoch(index, ranks, table) for index in range(finished)]
    if epochs:
        record.total_s = epochs[-1].ended_s
        record.test_accuracy = epochs[-1].test_accuracy
        record.train_s = sum(epoch.train_s or 0.0 for epoch in epochs)
        record.evaluate_s = sum(epoch.evaluate_s or 0.0 for epoch in epochs)
    if ranks:
        names = (
            "cuda_graphs",
            "cuda_graphs_recorded",
            "input",
            "chance_accuracy",
            "parameters",
            "trainable_parameters",
        )
        for name in (*names, "num_workers", "threads", "segments", "saved"):
            setattr(record, name, getattr(ranks[0], name))
    _rate(record, ranks, table)
    if table:
        record.non_finite_losses, record.divergence = _non_finite_losses(table)
    if record.training_joules is not None and record.samples_trained:
        record.joules_per_image = record.training_joules / record.samples_trained
    target = math.inf if config.target_accuracy is None else config.target_accuracy
    reached = (epoch.ended_s for epoch in epochs if (epoch.test_accuracy or 0.0) >= target)
    record.time_to_target_s = next(reached, None)
    record.peak_memory_bytes = peak_memory(ranks, placement.device)
    record.transfer_bytes = _transfers(ranks, table, placement)
    record.communication_bytes = _communication(config, ranks, table)


def _epoch(index: int, ranks: Sequence[VisionReport], table: dict[str, np.ndarray]) -> VisionEpoch:
    """Summarise one epoch over all ranks.

    Times are those of the slowest rank. The loss is weighted by the samples trained.
    """
    parts = [rank.epochs[index] for rank in ranks]
    gaps_s = [part.gap_s for part in parts if part.gap_s is not None]
    rows = {name: column[table["epoch"] == index] for name, column in table.items()}
    has_loss = rows["samples"] > 0
    longest_s = {key: max(getattr(part, key) for part in parts) for key in TIMES}
    steps, distinct = _steps_and_samples(ranks, rows)
    return VisionEpoch(
        epoch=index,
        steps=steps,
        **longest_s,
        gap_s=max(gaps_s, default=None),
        train_loss=float(np.average(rows["loss"][has_loss], weights=rows["samples"][has_loss])),
        **{
            key: getattr(parts[0], key)
            for key in ("test_loss", "test_accuracy", "test_right", "test_samples")
        },
        samples=distinct,
        samples_trained=int(rows["samples"].sum()),
        images_per_s=formulas.throughput_per_s([distinct], [longest_s["train_s"]]),
    )


def _steps_and_samples(
    ranks: Sequence[VisionReport], rows: dict[str, np.ndarray]
) -> tuple[int, int]:
    """Return the steps of an epoch, and its distinct samples.

    If a probe cut the epoch short, the samples are in proportion to the steps.
    """
    steps = int(rows["step"].max()) + 1
    full_steps = ranks[0].steps_per_epoch
    return steps, round(ranks[0].distinct_samples * steps / full_steps)


def _non_finite_losses(table: dict[str, np.ndarray]) -> tuple[int, Divergence | None]:
    """Return the number of losses that are not finite, and where they begin.

    A rank without a batch in a round has no loss there.
    """
    has_loss = table["samples"] > 0
    rows_with_loss = {name: column[has_loss] for name, column in table.items()}
    is_finite = np.isfinite(rows_with_loss["loss"])
    count, first_place = formulas.count_non_finite(rows_with_loss, is_finite)
    return count, None if first_place is None else Divergence(*first_place)


def _rate(
    record: VisionRecord, ranks: Sequence[VisionReport], table: dict[str, np.ndarray]
) -> None:
    """Fill in step and phase times, and images per second over the steps after the warm-up.

    `images_per_s` counts each sample of an epoch once, however often it was trained on because of
    padding or `ddp`. `trained_images_per_s` counts it each time.
    """
    counted = Counted(record, table)
    record.step_s = counted.statistics()
    if not table:
        return
    first_epoch = {name: column[table["epoch"] == 0] for name, column in table.items()}
    trained = first_epoch["samples"].sum()
    (_, distinct) = _steps_and_samples(ranks, first_epoch)
    record.trained_images_per_s = trained_per_s = counted.per_s("samples")
    record.images_per_s = trained_per_s and trained_per_s * distinct / trained
    if counted.measured.any():  # The mean is over all steps of all ranks.
        record.phases_s = {
            phase: float(table[f"{phase}_s"][counted.measured].mean()) for phase in PHASES
        }


def _transfers(
    ranks: Sequence[VisionReport], table: dict[str, np.ndarray], placement: Placement
) -> Transfers:
    """Return the bytes that were copied to the devices, over all ranks and finished epochs."""

    def counted_bytes(key: str) -> Parts:
        epochs = chain.from_iterable(rank.epochs for rank in ranks)
        evaluated = sum(getattr(epoch, f"evaluate_{key}") for epoch in epochs)
        return Parts(int(table[key].sum()) if table else 0, evaluated)

    setups = [rank.setup_h2d_bytes for rank in ranks]  # Copied before the first batch.
    setup = Parts(
        sum(part.train or 0 for part in setups), sum(part.evaluate or 0 for part in setups)
    )
    images = counted_bytes("h2d_images_bytes")
    labels = counted_bytes("h2d_labels_bytes")
    return Transfers(
        h2d=sum((part.train or 0) + (part.evaluate or 0) for part in (images, labels, setup)),
        h2d_images=images,
        h2d_labels=labels,
        h2d_setup=setup,
        source="counted" if placement.device == "cuda" else "counted: what would cross to a device",
    )


def _communication(
    config: VisionConfig, ranks: Sequence[VisionReport], table: dict[str, np.ndarray]
) -> Communication | None:
    """Compute the bytes that a rank receives in collectives, from sizes and steps.

    Returns None if the strategy does not know them.
    """
    rank_0 = ranks[0] if ranks else VisionReport(rank=0)
    sizes = (
        rank_0.parameter_bytes,
        rank_0.gradient_bytes,
        rank_0.buffer_bytes,
        rank_0.statistics_bytes,
    )
    steps = full_steps = 0
    training_batches: Counter[int] = Counter()
    if table:
        steps = int((table["rank"] == 0).sum())
        training_batches.update(table["samples"][table["rank"] == 0].tolist())
        without_batch = table["samples"] == 0  # A row is one step of one rank.
        full_steps = steps - len(
            set(zip(table["epoch"][without_batch], table["step"][without_batch], strict=True))
        )
    evaluation_batches: Counter[int] = Counter()
    for epoch in rank_0.epochs:
        evaluation_batches += _batches(epoch.test_samples or 0, config.rank_batch_size)
    precision = PRECISIONS[config.precision.name]
    traffic = Traffic(
        len(ranks),
        steps,
        full_steps,
        len(rank_0.epochs),
        *sizes,
        training_batches=training_batches,
        evaluation_batches=evaluation_batches,
        image_bytes=3 * config.dataset.image_size**2 * value_bytes(precision.transfer),
        output_bytes=rank_0.classes * value_bytes(precision.autocast or precision.model),
    )
    received = STRATEGIES[config.strategy.name].received(config, traffic)
    return None if received is None else Communication(**received, per="rank", source="computed")


def _batches(samples: int, size: int) -> Counter[int]:
    """Return the number of batches of each size that hold these samples: full ones and a last."""
    full_batches, last_size = divmod(samples, size)
    return Counter({size: full_batches}) + Counter({last_size: min(last_size, 1)})
