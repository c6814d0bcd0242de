"""Measures of two groups of runs that none of the general forms of `Sides` can express."""

import math
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np

from multicard.measure.repeated_runs import Term
from multicard.messages import Refusal

from ..runs.grouping import MEMORY, is_exact
from ..stats import between_runs, intervals
from ..stats.intervals import Interval
from . import run_figures
from .comparison import Figure, Sides
from .profile_figures import OTHER_CALLS, RankFigure, mean_of_ranks


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
    figures = [mean_of_ranks(rank_figure, per_step=True) for rank_figure in (figure, *OTHER_CALLS)]
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
