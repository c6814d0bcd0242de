"""What a run takes in all, from its step: seconds of training and evaluation, and joules.

    total = step x (steps + warm-up + epochs x evaluation) + epochs x rest

The deviations of independent parts add as squares. That of the mean step is the same in all steps of a run, so it does
not average out over them.
"""

import math
from collections.abc import Iterable, Sequence

from multicard.config.base import RunConfig
from multicard.estimate.alike import Alike
from multicard.estimate.history import PastRun
from multicard.estimate.lengths import Length, ranks
from multicard.records.schema import VisionEpoch
from multicard.records.schema_parts import Interval

# Of logarithms, between runs alike, before there are several (see `alike.spread`)
EVALUATION_SD, DRIFT_SD, WARMUP_SD, POWER_SD = 0.05, 0.01, 0.3, 0.03
EVALUATION = Interval(0.35, 0.15, 0.8)  # an evaluated image by a trained one, where no run tells
ENOUGH_STEPS = 5  # of an epoch after the warm-up, that a drift is read from
ENOUGH_PAIRS = 10  # of predictions and what became of them, that intervals are calibrated by
LEAST_FACTOR, MOST_FACTOR = 0.25, 10.0


def exact(value: float) -> Interval:
    return Interval(value, value, value)


def summed(parts: Iterable[Interval]) -> Interval:
    """The sum of independent parts."""
    parts = list(parts)
    value = math.fsum(part.value for part in parts)
    below = math.hypot(*(part.value - part.low for part in parts))
    above = math.hypot(*(part.high - part.value for part in parts))
    return Interval(value, max(value - below, 0.0), value + above)


def product(*factors: Interval) -> Interval:
    """The product of independent factors above 0: the deviations of their logarithms add as squares."""
    value = math.prod(factor.value for factor in factors)
    if any(factor.low <= 0 for factor in factors):
        return Interval(value, 0.0, math.prod(factor.high for factor in factors))
    below = math.hypot(*(math.log(factor.value / factor.low) for factor in factors))
    above = math.hypot(*(math.log(factor.high / factor.value) for factor in factors))
    return Interval(value, value * math.exp(-below), value * math.exp(above))


def widened(interval: Interval, factor: float) -> Interval:
    """The interval with both of its sides `factor` times as long."""
    low = interval.value - factor * (interval.value - interval.low)
    return Interval(interval.value, max(low, 0.0), interval.value + factor * (interval.high - interval.value))


