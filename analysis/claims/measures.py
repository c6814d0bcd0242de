"""Measures of two groups of runs (`Sides`), by the names that rules use.

A measure is a figure of a run in one of the forms of `Sides`: the ratio of two groups, or a share
or factor of one group. Figures of profiles are calls, copies and collectives of a rank, named as in
the papers' Table 1. Counted bytes and the peak of torch's allocator are exact, so the interval of
single runs has no width. The resident memory of CPU ranks is not exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np

from multicard.measure.repeated_runs import Term
from multicard.messages import Refusal
from multicard.observe.profiles.events import COPIES
from multicard.observe.profiles.metrics import Profile
from multicard.records.limits import Forbids
from multicard.records.schema_parts import ProfileRank
from multicard.records.text_table import clean

from ..runs.grouping import MEMORY, is_exact
from ..runs.load import Run
from ..stats import between_runs, intervals
from ..stats.intervals import Interval
from . import run_figures
from .comparison import Figure, Readings, Sides

# Reads a figure of a rank from its profile, or raises ValueError if the profile lacks it.
RankFigure = Callable[[Profile, ProfileRank], float]


# Figures of a rank's profile.


def _mean_of_ranks(rank_figure: RankFigure, per_step: bool = False) -> Figure:
    """Average a figure over the ranks of a profile, for the whole window or per step."""

    def figure(readings: Readings, run: Run) -> float:
        profile = readings.profile(run)
        if not profile.ranks:
            raise Refusal("claim.no-ranks", "a profile has no ranks")
        if not all(rank.steps for rank in profile.ranks):
            folder = clean(str(run.folder))
            raise Refusal(
                "claim.no-marked-steps", f"{folder}: its profile does not mark steps", folder=folder
            )
        values = [
            rank_figure(profile, rank) / (rank.steps or 1 if per_step else 1)
            for rank in profile.ranks
        ]
        return sum(values) / len(values)

    return figure


def _metric(group: str, metric: str) -> RankFigure:
    """Return a function that reads the seconds of a metric of a profile."""

    def seconds(profile: Profile, rank: ProfileRank) -> float:
        if metric in profile.not_recorded:
            text = f"{profile.source} records no {metric}: `profile=nsys` does"
            raise Refusal(
                "claim.not-recorded", text, key="profile", source=profile.source, metric=metric
            )
        for row in profile.rank_rows(rank.rank):
            if (row.group, row.metric) == (group, metric):
                return row.total_s
        raise Refusal(
            "claim.no-metric", f"no {metric} in the profile: CPU ranks have none", metric=metric
        )

    return seconds


def communicating(_: Profile, rank: ProfileRank) -> float:
    """Return the seconds that a rank spent communicating."""
    missing = Refusal("claim.no-communication", "no communication in the profile")
    return run_figures.known_values([rank.derived.communication_s], missing)[0]


def window(_: Profile, rank: ProfileRank) -> float:
    """Return the seconds that were profiled on a rank."""
    return rank.window_s


def waiting_share(profile: Profile, rank: ProfileRank) -> float:
    """Return the share of launches and synchronizations in the time of all CUDA calls."""
    calls_s = {
        row.metric: row.total_s for row in profile.rank_rows(rank.rank) if row.group == "api"
    }
    if not sum(calls_s.values()):
        raise Refusal("claim.no-calls", "CPU ranks make no CUDA calls")
    waiting_s = sum(
        seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name
    )
    return waiting_s / sum(calls_s.values())


def _ratio_of_parts(part: RankFigure, whole: RankFigure) -> Figure:
    """Return a figure that divides a part by a whole.

    It is infinite if the whole is 0 and the part is not. It raises ValueError if both are 0.
    """

    def share(profile: Profile, rank: ProfileRank) -> float:
        part_value = part(profile, rank)
        whole_value = whole(profile, rank)
        if not part_value and not whole_value:
            raise Refusal("claim.nothing-in-profile", "a profile has nothing of what is compared")
        return part_value / whole_value if whole_value else math.inf

    return _mean_of_ranks(share)


def _combined(combine: Callable[[list[float]], float], *parts: RankFigure) -> RankFigure:
    """Return a figure that combines other figures, as by `sum`."""
    return lambda profile, rank: combine([part(profile, rank) for part in parts])


COPYING = _metric("copy", COPIES["HtoD"])
LAUNCHING = _metric("api", "cudaLaunchKernel")
STREAM = _metric("api", "cudaStreamSynchronize")
EVENT = _metric("api", "cudaEventSynchronize")
MEMCPY = _metric("api", "cudaMemcpyAsync")
DESTROY = _metric("api", "cudaEventDestroy")
BROADCAST = _metric("collective", "nccl Broadcast")
ALL_GATHER = _metric("collective", "nccl AllGather")
# The calls of 2503.15252, Fig. 3.
FIG_3_CALLS = _combined(sum, COPYING, LAUNCHING, STREAM, communicating)
# The calls whose times copies are compared with. Copies themselves change with the precision.
OTHER_CALLS = (LAUNCHING, STREAM, communicating, BROADCAST, DESTROY)
# The calls of 2505.22905, Fig. 15.
FIG_15_CALLS = _combined(sum, LAUNCHING, STREAM, COPYING, EVENT, ALL_GATHER)


# Measures that none of the general forms of `Sides` can express.


def peak_memory(sides: Sides) -> Interval:
    """Compare the peak memory of the fullest rank in the fullest run of each side.

    The interval is as wide as the interval of the mean.
    """
    are_exact = is_exact((*sides.top, *sides.bottom), MEMORY)
    means = sides.exact_ratio(run_figures.PEAK) if are_exact else sides.ratio(run_figures.PEAK)
    top, bottom = sides.values(run_figures.PEAK)
    return means.mapped(lambda ratio: ratio * max(top) / max(bottom) / means.estimate)


def mean_share_of_tensors(sides: Sides) -> Interval:
    """Return the mean share of tensors in the bytes copied; exact for a single run."""
    (share, *others), _ = sides.values(run_figures.share_of_tensors)
    if others:
        return intervals.mean([share, *others], sides.confidence, sides.basis)
    return Interval(share, share, share, "exact")


def accuracy(sides: Sides, figure: Figure = run_figures.ACCURACY) -> Interval:
    """Return the difference of an accuracy (top - bottom), or the accuracy of `top`, as a share.

    The interval covers all answers of a side (Wilson; Newcombe for the difference), and is widened
    by how runs differ. Many answers alone do not show how another training would have gone. Neither
    do several runs with the same seed, so these count as one.
    """
    accuracies = sides.values(figure, of_seeds=True)
    samples = sides.values(run_figures.ANSWERS, of_seeds=True)
    over_answers = intervals.of_answers(accuracies[0], samples[0], sides.confidence)
    if sides.bottom:
        of_bottom = intervals.of_answers(accuracies[1], samples[1], sides.confidence)
        over_answers = intervals.difference(over_answers, of_bottom)
        spreads = sides.spreads(figure, float, between_runs.PRIOR_ACCURACY_SD, of_seeds=True)
        between = between_runs.variance_between(spreads, *map(len, reversed(accuracies)))
    else:
        spread = sides.readings.machines(
            figure, float, between_runs.PRIOR_ACCURACY_SD, of_seeds=True
        ).of(sides.top)
        between = (
            [Term(spread.variance / len(accuracies[0]), spread.term.degrees)]
            if spread.repetitions
            else None
        )
    if between is None:
        return Interval(over_answers.estimate, None, None, sides.basis)
    return replace(between_runs.widened(over_answers, between, sides.confidence), basis=sides.basis)


def accuracy_of_epochs(sides: Sides) -> Interval:
    """Return what the epochs after the first one add to the accuracy of `top`, as a share.

    The difference between the accuracies of `top` and `bottom` is subtracted.
    """
    last, first = (
        accuracy(replace(sides, bottom=()), figure)
        for figure in (run_figures.ACCURACY, run_figures.AFTER_1)
    )
    either_way = (accuracy(sides), accuracy(replace(sides, top=sides.bottom, bottom=sides.top)))
    difference_between_sides = max(either_way, key=lambda difference: difference.estimate)
    return intervals.difference(intervals.difference(last, first), difference_between_sides)


def until_same_loss(sides: Sides) -> Interval:
    """Return the ratio of the times until every run reaches the same training loss.

    This loss is the lowest one that all runs of both sides reached.
    """
    least = max(min(run_figures.losses(sides.readings, run)) for run in (*sides.top, *sides.bottom))
    return sides.ratio(partial(run_figures.until_loss_s, loss=least), of_seeds=True)


def loss(sides: Sides, figure: Figure) -> Interval:
    """Return the ratio of the training losses.

    It is infinite, or 0, if the losses of one side became NaN or infinite.

    Raises:
        ValueError: the losses of both sides did, or a record has no losses.
    """
    not_finite = [math.inf in losses for losses in sides.values(run_figures.mean_loss)]
    if len({len(sides.readings.record(run).epochs) for run in (*sides.top, *sides.bottom)}) > 1:
        raise Refusal("claim.other-epochs", "runs of different numbers of epochs")
    if all(not_finite):
        raise Refusal("claim.no-numbers", "the losses stopped being numbers on both sides")
    if any(not_finite):
        ratio = math.inf if not_finite[0] else 0.0
        return Interval(ratio, ratio, ratio, "a loss that became no number")
    return sides.ratio(figure, of_seeds=True)


def losses_apart(sides: Sides) -> Interval:
    """Return the largest relative difference between the step losses of runs with the same seed.

    The interval reaches from the seed in which it is smallest to the one in which it is largest.
    The difference is infinite if a step has no finite loss on one side.

    Raises:
        ValueError: both sides have no seed in common, or different numbers of steps.
    """
    largest_differences = []
    for top, bottom in product(sides.top, sides.bottom):
        if top["seed"] == bottom["seed"]:
            top_losses, bottom_losses = (
                run_figures.step_losses(sides.readings, run) for run in (top, bottom)
            )
            if len(top_losses) != len(bottom_losses):
                raise Refusal("claim.other-steps", "runs of different numbers of steps")
            with np.errstate(divide="ignore", invalid="ignore"):
                differences = np.abs(top_losses / bottom_losses - 1)
            largest_differences.append(
                float(np.where(np.isfinite(differences), differences, math.inf).max())
            )
    if not largest_differences:
        raise Refusal("claim.no-common-seed", "no seed was measured on both sides")
    return Interval(
        fmean(largest_differences), min(largest_differences), max(largest_differences), "exact"
    )


def time_in(sides: Sides, figure: Figure) -> Interval:
    """Return the ratio of a metric's seconds; infinite if the bottom has none."""
    top, bottom = sides.values(figure)
    if min(top) > 0 and not any(bottom):
        return Interval(math.inf, math.inf, math.inf, "none on one side")
    return sides.ratio(figure)


