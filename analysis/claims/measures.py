"""Measures of two groups of runs (`Sides`), by the names that rules give them.

A measure is a figure of a run in one of the forms of `Sides`: a ratio of two groups, or a share or
factor of one group. Figures of profiles are calls, copies and collectives of a rank, as the papers'
Table 1 names them. Counted bytes and the peak of torch's allocator are exact: the interval of
single runs has no width. Resident memory of CPU ranks is not.
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

RankFigure = Callable[[Profile, ProfileRank], float]  # raises ValueError where a profile has none


# Figures of a rank's profile


def _mean_of_ranks(rank_figure: RankFigure, per_step: bool = False) -> Figure:
    """The mean over the ranks of a profile, of the whole window or of one step."""

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
    def seconds(profile: Profile, rank: ProfileRank) -> float:
        if metric in profile.not_recorded:
            said = f"{profile.source} records no {metric}: `profile=nsys` does"
            raise Refusal(
                "claim.not-recorded", said, key="profile", source=profile.source, metric=metric
            )
        for row in profile.rank_rows(rank.rank):
            if (row.group, row.metric) == (group, metric):
                return row.total_s
        raise Refusal(
            "claim.no-metric", f"no {metric} in the profile: CPU ranks have none", metric=metric
        )

    return seconds


def communicating(_: Profile, rank: ProfileRank) -> float:
    missing = Refusal("claim.no-communication", "no communication in the profile")
    return run_figures.known_values([rank.derived.communication_s], missing)[0]


def window(_: Profile, rank: ProfileRank) -> float:
    return rank.window_s


def waiting_share(profile: Profile, rank: ProfileRank) -> float:
    """The share of launches and synchronisations in the CUDA calls."""
    calls_s = {
        row.metric: row.total_s for row in profile.rank_rows(rank.rank) if row.group == "api"
    }
    if not sum(calls_s.values()):
        raise Refusal("claim.no-calls", "CPU ranks make no CUDA calls")
    waiting_s = sum(
        seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name
    )
    return waiting_s / sum(calls_s.values())


def _over(part: RankFigure, whole: RankFigure) -> Figure:
    """A part / a whole; infinite where the whole is 0 and the part is not.
    Raises ValueError where both are.
    """

    def share(profile: Profile, rank: ProfileRank) -> float:
        above = part(profile, rank)
        below = whole(profile, rank)
        if not above and not below:
            raise Refusal("claim.nothing-in-profile", "a profile has nothing of what is compared")
        return above / below if below else math.inf

    return _mean_of_ranks(share)


def _combined(combine: Callable[[list[float]], float], *parts: RankFigure) -> RankFigure:
    return lambda profile, rank: combine([part(profile, rank) for part in parts])


COPYING = _metric("copy", COPIES["HtoD"])
LAUNCHING = _metric("api", "cudaLaunchKernel")
STREAM = _metric("api", "cudaStreamSynchronize")
EVENT = _metric("api", "cudaEventSynchronize")
MEMCPY = _metric("api", "cudaMemcpyAsync")
DESTROY = _metric("api", "cudaEventDestroy")
BROADCAST = _metric("collective", "nccl Broadcast")
ALL_GATHER = _metric("collective", "nccl AllGather")
FOUR = _combined(sum, COPYING, LAUNCHING, STREAM, communicating)  # of 2503.15252, Fig. 3
# than copies, which change with the precision
OTHERS = (LAUNCHING, STREAM, communicating, BROADCAST, DESTROY)
FIVE = _combined(sum, LAUNCHING, STREAM, COPYING, EVENT, ALL_GATHER)  # of 2505.22905, Fig. 15


# Measures in forms of their own


def peak_memory(sides: Sides) -> Interval:
    """The peak on the rank that held most, in the run that held most;
    as wide as the interval of the mean.
    """
    exact = is_exact((*sides.top, *sides.bottom), MEMORY)
    means = sides.exact_ratio(run_figures.PEAK) if exact else sides.ratio(run_figures.PEAK)
    top, bottom = sides.values(run_figures.PEAK)
    return means.mapped(lambda ratio: ratio * max(top) / max(bottom) / means.estimate)


def mean_share_of_tensors(sides: Sides) -> Interval:
    (share, *others), _ = sides.values(run_figures.share_of_tensors)
    if others:
        return intervals.mean([share, *others], sides.confidence, sides.basis)
    return Interval(share, share, share, "exact")


def accuracy(sides: Sides, figure: Figure = run_figures.ACCURACY) -> Interval:
    """An accuracy as a share, top - bottom or that of `top` alone, with an interval over all
    answers of a side (Wilson; Newcombe for the difference), widened by how runs differ.

    Many answers do not show how another training would have gone, nor do runs of the same seed,
    which count as one.
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
    """What the epochs after the first one add to the accuracy of `top`, less what it differs by
    from that of `bottom`; as shares.
    """
    last, first = (
        accuracy(replace(sides, bottom=()), one)
        for one in (run_figures.ACCURACY, run_figures.AFTER_1)
    )
    either_way = (accuracy(sides), accuracy(replace(sides, top=sides.bottom, bottom=sides.top)))
    apart = max(either_way, key=lambda difference: difference.estimate)
    return intervals.difference(intervals.difference(last, first), apart)


