"""How repeated runs differ, and the intervals and verdicts that follow from it.

How runs of one setting differ is learnt as `multicard.measure.noise` has it, setting by setting. It
holds the scatter of the steps already. Runs with more scatter than those it comes from (shorter
ones) add theirs: the share of it by which they exceed these. Where nothing was repeated,
what is usual for the kind of machine takes its place.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from multicard.config.job import count
from multicard.measure import noise
from multicard.measure.noise import Noise, Spread, Term, Values
from multicard.measure.repeated_runs import (
    CONFIDENCE,
    Ratio,
    combined,
    half_width,
    of_values,
    student_quantile,
    variance_between,
)
from multicard.measure.series import mean_variance
from multicard.messages import Message, Refusal
from multicard.records import figures
from multicard.records.text_table import clean

from ..runs import grouping, quality
from ..runs.grouping import ACCURACY, HELD_OUT, LOSS, by_seed, is_exact, of_setting
from ..runs.load import Run
from . import intervals
from .held_out import HeldOutLosses, variance_over_rows
from .intervals import Interval

PRIOR_ACCURACY_SD = 0.002  # of the accuracy of runs with other seeds, before any was repeated
PRIOR_HELD_OUT_SD = 0.002  # of the logarithm of their held-out loss
REMEDY = Message(  # where nothing was repeated
    "spread.repeat", "`repeat=3` (accuracies, losses: `seed=0,1,2`) shows how runs differ"
)


def is_one_loss(a: Run, b: Run) -> bool:
    """True for runs whose losses count the same, and so can be compared."""
    return quality.kind_of_loss(a) == quality.kind_of_loss(b)


@dataclass(frozen=True)
class Machines:
    """How runs of one setting differ in a figure, by the kind of run and the machine.

    noises: what repeated settings taught. values: of a setting's repetitions.
    prior_sd: of a run, before any was repeated.
    """

    noises: Mapping[tuple[str, str | None], Noise]
    values: Callable[[Sequence[Run]], Values]
    prior_sd: Callable[[Run], float]

    def noise(self, run: Run) -> Noise:
        """How runs of the kind and the machine of a run differ."""
        key = run["kind"], run["hardware"]
        return self.noises.get(key) or Noise.of_kind(self.prior_sd(run))

    def of(self, runs: Sequence[Run]) -> Spread:
        """How the repetitions of a setting differ,
        by these and by what others on the machine teach.
        """
        return self.noise(runs[0]).of(self.values(runs))

    def described(self, runs: Sequence[Run]) -> list[str]:
        """A line for each kind of these runs and machine: by
        how much runs of one setting differ there.
        """
        lines = []
        for (kind, hardware), run in {(run["kind"], run["hardware"]): run for run in runs}.items():
            usual = self.noise(run).unrepeated_spread
            before = self.prior_sd(run)
            machine = clean(str(hardware))
            sd = usual.variance**0.5
            place = f"{machine} ({kind}"
            about = {"hardware": machine, "kind": kind, "prior_sd": before}
            if usual.repetitions:
                known = count(usual.repetitions, "repetition")
                said = f"runs of one setting usually differ by {sd:.1%} on {place}; {known})"
                lines.append(
                    Message("spread.known", said, sd=sd, degrees=usual.repetitions, **about)
                )
            else:
                said = f"nothing was repeated on {place}), and {before:.0%} is assumed: {REMEDY}"
                lines.append(Message("spread.assumed", said, remedy=REMEDY, **about))
        return lines


Prior = float | Callable[[Run], float]


def timed_prior(run: Run) -> float:
    """How the logarithms of times differ between runs,
    before any was repeated: by the kind of machine.
    """
    return noise.prior_sd(bool(run["cpu_ranks"]))


def by_machine(
    settings: Iterable[Sequence[Run]],
    figure: Callable[[Run], float | None],
    prior_sd: Prior = timed_prior,
    of_seeds: bool = False,
) -> Machines:
    """How runs of one setting differ in a figure, learnt from repeated settings, by machine.

    Args:
        figure: of a run, on a scale on which differences count: the logarithm for relative ones.
            None, or a ValueError, where it has none.
        prior_sd: before any run was repeated, on that scale.
        of_seeds: count the runs of one seed as one, with their mean (accuracies, losses).
    """

    def before(run: Run) -> float:
        return prior_sd(run) if callable(prior_sd) else prior_sd

    def values(setting: Sequence[Run]) -> Values:
        groups = by_seed(setting, of_seeds)
        known = [
            [(value, run) for run in group if (value := _known(figure, run)) is not None]
            for group in groups
        ]
        return [
            (fmean(value for value, _ in group), fmean(_step_variance(run) for _, run in group))
            for group in known
            if group
        ]

    measured: dict[tuple[str, str | None], list[Sequence[Run]]] = {}
    for setting in settings:
        measured.setdefault((setting[0]["kind"], setting[0]["hardware"]), []).append(setting)
    noises = {
        key: Noise.learnt(map(values, own), before(own[0][0])) for key, own in measured.items()
    }
    return Machines(noises, values, before)


class RepeatedRuns:
    """Spread of the runs at hand, from all settings among them that were repeated within one of the
    sweeps. Every command judges by all runs that it read, also where it shows some of them.
    """

    def __init__(self, *sweeps: Sequence[Run]) -> None:
        self._sweeps = sweeps
        self._by_column: dict[str, Machines] = {}
        self.held_out = HeldOutLosses()

    @cached_property
    def settings(self) -> list[list[Run]]:
        """Those that were measured more than once within one of the sweeps, by their runs that
        ended ok; by undisturbed ones where a setting has any.
        """
        kept = [grouping.undisturbed(setting) for setting in self._all_settings]
        return [setting for setting in kept if len(setting) > 1]

    @cached_property
    def _all_settings(self) -> list[list[Run]]:
        settings = list[list[Run]]()
        for runs in self._sweeps:
            settings.extend(grouping.by_setting(grouping.ok_runs(runs)).values())
        return settings

    def of_column(self, column: str) -> Machines:
        """The spreads of a column: of its logarithm,
        or of its value where its figure says so (accuracies).
        """
        if column not in self._by_column:
            figure = figures.of_column(column)
            scale, prior_sd = (log, _prior_of(column)) if figure.log else (float, PRIOR_ACCURACY_SD)
            self._by_column[column] = by_machine(
                [grouping.counting(setting, column) for setting in self._all_settings],
                lambda run: None if run[column] is None else scale(run[column]),
                prior_sd,
                figure.of_seeds,
            )
        return self._by_column[column]

    def figure(self, runs: Sequence[Run], column: str) -> Interval | None:
        """The figure of a setting (see `of_setting`) with its interval;
        None where one of its runs lacks it.

        A counted figure has the interval of its own values; a maximum has none.
        """
        runs = grouping.counting(runs, column)
        estimate = of_setting(runs, column)
        figure = figures.of_column(column)
        if estimate is None:
            return None
        if figure.summed != "max" and is_exact(runs, column):
            return intervals.mean([run[column] for run in runs])
        spread = self.of_column(column).of(runs)
        if figure.summed == "max" or not spread.repetitions:
            return Interval(estimate, None, None)
        half = half_width(len(by_seed(runs, figure.of_seeds)), spread)
        if not figure.log:
            return Interval(estimate, max(0.0, estimate - half), min(1.0, estimate + half))
        return Interval(estimate, estimate * math.exp(-half), estimate * math.exp(half))

    def cheaper(
        self, column: str, a: Sequence[Run], b: Sequence[Run], confidence: float = CONFIDENCE
    ) -> bool:
        """True if the setting of the runs `a` has less of a column than that of `b`,
        by more than runs differ.
        """
        cost_a = of_setting(a, column)
        cost_b = of_setting(b, column)
        if cost_a is None or cost_b is None or cost_a >= cost_b or is_exact([*a, *b], column):
            return cost_a is not None and cost_b is not None and cost_a < cost_b
        bounds = self.ratio(column, a, b).bounds(confidence)
        return bounds is not None and bounds[0] > 1

    def ratio(self, column: str, a: Sequence[Run], b: Sequence[Run]) -> Ratio:
        """The mean of a timed column, or of a loss, over the runs `b` / that over `a`;
        ValueError for means of 0.
        """
        a, b = grouping.counting(a, column), grouping.counting(b, column)
        machines = self.of_column(column)
        of_seeds = figures.of_column(column).of_seeds
        values = [
            [fmean(run[column] for run in same) for same in by_seed(runs, of_seeds)]
            for runs in (a, b)
        ]
        spreads = machines.of(a), machines.of(b)
        ratio = of_values(values[0], values[1], spreads)
        if column != HELD_OUT:
            return ratio
        counts = len(values[0]), len(values[1])
        assumed = [Term(PRIOR_HELD_OUT_SD**2 * sum(1 / count for count in counts), math.inf)]
        return self._over_rows(ratio, a, b, variance_between(spreads, *counts) or assumed)

    def _over_rows(
        self, ratio: Ratio, a: Sequence[Run], b: Sequence[Run], between: Sequence[Term]
    ) -> Ratio:
        """A ratio of held-out losses with its error over seeds and over the rows; without an error
        where the settings have other rows.
        """
        rows_a = self.held_out.of(a)
        rows_b = self.held_out.of(b)
        over_rows = None
        if rows_a is not None and rows_b is not None:
            over_rows = variance_over_rows([(1.0, rows_b), (-1.0, rows_a)])
        if over_rows is None:
            return Ratio(ratio.ratio, None, 0, False)
        total = combined([*between, over_rows])
        return Ratio(ratio.ratio, math.sqrt(total.variance), total.degrees, ratio.repeated)

    def have_same_rows(self, a: Sequence[Run], b: Sequence[Run]) -> bool:
        """True for settings that were evaluated on the same held-out rows."""
        rows_a = self.held_out.of(a)
        rows_b = self.held_out.of(b)
        return rows_a is not None and rows_b is not None and rows_a.rows == rows_b.rows

    def at_chance(self, runs: Sequence[Run]) -> bool:
        """True if the accuracy of a setting is not told from that
        of always answering the most frequent class.
        """
        low = None if of_setting(runs, ACCURACY) is None else _over_answers(runs).low
        # early records lack it
        return low is not None and low <= (of_setting(runs, "chance_accuracy") or 0.0)

    def more_accurate(
        self, a: Sequence[Run], b: Sequence[Run], confidence: float = CONFIDENCE
    ) -> bool:
        """True if `a` learned better by the first figure of learning that both have: is more
        accurate by more than chance explains, has less held-out loss by more than rows and seeds
        differ, or has 1 % less training loss, and less by more than seeds differ,
        where several were measured.
        """
        column = quality.shared(quality.of(a), quality.of(b))
        if column == ACCURACY:
            return self._answers_better(a, b, confidence)
        if column is None or not is_one_loss(a[0], b[0]):
            return False
        if column == HELD_OUT:
            is_comparable = min(
                quality.of(a)[column], quality.of(b)[column]
            ) > 0 and self.have_same_rows(a, b)
            return is_comparable and self.cheaper(column, a, b, confidence)
        return self._has_less_loss(a, b, confidence)

    def _has_less_loss(self, a: Sequence[Run], b: Sequence[Run], confidence: float) -> bool:
        loss_a = quality.of(a)[LOSS]
        loss_b = quality.of(b)[LOSS]
        # how losses of seeds differ
        is_known = loss_a > 0 and self.of_column(LOSS).of(a).repetitions > 0
        return quality.is_less(loss_a, loss_b) and (
            not is_known or self.cheaper(LOSS, a, b, confidence)
        )

    def _answers_better(self, a: Sequence[Run], b: Sequence[Run], confidence: float) -> bool:
        spreads = self.of_column(ACCURACY).of(a), self.of_column(ACCURACY).of(b)
        counts = [len(by_seed(side)) for side in (a, b)]
        assumed = [Term(PRIOR_ACCURACY_SD**2 * sum(1 / count for count in counts), math.inf)]
        over_answers = intervals.difference(
            _over_answers(a, confidence), _over_answers(b, confidence)
        )
        low = widened(over_answers, variance_between(spreads, *counts) or assumed, confidence).low
        return low is not None and low > 0


def _prior_of(column: str) -> Prior:
    """Of a logarithm: losses differ alike on all machines, times do not."""
    if column == HELD_OUT:
        return PRIOR_HELD_OUT_SD
    return timed_prior if column != LOSS else noise.prior_sd(on_cpu=False)


def log(value: float) -> float | None:
    return math.log(value) if 0 < value < math.inf else None


def _over_answers(runs: Sequence[Run], confidence: float = CONFIDENCE) -> Interval:
    """The accuracy of a setting over the answers of its runs,
    of which those of one seed count as one.
    """
    firsts = [of_seed[0] for of_seed in by_seed(runs)]
    return intervals.of_answers(
        [run[ACCURACY] for run in firsts], [run["test_samples"] or 0 for run in firsts], confidence
    )


def widened(over_answers: Interval, between: Sequence[Term], confidence: float) -> Interval:
    """An interval over the answers of some runs, which do not show how another training would have
    gone, widened by the variance between runs.
    """
    total = combined(between)
    half = student_quantile(confidence, total.degrees) * math.sqrt(total.variance)
    return intervals.difference(over_answers, Interval(0.0, -half, half))


def _known(figure: Callable[[Run], float | None], run: Run) -> float | None:
    try:
        return figure(run)
    except ValueError:
        return None


def _step_variance(run: Run) -> float:
    """The relative variance of a run's mean step, as if its steps were independent."""
    mean_s = run["step_s"]
    std_s = run["step_std_s"]
    count = run["steps"]
    return (std_s / mean_s) ** 2 / count if mean_s and std_s and count else 0.0


