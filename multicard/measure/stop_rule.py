"""Rule that ends a short run once its mean step is known, by the seconds of its steps alone.

The mean is looked at ever more rarely, and is known once two looks in a row say so: every look is another chance to be
sure by accident. In simulated probes of 60 s, a mean called known to 1 % was within 1 % in 95 to 99 % of them, with
steps independent or correlated by 0.5; in 79 % with few steps, of 0.2 s, correlated by 0.9. A drift that a probe sees
leaves it without an interval until its time is over; a slower drift is not seen.
"""

import math

import numpy as np

from multicard.measure.series import MeanStep, mean_step

LEAST_STEPS = 20  # with fewer no mean is known
LEAST_SHARE = 0.1  # of its seconds, trained before the first look
GROWTH, APART_S = 1.2, 0.5  # steps and training between two looks at the mean, which take 0.2 ms each


class StopRule:
    """Takes the seconds of each step and says when to stop.

    The first step of an epoch, which waits for the first batch, counts as training but is left out of the mean.

    Args:
        error: half width of the mean's 95 % interval, relative to the mean, at which it is known.
        seconds: of training, after which to stop in any case.
        steps_per_epoch: of the whole run; with 1, first steps count, as there are no others.
    """

    def __init__(self, error: float, seconds: float, steps_per_epoch: int) -> None:
        self.error, self.seconds = error, seconds
        self._one_step = steps_per_epoch == 1
        self._first = True
        self._series: list[float] = []
        self._trained_s = self._series_s = 0.0
        self.fastest_s = math.inf  # step so far
        self._look_at = LEAST_STEPS, seconds * LEAST_SHARE
        self._seemed_known = False
        mean_step(np.arange(1.0, LEAST_STEPS))  # imports scipy, which would count as part of a step later

    def start_epoch(self) -> None:
        self._first = True

    def add(self, step_s: float) -> None:
        if self._one_step or not self._first:
            self._series.append(step_s)
            self._series_s += step_s
        self._first = False
        self._trained_s += step_s
        self.fastest_s = min(self.fastest_s, step_s)

    def reason(self, ahead: int = 0) -> str | None:
        """The reason to stop now: "error", as the mean is known, or "seconds"; None to train on.

        Args:
            ahead: steps that will be trained before the run has stopped.
        """
        steps, trained_s = self._look_at
        count = len(self._series)
        late = self._trained_s + ahead * self._series_s / max(1, count) >= self.seconds
        if late or (count >= steps and self._trained_s >= trained_s):
            self._look_at = math.ceil(GROWTH * count), self._trained_s + APART_S
            known = count >= LEAST_STEPS and self._is_known(mean_step(np.array(self._series)))
            if known and (self._seemed_known or late):
                return "error"
            self._seemed_known = known
        return "seconds" if late else None

    def _is_known(self, mean: MeanStep) -> bool:
        return mean.half_width is not None and mean.half_width <= self.error
