"""Figures of a run that measures compare; each raises ValueError where a run has none."""

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

WINDOW_S = 10.0  # over which GPUs are compared: ten of NVML's samples


def known_values(values: Sequence[float | None], missing: Refusal) -> list[float]:
    """The values; refused with `missing`, which says what a run lacks, where there are none,
    or one is None.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        raise missing
    return known


def column(name: str) -> Figure:
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


def a_rank(figure: Figure) -> Figure:
    return lambda readings, run: figure(readings, run) / ranks(run)


def pauses_s(readings: Readings, run: Run) -> list[tuple[float, float]]:
    """The time until the first batch of each epoch after the first one,
    and until that of its evaluation.
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
    return sum(map(sum, pauses_s(readings, run)))


def share_of_pauses(readings: Readings, run: Run) -> float:
    """The pauses / the time of the epochs after the first one and their evaluations."""
    return _part(all_pauses_s(readings, run) / sum(_epochs_s(readings, run)))


def share_of_least_pause(readings: Readings, run: Run) -> float:
    """The least share of an epoch and its evaluation that is a
    pause: one long pause is none before each of them.
    """
    return _part(
        min(map(operator.truediv, map(min, pauses_s(readings, run)), _epochs_s(readings, run)))
    )


def _part(share: float) -> float:
    """A share of a time; refused where it is longer than that time."""
    if share > 1:
        raise Refusal(
            "claim.longer-than-all", "a part of a run lasted longer than all of it", share=share
        )
    return share


def _epochs_s(readings: Readings, run: Run) -> list[float]:
    """The time of each epoch after the first one with its evaluation."""
    ended_s = [epoch.ended_s for epoch in readings.training(run).epochs]
    missing = Refusal("claim.no-epoch-ends", "epochs without the times of their ends")
    return [end_s - start_s for start_s, end_s in pairwise(known_values(ended_s, missing))]


def share_of_reading(readings: Readings, run: Run) -> float:
    """The share of reading the data set into each process (`input.read_s`) in the run,
    its start included.
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
    return _part(read_s / (start_s + total_s))


def _utilisation(readings: Readings, run: Run) -> np.ndarray:
    """The share of the time in which a kernel was at work,
    of each 10 s of the epochs and each GPU (windows, GPUs).
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
    """The work of the busiest GPU of each 10 s / of the idlest:
    GPUs that take turns are alike over a whole run.
    """
    shares = _utilisation(readings, run)
    idlest = float(shares.min(axis=1).sum())
    return float(shares.max(axis=1).sum()) / idlest if idlest else math.inf


def share_of_idlest(readings: Readings, run: Run) -> float:
    return float(_utilisation(readings, run).min(axis=1).mean())


def trained_h2d_bytes(readings: Readings, run: Run) -> float:
    """Bytes to the devices for training; evaluation is
    divided among the ranks by every strategy.
    """
    moved = readings.record(run).transfer_bytes
    kinds = () if moved is None else (moved.h2d_images, moved.h2d_labels, moved.h2d_setup)
    parts = [part.train for part in kinds if part is not UNSET]
    said = "a record that does not separate the bytes of training from those of evaluation"
    return sum(known_values(parts, Refusal("claim.bytes-not-apart", said)))


def copying_s(readings: Readings, run: Run) -> float:
    """Seconds of a rank's copies to the device in training, by the phases of its steps."""
    record = readings.training(run)
    steps = sum(epoch.steps or 0 for epoch in record.epochs)
    step_s = (record.phases_s or {}).get("h2d")
    missing = Refusal("claim.no-phases", "a record without the phases of its steps")
    return steps * known_values([step_s], missing)[0]


def share_of_tensors(readings: Readings, run: Run) -> float:
    """Bytes of the images copied for training / bytes of all images trained on as tensors of three
    channels; of photographs alone, which a file holds in another size than a tensor.
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
    value_bits = int(precision.transfer[-2:])  # float32, bfloat16
    return images.train / (samples * 3 * size_px**2 * value_bits / 8)


def copied_bytes(_: Readings, run: Run) -> float:
    """Bytes to the devices, and those within and from them of the profiled steps scaled to all,
    over all ranks.
    """
    parts = [run[column] for column in ("h2d_bytes", "d2d_bytes", "d2h_bytes")]
    said = "a record without bytes copied within and from the devices: `profile=kineto` has them"
    return math.fsum(known_values(parts, Refusal("claim.no-copied-bytes", said, key="profile")))


def accuracy_after(count: int) -> Figure:
    """The accuracy after so many epochs."""

    def figure(readings: Readings, run: Run) -> float:
        reached = [
            epoch.test_accuracy for epoch in readings.training(run).epochs[count - 1 : count]
        ]
        said = f"no accuracy after epoch {count}: that many are needed, each evaluated"
        return known_values(reached, Refusal("claim.no-accuracy", said, epoch=count))[0]

    return figure


AFTER_1 = accuracy_after(1)
AFTER_3 = accuracy_after(3)


def losses(readings: Readings, run: Run) -> list[float]:
    """The training loss of each epoch; infinite where it became no number (null in a record)."""
    epochs = readings.training(run).epochs
    found = [math.inf if epoch.train_loss is None else epoch.train_loss for epoch in epochs]
    if not found or min(found) <= 0:
        folder = clean(str(run.folder))
        raise Refusal(
            "claim.no-losses", f"{folder}: its record has no losses above 0", folder=folder
        )
    return found


def mean_loss(readings: Readings, run: Run, first: float = 0.0, last: float = 1.0) -> float:
    """The geometric mean of the losses of all epochs, or of a part of them (0.5 to 1: the second
    half); infinite where one became no number.
    """
    found = losses(readings, run)
    part = found[int(first * len(found)) : math.ceil(last * len(found))]
    return math.exp(sum(map(math.log, part)) / len(part))


def mean_loss_over_first(readings: Readings, run: Run) -> float:
    """The geometric mean of the losses of all epochs / that of the first: the less, the faster the
    loss falls, at whatever level it begins.
    """
    return mean_loss(readings, run) / losses(readings, run)[0]


FIRST_HALF = partial(mean_loss, last=0.5)
SECOND_HALF = partial(mean_loss, first=0.5)


def step_losses(readings: Readings, run: Run) -> np.ndarray:
    """The training loss of each step as rank 0 has it (steps,);
    raises ValueError where a run has no steps.
    """
    rows = steps.table(run.folder, readings.record(run))
    return rows["loss"].to_numpy()[rows["rank"].to_numpy() == 0]


def until_loss_s(readings: Readings, run: Run, loss: float) -> float:
    """The time until the end of the first epoch with this training loss, or less."""
    by_epoch = zip(readings.training(run).epochs, losses(readings, run), strict=True)
    ends_s = [epoch.ended_s for epoch, own in by_epoch if own <= loss < math.inf]
    return known_values(
        ends_s[:1], Refusal("claim.loss-not-reached", "a run did not reach the loss")
    )[0]