def until_same_loss(sides: Sides) -> Interval:
    """The ratio of the times until the training loss is the least
    that each run of both sides reached, or less.
    """
    least = max(min(run_figures.losses(sides.readings, run)) for run in (*sides.top, *sides.bottom))
    return sides.ratio(partial(run_figures.until_loss_s, loss=least), of_seeds=True)


def loss(sides: Sides, figure: Figure) -> Interval:
    """The ratio of the training losses; infinite, or 0, where a loss of one side became no number.
    Raises ValueError where both did, or a record has none.
    """
    lost = [math.inf in losses for losses in sides.values(run_figures.mean_loss)]
    if len({len(sides.readings.record(run).epochs) for run in (*sides.top, *sides.bottom)}) > 1:
        raise Refusal("claim.other-epochs", "runs of different numbers of epochs")
    if all(lost):
        raise Refusal("claim.no-numbers", "the losses stopped being numbers on both sides")
    if any(lost):
        ratio = math.inf if lost[0] else 0.0
        return Interval(ratio, ratio, ratio, "a loss that became no number")
    return sides.ratio(figure, of_seeds=True)


def losses_apart(sides: Sides) -> Interval:
    """The largest relative difference between a step's losses of two runs of one seed, from the
    seed in which it is least to that in which it is most. Steps without a loss that is a number on
    both sides are as far apart as can be. Raises ValueError where no seed is on both sides,
    or one took more steps.
    """
    apart = []
    for top, bottom in product(sides.top, sides.bottom):
        if top["seed"] == bottom["seed"]:
            own, other = (run_figures.step_losses(sides.readings, run) for run in (top, bottom))
            if len(own) != len(other):
                raise Refusal("claim.other-steps", "runs of different numbers of steps")
            with np.errstate(divide="ignore", invalid="ignore"):
                differences = np.abs(own / other - 1)
            apart.append(float(np.where(np.isfinite(differences), differences, math.inf).max()))
    if not apart:
        raise Refusal("claim.no-common-seed", "no seed was measured on both sides")
    return Interval(fmean(apart), min(apart), max(apart), "exact")


def time_in(sides: Sides, figure: Figure) -> Interval:
    """The ratio of a metric's seconds; infinite where the bottom has none."""
    top, bottom = sides.values(figure)
    if min(top) > 0 and not any(bottom):
        return Interval(math.inf, math.inf, math.inf, "none on one side")
    return sides.ratio(figure)


def falls_over_others(sides: Sides, figure: RankFigure) -> Interval:
    """How many times a metric's seconds fall from top to bottom / those of the other metric that
    falls most; / 1 where none falls.
    """
    figures = [_mean_of_ranks(one, per_step=True) for one in (figure, *OTHERS)]
    own, *falls = (
        time_in(sides, one).mapped(math.log) for one in figures if any(sides.values(one)[0])
    )
    falls.append(Interval(0.0, 0.0, 0.0))
    return intervals.difference(own, max(falls, key=lambda fall: fall.estimate)).mapped(math.exp)


