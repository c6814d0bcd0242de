"""What a claim measures of two groups of runs (`Sides`): times, bytes, accuracies and losses.

`profile_measures` has the calls, copies and collectives of profiles.

Counted bytes and the peak of torch's allocator are exact: the interval of single runs has no width. The resident memory
of CPU ranks is not exact.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from analysis.claims import profile_measures
from analysis.claims.sides import Figure, Sides
from analysis.runs.load import Run
from analysis.runs.setting_figure import MEMORY, is_exact
from analysis.stats import between_runs, intervals, shares
from analysis.stats.intervals import Interval
from multicard.measure.repeated_runs import combined

WITHOUT = {"step_s": "a run has no more steps than the warm-up leaves out"}


def _column(name: str) -> Figure:
    def figure(run: Run) -> float:
        if run[name] is None:
            raise ValueError(WITHOUT.get(name, f"a record has no {name}"))
        return run[name]

    return figure


# ---- time


TIME, STEP = _column("total_s"), _column("step_s")


def time(sides: Sides) -> Interval:
    """The time of the whole training, with its evaluations."""
    return sides.ratio(TIME)


def time_in_pauses(sides: Sides) -> Interval:
    """The time of an epoch in which all ranks wait for its first batch."""
    return sides.ratio(sides.readings.pause_s)


def share_of_pauses(sides: Sides) -> Interval:
    """The share of these pauses in the time of an epoch; of `top` alone."""
    return sides.share(sides.readings.share_of_pauses)


def share_of_reading(sides: Sides) -> Interval:
    """The share of reading the data set into memory in the run, its start included; of `top` alone."""
    return sides.share(sides.readings.share_of_reading)


def cost_of_nsys(sides: Sides) -> Interval:
    """The time of a step that Nsight Systems records, to one that it does not; of `top` alone."""
    return sides.factor(sides.readings.cost_of_nsys)


def iteration(sides: Sides) -> Interval:
    return sides.ratio(STEP)


# ---- bytes


PEAK, TO_DEVICE, RECEIVED = (_column(name) for name in ("peak_memory_bytes", "h2d_bytes", "received_bytes"))
TRAINED = _column("samples_trained")


def peak_memory(sides: Sides) -> Interval:
    """The peak on the rank that held most, in the run that held most; as wide as the interval of the mean."""
    exact = is_exact((*sides.top, *sides.bottom), MEMORY)
    of_means = _exact_ratio(sides, PEAK) if exact else sides.ratio(PEAK)
    top, bottom = sides.each(PEAK)
    return of_means.mapped(lambda ratio: ratio * max(top) / max(bottom) / of_means.estimate)


def bytes_to_device(sides: Sides) -> Interval:
    """Bytes copied to the devices, over all ranks."""
    return _exact_ratio(sides, TO_DEVICE)


def bytes_for_training(sides: Sides) -> Interval:
    """Those of the batches that are trained on: evaluation is divided among the ranks whatever the strategy."""
    return _exact_ratio(sides, sides.readings.trained_h2d_bytes)


def share_of_tensors(sides: Sides) -> Interval:
    """Bytes of the images copied for training, in those of as many images of three channels; of `top` alone."""
    (share, *others) = [sides.readings.share_of_tensors(run) for run in sides.top]
    if others:
        return intervals.mean([share, *others], sides.confidence, sides.basis)
    return Interval(share, share, share, "exact")


def images_trained(sides: Sides) -> Interval:
    """Images trained on, over all ranks and epochs, each time that one was."""
    return _exact_ratio(sides, TRAINED)


def bytes_between_ranks(sides: Sides) -> Interval:
    """Bytes that a rank received in collectives."""
    return _exact_ratio(sides, RECEIVED)


def bytes_copied(sides: Sides) -> Interval:
    """Bytes to the devices, and those within and from them of the profiled steps scaled to all, over all ranks."""

    def copied_bytes(run: Run) -> float:
        parts = [run[column] for column in ("h2d_bytes", "d2d_bytes", "d2h_bytes")]
        if None in parts:
            raise ValueError("a record without bytes copied within and from the devices: profile=kineto has them")
        return math.fsum(parts)

    return _exact_ratio(sides, copied_bytes)


def _exact_ratio(sides: Sides, figure: Figure) -> Interval:
    top, bottom = sides.each(figure)
    basis = "exact" if len(top) == len(bottom) == 1 else sides.basis
    return intervals.ratio_of_means(top, bottom, sides.confidence, basis, exact=True)


# ---- accuracy and loss


ACCURACY, ANSWERS = _column("test_accuracy"), _column("test_samples")


def accuracy(sides: Sides) -> Interval:
    """top - bottom, as a share: Newcombe's interval over all answers of a side, widened by how runs differ.

    Many answers do not show how another training would have gone, nor do runs of the same seed, which count as one.
    """
    accuracies, samples = sides.of_seeds(ACCURACY), sides.of_seeds(ANSWERS)
    top, bottom = (_answers(accuracies[side], samples[side], sides.confidence) for side in (0, 1))
    over_answers = intervals.difference(top, bottom)
    spreads = sides.spreads(ACCURACY, float, shares.PRIOR_SD, of_seeds=True)
    terms = between_runs.variance_between(spreads, *map(len, reversed(accuracies)))
    if terms is None:
        return Interval(over_answers.estimate, None, None, sides.basis)
    between = combined(terms)
    half = intervals.student_quantile(sides.confidence, between.degrees) * math.sqrt(between.variance)
    over_runs = Interval(0.0, -half, half)
    return replace(intervals.difference(over_answers, over_runs), basis=sides.basis)


def accuracy_reached(sides: Sides) -> Interval:
    """The accuracy after the last epoch; of `top` alone."""
    return _accuracy_of(sides, ACCURACY)


def accuracy_after_3_epochs(sides: Sides) -> Interval:
    """The accuracy after the third epoch; of `top` alone."""
    return _accuracy_of(sides, sides.readings.accuracy_after_3)


def _accuracy_of(sides: Sides, figure: Figure) -> Interval:
    """Wilson's interval over all answers, widened by how runs differ."""
    (accuracies, _), (samples, _) = sides.of_seeds(figure), sides.of_seeds(ANSWERS)
    over_answers = _answers(accuracies, samples, sides.confidence)
    spread = sides.readings.machines(figure, float, shares.PRIOR_SD, of_seeds=True).of(sides.top[0])
    if not spread.degrees:
        return Interval(over_answers.estimate, None, None, sides.basis)
    error = math.sqrt(spread.variance / len(accuracies))
    half = intervals.student_quantile(sides.confidence, spread.term.degrees) * error
    over_runs = Interval(0.0, -half, half)
    return replace(intervals.difference(over_answers, over_runs), basis=sides.basis)


