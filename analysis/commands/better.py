"""When one setting is better than another by more than its runs differ: for `best`, and the trade-off figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.runs.load import Run
from analysis.runs.setting_figure import ACCURACY, by_seed, is_exact, of_setting
from analysis.stats import between_runs, shares
from analysis.stats.between_runs import Machines, RepeatedRuns

LOSS_APART = 0.01  # relative difference below which two losses count as equal


@dataclass(frozen=True)
class Better:
    """How the runs at hand differ from one another, in what a setting costs and in accuracy.

    column: of the cost. costs: None where they are exact.
    """

    column: str
    costs: Machines | None
    accuracies: Machines

    @classmethod
    def of(cls, runs: Sequence[Run], column: str) -> "Better":
        repeated = RepeatedRuns(runs)
        costs = None if is_exact(runs, column) else repeated.of_column(column)
        return cls(column, costs, repeated.of_column(ACCURACY))

    def explained(self, runs: Sequence[Run]) -> list[str]:
        """By how much these runs differ from one another in what they cost."""
        return [] if self.costs is None else self.costs.described(runs)

    def cheaper(self, a: Sequence[Run], b: Sequence[Run]) -> bool:
        """Whether a setting with the repetitions `a` costs less than one with `b`, by more than runs differ."""
        cost_a, cost_b = of_setting(a, self.column), of_setting(b, self.column)
        if cost_a is None or cost_b is None or cost_a >= cost_b or self.costs is None:
            return cost_a is not None and cost_b is not None and cost_a < cost_b
        values_a, values_b = ([run[self.column] for run in runs] for runs in (a, b))
        bounds = between_runs.of_values(values_a, values_b, (self.costs.of(a[0]), self.costs.of(b[0]))).bounds()
        return bounds is not None and bounds[0] > 1

    def more_accurate(self, a: Sequence[Run], b: Sequence[Run]) -> bool:
        """Whether `a` is more accurate by more than chance explains, or has less loss by more than 1 %."""
        share_a, share_b = of_setting(a, ACCURACY), of_setting(b, ACCURACY)
        if share_a is not None and share_b is not None:
            of_a, of_b = _share(share_a, a), _share(share_b, b)
            return share_a > share_b and shares.differ(of_a, of_b, self.accuracies.of(a[0]))
        loss_a, loss_b = of_setting(a, "loss_last_tenth"), of_setting(b, "loss_last_tenth")
        return loss_a is not None and loss_b is not None and loss_a < loss_b * (1 - LOSS_APART)


def _share(accuracy: float, runs: Sequence[Run]) -> shares.Share:
    """An accuracy with the answers behind it; runs of one seed count as one."""
    firsts = [of_seed[0] for of_seed in by_seed(runs)]
    return shares.Share(accuracy, sum(run["test_samples"] or 0 for run in firsts), len(firsts))