def total_s(config: RunConfig, step_s: Interval, length: Length, alike: Alike, probed: bool) -> Interval:
    """Seconds of training and evaluation, as the record's `total_s`.

    Args:
        step_s: the mean of the run's steps (`over_epochs`).
        probed: whether it is that of probes, in which neither the first step of an epoch counts nor the last.
    """
    epochs = config.epochs
    steps = [_steps(length, epochs, probed)]
    warmup = alike.interval(warmup_steps, WARMUP_SD)
    steps += [] if warmup is None else [warmup]
    if length.test:
        share = alike.interval(evaluation_share, EVALUATION_SD) or EVALUATION
        images = -(-length.test // ranks(config))
        steps.append(product(share, exact(epochs * images / config.batch_size)))
    # what slows the steps of a run slows its evaluation too
    parts = [product(step_s, summed(steps))]
    if probed and epochs > 1:
        waits = alike.interval(later_first_batch_s, WARMUP_SD)
        parts += [] if waits is None else [product(waits, exact(epochs - 1))]
    rest = alike.interval(rest_s, WARMUP_SD)
    parts += [] if rest is None else [product(rest, exact(epochs))]
    return summed(parts)


def _steps(length: Length, epochs: int, probed: bool) -> Interval:
    """The steps of a run. The last of an epoch takes less where its batch is not full, down to the batch's share;
    a mean over whole epochs has that already."""
    least = length.steps - (1 - length.last_share) * probed
    return Interval(epochs * (least + length.steps) / 2, epochs * least, epochs * length.steps)


def over_epochs(step_s: Interval, epochs: int, observed_epochs: float, alike: Alike) -> Interval:
    """The mean step of a run of so many epochs, from that of runs of others, by the drift between epochs."""
    if epochs == round(observed_epochs):
        return step_s
    later = alike.interval(drift, DRIFT_SD)
    if later is None:
        return step_s
    factors = [
        (1 + (epochs - 1) * ratio) / epochs * observed_epochs / (1 + (observed_epochs - 1) * ratio)
        for ratio in (later.value, later.low, later.high)
    ]
    return product(step_s, Interval(factors[0], min(factors), max(factors)))


def energy_joules(total_s: Interval, config: RunConfig, alike: Alike) -> Interval | None:
    """Joules of all GPUs, by the mean power of a GPU in runs alike; None where none of them knows it."""
    power_w = alike.interval(watts_per_gpu, POWER_SD)
    return None if power_w is None else product(total_s, power_w, exact(ranks(config)))


def calibration(runs: Sequence[PastRun], basis: str) -> float:
    """The factor for the sides of intervals of a basis with which 90 % of such predictions have come true.

    Split conformal prediction: of n finished runs, the ceil(0.9 (n + 1))-th smallest distance of the total from its
    prediction, in sides of the interval as it was before its own calibration. 1 where fewer than ENOUGH_PAIRS are
    known.
    """
    return factor([score for run in runs if (score := _score(run, basis)) is not None])


def factor(scores: Sequence[float]) -> float:
    """The same, from the distances of totals from their predictions (`distance`)."""
    if len(scores) < ENOUGH_PAIRS:
        return 1.0
    rank = min(math.ceil(0.9 * (len(scores) + 1)), len(scores))
    return min(max(sorted(scores)[rank - 1], LEAST_FACTOR), MOST_FACTOR)


def distance(said: Interval, measured: float) -> float | None:
    """Of a measured figure from the predicted one, in sides of the interval; None where that has none."""
    side = said.high - said.value if measured > said.value else said.value - said.low
    return abs(measured - said.value) / side if side > 0 else None


def _score(run: PastRun, basis: str) -> float | None:
    """None of a probe, too: its prediction is that of the whole run, which it is not."""
    prediction, measured_s = run.record.prediction, None if run.is_probe else run.record.total_s
    if prediction is None or prediction.basis != basis or prediction.total_s is None or measured_s is None:
        return None
    apart = distance(prediction.total_s, measured_s)
    return None if apart is None else apart * prediction.calibration


# What a finished run tells of others


def warmup_steps(run: PastRun) -> float | None:
    """By how many mean steps the training took longer than its number of them; of a probe its first epoch, of which
    the mean leaves out the first step."""
    epochs, stats = run.record.epochs, run.record.steps
    if run.is_probe:
        trained_s, steps = (epochs[0].train_s, epochs[0].steps) if epochs else (None, None)
    else:
        trained_s = _sum(epoch.train_s for epoch in epochs)
        steps = None if stats is None or stats.count is None else stats.count + (stats.warmup_count or 0)
    if trained_s is None or steps is None or not run.step_s or len(run.record.segments) > 1:
        return None
    return max(trained_s / run.step_s - steps, 1e-3)


def drift(run: PastRun) -> float | None:
    """The mean step of later epochs by that of the first, the warm-up and waits for first batches left out."""
    epochs, stats = run.record.epochs, run.record.steps
    if run.is_probe or len(epochs) < 2 or stats is None or len(run.record.segments) > 1:
        return None
    later_s = _sum(_without_first_batch_s(epoch) for epoch in epochs[1:])
    count, warmup = stats.count or 0, stats.warmup_count or 0
    each = (count + warmup) / len(epochs)
    if later_s is None or each - warmup < ENOUGH_STEPS or not stats.mean:
        return None
    waits_s = _sum(_first_batch_s(epoch) for epoch in epochs[1:]) or 0.0
    first_s = (count * stats.mean - later_s - waits_s) / (each - warmup)
    return later_s / (each * (len(epochs) - 1)) / first_s if first_s > 0 else None


def later_first_batch_s(run: PastRun) -> float | None:
    """The wait for the first batch of an epoch that is not the first; where none was, of the first, where loaders
    start."""
    waits = [_first_batch_s(epoch) for epoch in run.record.epochs]
    return _mean(waits[1:] or waits)


def evaluation_share(run: PastRun) -> float | None:
    """Seconds for an image that a rank evaluates, by those for one that it trains on."""
    epochs = [epoch for epoch in run.record.epochs if isinstance(epoch, VisionEpoch)]
    seconds = _mean(epoch.evaluate_s for epoch in epochs)
    images = next((epoch.test_samples for epoch in epochs if epoch.test_samples), None)
    batch = run.record.config.get("batch_size")
    if seconds is None or images is None or not run.step_s or not isinstance(batch, int) or batch < 1:
        return None
    return seconds / -(-images // run.ranks) / (run.step_s / batch)


def rest_s(run: PastRun) -> float | None:
    """Seconds of an epoch that are neither of training nor of evaluation."""
    record, epochs = run.record, run.record.epochs
    trained_s = _sum(epoch.train_s for epoch in epochs)
    if run.is_probe or trained_s is None or record.total_s is None:
        return None
    evaluated_s = _sum(getattr(epoch, "evaluate_s", None) for epoch in epochs) or 0.0
    return max((record.total_s - trained_s - evaluated_s) / len(epochs), 1e-6)


def watts_per_gpu(run: PastRun) -> float | None:
    joules, seconds = run.record.training_joules, run.record.total_s
    return joules / seconds / run.ranks if joules and seconds else None


def _first_batch_s(epoch: object) -> float | None:
    return getattr(epoch, "first_batch_s", None)


def _without_first_batch_s(epoch: object) -> float | None:
    train_s = getattr(epoch, "train_s", None)
    return None if train_s is None else train_s - (_first_batch_s(epoch) or 0.0)


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one of them is not known, or there are none."""
    known = list(values)
    return None if not known or None in known else math.fsum(value for value in known if value is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