def falls_over_others(sides: Sides, figure: RankFigure) -> Interval:
    """Return how much more a metric's seconds fall from top to bottom than the other metrics' do.

    The metric's fall is divided by the fall of the other metric that falls most, or by 1 if no
    other falls.
    """
    figures = [_mean_of_ranks(rank_figure, per_step=True) for rank_figure in (figure, *OTHER_CALLS)]
    own_fall, *other_falls = (
        time_in(sides, rank_figure).mapped(math.log)
        for rank_figure in figures
        if any(sides.values(rank_figure)[0])
    )
    other_falls.append(Interval(0.0, 0.0, 0.0))
    return intervals.difference(own_fall, max(other_falls, key=lambda fall: fall.estimate)).mapped(
        math.exp
    )


def with_iteration(sides: Sides, figure: Figure) -> Interval:
    """Compare a figure on the side with the longer iteration with the other side.

    The interval has no bounds if runs cannot distinguish the iterations.
    """
    iteration = sides.ratio(run_figures.STEP)
    longer_first = (
        sides if iteration.estimate > 1 else replace(sides, top=sides.bottom, bottom=sides.top)
    )
    are_distinguishable = (
        iteration.low is not None
        and iteration.high is not None
        and not iteration.low <= 1 <= iteration.high
    )
    ratio = longer_first.ratio(figure)
    return ratio if are_distinguishable else Interval(ratio.estimate, None, None, ratio.basis)