def ratio(
    a: Sequence[np.ndarray],
    b: Sequence[np.ndarray],
    spreads: tuple[Spread, Spread],
    paired: bool = False,
) -> Ratio:
    """The mean of B's runs / the mean of A's, each run with the same weight.

    Args:
        a, b: samples (n,) of each run of a side, in the order in which they were measured.
        spreads: how runs of A's machine differ, and those of B's.
        paired: each run of A had the same batches as the run of B with its index.

    Raises:
        ValueError: a side without samples, or samples that took no time.
    """
    if not a or not b or not all(len(samples) for samples in (*a, *b)):
        raise Refusal("spread.no-steps", "none beyond the warm-up")
    means = [[float(samples.mean()) for samples in side] for side in (a, b)]
    if min(*means[0], *means[1]) <= 0:
        raise Refusal("spread.no-time", "samples that took no time")
    estimate = float(np.mean(means[1]) / np.mean(means[0]))
    between = variance_between(spreads, len(a), len(b))
    share = (
        1.0
        if between is None
        else _share_beyond([*a, *b], max(spread.within for spread in spreads))
    )
    terms = [] if between is None else between
    if share:
        within = _within(a, b, paired)
        if within is None and not (terms and min(len(a), len(b)) > 1):
            return Ratio(estimate, None, 0, between is not None)
        # else the runs of either side show how they differ, their steps' scatter included
        if within is not None:
            terms = [*terms, Term(within.variance * share, within.degrees)]
    total = combined(terms)
    return Ratio(estimate, math.sqrt(total.variance), total.degrees, between is not None)


def _share_beyond(runs: Sequence[np.ndarray], within: float) -> float:
    """The share of the scatter of these runs' steps that the
    variance between runs does not hold yet.
    """
    own = float(np.mean([samples.var() / samples.mean() ** 2 / len(samples) for samples in runs]))
    # else: equal, but for rounding
    return max(0.0, 1 - within / own) if own > np.finfo(float).eps else 0.0


def _within(a: Sequence[np.ndarray], b: Sequence[np.ndarray], paired: bool) -> Term | None:
    """The variance of the logarithm of the ratio from the samples within the runs."""
    relative_a, relative_b = ([samples / samples.mean() for samples in side] for side in (a, b))
    if paired:
        series = [second - first for first, second in zip(relative_a, relative_b, strict=True)]
        weights = [1 / len(series)] * len(series)
    else:
        series = [*relative_a, *relative_b]
        weights = [*[1 / len(a)] * len(a), *[1 / len(b)] * len(b)]
    parts = [mean_variance(samples) for samples in series]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return combined(
        [Term(part.variance * w**2, part.degrees) for part, w in zip(known, weights, strict=True)]
    )
