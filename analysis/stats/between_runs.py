"""Estimate how repeated runs differ, and derive intervals and verdicts from it.

The variance between runs is learnt from each repeated setting, as `multicard.measure.noise`
describes. It contains the scatter of the steps. Shorter runs scatter more than the runs that it was
learnt from, so the excess is added. If nothing was repeated, a value that is usual for the kind of
machine is used.
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

# The standard deviation between seeds that is assumed before any run was repeated.
PRIOR_ACCURACY_SD = 0.002
PRIOR_HELD_OUT_SD = 0.002  # It is on the scale of the loss's logarithm.
REMEDY = Message(  # The advice if nothing was repeated.
    "spread.repeat", "`repeat=3` (accuracies, losses: `seed=0,1,2`) shows how runs differ"
)


def is_one_loss(a: Run, b: Run) -> bool:
    """Return True if two runs compute the same loss, so that their losses can be compared."""
    return quality.kind_of_loss(a) == quality.kind_of_loss(b)


@dataclass(frozen=True)
class Machines:
    """How runs of one setting differ in a figure, by the kind of run and the machine.

    noises: the noise learnt from repeated settings.
    values: returns the values of a setting's repetitions.
    prior_sd: returns a run's standard deviation before any run was repeated.
    """

    noises: Mapping[tuple[str, str | None], Noise]
    values: Callable[[Sequence[Run]], Values]
    prior_sd: Callable[[Run], float]

    def noise(self, run: Run) -> Noise:
        """Return how runs of this run's kind differ on its machine."""
        key = run["kind"], run["hardware"]
        return self.noises.get(key) or Noise.of_kind(self.prior_sd(run))

    def of(self, runs: Sequence[Run]) -> Spread:
        """Return how the repetitions of a setting differ.

        They and the other settings on the machine contribute to it.
        """
        return self.noise(runs[0]).of(self.values(runs))

    def described(self, runs: Sequence[Run]) -> list[str]:
        """Return a line for each kind and machine: how much runs of one setting differ there."""
        lines = []
        for (kind, hardware), run in {(run["kind"], run["hardware"]): run for run in runs}.items():
            usual = self.noise(run).unrepeated_spread
            prior_sd_of_run = self.prior_sd(run)
            machine = clean(str(hardware))
            sd = usual.variance**0.5
            where = f"{machine} ({kind}"
            facts = {"hardware": machine, "kind": kind, "prior_sd": prior_sd_of_run}
            if usual.repetitions:
                repetitions = count(usual.repetitions, "repetition")
                text = f"runs of one setting usually differ by {sd:.1%} on {where}; {repetitions})"
                lines.append(
                    Message("spread.known", text, sd=sd, degrees=usual.repetitions, **facts)
                )
            else:
                text = (
                    f"nothing was repeated on {where}), and {prior_sd_of_run:.0%} is assumed:"
                    f" {REMEDY}"
                )
                lines.append(Message("spread.assumed", text, remedy=REMEDY, **facts))
        return lines


Prior = float | Callable[[Run], float]


def timed_prior(run: Run) -> float:
    """Return how the logarithms of times are assumed to differ, by the kind of machine."""
    return noise.prior_sd(bool(run["cpu_ranks"]))


def by_machine(
    settings: Iterable[Sequence[Run]],
    figure: Callable[[Run], float | None],
    prior_sd: Prior = timed_prior,
    of_seeds: bool = False,
) -> Machines:
    """Learn from repeated settings how runs of one setting differ in a figure, by machine.

    Args:
        figure: returns a run's figure on a scale on which differences count. For relative
            differences that is the logarithm. It returns None, or raises ValueError, if the run has
            no such figure.
        prior_sd: the standard deviation on that scale before any run was repeated.
        of_seeds: count the runs of one seed as one, with their mean (accuracies, losses).
    """

    def prior_of(run: Run) -> float:
        return prior_sd(run) if callable(prior_sd) else prior_sd

    def values(setting: Sequence[Run]) -> Values:
        groups = by_seed(setting, of_seeds)
        values_by_seed = [
            [(value, run) for run in group if (value := _value_or_none(figure, run)) is not None]
            for group in groups
        ]
        return [
            (fmean(value for value, _ in group), fmean(_step_variance(run) for _, run in group))
            for group in values_by_seed
            if group
        ]

    settings_by_machine: dict[tuple[str, str | None], list[Sequence[Run]]] = {}
    for setting in settings:
        settings_by_machine.setdefault((setting[0]["kind"], setting[0]["hardware"]), []).append(
            setting
        )
    noises = {
        key: Noise.learnt(map(values, machine_settings), prior_of(machine_settings[0][0]))
        for key, machine_settings in settings_by_machine.items()
    }
    return Machines(noises, values, prior_of)


