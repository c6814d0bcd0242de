"""Measures of two groups of runs (`Sides`), by the names that rules use.

A measure is a figure of a run in one of the forms of `Sides`: the ratio of two groups, or a share
or factor of one group. `special_forms` has the other forms. Counted bytes and the peak of torch's
allocator are exact, so the interval of single runs has no width. The resident memory of CPU ranks
is not exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from multicard.records.limits import Forbids

from ..stats.intervals import Interval
from . import run_figures
from .comparison import Figure, Sides
from .profile_figures import (
    ALL_GATHER,
    BROADCAST,
    COPYING,
    DESTROY,
    EVENT,
    FIG_3_CALLS,
    FIG_15_CALLS,
    LAUNCHING,
    MEMCPY,
    STREAM,
    RankFigure,
    combined,
    communicating,
    mean_of_ranks,
    ratio_of_parts,
    waiting_share,
    window,
)
from .special_forms import (
    accuracy,
    accuracy_of_epochs,
    falls_over_others,
    loss,
    losses_apart,
    mean_share_of_tensors,
    peak_memory,
    time_in,
    until_same_loss,
    with_iteration,
)

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
        f"{words}, a profiled step and rank", time_in, mean_of_ranks(metric, per_step=True)
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
        f"share of cudaLaunchKernel {_OF_FOUR} collectives", ratio_of_parts(LAUNCHING, FIG_3_CALLS)
    ),
    "share_of_collectives": _profiled_ratio(
        f"share of collectives {_OF_FOUR} cudaLaunchKernel",
        ratio_of_parts(communicating, FIG_3_CALLS),
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
        *(with_iteration, ratio_of_parts(LAUNCHING, window)),
    ),
    "launches_over_copies": _profiled(
        "cudaLaunchKernel and cudaStreamSynchronize / host-to-device copies",
        *(Sides.factor, ratio_of_parts(combined(sum, LAUNCHING, STREAM), COPYING)),
    ),
    "share_launching": _profiled_ratio(
        "part of cudaLaunchKernel in the profiled time", ratio_of_parts(LAUNCHING, window)
    ),
    "share_synchronising": _profiled_ratio(
        "part of cudaStreamSynchronize in the profiled time", ratio_of_parts(STREAM, window)
    ),
    "share_waiting": _profiled(
        "part of cudaStreamSynchronize in the profiled time",
        Sides.share,
        ratio_of_parts(STREAM, window),
    ),
    "share_of_lesser_call": _profiled(
        "part of the lesser of cudaLaunchKernel and cudaStreamSynchronize in the profiled time",
        *(Sides.share, ratio_of_parts(combined(min, LAUNCHING, STREAM), window)),
    ),
    "share_of_five": _profiled_ratio(_SHARE_OF_FIVE, ratio_of_parts(FIG_15_CALLS, window)),
    "share_of_calls": _profiled(
        "part of launches and synchronisation in a rank's CUDA calls",
        Sides.share,
        mean_of_ranks(waiting_share),
    ),
    "share_copying": _profiled(
        "part of host-to-device copies in the profiled time",
        Sides.share,
        ratio_of_parts(COPYING, window),
    ),
    "first_calls_over_others": _profiled(
        "the lesser of cudaEventSynchronize and cudaLaunchKernel / the greatest of the other three",
        *(
            Sides.factor,
            ratio_of_parts(
                combined(min, EVENT, LAUNCHING), combined(max, ALL_GATHER, STREAM, COPYING)
            ),
        ),
    ),
    "all_gather_over_rest": _profiled(
        "AllGather / the greater of cudaStreamSynchronize and host-to-device copies",
        *(Sides.factor, ratio_of_parts(ALL_GATHER, combined(max, STREAM, COPYING))),
    ),
}
