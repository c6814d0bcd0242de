"""When one setting is better than another by more than its runs differ: for `best`, and the trade-off figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.runs.load import Run
from analysis.stats import between_runs, shares
from analysis.stats.between_runs import Machines

LOSS_APART = 0.01  # relative difference below which two losses count as equal
MEMORY = "peak_memory_bytes"


def mean(runs: Sequence[Run], column: str) -> float | None:
    values = [run[column] for run in runs]
    return None if None in values else sum(values) / len(values)


def highest(runs: Sequence[Run], column: str) -> float | None:
    values = [run[column] for run in runs]
    return None if None in values else max(values)


def cost_of(runs: Sequence[Run], column: str) -> float | None:
    """The mean over a setting's repetitions; of memory the maximum."""
    return (highest if column == MEMORY else mean)(runs, column)


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
        exact = column == MEMORY and not any(run["cpu_ranks"] for run in runs)  # what torch's allocator counted
        settings = between_runs.repeated(runs)
        costs = None if exact else between_runs.by_machine(settings, between_runs.log_of(column))
        accuracies = between_runs.by_machine(settings, lambda run: run["test_accuracy"], shares.PRIOR_SD)
        return cls(column, costs, accuracies)

    def cheaper(self, a: Sequence[Run], b: Sequence[Run]) -> bool:
        """Whether a setting with the repetitions `a` costs less than one with `b`, by more than runs differ."""
        cost_a, cost_b = cost_of(a, self.column), cost_of(b, self.column)
        if cost_a is None or cost_b is None or cost_a >= cost_b or self.costs is None:
            return cost_a is not None and cost_b is not None and cost_a < cost_b
        values_a, values_b = ([run[self.column] for run in runs] for runs in (a, b))
        bounds = between_runs.of_values(values_a, values_b, (self.costs.of(a[0]), self.costs.of(b[0]))).bounds()
        return bounds is not None and bounds[0] > 1

    def more_accurate(self, a: Sequence[Run], b: Sequence[Run]) -> bool:
        """Whether `a` is more accurate by more than chance explains, or has less loss by more than 1 %."""
        share_a, share_b = mean(a, "test_accuracy"), mean(b, "test_accuracy")
        if share_a is not None and share_b is not None:
            of_a, of_b = (
                shares.Share(share, sum(run["test_samples"] or 0 for run in runs), len(runs))
                for share, runs in ((share_a, a), (share_b, b))
            )
            return share_a > share_b and shares.differ(of_a, of_b, self.accuracies.of(a[0]))
        loss_a, loss_b = mean(a, "loss_last_tenth"), mean(b, "loss_last_tenth")
        return loss_a is not None and loss_b is not None and loss_a < loss_b * (1 - LOSS_APART)
