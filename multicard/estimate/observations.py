"""Measured and printed steps, and the cells that they are of."""

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

DATASET = "dataset.name"  # the one group whose other keys say more than its name
GPUS = "gpus"
ARGUMENTS = "args"  # the group of a script's arguments, of which a run has those that were given
# Standard deviations of the logarithm of a step
CPU_SD = 0.08  # between runs on CPU ranks, before any was repeated: others share their machine
PROBE_SD = 0.03  # of a whole run over its probe
COMMIT_SD = 0.03  # of one commit over another
PRINTED_SD = 0.10  # of a node here over another's with the same GPUs
MARKED_SD = 0.30  # of a run that others slowed over a run alone, at least
MOST_BUSY = 0.95  # of a run's cores, for others: a run got some of them to train at all
# between runs beside others that are as busy (pooled, 0.23 of one setting, 0.18 of eight others)
BUSY_SD = 0.21
SAME_LOAD = 0.15  # of the cores, by which loads may differ that count as the same
# to either side of a step beside others that stay as busy; with more it tells nothing of use
MOST_TIMES = 2.0
NORMAL_90 = 1.645  # half of a 90 % interval in standard deviations
# What a mark means behind the basis of an estimate; any other, what it says of a run
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
Cell = tuple[str, frozenset[tuple[str, str]]]  # a machine, and a setting


class Basis(StrEnum):
    """Basis of an estimated quantity, best first: the order is its rank."""

    measured = "measured"  # runs of the same cell
    probed = "probed"  # probes of the same cell
    scaled = "scaled"  # other cells of this machine
    published = "published"  # printed figures
    computed = "computed"  # memory, by a step without values
    roofline = "roofline"  # a bound by the GPU's published rates: nothing was measured
    unknown = "unknown"

    @property
    def is_own(self) -> bool:
        """True where the figures are of this machine."""
        return self in (Basis.measured, Basis.probed, Basis.scaled)

    @property
    def is_measured(self) -> bool:
        """True where somebody measured what the figures rest on.
        Nothing is chosen by others alone.
        """
        return self not in (Basis.roofline, Basis.unknown)

    @property
    def words(self) -> str:
        """The basis as tables have it."""
        return "not measured (roofline)" if self is Basis.roofline else str(self)

    @staticmethod
    def of_memory(prediction: Prediction) -> "Basis":
        """The basis of a prediction's memory, which may differ from
        that of its times: the first word names it.
        """
        first = prediction.memory_basis.partition(" ")[0]
        return Basis.measured if Basis.measured in first else Basis.computed


@dataclass(frozen=True)
class StepObservation:
    """The mean step of one run, or a figure that others printed
    of the same GPU (basis published, no commit).

    setting: "group.key" to JSON text (`history.setting`); a printed figure has only the keys that
    its source names.
    error: relative standard error of `step_s`, by the steps within the run. marks: of the run
    (`PastRun.marks`).
    machine: the hardware; of a printed figure its node's name.
    busy: share of the run's cores that others had.
    """

    setting: Mapping[str, str]
    step_s: float
    error: float
    machine: str
    basis: Basis = Basis.measured
    commit: str | None = None
    marks: str = ""
    busy: float = 0.0

    @property
    def slowed_sd(self) -> float:
        """Standard deviation of the logarithm of its step over that of a run alone. With all of its
        cores a run takes 1 - busy of the step at the least, which the 90 % interval holds.
        """
        most = -math.log1p(-min(self.busy, MOST_BUSY)) / NORMAL_90
        return max(MARKED_SD, most) if self.marks else 0.0


@dataclass(frozen=True)
class StepEstimate:
    """The step of a cell: as its runs have it, or as it follows from other cells.

    variance: of log_s, for a new run of the cell. below, above: additional reach of the 90 %
    interval to either side, on the scale of log_s. basis: published where a printed figure is part
    of it.
    runs: observations behind it; about: the basis in words; marks: of those runs.
    busy: the least and the most of their cores that others had, as shares. slowed: the part of the
    variance that a new run does not have beside others that are as busy as during those runs.
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
    busy: tuple[float, float] = (0.0, 0.0)
    slowed: float = 0.0

    @property
    def gpus(self) -> int:
        return int(self.setting.get(GPUS, "1"))

    @property
    def published(self) -> bool:
        return self.basis is Basis.published

    @property
    def sides(self) -> tuple[float, float]:
        """Both sides of the 90 % interval around log_s."""
        half = NORMAL_90 * math.sqrt(self.variance)
        return math.hypot(half, self.below), math.hypot(half, self.above)

    @property
    def interval(self) -> PredictedInterval:
        """Seconds, with their 90 % interval."""
        return self._interval(*self.sides)

    @property
    def as_busy(self) -> PredictedInterval | None:
        """Seconds with their 90 % interval if others stay as busy as during the runs behind it.
        None where nobody was busy, where others were busier in some of the runs than in others,
        and where it is too wide to be of use.
        """
        least, most = self.busy
        is_loaded = LOADED.sign in self.marks and not {*self.marks} - {LOADED.sign, DOUBTFUL}
        if not is_loaded or self.slowed <= 0 or most - least > SAME_LOAD:
            return None
        alike = replace(self, variance=max(self.variance - self.slowed, 0.0))
        if max(alike.sides) > math.log(MOST_TIMES):
            return None
        return alike.interval

    def _interval(self, below: float, above: float) -> PredictedInterval:
        return PredictedInterval(*(math.exp(self.log_s + side) for side in (0.0, -below, above)))


def axes(setting: Mapping[str, str]) -> dict[str, str]:
    """The keys of a setting on which a step depends."""
    without_effect = schema.without(Role.speed)
    return {key: value for key, value in setting.items() if key not in without_effect}


def differences(known: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The axes of `known` in which `wanted` differs, sorted; `wanted` may have more keys,
    but for a script's arguments.

    Another option of a group counts once, by its name: that `loader=batched` has no
    `loader.prefetch_factor` is no further difference.
    """
    differ = {key for key, value in known.items() if wanted.get(key) != value}
    differ |= {key for key in wanted.keys() - known.keys() if _group(key) == ARGUMENTS}
    groups = {_group(key) for key in differ if _names_group(key)}
    return tuple(sorted(key for key in differ if _names_group(key) or _group(key) not in groups))


