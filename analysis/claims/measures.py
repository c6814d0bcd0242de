"""Measures of two groups of runs (`Sides`), by the names that rules give them.

A measure is a figure of a run in one of the forms of `Sides`: a ratio of two groups, or a share or factor of one group.
Figures of profiles are calls, copies and collectives of a rank, as the papers' Table 1 names them. Counted bytes and
the peak of torch's allocator are exact: the interval of single runs has no width. Resident memory of CPU ranks is not.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from msgspec import UNSET

from analysis.claims.comparison import Figure, Readings, Sides
from analysis.runs.grouping import MEMORY, is_exact, ranks
from analysis.runs.load import Run
from analysis.stats import between_runs, intervals
from analysis.stats.intervals import Interval
from multicard.measure.repeated_runs import Term
from multicard.observe.profiles.events import COPIES
from multicard.observe.profiles.metrics import Profile
from multicard.records.schema_parts import ProfileRank
from multicard.records.text_table import clean
from multicard.vision.precision import PRECISIONS

MISSING = {"step_s": "a run has no more steps than the warm-up leaves out"}
RankFigure = Callable[[Profile, ProfileRank], float]  # raises ValueError where a profile has none


# Figures of a run; each raises ValueError where a run has none


def _known(values: Sequence[float | None], missing: str) -> list[float]:
    """The values; `missing` says what a run lacks where there are none, or one is None."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        raise ValueError(missing)
    return known


def _column(name: str) -> Figure:
    def figure(_: Readings, run: Run) -> float:
        return _known([run[name]], MISSING.get(name, f"a record has no {name}"))[0]

    return figure


TIME, STEP, PEAK = _column("total_s"), _column("step_s"), _column("peak_memory_bytes")
ACCURACY, ANSWERS = _column("test_accuracy"), _column("test_samples")


def _a_rank(figure: Figure) -> Figure:
    return lambda readings, run: figure(readings, run) / ranks(run)


def pauses_s(readings: Readings, run: Run) -> list[float]:
    """The time until the first batch of each epoch after the first one."""
    if run["numa"] == "node" and run.environment().numa != "node":
        raise ValueError("ranks were not bound to NUMA nodes: numa=node needs numactl")
    waits_s = [epoch.first_batch_s for epoch in readings.training(run).epochs[1:]]
    return _known(waits_s, "pauses between epochs need two epochs, and the times of all of them")


def all_pauses_s(readings: Readings, run: Run) -> float:
    return sum(pauses_s(readings, run))


def share_of_pauses(readings: Readings, run: Run) -> float:
    """The pauses / the time of the epochs after the first one and their evaluations."""
    return all_pauses_s(readings, run) / sum(_epochs_s(readings, run))


def share_of_least_pause(readings: Readings, run: Run) -> float:
    """The least share of an epoch and its evaluation that is a pause: one long pause is none before each epoch."""
    return min(map(operator.truediv, pauses_s(readings, run), _epochs_s(readings, run)))


def _epochs_s(readings: Readings, run: Run) -> list[float]:
    """The time of each epoch after the first one with its evaluation."""
    ended_s = [epoch.ended_s for epoch in readings.training(run).epochs]
    return [end_s - start_s for start_s, end_s in pairwise(_known(ended_s, "epochs without the times of their ends"))]


def share_of_reading(readings: Readings, run: Run) -> float:
    """The share of reading the data set into each process (`input.read_s`) in the run, its start included."""
    read_s, start_s, total_s = (readings.training(run).input or {}).get("read_s"), run["startup_s"], run["total_s"]
    if read_s is None or not start_s or not total_s:
        raise ValueError("a record without the time of reading: dataset.cache=process has it")
    return read_s / (start_s + total_s)


def busiest_over_idlest(readings: Readings, run: Run) -> float:
    """The share of the time in which a kernel was at work, on the busiest GPU of a run / on the idlest."""
    gpu = readings.record(run).gpu
    shares = [device.utilisation_mean for device in gpu.devices] if gpu else []
    known = _known(shares, "a record without the utilisation of its GPUs, which NVML gives")
    return max(known) / min(known) if min(known) else math.inf


def trained_h2d_bytes(readings: Readings, run: Run) -> float:
    """Bytes to the devices for training; evaluation is divided among the ranks by every strategy."""
    moved = readings.record(run).transfer_bytes
    kinds = () if moved is None else (moved.h2d_images, moved.h2d_labels, moved.h2d_setup)
    parts = [part.train for part in kinds if part is not UNSET]
    return sum(_known(parts, "a record that does not tell bytes of training from those of evaluation"))