def with_iteration(sides: Sides, figure: Figure) -> Interval:
    """A figure where an iteration takes longer / where it takes less, of whichever side; without
    bounds where the iterations are not told apart.
    """
    iteration = sides.ratio(run_figures.STEP)
    longer = sides if iteration.estimate > 1 else replace(sides, top=sides.bottom, bottom=sides.top)
    told = (
        iteration.low is not None
        and iteration.high is not None
        and not iteration.low <= 1 <= iteration.high
    )
    ratio = longer.ratio(figure)
    return ratio if told else Interval(ratio.estimate, None, None, ratio.basis)


# By name


OF_TIME = frozenset({Forbids.rate})
OF_COUNTS = frozenset[Forbids]()
OF_LEARNING = frozenset({Forbids.learning})


@dataclass(frozen=True)
class Measure:
    """A measure, by which rules compare runs.

    words: the figure as a sentence names it. column: by which `best_of` picks the best and the
    worst.
    of_profile: of runs that were profiled, whose times are compared with one another's alone.
    forbidden: limits of a run that forbid one of these forbid the measure: of times, of what was
    learnt, or none of
        what is counted.
    """

    words: str
    interval: Callable[[Sides], Interval]
    column: str = ""
    forbidden: frozenset[Forbids] = OF_TIME
    of_profile: bool = False

    @property
    def of_whole_runs(self) -> bool:
        """True of a time, or of what was learned, that depends on how much a run trained."""
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


_FIVE_CALLS = (
    "part of cudaLaunchKernel, cudaStreamSynchronize, cudaEventSynchronize, AllGather and"
    " host-to-device copies in the profiled time"
)
_THAN_OTHERS = "/ that of the other call, or collectives, that falls most"
_OF_FOUR = "in the sum with copies to the device, cudaStreamSynchronize and"
MEASURES = {
    # of the whole training, with its evaluations
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
        run_figures.a_rank(run_figures.column("samples_trained")),
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
        "bytes copied for training to a device", run_figures.a_rank(run_figures.trained_h2d_bytes)
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
        f"share of cudaLaunchKernel {_OF_FOUR} collectives", _over(LAUNCHING, FOUR)
    ),
    "share_of_collectives": _profiled_ratio(
        f"share of collectives {_OF_FOUR} cudaLaunchKernel", _over(communicating, FOUR)
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
        *(with_iteration, _over(LAUNCHING, window)),
    ),
    "launches_over_copies": _profiled(
        "cudaLaunchKernel and cudaStreamSynchronize / host-to-device copies",
        *(Sides.factor, _over(_combined(sum, LAUNCHING, STREAM), COPYING)),
    ),
    "share_launching": _profiled_ratio(
        "part of cudaLaunchKernel in the profiled time", _over(LAUNCHING, window)
    ),
    "share_synchronising": _profiled_ratio(
        "part of cudaStreamSynchronize in the profiled time", _over(STREAM, window)
    ),
    "share_waiting": _profiled(
        "part of cudaStreamSynchronize in the profiled time", Sides.share, _over(STREAM, window)
    ),
    "share_of_lesser_call": _profiled(
        "part of the lesser of cudaLaunchKernel and cudaStreamSynchronize in the profiled time",
        *(Sides.share, _over(_combined(min, LAUNCHING, STREAM), window)),
    ),
    "share_of_five": _profiled_ratio(_FIVE_CALLS, _over(FIVE, window)),
    "share_of_calls": _profiled(
        "part of launches and synchronisation in a rank's CUDA calls",
        Sides.share,
        _mean_of_ranks(waiting_share),
    ),
    "share_copying": _profiled(
        "part of host-to-device copies in the profiled time", Sides.share, _over(COPYING, window)
    ),
    "first_calls_over_others": _profiled(
        "the lesser of cudaEventSynchronize and cudaLaunchKernel / the greatest of the other three",
        *(
            Sides.factor,
            _over(_combined(min, EVENT, LAUNCHING), _combined(max, ALL_GATHER, STREAM, COPYING)),
        ),
    ),
    "all_gather_over_rest": _profiled(
        "AllGather / the greater of cudaStreamSynchronize and host-to-device copies",
        *(Sides.factor, _over(ALL_GATHER, _combined(max, STREAM, COPYING))),
    ),
}
