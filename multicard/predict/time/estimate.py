"""How long a step of a run will take, from what is known of other runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multicard.measure import repeated_runs
from multicard.predict.time.observations import StepObservation, axes, by_setting, usable

CONFIDENCE = 0.90
MEASURED, PROBED, SCALED, PUBLISHED = "measured", "probed", "scaled", "published"
PROBE_SD = 0.03  # of the logarithm of the step of a whole run over that of its probe
COMMIT_SD = 0.03  # of the logarithm of the step on one commit over that on another


@dataclass(frozen=True)
class Estimate:
    """A predicted step.

    value, low, high: seconds, and the 90 % interval.
    basis: MEASURED, PROBED, SCALED or PUBLISHED.
    runs: observations that it rests on.
    about: what it rests on, in words.
    """

    value: float
    low: float
    high: float
    basis: str
    runs: int
    about: str


def step(
    setting: Mapping[str, str], machine: str, commit: str | None, observations: Sequence[StepObservation]
) -> Estimate | None:
    """A step of `setting` on `machine`; None where nothing that is known tells it.

    Args:
        observations: of this machine and of others, of which only published ones are taken.
    """
    own = [seen for seen in usable(observations) if seen.machine == machine]
    same = by_setting(own).get(tuple(sorted(axes(setting).items())), [])
    return _same_setting(same, own, commit) if same else None


def _same_setting(same: Sequence[StepObservation], own: Sequence[StepObservation], commit: str | None) -> Estimate:
    """The mean over whole runs of the setting, or over its probes where there are none."""
    runs = [seen for seen in same if not seen.probe] or list(same)
    here = [seen for seen in runs if seen.commit == commit] or runs
    spread = repeated_runs.pooled(
        [[(math.log(seen.step_s), seen.error**2) for seen in group] for group in by_setting(own).values()]
    )
    probed, elsewhere = here[0].probe, here[0].commit != commit
    variance = spread.variance * (1 + 1 / len(here)) + sum(seen.error**2 for seen in here) / len(here) ** 2
    variance += PROBE_SD**2 * probed + COMMIT_SD**2 * elsewhere
    degrees = spread.term.degrees if spread.degrees else math.inf
    half = repeated_runs.student_quantile(CONFIDENCE, degrees) * math.sqrt(variance)
    value = math.exp(math.fsum(math.log(seen.step_s) for seen in here) / len(here))
    about = f"{len(here)} {'probe' if probed else 'run'}{'s' * (len(here) > 1)} of this cell"
    about += ", on another commit" * elsewhere
    return Estimate(
        value, value * math.exp(-half), value * math.exp(half), PROBED if probed else MEASURED, len(here), about
    )