def copying_s(readings: Readings, run: Run) -> float:
    """Seconds of a rank's copies to the device in training, by the phases of its steps."""
    record = readings.training(run)
    steps, step_s = sum(epoch.steps or 0 for epoch in record.epochs), (record.phases_s or {}).get("h2d")
    return steps * _known([step_s], "a record without the phases of its steps")[0]


def share_of_tensors(readings: Readings, run: Run) -> float:
    """Bytes of the images copied for training / bytes of all images trained on as tensors of three channels; of
    photographs alone, which a file holds in another size than a tensor."""
    if run["dataset"] != "images":
        raise ValueError("not of photographs: dataset=images")
    moved, samples, size_px = readings.record(run).transfer_bytes, run["samples_trained"], run["dataset.image_size"]
    images, precision = moved.h2d_images if moved else UNSET, PRECISIONS.get(run["precision"])
    if images is UNSET or images.train is None or not samples or not size_px or precision is None:
        raise ValueError("a record without bytes of images, their number, size or precision")
    value_bits = int(precision.transfer[-2:])  # float32, bfloat16
    return images.train / (samples * 3 * size_px**2 * value_bits / 8)


def copied_bytes(_: Readings, run: Run) -> float:
    """Bytes to the devices, and those within and from them of the profiled steps scaled to all, over all ranks."""
    parts = [run[column] for column in ("h2d_bytes", "d2d_bytes", "d2h_bytes")]
    missing = "a record without bytes copied within and from the devices: profile=kineto has them"
    return math.fsum(_known(parts, missing))


def accuracy_after(count: int) -> Figure:
    """The accuracy after so many epochs."""

    def figure(readings: Readings, run: Run) -> float:
        reached = [epoch.test_accuracy for epoch in readings.training(run).epochs[count - 1 : count]]
        return _known(reached, f"no accuracy after epoch {count}: that many are needed, each evaluated")[0]

    return figure


AFTER_1, AFTER_3 = accuracy_after(1), accuracy_after(3)


def losses(readings: Readings, run: Run) -> list[float]:
    """The training loss of each epoch; infinite where it became no number (null in a record)."""
    epochs = readings.training(run).epochs
    found = [math.inf if epoch.train_loss is None else epoch.train_loss for epoch in epochs]
    if not found or min(found) <= 0:
        raise ValueError(f"{clean(str(run.folder))}: its record has no losses above 0")
    return found


def mean_loss(readings: Readings, run: Run) -> float:
    """The geometric mean of the losses of all epochs; infinite where one became no number."""
    found = losses(readings, run)
    return math.exp(sum(map(math.log, found)) / len(found))


def until_loss_s(readings: Readings, run: Run, loss: float) -> float:
    """The time until the end of the first epoch with this training loss, or less."""
    by_epoch = zip(readings.training(run).epochs, losses(readings, run), strict=True)
    return _known(
        [epoch.ended_s for epoch, own in by_epoch if own <= loss < math.inf][:1], "a run did not reach the loss"
    )[0]


# Figures of a rank's profile


def _mean_of_ranks(rank_figure: RankFigure, per_step: bool = False) -> Figure:
    """The mean over the ranks of a profile, of the whole window or of one step."""

    def figure(readings: Readings, run: Run) -> float:
        profile = readings.profile(run)
        if not profile.ranks:
            raise ValueError("a profile has no ranks")
        if not all(rank.steps for rank in profile.ranks):
            raise ValueError(f"{clean(str(run.folder))}: its profile does not mark steps")
        values = [rank_figure(profile, rank) / (rank.steps or 1 if per_step else 1) for rank in profile.ranks]
        return sum(values) / len(values)

    return figure


def _metric(group: str, metric: str) -> RankFigure:
    def seconds(profile: Profile, rank: ProfileRank) -> float:
        if metric in profile.not_recorded:
            raise ValueError(f"{profile.source} records no {metric}: profile=nsys does")
        for row in profile.rank_rows(rank.rank):
            if (row.group, row.metric) == (group, metric):
                return row.total_s
        raise ValueError(f"no {metric} in the profile: CPU ranks have none")

    return seconds


def communicating(_: Profile, rank: ProfileRank) -> float:
    return _known([rank.derived.communication_s], "no communication in the profile")[0]


def window(_: Profile, rank: ProfileRank) -> float:
    return rank.window_s


