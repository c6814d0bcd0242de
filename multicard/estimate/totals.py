"""Totals of a run from its step: number of steps, seconds of training and evaluation, joules.

    total = step x (steps + warm-up + epochs x evaluation) + epochs x rest

The deviations of independent parts add as squares. The error of the mean step is the same for all
steps of a run, so it does not average out over them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from multicard.config import schema
from multicard.config.base import RunConfig, TrainingConfig, plain
from multicard.config.llm import LlmConfig
from multicard.config.llm_texts import SyntheticConfig
from multicard.config.roles import Role
from multicard.config.vision import VisionConfig
from multicard.estimate import history
from multicard.estimate.history import PastRun
from multicard.estimate.memory import facts
from multicard.estimate.observations import axes, differences
from multicard.estimate.scaling import CONFIDENCE
from multicard.llm.data import held_out_rows
from multicard.measure import repeated_runs
from multicard.records.schema import VisionEpoch, VisionRecord
from multicard.records.schema_parts import PredictedInterval
from multicard.vision.strategy import STRATEGIES

MOST_STEPS = 10**12
# Standard deviations of logarithms between similar runs. They are the priors of
# `next_value_interval`.
EVALUATION_SD = 0.05
WARMUP_SD = 0.3
POWER_SD = 0.03
PRIOR_DEGREES = 4
# Time of an evaluated image over the time of a trained image, if no run shows it.
EVALUATION = PredictedInterval(0.35, 0.15, 0.8)
Figure = Callable[[PastRun], float | None]


# ---- intervals


def exact(value: float) -> PredictedInterval:
    return PredictedInterval(value, value, value)


def summed(parts: Iterable[PredictedInterval]) -> PredictedInterval:
    """Return the sum of independent parts."""
    parts = list(parts)
    value = math.fsum(part.value for part in parts)
    below = math.hypot(*(part.value - part.low for part in parts))
    above = math.hypot(*(part.high - part.value for part in parts))
    return PredictedInterval(value, max(value - below, 0.0), value + above)


def product(*factors: PredictedInterval) -> PredictedInterval:
    """Return the product of independent positive factors.

    The deviations of their logarithms add as squares.
    """
    value = math.prod(factor.value for factor in factors)
    if any(factor.low <= 0 for factor in factors):
        return PredictedInterval(value, 0.0, math.prod(factor.high for factor in factors))
    below = math.hypot(*(math.log(factor.value / factor.low) for factor in factors))
    above = math.hypot(*(math.log(factor.high / factor.value) for factor in factors))
    return PredictedInterval(value, value * math.exp(-below), value * math.exp(above))


def next_value_interval(values: Sequence[float], sd: float) -> PredictedInterval:
    """Return the geometric mean of positive values with the 90 % interval of the next value.

    Args:
        sd: prior standard deviation of the logarithm between runs. It counts as PRIOR_DEGREES
            degrees of freedom next to those of `values`.
    """
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    count = len(logs)
    degrees = PRIOR_DEGREES + count - 1
    variance = (PRIOR_DEGREES * sd**2 + math.fsum((value - mean) ** 2 for value in logs)) / degrees
    half = repeated_runs.student_quantile(CONFIDENCE, degrees) * math.sqrt(
        variance * (1 + 1 / count)
    )
    half = min(half, math.log(10))
    return PredictedInterval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


# ---- similar runs


class NearestRuns:
    """Runs of one machine and workload, sorted by how many settings differ from a cell."""

    def __init__(self, setting: Mapping[str, str], runs: Sequence[PastRun]) -> None:
        wanted_axes = axes(setting)
        by_axes = dict[tuple[tuple[str, str], ...], list[PastRun]]()
        for run in runs:
            by_axes.setdefault(run.axes, []).append(run)
        groups = [
            (len(differences(dict(key), wanted_axes)), group) for key, group in by_axes.items()
        ]
        self._groups = sorted(groups, key=lambda group: group[0])
        self._setting = setting

    def of_this_cell(self) -> list[PastRun]:
        """Return the runs with the same steps and the same number of them."""
        same_step_runs = []
        for distance, group in self._groups:
            if distance == 0:
                same_step_runs.extend(group)
        length_keys = schema.keys(Role.length)
        return [
            run
            for run in same_step_runs
            if all(run.setting.get(key) == self._setting.get(key) for key in length_keys)
        ]

    def interval(self, figure: Figure, sd: float) -> PredictedInterval | None:
        """Return a positive figure of the next run with its 90 % interval, or None if unknown.

        The nearest runs that have the figure count.

        Args:
            figure: returns the figure of a run.
            sd: standard deviation of its logarithm between runs, before any was repeated. Each
                setting that differs adds as much again.
        """
        nearest_distance = 0
        values = list[float]()
        for distance, group in self._groups:
            if values and distance > nearest_distance:
                break
            nearest_distance = distance
            values += [
                value
                for run in group
                if (value := figure(run)) is not None and 0 < value < math.inf
            ]
        return next_value_interval(values, sd * (1 + nearest_distance)) if values else None


# ---- steps of an epoch


@dataclass(frozen=True)
class Length:
    """The length of an epoch: training steps, and samples that all ranks together evaluate."""

    steps: int
    test: int = 0


def ranks(config: RunConfig) -> int:
    return config.gpus * config.nodes


def length_of_images(config: VisionConfig, train: int, test: int) -> Length:
    """Return an epoch on `train` images, as the strategy shares them out (`vision.strategy`)."""
    strategy = STRATEGIES[config.strategy.name]
    batch = config.rank_batch_size
    if strategy.shards:
        train = -(-train // ranks(config))
    batches = -(-train // batch)
    return Length(-(-batches // ranks(config)) if strategy.takes_turns else batches, test)


def length_of_rows(config: LlmConfig, rows: int) -> Length:
    """Return an epoch on `rows` rows or packed sequences.

    torchtune drops the remainder that does not fill a step.
    """
    batches = -(-rows // ranks(config)) // config.batch_size
    steps = batches // config.gradient_accumulation_steps
    return Length(min(steps, config.max_steps or steps))


def epoch_length(
    config: RunConfig, nearest_runs: NearestRuns, runs: Sequence[PastRun]
) -> Length | None:
    """Return the length of an epoch of the run, or None if it is not known.

    Runs of the cell come first, then the data.

    Args:
        runs: runs of any setting. They give the number of rows of their texts.
    """
    counts = (
        count for run in reversed(nearest_runs.of_this_cell()) if (count := _steps_per_epoch(run))
    )
    steps = next((count for count in counts if 0 < count < MOST_STEPS), None)
    if not isinstance(config, TrainingConfig):
        steps = steps or getattr(config, "steps", None)
        return None if steps is None else Length(steps)
    if isinstance(config, LlmConfig):
        rows = None if steps is not None else _rows(config, runs)
        if rows is not None:
            return length_of_rows(config, rows)
        steps = steps or config.max_steps
        return None if steps is None else Length(steps)
    assert isinstance(config, VisionConfig)
    sizes = facts.sizes(config)
    if not isinstance(sizes, facts.ImageFacts):
        return None
    computed = length_of_images(config, sizes.train, sizes.test)
    return computed if steps is None else replace(computed, steps=steps)


def _steps_per_epoch(run: PastRun) -> int | None:
    """Return the steps per epoch of a run, or of the full run that a probe stands for."""
    record = run.record
    if record.probe is not None:
        epoch_steps = (
            record.epochs[0].steps if record.epochs and record.probe.ended_by == "run" else None
        )
        return record.probe.steps_per_epoch or epoch_steps  # A script has no steps per epoch.
    if not isinstance(record, VisionRecord):
        return record.epochs[0].steps if record.epochs else None
    steps = _step_count(run)
    epochs = len(record.epochs)
    return steps // epochs if epochs and steps is not None and steps % epochs == 0 else None


def _rows(config: LlmConfig, runs: Sequence[PastRun]) -> int | None:
    """Return the number of labeled rows of the data set, or of packed sequences, or None."""
    setting = history.setting(plain(config))
    keys = [key for key in setting if Role.rows in schema.of(key.partition(".")[0])]
    for run in reversed(runs):
        counts = getattr(run.record, "text_rows", None)
        if counts is None or any(run.setting.get(key) != setting[key] for key in keys):
            continue
        packed = run.record.config.get("packed")  # Older records do not count sequences.
        rows = (
            counts.sequences
            if packed
            else None
            if counts.read is None
            else counts.read - (counts.left_out or 0)
        )
        if rows is not None:
            return rows
    data = config.dataset
    if not isinstance(data, SyntheticConfig) or config.packed:
        return None  # For stored data, `rows` is only an upper limit.
    return data.rows - held_out_rows.size(data.rows, data.split)


# ---- totals


def total_s(
    config: RunConfig, step_s: PredictedInterval, length: Length, nearest_runs: NearestRuns
) -> PredictedInterval:
    """Return seconds of training and evaluation, defined as the record's `total_s`.

    Args:
        step_s: the mean of the run's steps.
    """
    epochs = getattr(config, "epochs", 1)
    steps = [exact(epochs * length.steps)]
    warmup = nearest_runs.interval(warmup_steps, WARMUP_SD)
    steps += [] if warmup is None else [warmup]
    if length.test and isinstance(config, TrainingConfig):
        share = nearest_runs.interval(evaluation_share, EVALUATION_SD) or EVALUATION
        images = -(-length.test // ranks(config))
        steps.append(product(share, exact(epochs * images / config.batch_size)))
    parts = [product(step_s, summed(steps))]  # A slow machine slows the evaluation too.
    rest = nearest_runs.interval(rest_s, WARMUP_SD)
    parts += [] if rest is None else [product(rest, exact(epochs))]
    return summed(parts)


def energy_joules(
    total_s: PredictedInterval, config: RunConfig, nearest_runs: NearestRuns
) -> PredictedInterval | None:
    """Return joules of all GPUs by the mean power of a GPU in similar runs, or None without any."""
    power_w = nearest_runs.interval(watts_per_gpu, POWER_SD)
    return None if power_w is None else product(total_s, power_w, exact(ranks(config)))


# ---- figures of a finished run that help to predict others


def warmup_steps(run: PastRun) -> float | None:
    """Return the excess of the training time over steps x mean step, in steps.

    A probe counts its first epoch. The mean leaves out the first step of that epoch.
    """
    epochs = run.record.epochs
    if run.is_probe:
        trained_s, steps = (epochs[0].train_s, epochs[0].steps) if epochs else (None, None)
    else:
        trained_s = _sum(epoch.train_s for epoch in epochs)
        steps = _step_count(run)
    if trained_s is None or steps is None or not run.step_s or len(run.record.segments) > 1:
        return None
    return max(trained_s / run.step_s - steps, 1e-3)


def evaluation_share(run: PastRun) -> float | None:
    """Return the seconds of an evaluated image over the seconds of a trained image, per rank."""
    epochs = [epoch for epoch in run.record.epochs if isinstance(epoch, VisionEpoch)]
    seconds = [epoch.evaluate_s for epoch in epochs if epoch.evaluate_s is not None]
    images = next((epoch.test_samples for epoch in epochs if epoch.test_samples), None)
    batch = run.record.config.get("batch_size")
    if not seconds or images is None or not run.step_s or not isinstance(batch, int) or batch < 1:
        return None
    return fmean(seconds) / -(-images // run.ranks) / (run.step_s / batch)


def rest_s(run: PastRun) -> float | None:
    """Return the seconds of an epoch that are neither training nor evaluation."""
    record = run.record
    epochs = run.record.epochs
    trained_s = _sum(epoch.train_s for epoch in epochs)
    if run.is_probe or trained_s is None or record.total_s is None:
        return None
    evaluated_s = _sum(getattr(epoch, "evaluate_s", None) for epoch in epochs) or 0.0
    return max((record.total_s - trained_s - evaluated_s) / len(epochs), 1e-6)


def watts_per_gpu(run: PastRun) -> float | None:
    joules = run.record.training_joules
    seconds = run.record.total_s
    return joules / seconds / run.ranks if joules and seconds else None


def _step_count(run: PastRun) -> int | None:
    stats = run.record.steps
    return None if stats is None else stats.taken


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if a value is unknown or there are no values."""
    values_list = list(values)
    return (
        None
        if not values_list or None in values_list
        else math.fsum(value for value in values_list if value is not None)
    )
