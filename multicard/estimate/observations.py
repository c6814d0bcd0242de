"""Measured and published step times, grouped into cells.

A cell is one setting on one machine. Several runs of a cell give one `StepEstimate`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure.noise import PRIOR_FREEDOM, Noise, Values
from multicard.measure.repeated_runs import student_quantile
from multicard.messages import Message
from multicard.records import limits
from multicard.records.comparable import DOUBTFUL
from multicard.records.limits import LOADED
from multicard.records.schema_parts import PredictedInterval, Prediction

# A group's name stands for its whole option, except in this group: its other keys say more.
DATASET = "dataset.name"
GPUS = "gpus"
ARGUMENTS = "args"  # The group of a script's arguments. A run has only the arguments it was given.

# The standard deviations below apply to the logarithm of a step: 0.08 means about 8 %.
# Runs on CPU ranks differ by this much until some were repeated. Others share the machine with
# them, so they vary more than runs on GPUs.
CPU_SD = 0.08
PROBE_SD = 0.03  # A probe differs from its full run by this much.
COMMIT_SD = 0.03  # Runs of two commits differ by this much.
PRINTED_SD = 0.10  # A node here differs by this much from another node with the same GPUs.
MARKED_SD = 0.30  # A run that others slowed differs from a run alone at least by this much.
# Runs next to equally busy programs differ by this much. It pools 0.23 from repetitions of one
# setting and 0.18 from repetitions of eight settings.
BUSY_SD = 0.21

# Other programs have at most this share of a run's cores: the run got some cores to train at all.
MOST_BUSY = 0.95
SAME_LOAD = 0.15  # Loads that differ by up to this share of the cores count as equal.
# An interval next to equally busy programs is of no use if it reaches further than this factor.
MOST_BUSY_RATIO = 2.0
NORMAL_90 = 1.645  # A 90 % interval reaches this many standard deviations to each side.
# These marks have another meaning on the basis of an estimate than on a run.
MARKS = {
    limits.LOADED.sign: Message(
        "predict.loaded", "other programs kept its cores busy in all runs behind the estimate"
    ),
    limits.DISTURBED.sign: Message(
        "predict.disturbed", "other programs used its GPUs in all runs behind the estimate"
    ),
    DOUBTFUL: Message(
        "predict.beyond-linear", "cells that scaled beyond linear; carried on as linear"
    ),
}
Cell = tuple[str, frozenset[tuple[str, str]]]  # A machine, and the items of a setting.


class Basis(StrEnum):
    """The basis of an estimated quantity, in order of trust: the best comes first."""

    measured = "measured"  # Runs of the same cell.
    probed = "probed"  # Probes of the same cell.
    scaled = "scaled"  # Other cells of this machine.
    published = "published"  # Figures that others published.
    computed = "computed"  # For memory: a simulated step with tensors that hold no values.
    roofline = "roofline"  # A bound by the GPU's published rates, without any measurement.
    unknown = "unknown"

    @property
    def is_own(self) -> bool:
        """True if the figures were measured on this machine."""
        return self in (Basis.measured, Basis.probed, Basis.scaled)

    @property
    def is_measured(self) -> bool:
        """True if somebody measured the figures behind it. Choices need such a basis."""
        return self not in (Basis.roofline, Basis.unknown)

    @property
    def words(self) -> str:
        """The basis as tables show it."""
        return "not measured (roofline)" if self is Basis.roofline else str(self)

    @staticmethod
    def of_memory(prediction: Prediction) -> "Basis":
        """Return the basis of a prediction's memory, by the first word of `memory_basis`.

        It may differ from the basis of the times.
        """
        first = prediction.memory_basis.partition(" ")[0]
        return Basis.measured if Basis.measured in first else Basis.computed


@dataclass(frozen=True)
class StepObservation:
    """The mean step of one run, or a published figure for the same GPU.

    A published figure has the basis `published` and no commit.

    Fields:
        setting: "group.key" to JSON text (`history.setting`). A published figure has only the keys
            that its source names.
        error: relative standard error of `step_s`, by the steps within the run.
        machine: the hardware, or the node's name for a published figure.
        marks: the run's marks (`PastRun.marks`).
        busy_share: share of the run's cores that other programs used.
    """

    setting: Mapping[str, str]
    step_s: float
    error: float
    machine: str
    basis: Basis = Basis.measured
    commit: str | None = None
    marks: str = ""
    busy_share: float = 0.0

    @property
    def slowed_sd(self) -> float:
        """Standard deviation of log(step / step of a run alone).

        With all of its cores, a run would take at least 1 - `busy_share` of the step. The 90 %
        interval includes this bound.
        """
        most_slowed = -math.log1p(-min(self.busy_share, MOST_BUSY)) / NORMAL_90
        return max(MARKED_SD, most_slowed) if self.marks else 0.0


@dataclass(frozen=True)
class StepEstimate:
    """The step of a cell, measured by its runs or derived from other cells.

    Fields:
        log_s: natural logarithm of the step in seconds.
        variance: the variance of `log_s` for a new run of the cell.
        basis: `published` if a published figure contributed.
        runs: number of observations behind it.
        about: the basis in words.
        below, above: additional reach of the 90 % interval on each side, on the scale of log_s.
        marks: the marks of the runs behind it.
        busy_shares: the least and the largest share of the cores that others used during those
            runs.
        load_variance: the part of `variance` that vanishes if others stay as busy as during those
            runs.
    """

    setting: Mapping[str, str]
    machine: str
    basis: Basis
    log_s: float
    variance: float
    runs: int
    about: str = ""
    below: float = 0.0
    above: float = 0.0
    marks: str = ""
    busy_shares: tuple[float, float] = (0.0, 0.0)
    load_variance: float = 0.0

    @property
    def gpus(self) -> int:
        return int(self.setting.get(GPUS, "1"))

    @property
    def published(self) -> bool:
        return self.basis is Basis.published

    @property
    def sides(self) -> tuple[float, float]:
        """The distances from log_s to the two ends of the 90 % interval."""
        half = NORMAL_90 * math.sqrt(self.variance)
        return math.hypot(half, self.below), math.hypot(half, self.above)

    @property
    def interval(self) -> PredictedInterval:
        """The step in seconds with its 90 % interval."""
        return self._interval(*self.sides)

    @property
    def as_busy(self) -> PredictedInterval | None:
        """The step with its 90 % interval if others stay as busy as during the runs behind it.

        None if nobody was busy, if the runs saw different loads, or if the interval is too wide to
        be of use.
        """
        least, most = self.busy_shares
        is_loaded = LOADED.sign in self.marks and not {*self.marks} - {LOADED.sign, DOUBTFUL}
        if not is_loaded or self.load_variance <= 0 or most - least > SAME_LOAD:
            return None
        equally_busy = replace(self, variance=max(self.variance - self.load_variance, 0.0))
        if max(equally_busy.sides) > math.log(MOST_BUSY_RATIO):
            return None
        return equally_busy.interval

    def _interval(self, below: float, above: float) -> PredictedInterval:
        return PredictedInterval(*(math.exp(self.log_s + side) for side in (0.0, -below, above)))


def axes(setting: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of a setting that affect a step's time."""
    without_effect = schema.without(Role.speed)
    return {key: value for key, value in setting.items() if key not in without_effect}