def waiting_share(profile: Profile, rank: ProfileRank) -> float:
    """The share of launches and synchronisations in the CUDA calls."""
    calls_s = {row.metric: row.total_s for row in profile.rank_rows(rank.rank) if row.group == "api"}
    if not sum(calls_s.values()):
        raise ValueError("CPU ranks make no CUDA calls")
    waiting_s = sum(seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name)
    return waiting_s / sum(calls_s.values())


def _over(part: RankFigure, whole: RankFigure) -> Figure:
    """A part / a whole; infinite where the whole is 0 and the part is not. Raises ValueError where both are."""

    def share(profile: Profile, rank: ProfileRank) -> float:
        above, below = part(profile, rank), whole(profile, rank)
        if not above and not below:
            raise ValueError("a profile has nothing of what is compared")
        return above / below if below else math.inf

    return _mean_of_ranks(share)


def _combined(combine: Callable[[list[float]], float], *parts: RankFigure) -> RankFigure:
    return lambda profile, rank: combine([part(profile, rank) for part in parts])


COPYING, LAUNCHING = _metric("copy", COPIES["HtoD"]), _metric("api", "cudaLaunchKernel")
STREAM, EVENT = _metric("api", "cudaStreamSynchronize"), _metric("api", "cudaEventSynchronize")
MEMCPY, DESTROY = _metric("api", "cudaMemcpyAsync"), _metric("api", "cudaEventDestroy")
BROADCAST, ALL_GATHER = _metric("collective", "nccl Broadcast"), _metric("collective", "nccl AllGather")
FOUR = _combined(sum, COPYING, LAUNCHING, STREAM, communicating)  # of 2503.15252, Fig. 3
OTHERS = (LAUNCHING, STREAM, communicating, BROADCAST, DESTROY)  # than copies, which change with the precision
FIVE = _combined(sum, LAUNCHING, STREAM, COPYING, EVENT, ALL_GATHER)  # of 2505.22905, Fig. 15


# Measures in forms of their own


def peak_memory(sides: Sides) -> Interval:
    """The peak on the rank that held most, in the run that held most; as wide as the interval of the mean."""
    exact = is_exact((*sides.top, *sides.bottom), MEMORY)
    means = sides.exact_ratio(PEAK) if exact else sides.ratio(PEAK)
    top, bottom = sides.values(PEAK)
    return means.mapped(lambda ratio: ratio * max(top) / max(bottom) / means.estimate)


def mean_share_of_tensors(sides: Sides) -> Interval:
    (share, *others), _ = sides.values(share_of_tensors)
    if others:
        return intervals.mean([share, *others], sides.confidence, sides.basis)
    return Interval(share, share, share, "exact")


def accuracy(sides: Sides, figure: Figure = ACCURACY) -> Interval:
    """An accuracy as a share, top - bottom or that of `top` alone, with an interval over all answers of a side (Wilson;
    Newcombe for the difference), widened by how runs differ.

    Many answers do not show how another training would have gone, nor do runs of the same seed, which count as one.
    """
    accuracies, samples = sides.values(figure, of_seeds=True), sides.values(ANSWERS, of_seeds=True)
    over_answers = intervals.of_answers(accuracies[0], samples[0], sides.confidence)
    if sides.bottom:
        over_answers = intervals.difference(
            over_answers, intervals.of_answers(accuracies[1], samples[1], sides.confidence)
        )
        spreads = sides.spreads(figure, float, between_runs.PRIOR_ACCURACY_SD, of_seeds=True)
        between = between_runs.variance_between(spreads, *map(len, reversed(accuracies)))
    else:
        spread = sides.readings.machines(figure, float, between_runs.PRIOR_ACCURACY_SD, of_seeds=True).of(sides.top[0])
        between = [Term(spread.variance / len(accuracies[0]), spread.term.degrees)] if spread.degrees else None
    if between is None:
        return Interval(over_answers.estimate, None, None, sides.basis)
    return replace(between_runs.widened(over_answers, between, sides.confidence), basis=sides.basis)


def accuracy_of_epochs(sides: Sides) -> Interval:
    """What the epochs after the first one add to the accuracy of `top`, less what it differs by from that of `bottom`;
    as shares."""
    last, first = (accuracy(replace(sides, bottom=()), figure) for figure in (ACCURACY, AFTER_1))
    either_way = (accuracy(sides), accuracy(replace(sides, top=sides.bottom, bottom=sides.top)))
    apart = max(either_way, key=lambda difference: difference.estimate)
    return intervals.difference(intervals.difference(last, first), apart)