# All measures by name.


OF_TIME = frozenset({Forbids.rate})
OF_COUNTS = frozenset[Forbids]()
OF_LEARNING = frozenset({Forbids.learning})


@dataclass(frozen=True)
class Measure:
    """A measure by which rules compare runs.

    words: the figure as a sentence names it.
    column: the column by which `best_of` picks the best and the worst.
    forbidden: the uses of runs that the measure needs. A limit that forbids one of them excludes a
        run. Times and what was learned need some, counted figures need none.
    of_profile: True if runs were profiled. Their times are compared only with one another.
    """

    words: str
    interval: Callable[[Sides], Interval]
    column: str = ""
    forbidden: frozenset[Forbids] = OF_TIME
    of_profile: bool = False

    @property
    def of_whole_runs(self) -> bool:
        """True if a time, or what was learned, depends on how much a run trained."""
        return bool(self.forbidden) and not self.of_profile and self.column != "step_s"


def _profiled(words: str, form: Callable[..., Interval], figure: Figure | RankFigure) -> Measure:
    return Measure(words, partial(form, figure=figure), of_profile=True)


def _profiled_ratio(words: str, figure: Figure) -> Measure:
    return _profiled(words, Sides.ratio, figure)


def _form(
    words: str,
    form: Callable[..., Interval],
    figure: Figure | RankFigure,
    column: str = "",
    forbidden: frozenset[Forbids] = OF_TIME,
) -> Measure:
    return Measure(words, partial(form, figure=figure), column, forbidden)