def differences(known: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Return the axes of `known` whose value differs in `wanted`, sorted.

    `wanted` may have more keys, except for a script's arguments. If a group has another option,
    it counts once, by its name: `loader=batched` has no `loader.prefetch_factor`, which is no
    further difference.
    """
    differ = {key for key, value in known.items() if wanted.get(key) != value}
    differ |= {key for key in wanted.keys() - known.keys() if _group(key) == ARGUMENTS}
    groups = {_group(key) for key in differ if _names_group(key)}
    return tuple(sorted(key for key in differ if _names_group(key) or _group(key) not in groups))


def without(setting: Mapping[str, str], axis: str) -> frozenset[tuple[str, str]]:
    """Return a setting without an axis. If the axis is a group's name, drop the whole group."""
    group = _group(axis) if _names_group(axis) else None
    return frozenset(
        (key, value) for key, value in setting.items() if key != axis and _group(key) != group
    )


def _group(key: str) -> str:
    return key.partition(".")[0]


def _names_group(key: str) -> bool:
    return key.endswith(".name") and key != DATASET


def cells(
    observations: Iterable[StepObservation], commit: str | None, run_sd: float
) -> list[StepEstimate]:
    """Group observations into cells, each with the mean of its most trusted observations.

    The order of trust is: runs of the commit, probes of the commit, other runs, other probes.
    Marked observations count only if a cell has no others.

    Args:
        run_sd: standard deviation of the logarithm of a step between runs, as long as no run was
            repeated.
    """
    groups: dict[Cell, list[StepObservation]] = {}
    for observation in observations:
        groups.setdefault(
            (observation.machine, frozenset(axes(observation.setting).items())), []
        ).append(observation)
    noise_alone = Noise.learnt(map(_log_steps, groups.values()), run_sd)
    noise_beside_others = Noise.learnt(map(_busy_log_steps, groups.values()), BUSY_SD)
    estimates = []
    for group in groups.values():
        run_variance = _new_run_variance(noise_alone, _log_steps(group))
        busy_variance = _new_run_variance(noise_beside_others, _busy_log_steps(group))
        estimates.append(_estimate_of_cell(group, commit, run_variance, busy_variance))
    return estimates


def _log_steps(group: Sequence[StepObservation]) -> Values:
    """Return the log steps of a cell's runs without marks, or of all its runs if all have marks."""
    runs = [observation for observation in group if observation.basis is Basis.measured]
    unmarked_runs = [observation for observation in runs if not observation.marks]
    return _logarithms(unmarked_runs or runs)


def _busy_log_steps(group: Sequence[StepObservation]) -> Values:
    """Return the log steps of a cell's runs during which others kept its cores busy."""
    return _logarithms(
        [
            observation
            for observation in group
            if observation.basis is Basis.measured and LOADED.sign in observation.marks
        ]
    )


def _logarithms(runs: Sequence[StepObservation]) -> Values:
    return [(math.log(observation.step_s), observation.error**2) for observation in runs]


def _new_run_variance(noise: Noise, runs: Values) -> float:
    """Return the variance of a new run of a cell.

    A variance learned from few repetitions is itself uncertain. It is therefore scaled up by the
    squared ratio of Student's t quantile to the normal quantile from which intervals are made. If
    only one or two cells were repeated, their degrees of freedom add to the prior's.
    """
    spread = noise.of(runs)
    if not spread.repetitions:
        return spread.variance
    degrees = PRIOR_FREEDOM + spread.repetitions if noise.has_equal_variances else spread.freedom
    return spread.variance * (student_quantile(0.9, degrees) / NORMAL_90) ** 2


def range_of_busy_shares(estimates: Iterable[StepEstimate]) -> tuple[float, float]:
    """Return the least and the largest share of the cores that others used, over all estimates."""
    shares = []
    for estimate in estimates:
        shares.extend(estimate.busy_shares)
    return min(shares), max(shares)


def is_about_as_busy(now: float, during: float) -> bool:
    """True if a load of `now` without a run would be about `during` next to a run.

    Both are shares of all cores that other programs use. A run with few processes leaves others
    their cores. A run that wants all cores shares each with the others in turn, so that they keep
    now / (1 + now).
    """
    return now / (1 + now) - SAME_LOAD <= during <= now + SAME_LOAD


def _estimate_of_cell(
    group: Sequence[StepObservation], commit: str | None, run_variance: float, busy_variance: float
) -> StepEstimate:
    """Estimate the step of a new run of a cell, from the cell's most trusted observations.

    Args:
        group: all observations of the cell.
        commit: the commit of the new run.
        run_variance: variance of the log step between runs that have the machine to themselves.
        busy_variance: the same between runs next to equally busy programs.
    """
    chosen = _most_trusted(group, commit)
    first = chosen[0]
    count = len(chosen)
    marks = unique_marks(observation.marks for observation in chosen)
    is_published = first.basis is Basis.published
    is_other_commit = not is_published and first.commit != commit
    # A new run varies by the variance between runs. The mean of n runs adds a further n-th of it.
    runs_factor = 1 + 1 / count
    # Each mean step also has the standard error of its own run. These errors are independent.
    step_error_variance = math.fsum(observation.error**2 for observation in chosen) / count**2
    variance = run_variance * runs_factor + step_error_variance
    # These differences are common to all observations, so a mean of more does not reduce them.
    basis_variance = 0.0
    if first.basis is Basis.probed:
        basis_variance += PROBE_SD**2
    if is_other_commit:
        basis_variance += COMMIT_SD**2
    if is_published:
        basis_variance += PRINTED_SD**2
    variance += basis_variance
    # Nobody knows how much faster the runs would have been alone.
    slowdown_variance = max(observation.slowed_sd for observation in chosen) ** 2
    variance += slowdown_variance
    load_variance = 0.0
    if LOADED.sign in marks:
        # With the same load, the slowdown is part of the mean. Runs then vary by `busy_variance`.
        load_variance = max(slowdown_variance + (run_variance - busy_variance) * runs_factor, 0.0)
    busy_shares = [observation.busy_share for observation in chosen]
    mean_log_s = math.fsum(math.log(observation.step_s) for observation in chosen) / count
    about = ""
    if is_other_commit:
        about = Message("estimate.other-commit", "another commit")
    elif is_published:
        about = Message(
            "estimate.published-for", f"published for {first.machine}", machine=first.machine
        )
    return StepEstimate(
        setting=axes(first.setting),
        machine=first.machine,
        basis=first.basis,
        log_s=mean_log_s,
        variance=variance,
        runs=count,
        about=about,
        marks=marks,
        busy_shares=(min(busy_shares), max(busy_shares)),
        load_variance=load_variance,
    )


def _most_trusted(group: Sequence[StepObservation], commit: str | None) -> list[StepObservation]:
    """Return the most trusted observations of a cell, in the order that `cells` gives."""
    unmarked = [observation for observation in group if not observation.marks]
    candidates = unmarked or [*group]
    runs = [observation for observation in candidates if observation.basis is not Basis.probed]
    commit_runs = [observation for observation in runs if observation.commit == commit]
    commit_candidates = [observation for observation in candidates if observation.commit == commit]
    return commit_runs or commit_candidates or runs or candidates


def unique_marks(marks: Iterable[str]) -> str:
    """Return the marks without repetitions."""
    return "".join(dict.fromkeys("".join(marks)))


def explain_marks(marks: Iterable[str]) -> list[str]:
    """Return a line of explanation for each mark behind the basis of some estimates."""
    meanings = {kind.sign: kind.says for kind in limits.KINDS} | MARKS
    return [f"{mark}: {meanings[mark]}" for mark in unique_marks(marks) if mark in meanings]
