"""Figures of a run that measures compare. Each raises ValueError if a run lacks the figure."""

import math
import operator
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from msgspec import UNSET

from multicard.messages import Refusal
from multicard.records import steps
from multicard.records.text_table import clean
from multicard.vision.precision import PRECISIONS

from ..runs import details
from ..runs.grouping import ranks
from ..runs.load import Run
from .comparison import Figure, Readings

WINDOW_S = 10.0  # GPUs are compared over windows of this length, ten of NVML's samples.


def known_values(values: Sequence[float | None], missing: Refusal) -> list[float]:
    """Return the values, or raise `missing` if there are none or one of them is None.

    `missing` says what the run lacks.
    """
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        raise missing
    return present


def column(name: str) -> Figure:
    """Return a figure that reads a column of a run."""

    def figure(_: Readings, run: Run) -> float:
        if run[name] is not None:
            return run[name]
        if name == "step_s":
            raise Refusal("claim.no-step", "a run has no more steps than the warm-up leaves out")
        raise Refusal("claim.no-column", f"a record has no {name}", column=name)

    return figure


TIME = column("total_s")
STEP = column("step_s")
PEAK = column("peak_memory_bytes")
ACCURACY = column("test_accuracy")
ANSWERS = column("test_samples")


def per_rank(figure: Figure) -> Figure:
    """Return a figure divided by the number of ranks."""
    return lambda readings, run: figure(readings, run) / ranks(run)


def pauses_s(readings: Readings, run: Run) -> list[tuple[float, float]]:
    """Return the seconds until the first batches of each epoch, and of its evaluation.

    The first epoch is left out.
    """
    if run["numa"] == "node" and run.environment().numa != "node":
        raise Refusal(
            "claim.not-bound",
            "ranks were not bound to NUMA nodes: numa=node needs numactl",
            key="numa",
        )
    epochs = readings.training(run).epochs[1:]
    missing = Refusal(
        "claim.no-pauses",
        "pauses need two epochs, and the waits of all of them and of their evaluations",
    )
    evaluations_s = known_values([epoch.evaluate_first_batch_s for epoch in epochs], missing)
    return list(
        zip(
            known_values([epoch.first_batch_s for epoch in epochs], missing),
            evaluations_s,
            strict=True,
        )
    )


def all_pauses_s(readings: Readings, run: Run) -> float:
    """Return the sum of all pauses, in seconds."""
    return sum(map(sum, pauses_s(readings, run)))


def share_of_pauses(readings: Readings, run: Run) -> float:
    """Return the share of pauses in the epochs after the first one and their evaluations."""
    return _valid_share(all_pauses_s(readings, run) / sum(_epochs_s(readings, run)))


def share_of_least_pause(readings: Readings, run: Run) -> float:
    """Return the least share of a pause in an epoch and its evaluation, over all epochs.

    The least one is used because a single long pause does not mean that every epoch has one.
    """
    return _valid_share(
        min(map(operator.truediv, map(min, pauses_s(readings, run)), _epochs_s(readings, run)))
    )


def _valid_share(share: float) -> float:
    """Return a share of a time; refuse it if the part is longer than the whole."""
    if share > 1:
        raise Refusal(
            "claim.longer-than-all", "a part of a run lasted longer than all of it", share=share
        )
    return share


def _epochs_s(readings: Readings, run: Run) -> list[float]:
    """Return the seconds of each epoch after the first one, with its evaluation."""
    ended_s = [epoch.ended_s for epoch in readings.training(run).epochs]
    missing = Refusal("claim.no-epoch-ends", "epochs without the times of their ends")
    return [end_s - start_s for start_s, end_s in pairwise(known_values(ended_s, missing))]


def share_of_reading(readings: Readings, run: Run) -> float:
    """Return the share of a run, with its start, in which processes read the data set.

    The time of reading is `input.read_s` of the record.
    """
    read_s = (readings.training(run).input or {}).get("read_s")
    start_s = run["startup_s"]
    total_s = run["total_s"]
    if read_s is None or not start_s or not total_s:
        raise Refusal(
            "claim.no-reading",
            "a record without the time of reading: `dataset.cache=process` has it",
            key="dataset.cache",
        )
    return _valid_share(read_s / (start_s + total_s))


def _utilisation(readings: Readings, run: Run) -> np.ndarray:
    """Return the share of the time in which a kernel ran on each GPU, by windows of the epochs.

    Returns:
        An array of shape (windows, GPUs).
    """
    readings.training(run)
    timeline = details.timeline(run)
    shares = (
        timeline.by_window("utilisation", WINDOW_S)
        if timeline and "utilisation" in timeline.samples
        else None
    )
    if shares is None or not len(shares) or shares.shape[1] < ranks(run):
        raise Refusal(
            "claim.no-samples",
            "a run without samples of each of its GPUs in epochs (gpu.parquet), which NVML gives",
        )
    return shares


def busiest_over_idlest(readings: Readings, run: Run) -> float:
    """Return the ratio of the busiest GPU's work to the idlest GPU's work, over windows of 10 s.

    Over a whole run, GPUs that take turns would look equally busy.
    """
    shares = _utilisation(readings, run)
    idlest = float(shares.min(axis=1).sum())
    return float(shares.max(axis=1).sum()) / idlest if idlest else math.inf


def share_of_idlest(readings: Readings, run: Run) -> float:
    """Return the mean share of time in which the idlest GPU of each window worked."""
    return float(_utilisation(readings, run).min(axis=1).mean())