def _ratio(words: str, figure: Figure, column: str = "") -> Measure:
    return _form(words, Sides.ratio, figure, column)


def _share(words: str, figure: Figure) -> Measure:
    return Measure(words, partial(Sides.share, figure=figure))


def _counted(words: str, figure: Figure, column: str = "") -> Measure:
    return _form(words, Sides.exact_ratio, figure, column, OF_COUNTS)


def _exact(words: str, column: str) -> Measure:
    return _counted(words, run_figures.column(column), column)


def _time_in(words: str, metric: RankFigure) -> Measure:
    return _profiled(
        f"{words}, a profiled step and rank", time_in, _mean_of_ranks(metric, per_step=True)
    )


_SHARE_OF_FIVE = (
    "part of cudaLaunchKernel, cudaStreamSynchronize, cudaEventSynchronize, AllGather and"
    " host-to-device copies in the profiled time"
)
_THAN_OTHERS = "/ that of the other call, or collectives, that falls most"
_OF_FOUR = "in the sum with copies to the device, cudaStreamSynchronize and"
MEASURES = {
    # These are of the whole training, including its evaluations.
    "time": _ratio("time", run_figures.TIME, "total_s"),
    "iteration": _ratio("time of an iteration", run_figures.STEP, "step_s"),
    "share_of_pauses": _share(
        "share of the epochs in which the ranks wait for first batches", run_figures.share_of_pauses
    ),
    "share_of_each_pause": _share(
        "share of an epoch in which the ranks wait for its first batch, or its evaluation's, of the"
        " least",
        run_figures.share_of_least_pause,
    ),
    "share_of_reading": _share(
        "time of reading / of the whole run with its start", run_figures.share_of_reading
    ),
    "time_of_pauses": _ratio(
        "time until first batches, without the first epoch and its evaluation",
        run_figures.all_pauses_s,
    ),
    "evaluation": _ratio("time of all evaluations", run_figures.column("evaluate_s")),
    "busiest_over_idlest": _form(
        "share of the time with a kernel at work, of the busiest GPU of each 10 s of the epochs /"
        " of the idlest",
        *(Sides.factor, run_figures.busiest_over_idlest),
    ),
    "share_of_idlest": _form(
        "share of the time with a kernel at work, of the idlest GPU of each 10 s of the epochs",
        *(Sides.share, run_figures.share_of_idlest),
    ),
    "peak_memory": Measure("peak memory of a GPU", peak_memory, "peak_memory_bytes", OF_COUNTS),
    "images_trained": _counted(
        "images that a GPU trained on, each time that it did",
        run_figures.per_rank(run_figures.column("samples_trained")),
    ),
    "bytes_to_device": _exact("bytes to all devices", "h2d_bytes"),
    "time_of_copies": _ratio(
        "time of copies to the device in all steps of training", run_figures.copying_s
    ),
    "bytes_between_ranks": _exact("bytes that a rank receives in collectives", "received_bytes"),
    "bytes_for_training": _counted(
        "bytes copied for training to all devices", run_figures.trained_h2d_bytes
    ),
    "bytes_for_a_rank": _counted(
        "bytes copied for training to a device", run_figures.per_rank(run_figures.trained_h2d_bytes)
    ),
    "bytes_copied": _counted(
        "bytes copied to, within and from the devices", run_figures.copied_bytes
    ),
    "share_of_tensors": Measure(
        "bytes of the images copied for training / those of three channels of their size and"
        " precision",
        mean_share_of_tensors,
        forbidden=OF_COUNTS,
    ),
    "accuracy": Measure("accuracy after the last epoch", accuracy, forbidden=OF_LEARNING),
    "accuracy_after_3_epochs": _form(
        "accuracy after the third epoch", accuracy, run_figures.AFTER_3, forbidden=OF_LEARNING
    ),
    "accuracy_of_epochs": Measure(
        "accuracy that the epochs after the first one add, less the difference of accuracies",
        accuracy_of_epochs,
        forbidden=OF_LEARNING,
    ),
    "until_same_loss": Measure(
        "time until the least training loss that both reach",
        until_same_loss,
        forbidden=OF_TIME | OF_LEARNING,
    ),
    "loss_over_first": _form(
        "training loss over that of the first epoch, in the geometric mean over the epochs",
        *(loss, run_figures.mean_loss_over_first),
        forbidden=OF_LEARNING,
    ),
    "loss_of_first_half": _form(
        "training loss over the first half of the epochs",
        loss,
        run_figures.FIRST_HALF,
        forbidden=OF_LEARNING,
    ),
    "loss_of_second_half": _form(
        "training loss over the second half of the epochs",
        loss,
        run_figures.SECOND_HALF,
        forbidden=OF_LEARNING,
    ),
    "losses_apart": Measure(
        "largest relative difference of a step's losses, with the same seed",
        losses_apart,
        forbidden=OF_LEARNING,
    ),
    "time_copying": _time_in("time of host-to-device copies", COPYING),
    "time_communicating": _time_in("time in collectives", communicating),
    "time_synchronising": _time_in("time in cudaStreamSynchronize", STREAM),
    "time_in_memcpy": _time_in("time in cudaMemcpyAsync", MEMCPY),
    "time_in_event_destroy": _time_in("time in cudaEventDestroy", DESTROY),
    "time_broadcasting": _time_in("time of ncclDevKernel_Broadcast", BROADCAST),
    "share_of_launches": _profiled_ratio(
        f"share of cudaLaunchKernel {_OF_FOUR} collectives", _ratio_of_parts(LAUNCHING, FIG_3_CALLS)
    ),
    "share_of_collectives": _profiled_ratio(
        f"share of collectives {_OF_FOUR} cudaLaunchKernel",
        _ratio_of_parts(communicating, FIG_3_CALLS),
    ),
    "copies_over_others": _profiled(
        f"fall of host-to-device copies {_THAN_OTHERS}", falls_over_others, COPYING
    ),
    "memcpy_over_others": _profiled(
        f"fall of cudaMemcpyAsync {_THAN_OTHERS}", falls_over_others, MEMCPY
    ),
    "launching_with_iteration": _profiled(
        "part of cudaLaunchKernel in the profiled time, where an iteration takes longer / where it"
        " takes less",
        *(with_iteration, _ratio_of_parts(LAUNCHING, window)),
    ),
    "launches_over_copies": _profiled(
        "cudaLaunchKernel and cudaStreamSynchronize / host-to-device copies",
        *(Sides.factor, _ratio_of_parts(_combined(sum, LAUNCHING, STREAM), COPYING)),
    ),
    "share_launching": _profiled_ratio(
        "part of cudaLaunchKernel in the profiled time", _ratio_of_parts(LAUNCHING, window)
    ),
    "share_synchronising": _profiled_ratio(
        "part of cudaStreamSynchronize in the profiled time", _ratio_of_parts(STREAM, window)
    ),
    "share_waiting": _profiled(
        "part of cudaStreamSynchronize in the profiled time",
        Sides.share,
        _ratio_of_parts(STREAM, window),
    ),
    "share_of_lesser_call": _profiled(
        "part of the lesser of cudaLaunchKernel and cudaStreamSynchronize in the profiled time",
        *(Sides.share, _ratio_of_parts(_combined(min, LAUNCHING, STREAM), window)),
    ),
    "share_of_five": _profiled_ratio(_SHARE_OF_FIVE, _ratio_of_parts(FIG_15_CALLS, window)),
    "share_of_calls": _profiled(
        "part of launches and synchronisation in a rank's CUDA calls",
        Sides.share,
        _mean_of_ranks(waiting_share),
    ),
    "share_copying": _profiled(
        "part of host-to-device copies in the profiled time",
        Sides.share,
        _ratio_of_parts(COPYING, window),
    ),
    "first_calls_over_others": _profiled(
        "the lesser of cudaEventSynchronize and cudaLaunchKernel / the greatest of the other three",
        *(
            Sides.factor,
            _ratio_of_parts(
                _combined(min, EVENT, LAUNCHING), _combined(max, ALL_GATHER, STREAM, COPYING)
            ),
        ),
    ),
    "all_gather_over_rest": _profiled(
        "AllGather / the greater of cudaStreamSynchronize and host-to-device copies",
        *(Sides.factor, _ratio_of_parts(ALL_GATHER, _combined(max, STREAM, COPYING))),
    ),
}