def until_same_loss(sides: Sides) -> Interval:
    """The ratio of the times until the training loss is the least that each run of both sides reached, or less."""
    least = max(min(losses(sides.readings, run)) for run in (*sides.top, *sides.bottom))
    return sides.ratio(partial(until_loss_s, loss=least), of_seeds=True)


def loss(sides: Sides) -> Interval:
    """The ratio of the training losses; infinite, or 0, where a loss of one side became no number. Raises ValueError
    where both did, or a record has none."""
    lost = [math.inf in losses for losses in sides.values(mean_loss)]
    if len({len(sides.readings.record(run).epochs) for run in (*sides.top, *sides.bottom)}) > 1:
        raise ValueError("runs of different numbers of epochs")
    if all(lost):
        raise ValueError("the losses became no numbers on both sides")
    if any(lost):
        ratio = math.inf if lost[0] else 0.0
        return Interval(ratio, ratio, ratio, "a loss that became no number")
    return sides.ratio(mean_loss, of_seeds=True)


def time_in(sides: Sides, figure: Figure) -> Interval:
    """The ratio of a metric's seconds; infinite where the bottom has none."""
    top, bottom = sides.values(figure)
    if min(top) > 0 and not any(bottom):
        return Interval(math.inf, math.inf, math.inf, "none on one side")
    return sides.ratio(figure)


def falls_over_others(sides: Sides, figure: RankFigure) -> Interval:
    """How many times a metric's seconds fall from top to bottom / those of the other metric that falls most; / 1 where
    none falls."""
    figures = [_mean_of_ranks(one, per_step=True) for one in (figure, *OTHERS)]
    own, *falls = (time_in(sides, one).mapped(math.log) for one in figures if any(sides.values(one)[0]))
    falls.append(Interval(0.0, 0.0, 0.0))
    return intervals.difference(own, max(falls, key=lambda fall: fall.estimate)).mapped(math.exp)


def with_iteration(sides: Sides, figure: Figure) -> Interval:
    """A figure where an iteration takes longer / where it takes less, of whichever side; without bounds where the
    iterations are not told apart."""
    iteration = sides.ratio(STEP)
    longer = sides if iteration.estimate > 1 else replace(sides, top=sides.bottom, bottom=sides.top)
    told = iteration.low is not None and iteration.high is not None and not iteration.low <= 1 <= iteration.high
    ratio = longer.ratio(figure)
    return ratio if told else Interval(ratio.estimate, None, None, ratio.basis)


# By name


@dataclass(frozen=True)
class Measure:
    """words: the figure as a sentence names it. column: by which `best_of` picks the best and the worst."""

    words: str
    interval: Callable[[Sides], Interval]
    column: str = ""


def _form(words: str, form: Callable[..., Interval], figure: Figure | RankFigure, column: str = "") -> Measure:
    return Measure(words, partial(form, figure=figure), column)


def _ratio(words: str, figure: Figure, column: str = "") -> Measure:
    return _form(words, Sides.ratio, figure, column)


def _exact(words: str, column: str) -> Measure:
    return _form(words, Sides.exact_ratio, _column(column), column)


def _time_in(words: str, metric: RankFigure) -> Measure:
    return _form(f"{words}, a profiled step and rank", time_in, _mean_of_ranks(metric, per_step=True))


