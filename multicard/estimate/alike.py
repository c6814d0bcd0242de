"""Figures of runs like one that is to come: of those that differ in the fewest settings."""

import math
from collections.abc import Callable, Mapping, Sequence

from multicard.estimate.history import PastRun
from multicard.estimate.time.observations import axes, differences
from multicard.estimate.time.scaling import CONFIDENCE
from multicard.measure import repeated_runs
from multicard.records.schema_parts import Interval

# Keys that change no step, but how many there are
LENGTH = ("epochs", "dataset.train_limit", "dataset.test_limit", "dataset.rows", "max_steps")
PRIOR_DEGREES = 4
MOST = 1e15  # above which a figure is none
Figure = Callable[[PastRun], float | None]


class Alike:
    """Runs of one machine and workload, by the number of settings in which they differ from one."""

    def __init__(self, setting: Mapping[str, str], runs: Sequence[PastRun]) -> None:
        own, by_axes = axes(setting), dict[tuple[tuple[str, str], ...], list[PastRun]]()
        for run in runs:
            by_axes.setdefault(run.axes, []).append(run)
        groups = [(len(differences(dict(key), own)), group) for key, group in by_axes.items()]
        self._groups = sorted(groups, key=lambda group: group[0])
        self._setting = setting

    def of_these_steps(self) -> list[PastRun]:
        """The runs with the very same steps, whatever their number."""
        return [run for distance, group in self._groups if distance == 0 for run in group]

    def of_this_cell(self) -> list[PastRun]:
        """Those that have as many steps too."""
        return [
            run
            for run in self.of_these_steps()
            if all(run.setting.get(key) == self._setting.get(key) for key in LENGTH)
        ]

    def interval(self, figure: Figure, sd: float) -> Interval | None:
        """A figure above 0 of the next run, with its 90 % interval, from the runs nearest to it of which it is known.

        Args:
            sd: of the figure's logarithm between runs, before any was repeated; each setting that differs adds as much.
        """
        distance, values = self._nearest(figure)
        values = [value for value in values if 0 < value < MOST]
        return spread(values, sd * (1 + distance)) if values else None

    def mean(self, figure: Figure) -> float | None:
        """The mean of any figure over those runs."""
        _, values = self._nearest(figure)
        return math.fsum(values) / len(values) if values else None

    def _nearest(self, figure: Figure) -> tuple[int, list[float]]:
        nearest, values = 0, list[float]()
        for distance, group in self._groups:
            if values and distance > nearest:
                break
            nearest = distance
            values += [value for run in group if (value := figure(run)) is not None and math.isfinite(value)]
        return nearest, values


def spread(values: Sequence[float], sd: float) -> Interval:
    """The geometric mean of figures above 0, with the 90 % interval of the next one.

    Args:
        sd: of the logarithm between runs, which counts as PRIOR_DEGREES of freedom beside those of `values`.
    """
    logs = [math.log(value) for value in values]
    mean, count = math.fsum(logs) / len(logs), len(logs)
    degrees = PRIOR_DEGREES + count - 1
    variance = (PRIOR_DEGREES * sd**2 + math.fsum((value - mean) ** 2 for value in logs)) / degrees
    half = repeated_runs.student_quantile(CONFIDENCE, degrees) * math.sqrt(variance * (1 + 1 / count))
    half = min(half, math.log(10))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