class RepeatedRuns:
    """How runs differ, learnt from all settings that were repeated within one of the sweeps.

    Every command judges by all runs that it read, even if it shows only some of them.
    """

    def __init__(self, *sweeps: Sequence[Run]) -> None:
        self._sweeps = sweeps
        self._by_column: dict[str, Machines] = {}
        self.held_out = HeldOutLosses()

    @cached_property
    def settings(self) -> list[list[Run]]:
        """The repeated settings by their runs that ended ok.

        Disturbed runs are left out if a setting has undisturbed ones.
        """
        undisturbed_settings = [grouping.undisturbed(setting) for setting in self._all_settings]
        return [setting for setting in undisturbed_settings if len(setting) > 1]

    @cached_property
    def _all_settings(self) -> list[list[Run]]:
        settings = list[list[Run]]()
        for runs in self._sweeps:
            settings.extend(grouping.by_setting(grouping.ok_runs(runs)).values())
        return settings

    def of_column(self, column: str) -> Machines:
        """Return how runs differ in a column.

        Differences are taken of its logarithm, or of its value if its figure says so (accuracies).
        """
        if column not in self._by_column:
            figure = figures.of_column(column)
            scale, prior_sd = (
                (log, _prior_of_column(column)) if figure.log else (float, PRIOR_ACCURACY_SD)
            )
            self._by_column[column] = by_machine(
                [grouping.counting(setting, column) for setting in self._all_settings],
                lambda run: None if run[column] is None else scale(run[column]),
                prior_sd,
                figure.of_seeds,
            )
        return self._by_column[column]

    def figure(self, runs: Sequence[Run], column: str) -> Interval | None:
        """Return the figure of a setting (see `of_setting`) with its interval.

        The result is None if one of its runs lacks the figure. A counted figure has the interval of
        its own values. A maximum has no interval.
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
        """Return True if `a` is shown to have less of a column than `b`."""
        cost_a = of_setting(a, column)
        cost_b = of_setting(b, column)
        if cost_a is None or cost_b is None or cost_a >= cost_b or is_exact([*a, *b], column):
            return cost_a is not None and cost_b is not None and cost_a < cost_b
        bounds = self.ratio(column, a, b).bounds(confidence)
        return bounds is not None and bounds[0] > 1

    def ratio(self, column: str, a: Sequence[Run], b: Sequence[Run]) -> Ratio:
        """Return the mean of a timed column, or of a loss, in `b` divided by the mean in `a`.

        Raises:
            ValueError: a mean is 0.
        """
        a, b = grouping.counting(a, column), grouping.counting(b, column)
        machines = self.of_column(column)
        of_seeds = figures.of_column(column).of_seeds
        values = [
            [fmean(run[column] for run in seed_runs) for seed_runs in by_seed(runs, of_seeds)]
            for runs in (a, b)
        ]
        spreads = machines.of(a), machines.of(b)
        ratio = of_values(values[0], values[1], spreads)
        if column != HELD_OUT:
            return ratio
        counts = len(values[0]), len(values[1])
        assumed_terms = [Term(PRIOR_HELD_OUT_SD**2 * sum(1 / count for count in counts), math.inf)]
        return self._over_rows(ratio, a, b, variance_between(spreads, *counts) or assumed_terms)

    def _over_rows(
        self, ratio: Ratio, a: Sequence[Run], b: Sequence[Run], between_runs: Sequence[Term]
    ) -> Ratio:
        """Return a ratio of held-out losses with its error over seeds and over the rows.

        It has no error if the settings have different rows.
        """
        rows_a = self.held_out.of(a)
        rows_b = self.held_out.of(b)
        over_rows = None
        if rows_a is not None and rows_b is not None:
            over_rows = variance_over_rows([(1.0, rows_b), (-1.0, rows_a)])
        if over_rows is None:
            return Ratio(ratio.ratio, None, 0, False)
        total_variance = combined([*between_runs, over_rows])
        return Ratio(
            ratio.ratio, math.sqrt(total_variance.variance), total_variance.degrees, ratio.repeated
        )

    def have_same_rows(self, a: Sequence[Run], b: Sequence[Run]) -> bool:
        """Return True if both settings were evaluated on the same held-out rows."""
        rows_a = self.held_out.of(a)
        rows_b = self.held_out.of(b)
        return rows_a is not None and rows_b is not None and rows_a.rows == rows_b.rows

    def at_chance(self, runs: Sequence[Run]) -> bool:
        """Return True if the accuracy may be no better than chance.

        Chance is to always answer the most frequent class.
        """
        low = None if of_setting(runs, ACCURACY) is None else accuracy_over_answers(runs).low
        # Early records lack the accuracy by chance.
        return low is not None and low <= (of_setting(runs, "chance_accuracy") or 0.0)

    def more_accurate(
        self, a: Sequence[Run], b: Sequence[Run], confidence: float = CONFIDENCE
    ) -> bool:
        """Return True if `a` is shown to have learned better than `b`.

        They are compared by the first figure of learning that both have. An accuracy must be higher
        by more than chance explains, and a held-out loss lower by more than rows and seeds explain.
        A training loss must be 1 % lower and, if several seeds were measured, lower by more than
        they explain.
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
        # If a seed was repeated, how the losses of seeds differ is known.
        is_known = loss_a > 0 and self.of_column(LOSS).of(a).repetitions > 0
        return quality.is_less(loss_a, loss_b) and (
            not is_known or self.cheaper(LOSS, a, b, confidence)
        )

    def _answers_better(self, a: Sequence[Run], b: Sequence[Run], confidence: float) -> bool:
        spreads = self.of_column(ACCURACY).of(a), self.of_column(ACCURACY).of(b)
        counts = [len(by_seed(side)) for side in (a, b)]
        assumed_terms = [Term(PRIOR_ACCURACY_SD**2 * sum(1 / count for count in counts), math.inf)]
        over_answers = intervals.difference(
            accuracy_over_answers(a, confidence), accuracy_over_answers(b, confidence)
        )
        low = widened(
            over_answers, variance_between(spreads, *counts) or assumed_terms, confidence
        ).low
        return low is not None and low > 0


