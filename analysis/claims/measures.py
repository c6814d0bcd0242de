"""What a claim measures of two groups of runs, `top` and `bottom`: their ratio or difference, with its interval.

- The time of a training is `total_s`. A single run has one such figure and so no spread, but its epochs have (each from
  the end of one evaluation to the end of the next; not the first, with the warm-up). Where there are too few epochs,
  its steps are taken, each multiplied by their number. Several runs (seeds) are resampled too. From MANY_RUNS on, the
  scatter of the runs themselves is enough, and no steps are read.
- An iteration is the mean step of a tuning run.
- Counted bytes and the peak of torch's allocator are exact: the interval of single runs has no width. The resident
  memory of CPU ranks is not exact: several runs are needed.
- Figures of a profile are sums over its steps. Each rank of each run is a sample, so a single rank has no interval.
  Ranks are taken to scatter by the same share on both sides, since there are few of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from analysis.claims.readings import Readings
from analysis.runs import grouping
from analysis.runs.load import Run
from analysis.stats import bootstrap, intervals
from analysis.stats.intervals import Interval
from multicard.profiling.names import COPIES
from multicard.profiling.profile_data import Profile, RankProfile
from multicard.records.text_table import clean

MANY_RUNS = 8
T = TypeVar("T")
RankSeconds = Callable[[Profile, RankProfile], float]


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

    @property
    def fewest(self) -> int:
        """Runs of the smaller side."""
        return min(len(self.top), len(self.bottom))

    @property
    def basis(self) -> str:
        return _counted(len(self.top), len(self.bottom), "run")


def _counted(top: int, bottom: int, noun: str) -> str:
    return f"{' and '.join(map(str, sorted({top, bottom})))} {noun}{'s' * (max(top, bottom) > 1)}"


def _column(name: str) -> Callable[[Run], float]:
    def figure(run: Run) -> float:
        if run[name] is None:
            raise ValueError(f"a record has no {name}")
        return run[name]

    return figure


# ---- time


def time(sides: Sides) -> Interval:
    return _time(sides, with_pauses=True)


def time_without_pauses(sides: Sides) -> Interval:
    """The time of an epoch less the time to its first batch, during which all ranks stand still."""
    return _time(sides, with_pauses=False)


def _time(sides: Sides, with_pauses: bool) -> Interval:
    if with_pauses and sides.fewest >= MANY_RUNS:
        return _ratio(sides, _column("total_s"), exact=False)
    top, bottom = sides.each(lambda run: _epochs_s(sides.readings, run, with_pauses))
    if min(len(samples) for samples in (*top, *bottom)) >= bootstrap.MIN_SAMPLES:
        return intervals.resampled_ratio(top, bottom, sides.confidence, "epochs", block=1)
    if not with_pauses:
        raise ValueError(f"pauses between epochs need {bootstrap.MIN_SAMPLES + 1} epochs")
    return intervals.resampled_ratio(*sides.each(sides.readings.all_steps_s), sides.confidence, "steps")


def _epochs_s(readings: Readings, run: Run, with_pauses: bool) -> np.ndarray:
    """Seconds of each epoch (n,) but the first; empty where a record lacks one of them."""
    epochs = readings.epochs(run)
    ended_s = [ended for epoch in epochs if isinstance(ended := epoch.get("ended_s"), int | float)]
    first_batches_s = [0.0 if with_pauses else epoch.get("first_batch_s") for epoch in epochs[1:]]
    pauses_s = [pause for pause in first_batches_s if isinstance(pause, int | float)]
    if not len(ended_s) - 1 == len(pauses_s) == len(epochs) - 1:
        return np.empty(0)
    seconds = np.diff(ended_s) - np.array(pauses_s)
    return seconds if (seconds > 0).all() else np.empty(0)


def iteration(sides: Sides) -> Interval:
    if sides.fewest >= MANY_RUNS:
        return _ratio(sides, _column("step_s"), exact=False)
    return intervals.resampled_ratio(*sides.each(sides.readings.steps_s), sides.confidence, "steps")


# ---- bytes


def peak_memory(sides: Sides) -> Interval:
    """The peak on the rank that held most."""
    allocated = not any(run["cpu_ranks"] for run in (*sides.top, *sides.bottom))
    return _ratio(sides, _column("peak_memory_bytes"), exact=allocated)


def bytes_to_device(sides: Sides) -> Interval:
    """Bytes copied to the devices, over all ranks."""
    return _ratio(sides, _column("h2d_bytes"), exact=True)


def bytes_between_ranks(sides: Sides) -> Interval:
    """Bytes that a rank received in collectives."""
    return _ratio(sides, _column("received_bytes"), exact=True)


def bytes_moved(sides: Sides) -> Interval:
    """Bytes to the devices and in collectives, over all ranks."""

    def moved_bytes(run: Run) -> float:
        h2d, received = run["h2d_bytes"], run["received_bytes"]
        if h2d is None or received is None:
            raise ValueError("a record has no bytes moved")
        return h2d + received * grouping.ranks(run)

    return _ratio(sides, moved_bytes, exact=True)


def _ratio(sides: Sides, figure: Callable[[Run], float], exact: bool) -> Interval:
    top, bottom = sides.each(figure)
    basis = "exact" if exact and len(top) == len(bottom) == 1 else sides.basis
    return intervals.ratio_of_means(top, bottom, sides.confidence, basis, exact)


# ---- accuracy and loss


def accuracy(sides: Sides) -> Interval:
    """top - bottom, as a share: Newcombe's interval over all answers of a side.

    Where both sides have several runs, Student's interval over their accuracies if that is wider: few seeds may agree
    by chance, and many answers do not show how another training would have gone.
    """
    accuracies, samples = sides.each(_column("test_accuracy")), sides.each(_column("test_samples"))
    top, bottom = (_answers(accuracies[side], samples[side], sides.confidence) for side in (0, 1))
    over_answers = intervals.difference(top, bottom)
    if sides.fewest < 2 or over_answers.low is None or over_answers.high is None:
        return over_answers
    over_runs = intervals.difference_of_means(*accuracies, sides.confidence, sides.basis)
    assert over_runs.low is not None and over_runs.high is not None  # of several values each
    wider = over_runs.high - over_runs.low > over_answers.high - over_answers.low
    return over_runs if wider else over_answers


def _answers(accuracies: Sequence[float], samples: Sequence[float], confidence: float) -> Interval:
    right = sum(round(share * int(count)) for share, count in zip(accuracies, samples, strict=True))
    if not sum(samples):
        raise ValueError("no image was tested")
    return intervals.wilson(right, sum(map(int, samples)), confidence)


def loss(sides: Sides) -> Interval:
    """The ratio of the training losses, as a geometric mean over all epochs.

    It is infinite, or 0, where a loss of one side became no number (null in a record). For single runs the interval is
    over the epochs, counted as the number of independent values they are worth; for several it is over the runs.

    Raises:
        ValueError: a record without losses; losses that became no numbers on both sides.
    """
    losses = sides.each(lambda run: _losses(sides.readings, run))
    if len({len(values) for side in losses for values in side}) > 1:
        raise ValueError("runs of different numbers of epochs")
    lost = [not np.isfinite(side).all() for side in losses]
    if all(lost):
        raise ValueError("the losses became no numbers on both sides")
    if any(lost):
        ratio = math.inf if lost[0] else 0.0
        return Interval(ratio, ratio, ratio, "a loss that became no number")
    top, bottom = (np.log(side) for side in losses)  # (runs, epochs)
    if sides.fewest > 1:
        top, bottom = (side.mean(axis=1).tolist() for side in (top, bottom))
        return intervals.difference_of_means(top, bottom, sides.confidence, sides.basis).mapped(math.exp)
    log_ratios = top.mean(axis=0) - bottom.mean(axis=0)  # (epochs,)
    mean = float(log_ratios.mean())
    if len(log_ratios) < bootstrap.MIN_SAMPLES:
        return Interval(math.exp(mean), None, None, "epochs")
    worth = max(2, round(len(log_ratios) * _independent_share(log_ratios)))
    error = float(log_ratios.std(ddof=1)) / math.sqrt(worth)
    half = intervals.student_quantile(sides.confidence, worth - 1) * error
    return Interval(mean, mean - half, mean + half, "epochs").mapped(math.exp)


def _losses(readings: Readings, run: Run) -> list[float]:
    """The loss of each epoch; infinite where it became no number."""
    recorded = [epoch.get("train_loss", 0.0) for epoch in readings.epochs(run)]
    losses = [math.inf if loss is None else loss for loss in recorded]
    if not losses or not all(isinstance(loss, int | float) and loss > 0 for loss in losses):
        raise ValueError(f"{clean(str(run.folder))}: its record has no losses above 0")
    return losses


def _independent_share(series: np.ndarray) -> float:
    """The number of independent values that a series is worth, as a share of its length: (1 - r) / (1 + r) of its
    lag-1 autocorrelation r (Bayley and Hammersley 1946), at most 1."""
    centred = series - series.mean()
    power = float(centred @ centred)
    if not power:
        return 1.0
    correlation = float(np.clip(centred[1:] @ centred[:-1] / power, 0.0, 0.95))
    return (1 - correlation) / (1 + correlation)


# ---- profiles


def time_copying(sides: Sides) -> Interval:
    """The time of copies from host to device, a step and rank."""
    return _ratio_over_ranks(sides, lambda profile, rank: _seconds(profile, rank, "copy", COPIES["HtoD"]))


def time_communicating(sides: Sides) -> Interval:
    """The time during which collectives were at work, a step and rank."""

    def seconds(_: Profile, rank: RankProfile) -> float:
        if rank.derived.communication_s is None:
            raise ValueError("no communication in the profile")
        return rank.derived.communication_s

    return _ratio_over_ranks(sides, seconds)


def time_synchronising(sides: Sides) -> Interval:
    """The time in cudaStreamSynchronize, a step and rank; infinite where the bottom never calls it."""

    def seconds(profile: Profile, rank: RankProfile) -> float:
        return _seconds(profile, rank, "api", "cudaStreamSynchronize")

    return _ratio_over_ranks(sides, seconds, may_be_zero=True)


def _ratio_over_ranks(sides: Sides, seconds: RankSeconds, may_be_zero: bool = False) -> Interval:
    top, bottom = (
        [seconds(profile, rank) / (rank.steps or 1) for profile, rank in _ranks(sides.readings, runs)]
        for runs in (sides.top, sides.bottom)
    )
    if may_be_zero and min(top) > 0 and not any(bottom):
        return Interval(math.inf, math.inf, math.inf, "none on one side")
    return intervals.ratio_of_geometric_means(top, bottom, sides.confidence, _counted(len(top), len(bottom), "rank"))


def share_of_calls(sides: Sides) -> Interval:
    """The share of kernel launches and synchronisation in the time of a rank's CUDA calls; of `top` alone."""
    shares = [_waiting_share(profile, rank) for profile, rank in _ranks(sides.readings, sides.top)]
    interval = intervals.mean(shares, sides.confidence, _counted(len(shares), len(shares), "rank"))
    if interval.low is None or interval.high is None:
        return interval
    return Interval(interval.estimate, max(0.0, interval.low), min(1.0, interval.high), interval.basis)