def without(setting: Mapping[str, str], axis: str) -> frozenset[tuple[str, str]]:
    """A setting without an axis, and without its group where the axis is the group's name."""
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
    """Each cell with the mean over its runs of the commit, else its probes of the commit, else its
    runs, its probes; marked ones count where there are no others. Before any run was repeated,
    `run_sd` is the standard deviation of the logarithm of a step between runs.
    """
    groups: dict[Cell, list[StepObservation]] = {}
    for seen in observations:
        groups.setdefault((seen.machine, frozenset(axes(seen.setting).items())), []).append(seen)
    alone = Noise.learnt(map(_runs, groups.values()), run_sd)
    beside = Noise.learnt(map(_busy_runs, groups.values()), BUSY_SD)
    estimates = []
    for group in groups.values():
        run_variance = _of_a_new_run(alone, _runs(group))
        busy_variance = _of_a_new_run(beside, _busy_runs(group))
        estimates.append(_cell(group, commit, run_variance, busy_variance))
    return estimates


def _runs(group: Sequence[StepObservation]) -> Values:
    """The runs of a cell, by which runs differ: those without marks, where there are any."""
    runs = [seen for seen in group if seen.basis is Basis.measured]
    return _logarithms([seen for seen in runs if not seen.marks] or runs)


def _busy_runs(group: Sequence[StepObservation]) -> Values:
    """The runs of a cell beside others that kept its cores busy."""
    return _logarithms(
        [seen for seen in group if seen.basis is Basis.measured and LOADED.sign in seen.marks]
    )


def _logarithms(runs: Sequence[StepObservation]) -> Values:
    return [(math.log(seen.step_s), seen.error**2) for seen in runs]


def _of_a_new_run(learnt: Noise, runs: Values) -> float:
    """The variance of a new run of a cell.

    Learnt from few repetitions, it is itself unsure. So it is larger by as much as the quantile of
    Student's t exceeds the normal one, by which intervals are made of it. One or two cells that
    were repeated add their degrees of freedom to those of what is known of their kind of machine.
    """
    spread = learnt.of(runs)
    if not spread.repetitions:
        return spread.variance
    degrees = PRIOR_FREEDOM + spread.repetitions if learnt.has_equal_variances else spread.freedom
    return spread.variance * (student_quantile(0.9, degrees) / NORMAL_90) ** 2


def spanned_busy(estimates: Iterable[StepEstimate]) -> tuple[float, float]:
    """The least and the most of their cores that others had
    during the runs behind several estimates.
    """
    shares = []
    for each in estimates:
        shares.extend(each.busy)
    return min(shares), max(shares)


def is_about_as_busy(now: float, during: float) -> bool:
    """True where others that have `now` of the cores while no
    run trains would have about `during` beside one.

    Shares are of all cores. A run of few processes leaves others what they have; one that wants all
    cores shares them with each process of the others in turn, so that they keep now / (1 + now).
    """
    return now / (1 + now) - SAME_LOAD <= during <= now + SAME_LOAD


def _cell(
    group: Sequence[StepObservation], commit: str | None, run_variance: float, busy_variance: float
) -> StepEstimate:
    group = [seen for seen in group if not seen.marks] or group
    runs = [seen for seen in group if seen.basis is not Basis.probed]
    fresh_runs, fresh = (
        [seen for seen in members if seen.commit == commit] for members in (runs, group)
    )
    here = fresh_runs or fresh or runs or list(group)
    first = here[0]
    count = len(here)
    marks = joined(seen.marks for seen in here)
    printed = first.basis is Basis.published
    elsewhere = not printed and first.commit != commit
    variance = run_variance * (1 + 1 / count) + math.fsum(seen.error**2 for seen in here) / count**2
    variance += (
        PROBE_SD**2 * (first.basis is Basis.probed)
        + COMMIT_SD**2 * elsewhere
        + PRINTED_SD**2 * printed
    )
    by_load = max(seen.slowed_sd for seen in here) ** 2
    variance += by_load
    slowed = 0.0
    if LOADED.sign in marks:
        slowed = max(by_load + (run_variance - busy_variance) * (1 + 1 / count), 0.0)
    busy = min(seen.busy for seen in here), max(seen.busy for seen in here)
    mean = math.fsum(math.log(seen.step_s) for seen in here) / count
    about = ""
    if elsewhere:
        about = Message("estimate.other-commit", "another commit")
    elif printed:
        about = Message(
            "estimate.published-for", f"published for {first.machine}", machine=first.machine
        )
    estimate = StepEstimate(
        axes(first.setting), first.machine, first.basis, mean, variance, count, about
    )
    return replace(estimate, marks=marks, busy=busy, slowed=slowed)


def joined(marks: Iterable[str]) -> str:
    """Each mark once."""
    return "".join(dict.fromkeys("".join(marks)))


def explained(marks: Iterable[str]) -> list[str]:
    """A line for each mark behind the basis of some estimates."""
    meanings = {kind.sign: kind.says for kind in limits.KINDS} | MARKS
    return [f"{mark}: {meanings[mark]}" for mark in joined(marks) if mark in meanings]
