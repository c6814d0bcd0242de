"""The summary of a training run, from the files of its ranks."""

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

# Of an epoch, of the slowest rank
TIMES = ("train_s", "first_batch_s", "evaluate_s", "evaluate_first_batch_s", "ended_s")


def axes(config: Any, device: str) -> dict[str, Any]:
    """The settings that tell runs of a sweep apart. Takes the composed configuration too,
    which may be refused.
    """
    return settings(config, AXES) | {"device": device}


def summarise(
    record: VisionRecord,
    config: VisionConfig,
    placement: Placement,
    ranks: Sequence[VisionReport],
    steps: Any,
) -> None:
    """Fill in the figures of a run, complete or not.

    Args:
        record: with its `gpu`.
        ranks: their reports, by rank. Epochs that not all of them finished are left out.
        steps: the steps of all ranks (an Arrow table); None before the end of the first epoch.
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
        record.non_finite_losses, record.divergence = _judged(table)
    if record.training_joules is not None and record.samples_trained:
        record.joules_per_image = record.training_joules / record.samples_trained
    target = math.inf if config.target_accuracy is None else config.target_accuracy
    reached = (epoch.ended_s for epoch in epochs if (epoch.test_accuracy or 0.0) >= target)
    record.time_to_target_s = next(reached, None)
    record.peak_memory_bytes = peak_memory(ranks, placement.device)
    record.transfer_bytes = _transfers(ranks, table, placement)
    record.communication_bytes = _communication(config, ranks, table)


def _epoch(index: int, ranks: Sequence[VisionReport], table: dict[str, np.ndarray]) -> VisionEpoch:
    """One epoch over all ranks: times are the slowest rank's,
    the loss is weighted by the samples trained.
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
    """The steps of an epoch, and its distinct samples: in proportion,
    where a probe cut it short.
    """
    steps = int(rows["step"].max()) + 1
    whole = ranks[0].steps_per_epoch
    return steps, round(ranks[0].distinct_samples * steps / whole)


def _judged(table: dict[str, np.ndarray]) -> tuple[int, Divergence | None]:
    """The losses that are not finite; a rank without a batch in a round has none there."""
    has_loss = table["samples"] > 0
    known = {name: column[has_loss] for name, column in table.items()}
    count, first = formulas.count_non_finite(known, np.isfinite(known["loss"]))
    return count, None if first is None else Divergence(*first)


def _rate(
    record: VisionRecord, ranks: Sequence[VisionReport], table: dict[str, np.ndarray]
) -> None:
    """Fill in step and phase times, and images/s over the steps after the warm-up.

    `images_per_s` counts every sample of an epoch once, however often padding or `ddp` trained it;
    `trained_images_per_s` counts each time.
    """
    counted = Counted(record, table)
    record.step_s = counted.statistics()
    if not table:
        return
    first = {name: column[table["epoch"] == 0] for name, column in table.items()}
    trained = first["samples"].sum()
    (_, distinct) = _steps_and_samples(ranks, first)
    record.trained_images_per_s = trained_per_s = counted.per_s("samples")
    record.images_per_s = trained_per_s and trained_per_s * distinct / trained
    if counted.measured.any():  # mean a step and rank
        record.phases_s = {
            phase: float(table[f"{phase}_s"][counted.measured].mean()) for phase in PHASES
        }


def _transfers(
    ranks: Sequence[VisionReport], table: dict[str, np.ndarray], placement: Placement
) -> Transfers:
    """Bytes handed to the devices, over all ranks and finished epochs."""

    def counted(key: str) -> Parts:
        epochs = chain.from_iterable(rank.epochs for rank in ranks)
        evaluated = sum(getattr(epoch, f"evaluate_{key}") for epoch in epochs)
        return Parts(int(table[key].sum()) if table else 0, evaluated)

    setups = [rank.setup_h2d_bytes for rank in ranks]  # before the first batch
    setup = Parts(
        sum(part.train or 0 for part in setups), sum(part.evaluate or 0 for part in setups)
    )
    images = counted("h2d_images_bytes")
    labels = counted("h2d_labels_bytes")
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
    """Bytes that a rank receives in collectives, from sizes and steps;
    None where the strategy does not know them.
    """
    first = ranks[0] if ranks else VisionReport(rank=0)
    sizes = (
        first.parameter_bytes,
        first.gradient_bytes,
        first.buffer_bytes,
        first.statistics_bytes,
    )
    steps = full_steps = 0
    trained: Counter[int] = Counter()
    if table:
        steps = int((table["rank"] == 0).sum())
        trained.update(table["samples"][table["rank"] == 0].tolist())
        without_batch = table["samples"] == 0  # of rows, each a rank's step
        full_steps = steps - len(
            set(zip(table["epoch"][without_batch], table["step"][without_batch], strict=True))
        )
    evaluated: Counter[int] = Counter()
    for epoch in first.epochs:
        evaluated += _batches(epoch.test_samples or 0, config.rank_batch_size)
    precision = PRECISIONS[config.precision.name]
    traffic = Traffic(
        len(ranks),
        steps,
        full_steps,
        len(first.epochs),
        *sizes,
        trained=trained,
        evaluated=evaluated,
        image_bytes=3 * config.dataset.image_size**2 * value_bytes(precision.transfer),
        output_bytes=first.classes * value_bytes(precision.autocast or precision.model),
    )
    received = STRATEGIES[config.strategy.name].received(config, traffic)
    return None if received is None else Communication(**received, per="rank", source="computed")


def _batches(samples: int, size: int) -> Counter[int]:
    """How many batches of each size make these samples: full ones, and a last one."""
    full, last = divmod(samples, size)
    return Counter({size: full}) + Counter({last: min(last, 1)})