def _prior_of_column(column: str) -> Prior:
    """Return the prior of a logarithm; only times differ more on some machines than on others."""
    if column == HELD_OUT:
        return PRIOR_HELD_OUT_SD
    return timed_prior if column != LOSS else noise.prior_sd(on_cpu=False)


def log(value: float) -> float | None:
    return math.log(value) if 0 < value < math.inf else None


def accuracy_over_answers(runs: Sequence[Run], confidence: float = CONFIDENCE) -> Interval:
    """Return the accuracy of a setting over the answers of one run of each seed."""
    first_runs = [seed_runs[0] for seed_runs in by_seed(runs)]
    return intervals.of_answers(
        [run[ACCURACY] for run in first_runs],
        [run["test_samples"] or 0 for run in first_runs],
        confidence,
    )


def widened(over_answers: Interval, between: Sequence[Term], confidence: float) -> Interval:
    """Widen an interval over the answers of some runs by the variance between runs.

    The answers alone do not show how another training would have gone.
    """
    total = combined(between)
    half = student_quantile(confidence, total.degrees) * math.sqrt(total.variance)
    return intervals.difference(over_answers, Interval(0.0, -half, half))


def _value_or_none(figure: Callable[[Run], float | None], run: Run) -> float | None:
    try:
        return figure(run)
    except ValueError:
        return None


def _step_variance(run: Run) -> float:
    """Return the relative variance of a run's mean step, as if its steps were independent."""
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
    """Return the mean of B's runs divided by the mean of A's; each run has the same weight.

    Args:
        a, b: the samples (n,) of each run of a side, in the order in which they were measured.
        spreads: how runs differ on A's machine and on B's.
        paired: each run of A had the same batches as the run of B with its index.

    Raises:
        ValueError: a side has no samples, or samples took no time.
    """
    if not a or not b or not all(len(samples) for samples in (*a, *b)):
        raise Refusal("spread.no-steps", "none beyond the warm-up")
    means = [[float(samples.mean()) for samples in side] for side in (a, b)]
    if min(*means[0], *means[1]) <= 0:
        raise Refusal("spread.no-time", "samples that took no time")
    estimate = float(np.mean(means[1]) / np.mean(means[0]))
    between_runs = variance_between(spreads, len(a), len(b))
    uncovered_share = (
        1.0
        if between_runs is None
        else _uncovered_share([*a, *b], max(spread.within for spread in spreads))
    )
    terms = [] if between_runs is None else between_runs
    if uncovered_share:
        within_runs = _variance_within_runs(a, b, paired)
        if within_runs is None and not (terms and min(len(a), len(b)) > 1):
            return Ratio(estimate, None, 0, between_runs is not None)
        # Without it, the runs of each side show how they differ, including their steps' scatter.
        if within_runs is not None:
            terms = [*terms, Term(within_runs.variance * uncovered_share, within_runs.degrees)]
    total_variance = combined(terms)
    return Ratio(
        estimate,
        math.sqrt(total_variance.variance),
        total_variance.degrees,
        between_runs is not None,
    )


def _uncovered_share(runs: Sequence[np.ndarray], within: float) -> float:
    """Return the share of the steps' scatter that the variance between runs lacks."""
    step_scatter = float(
        np.mean([samples.var() / samples.mean() ** 2 / len(samples) for samples in runs])
    )
    # Below that, the samples are equal except for rounding.
    return max(0.0, 1 - within / step_scatter) if step_scatter > np.finfo(float).eps else 0.0


def _variance_within_runs(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], paired: bool
) -> Term | None:
    """Return the variance of the ratio's logarithm, estimated from the samples within the runs."""
    relative_a, relative_b = ([samples / samples.mean() for samples in side] for side in (a, b))
    if paired:
        series = [second - first for first, second in zip(relative_a, relative_b, strict=True)]
        weights = [1 / len(series)] * len(series)
    else:
        series = [*relative_a, *relative_b]
        weights = [*[1 / len(a)] * len(a), *[1 / len(b)] * len(b)]
    parts = [mean_variance(samples) for samples in series]
    known_parts = [part for part in parts if part is not None]
    if len(known_parts) < len(parts):
        return None
    return combined(
        [
            Term(part.variance * w**2, part.degrees)
            for part, w in zip(known_parts, weights, strict=True)
        ]
    )
