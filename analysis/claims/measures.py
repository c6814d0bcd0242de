"""What a claim measures of two groups of runs, `top` and `bottom`: their ratio or difference, with its interval.

Each run gives one figure: its time, its mean step, its accuracy, the mean over its ranks. The interval holds how runs
of one setting differ on that machine, from all settings that were measured more than once
(`analysis.stats.between_runs`). Where none was, there is no interval: neither the epochs and steps of a run, nor its
ranks, nor its answers show how another run of the same setting would have gone.

Counted bytes and the peak of torch's allocator are exact: the interval of single runs has no width. The resident memory
of CPU ranks is not exact.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from analysis.claims.readings import Readings
from analysis.runs import grouping
from analysis.runs.load import Run
from analysis.runs.setting_figure import MEMORY, by_seed, is_exact
from analysis.stats import between_runs, intervals, shares
from analysis.stats.between_runs import Spread
from analysis.stats.intervals import Interval
from multicard.measure.repeated_runs import combined
from multicard.profiling.names import COPIES
from multicard.profiling.profile_data import Profile, RankProfile

PRIOR_SHARE_SD = 0.02  # of a share of a run's time, before any run was repeated
WITHOUT = {"step_s": "a run has no more steps than the warm-up leaves out"}
T = TypeVar("T")
Figure = Callable[[Run], float]


@dataclass(frozen=True)
class Sides:
    """Two groups of runs to compare, and the confidence that their interval needs."""

    top: Sequence[Run]
    bottom: Sequence[Run]
    confidence: float
    readings: Readings

    def each(self, figure: Callable[[Run], T]) -> tuple[list[T], list[T]]:
        """A figure of every run, by side."""
        return [figure(run) for run in self.top], [figure(run) for run in self.bottom]

    def spreads(
        self, figure: "Figure", scale: Callable[[float], float | None], prior_sd: float, of_seeds: bool = False
    ) -> tuple[Spread, Spread]:
        """How runs differ in a figure, on a scale: on the machine of the bottom, and of the top."""
        machines = self.readings.machines(figure, scale, prior_sd, of_seeds)
        return machines.of(self.bottom[0]), machines.of(self.top[0])

    def of_seeds(self, figure: "Figure") -> tuple[list[float], list[float]]:
        """A figure of every seed, by side: the mean over its runs."""
        top, bottom = ([_mean(list(map(figure, runs))) for runs in by_seed(side)] for side in (self.top, self.bottom))
        return top, bottom

    @property
    def basis(self) -> str:
        """ "2 and 3 runs"."""
        counts = {len(self.top), len(self.bottom)} - {0}
        return f"{' and '.join(map(str, sorted(counts)))} run{'s' * (max(counts) > 1)}"


def _column(name: str) -> Figure:
    def figure(run: Run) -> float:
        if run[name] is None:
            raise ValueError(WITHOUT.get(name, f"a record has no {name}"))
        return run[name]

    return figure


def _ratio(sides: Sides, figure: Figure) -> Interval:
    """The ratio of mean figures, with how runs differ."""
    top, bottom = sides.each(figure)
    return _with_spread(sides, top, bottom, figure)


def _with_spread(
    sides: Sides, top: Sequence[float], bottom: Sequence[float], figure: Figure, of_seeds: bool = False
) -> Interval:
    one = between_runs.of_values(bottom, top, sides.spreads(figure, _log, between_runs.PRIOR_SD, of_seeds))
    low, high = one.bounds(sides.confidence) or (None, None)
    return Interval(one.ratio, *((low, high) if one.repeated else (None, None)), sides.basis)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _log(value: float) -> float | None:
    return math.log(value) if 0 < value < math.inf else None


# ---- time


TIME, STEP = _column("total_s"), _column("step_s")


def time(sides: Sides) -> Interval:
    """The time of the whole training, with its evaluations."""
    return _ratio(sides, TIME)


def time_in_pauses(sides: Sides) -> Interval:
    """The time of an epoch in which all ranks wait for its first batch."""
    return _ratio(sides, sides.readings.pause_s)


def share_of_pauses(sides: Sides) -> Interval:
    """The share of these pauses in the time of an epoch; of `top` alone."""
    return _share(sides, sides.readings.share_of_pauses)


def iteration(sides: Sides) -> Interval:
    return _ratio(sides, STEP)


def _share(sides: Sides, figure: Figure) -> Interval:
    """A share of the runs of `top`, with how runs differ."""
    values = [figure(run) for run in sides.top]
    mean, spread = _mean(values), sides.readings.machines(figure, float, PRIOR_SHARE_SD).of(sides.top[0])
    if not spread.degrees:
        return Interval(mean, None, None, sides.basis)
    error = math.sqrt(spread.variance / len(values))
    half = intervals.student_quantile(sides.confidence, spread.term.degrees) * error
    return Interval(mean, max(0.0, mean - half), min(1.0, mean + half), sides.basis)


# ---- bytes


PEAK, TO_DEVICE, RECEIVED = (_column(name) for name in ("peak_memory_bytes", "h2d_bytes", "received_bytes"))
TRAINED = _column("samples_trained")


def peak_memory(sides: Sides) -> Interval:
    """The peak on the rank that held most, in the run that held most; as wide as the interval of the mean."""
    exact = is_exact((*sides.top, *sides.bottom), MEMORY)
    of_means = (_exact_ratio if exact else _ratio)(sides, PEAK)
    top, bottom = sides.each(PEAK)
    return of_means.mapped(lambda ratio: ratio * max(top) / max(bottom) / of_means.estimate)


def bytes_to_device(sides: Sides) -> Interval:
    """Bytes copied to the devices, over all ranks."""
    return _exact_ratio(sides, TO_DEVICE)


def images_trained(sides: Sides) -> Interval:
    """Images trained on, over all ranks and epochs, each time that one was."""
    return _exact_ratio(sides, TRAINED)


def bytes_between_ranks(sides: Sides) -> Interval:
    """Bytes that a rank received in collectives."""
    return _exact_ratio(sides, RECEIVED)


def bytes_moved(sides: Sides) -> Interval:
    """Bytes to the devices and in collectives, over all ranks."""

    def moved_bytes(run: Run) -> float:
        h2d, received = run["h2d_bytes"], run["received_bytes"]
        if h2d is None or received is None:
            raise ValueError("a record has no bytes moved")
        return h2d + received * grouping.ranks(run)

    return _exact_ratio(sides, moved_bytes)


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
    return _with_spread(sides, *sides.of_seeds(sides.readings.mean_loss), sides.readings.mean_loss, of_seeds=True)


# ---- profiles


def time_copying(sides: Sides) -> Interval:
    """The time of copies from host to device, a step and rank."""
    return _ratio(sides, sides.readings.of_ranks("copying", _copying_s))


def time_communicating(sides: Sides) -> Interval:
    """The time during which collectives were at work, a step and rank."""
    return _ratio(sides, sides.readings.of_ranks("communicating", _communicating_s))


def time_synchronising(sides: Sides) -> Interval:
    """The time in cudaStreamSynchronize, a step and rank; infinite where the bottom never calls it."""
    figure = sides.readings.of_ranks("synchronising", _synchronising_s)
    top, bottom = sides.each(figure)
    if min(top) > 0 and not any(bottom):
        return Interval(math.inf, math.inf, math.inf, "none on one side")
    return _with_spread(sides, top, bottom, figure)


def share_of_calls(sides: Sides) -> Interval:
    """The share of kernel launches and synchronisation in the time of a rank's CUDA calls; of `top` alone."""
    return _share(sides, sides.readings.of_ranks("waiting", _waiting_share, per_step=False))