def _waiting_share(profile: Profile, rank: RankProfile) -> float:
    calls_s = {row.metric: row.total_s for row in profile.of(rank.rank) if row.group == "api"}
    if not sum(calls_s.values()):
        raise ValueError("CPU ranks make no CUDA calls")
    waiting_s = sum(seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name)
    return waiting_s / sum(calls_s.values())


def _ranks(readings: Readings, runs: Sequence[Run]) -> list[tuple[Profile, RankProfile]]:
    """Every rank of every run, with the profile that it is in."""
    ranks = [(run, profile, rank) for run in runs for profile in [readings.profile(run)] for rank in profile.ranks]
    for run, _, rank in ranks:
        if not rank.steps:
            raise ValueError(f"{clean(str(run.folder))}: its profile does not mark steps")
    if not ranks:
        raise ValueError("a profile has no ranks")
    return [(profile, rank) for _, profile, rank in ranks]


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
    "time_without_pauses": Measure(time_without_pauses),
    "iteration": Measure(iteration, "step_s"),
    "peak_memory": Measure(peak_memory, "peak_memory_bytes"),
    "bytes_to_device": Measure(bytes_to_device, "h2d_bytes"),
    "bytes_between_ranks": Measure(bytes_between_ranks, "received_bytes"),
    "bytes_moved": Measure(bytes_moved),
    "accuracy": Measure(accuracy),
    "loss": Measure(loss),
    "time_copying": Measure(time_copying),
    "time_communicating": Measure(time_communicating),
    "time_synchronising": Measure(time_synchronising),
    "share_of_calls": Measure(share_of_calls),
}