def trained_h2d_bytes(readings: Readings, run: Run) -> float:
    """Return the bytes that were copied to the devices for training.

    Evaluation is left out, because every strategy divides it among the ranks.
    """
    moved = readings.record(run).transfer_bytes
    kinds = () if moved is None else (moved.h2d_images, moved.h2d_labels, moved.h2d_setup)
    parts = [part.train for part in kinds if part is not UNSET]
    text = "a record that does not separate the bytes of training from those of evaluation"
    return sum(known_values(parts, Refusal("claim.bytes-not-apart", text)))


def copying_s(readings: Readings, run: Run) -> float:
    """Return the seconds of a rank's copies to the device in training, by its steps' phases."""
    record = readings.training(run)
    steps = sum(epoch.steps or 0 for epoch in record.epochs)
    step_s = (record.phases_s or {}).get("h2d")
    missing = Refusal("claim.no-phases", "a record without the phases of its steps")
    return steps * known_values([step_s], missing)[0]


def share_of_tensors(readings: Readings, run: Run) -> float:
    """Return the bytes of images copied for training, as a share of their bytes as tensors.

    The tensors have three channels and the run's image size and precision. Only photographs count,
    because their files have another size than the tensors.
    """
    if run["dataset"] != "images":
        raise Refusal(
            "claim.no-photographs", "not of photographs: `dataset=images` has them", key="dataset"
        )
    moved = readings.record(run).transfer_bytes
    samples = run["samples_trained"]
    size_px = run["dataset.image_size"]
    images = moved.h2d_images if moved else UNSET
    precision = PRECISIONS.get(run["precision"])
    if images is UNSET or images.train is None or not samples or not size_px or precision is None:
        raise Refusal(
            "claim.no-image-bytes",
            "a record without bytes of images, their number, size or precision",
        )
    value_bits = int(precision.transfer[-2:])  # The name ends with them: float32, bfloat16.
    return images.train / (samples * 3 * size_px**2 * value_bits / 8)


def copied_bytes(_: Readings, run: Run) -> float:
    """Return the bytes copied to, within and from the devices, over all ranks.

    Bytes within and from the devices were profiled in some steps and scaled to all steps.
    """
    parts = [run[column] for column in ("h2d_bytes", "d2d_bytes", "d2h_bytes")]
    text = "a record without bytes copied within and from the devices: `profile=kineto` has them"
    return math.fsum(known_values(parts, Refusal("claim.no-copied-bytes", text, key="profile")))


def accuracy_after(count: int) -> Figure:
    """Return a figure that reads the accuracy after this number of epochs."""

    def figure(readings: Readings, run: Run) -> float:
        accuracies = [
            epoch.test_accuracy for epoch in readings.training(run).epochs[count - 1 : count]
        ]
        text = f"no accuracy after epoch {count}: a run needs that many epochs, each evaluated"
        return known_values(accuracies, Refusal("claim.no-accuracy", text, epoch=count))[0]

    return figure


AFTER_1 = accuracy_after(1)
AFTER_3 = accuracy_after(3)


def losses(readings: Readings, run: Run) -> list[float]:
    """Return the training loss of each epoch; infinite if it was not finite (null in a record)."""
    epochs = readings.training(run).epochs
    epoch_losses = [math.inf if epoch.train_loss is None else epoch.train_loss for epoch in epochs]
    if not epoch_losses or min(epoch_losses) <= 0:
        folder = clean(str(run.folder))
        raise Refusal(
            "claim.no-losses", f"{folder}: its record has no losses above 0", folder=folder
        )
    return epoch_losses


def mean_loss(readings: Readings, run: Run, first: float = 0.0, last: float = 1.0) -> float:
    """Return the geometric mean of the losses of all epochs, or of a part of the epochs.

    It is infinite if one of the losses is not finite.

    Args:
        readings: the records of the runs.
        run: the run.
        first: where the part begins, as a share of the epochs. 0.5 to 1 is the second half.
        last: where the part ends.
    """
    epoch_losses = losses(readings, run)
    part = epoch_losses[int(first * len(epoch_losses)) : math.ceil(last * len(epoch_losses))]
    return math.exp(sum(map(math.log, part)) / len(part))


def mean_loss_over_first(readings: Readings, run: Run) -> float:
    """Return the geometric mean of the losses of all epochs, divided by the first epoch's loss.

    The lower it is, the faster the loss falls, at whatever level it begins.
    """
    return mean_loss(readings, run) / losses(readings, run)[0]


FIRST_HALF = partial(mean_loss, last=0.5)
SECOND_HALF = partial(mean_loss, first=0.5)


def step_losses(readings: Readings, run: Run) -> np.ndarray:
    """Return rank 0's training loss of each step, of shape (steps,).

    Raises:
        ValueError: the run has no steps.
    """
    rows = steps.steps_table(run.folder, readings.record(run))
    return rows["loss"].to_numpy()[rows["rank"].to_numpy() == 0]


def until_loss_s(readings: Readings, run: Run, loss: float) -> float:
    """Return the seconds until the end of the first epoch whose training loss is at most `loss`."""
    by_epoch = zip(readings.training(run).epochs, losses(readings, run), strict=True)
    ends_s = [epoch.ended_s for epoch, epoch_loss in by_epoch if epoch_loss <= loss < math.inf]
    return known_values(
        ends_s[:1], Refusal("claim.loss-not-reached", "a run did not reach the loss")
    )[0]