def share_of_launches(sides: Sides) -> Interval:
    """The share of cudaLaunchKernel in the four metrics of 2503.15252, Fig. 3."""
    return _ratio(sides, sides.readings.of_ranks("launches of four", _launches_of_four, per_step=False))


def share_of_collectives(sides: Sides) -> Interval:
    """The share of collectives in the same."""
    return _ratio(sides, sides.readings.of_ranks("collectives of four", _collectives_of_four, per_step=False))


def _copying_s(profile: Profile, rank: RankProfile) -> float:
    return _seconds(profile, rank, "copy", COPIES["HtoD"])


def _communicating_s(_: Profile, rank: RankProfile) -> float:
    if rank.derived.communication_s is None:
        raise ValueError("no communication in the profile")
    return rank.derived.communication_s


def _synchronising_s(profile: Profile, rank: RankProfile) -> float:
    return _seconds(profile, rank, "api", "cudaStreamSynchronize")


def _waiting_share(profile: Profile, rank: RankProfile) -> float:
    calls_s = {row.metric: row.total_s for row in profile.of(rank.rank) if row.group == "api"}
    if not sum(calls_s.values()):
        raise ValueError("CPU ranks make no CUDA calls")
    waiting_s = sum(seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name)
    return waiting_s / sum(calls_s.values())


def _launches_of_four(profile: Profile, rank: RankProfile) -> float:
    return _seconds(profile, rank, "api", "cudaLaunchKernel") / _four_s(profile, rank)


def _collectives_of_four(profile: Profile, rank: RankProfile) -> float:
    return _communicating_s(profile, rank) / _four_s(profile, rank)


def _four_s(profile: Profile, rank: RankProfile) -> float:
    """Copies to the device, launches of kernels, cudaStreamSynchronize and collectives."""
    calls_s = _seconds(profile, rank, "api", "cudaLaunchKernel") + _synchronising_s(profile, rank)
    return _copying_s(profile, rank) + calls_s + _communicating_s(profile, rank)


def _seconds(profile: Profile, rank: RankProfile, group: str, metric: str) -> float:
    for row in profile.of(rank.rank):
        if (row.group, row.metric) == (group, metric):
            return row.total_s
    raise ValueError(f"no {metric} in the profile: CPU ranks have none")


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
    "peak_memory": Measure(peak_memory, "peak_memory_bytes"),
    "images_trained": Measure(images_trained, "samples_trained"),
    "bytes_to_device": Measure(bytes_to_device, "h2d_bytes"),
    "bytes_between_ranks": Measure(bytes_between_ranks, "received_bytes"),
    "bytes_moved": Measure(bytes_moved),
    "accuracy": Measure(accuracy),
    "accuracy_reached": Measure(accuracy_reached),
    "accuracy_after_3_epochs": Measure(accuracy_after_3_epochs),
    "loss": Measure(loss),
    "time_copying": Measure(time_copying),
    "time_communicating": Measure(time_communicating),
    "time_synchronising": Measure(time_synchronising),
    "share_of_calls": Measure(share_of_calls),
    "share_of_launches": Measure(share_of_launches),
    "share_of_collectives": Measure(share_of_collectives),
}