def _answers(accuracies: Sequence[float], samples: Sequence[float], confidence: float) -> Interval:
    right = sum(round(share * int(count)) for share, count in zip(accuracies, samples, strict=True))
    if not sum(samples):
        raise ValueError("no image was tested")
    return intervals.wilson(right, sum(map(int, samples)), confidence)


def loss(sides: Sides) -> Interval:
    """The ratio of the training losses, as a geometric mean over all epochs.

    It is infinite, or 0, where a loss of one side became no number (null in a record).

    Raises:
        ValueError: a record without losses; losses that became no numbers on both sides.
    """
    top, bottom = sides.each(sides.readings.mean_loss)
    if len({len(sides.readings.epochs(run)) for run in (*sides.top, *sides.bottom)}) > 1:
        raise ValueError("runs of different numbers of epochs")
    lost = [math.inf in side for side in (top, bottom)]
    if all(lost):
        raise ValueError("the losses became no numbers on both sides")
    if any(lost):
        ratio = math.inf if lost[0] else 0.0
        return Interval(ratio, ratio, ratio, "a loss that became no number")
    return sides.ratio(sides.readings.mean_loss, of_seeds=True)


@dataclass(frozen=True)
class Measure:
    """column: by which `best_of` picks the best and the worst."""

    interval: Callable[[Sides], Interval]
    column: str = ""


MEASURES = {
    "time": Measure(time, "total_s"),
    "time_in_pauses": Measure(time_in_pauses),
    "share_of_pauses": Measure(share_of_pauses),
    "iteration": Measure(iteration, "step_s"),
    "share_of_reading": Measure(share_of_reading),
    "cost_of_nsys": Measure(cost_of_nsys),
    "peak_memory": Measure(peak_memory, "peak_memory_bytes"),
    "images_trained": Measure(images_trained, "samples_trained"),
    "bytes_to_device": Measure(bytes_to_device, "h2d_bytes"),
    "bytes_for_training": Measure(bytes_for_training),
    "share_of_tensors": Measure(share_of_tensors),
    "bytes_between_ranks": Measure(bytes_between_ranks, "received_bytes"),
    "bytes_copied": Measure(bytes_copied),
    "accuracy": Measure(accuracy),
    "accuracy_reached": Measure(accuracy_reached),
    "accuracy_after_3_epochs": Measure(accuracy_after_3_epochs),
    "loss": Measure(loss),
    **{name: Measure(interval) for name, interval in profile_measures.INTERVALS.items()},
}