_FIVE_CALLS = (
    "part of cudaLaunchKernel, cudaStreamSynchronize, cudaEventSynchronize, AllGather and host-to-device copies in the "
    "profiled time"
)
_THAN_OTHERS = "/ that of the other call, or collectives, that falls most"
_OF_FOUR = "in the sum with copies to the device, cudaStreamSynchronize and"
MEASURES = {
    "time": _ratio("time", TIME, "total_s"),  # of the whole training, with its evaluations
    "iteration": _ratio("time of an iteration", STEP, "step_s"),
    "share_of_pauses": _form(
        "share of the epochs in which the ranks wait for their first batches", Sides.share, share_of_pauses
    ),
    "share_of_each_pause": _form(
        "share of an epoch in which the ranks wait for its first batch, of the epoch with the least",
        *(Sides.share, share_of_least_pause),
    ),
    "share_of_reading": _form("time of reading / of the whole run with its start", Sides.share, share_of_reading),
    "time_of_pauses": _ratio("time until the first batches of the epochs after the first one", all_pauses_s),
    "evaluation": _ratio("time of all evaluations", _column("evaluate_s")),
    "busiest_over_idlest": _form(
        "share of the time with a kernel at work, of a run's busiest GPU / of its idlest",
        *(Sides.factor, busiest_over_idlest),
    ),
    "peak_memory": Measure("peak memory of a GPU", peak_memory, "peak_memory_bytes"),
    "images_trained": _form(
        "images that a GPU trained on, each time that it did", Sides.exact_ratio, _a_rank(_column("samples_trained"))
    ),
    "bytes_to_device": _exact("bytes to all devices", "h2d_bytes"),
    "time_of_copies": _ratio("time of copies to the device in all steps of training", copying_s),
    "bytes_between_ranks": _exact("bytes that a rank receives in collectives", "received_bytes"),
    "bytes_for_training": _form("bytes copied for training to all devices", Sides.exact_ratio, trained_h2d_bytes),
    "bytes_for_a_rank": _form("bytes copied for training to a device", Sides.exact_ratio, _a_rank(trained_h2d_bytes)),
    "bytes_copied": _form("bytes copied to, within and from the devices", Sides.exact_ratio, copied_bytes),
    "share_of_tensors": Measure(
        "bytes of the images copied for training / those of three channels of their size and precision",
        mean_share_of_tensors,
    ),
    "accuracy": Measure("accuracy after the last epoch", accuracy),
    "accuracy_after_3_epochs": _form("accuracy after the third epoch", accuracy, AFTER_3),
    "accuracy_of_epochs": Measure(
        "accuracy that the epochs after the first one add, less the difference of accuracies", accuracy_of_epochs
    ),
    "until_same_loss": Measure("time until the least training loss that both reach", until_same_loss),
    "loss": Measure("training loss, in the geometric mean over the epochs", loss),
    "time_copying": _time_in("time of host-to-device copies", COPYING),
    "time_communicating": _time_in("time in collectives", communicating),
    "time_synchronising": _time_in("time in cudaStreamSynchronize", STREAM),
    "time_in_memcpy": _time_in("time in cudaMemcpyAsync", MEMCPY),
    "time_in_event_destroy": _time_in("time in cudaEventDestroy", DESTROY),
    "time_broadcasting": _time_in("time of ncclDevKernel_Broadcast", BROADCAST),
    "share_of_launches": _ratio(f"share of cudaLaunchKernel {_OF_FOUR} collectives", _over(LAUNCHING, FOUR)),
    "share_of_collectives": _ratio(f"share of collectives {_OF_FOUR} cudaLaunchKernel", _over(communicating, FOUR)),
    "copies_over_others": _form(f"fall of host-to-device copies {_THAN_OTHERS}", falls_over_others, COPYING),
    "memcpy_over_others": _form(f"fall of cudaMemcpyAsync {_THAN_OTHERS}", falls_over_others, MEMCPY),
    "launching_with_iteration": _form(
        "part of cudaLaunchKernel in the profiled time, where an iteration takes longer / where it takes less",
        *(with_iteration, _over(LAUNCHING, window)),
    ),
    "launches_over_copies": _form(
        "cudaLaunchKernel and cudaStreamSynchronize / host-to-device copies",
        *(Sides.factor, _over(_combined(sum, LAUNCHING, STREAM), COPYING)),
    ),
    "share_launching": _ratio("part of cudaLaunchKernel in the profiled time", _over(LAUNCHING, window)),
    "share_synchronising": _ratio("part of cudaStreamSynchronize in the profiled time", _over(STREAM, window)),
    "share_waiting": _form("part of cudaStreamSynchronize in the profiled time", Sides.share, _over(STREAM, window)),
    "share_calling": _form(
        "part of cudaLaunchKernel and cudaStreamSynchronize in the profiled time",
        *(Sides.share, _over(_combined(sum, LAUNCHING, STREAM), window)),
    ),
    "share_of_five": _ratio(_FIVE_CALLS, _over(FIVE, window)),
    "share_of_calls": _form(
        "part of launches and synchronisation in a rank's CUDA calls", Sides.share, _mean_of_ranks(waiting_share)
    ),
    "share_copying": _form("part of host-to-device copies in the profiled time", Sides.share, _over(COPYING, window)),
    "first_calls_over_others": _form(
        "the lesser of cudaEventSynchronize and cudaLaunchKernel / the greatest of the other three",
        *(Sides.factor, _over(_combined(min, EVENT, LAUNCHING), _combined(max, ALL_GATHER, STREAM, COPYING))),
    ),
    "all_gather_over_rest": _form(
        "AllGather / the greater of cudaStreamSynchronize and host-to-device copies",
        *(Sides.factor, _over(ALL_GATHER, _combined(max, STREAM, COPYING))),
    ),
}
