"""Estimates of what runs will take: everybody asks `estimate`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig, plain
from multicard.config.job import count
from multicard.config.llm import LlmConfig
from multicard.estimate import history, observations, peaks, published, steps, totals
from multicard.estimate.history import PastRun
from multicard.estimate.memory import facts
from multicard.estimate.observations import Basis
from multicard.estimate.target import Target, targets
from multicard.estimate.totals import Alike
from multicard.machine import environment, private
from multicard.records.schema_parts import Interval, Prediction

START_SD = 0.3  # of the logarithm of the time from the command to training, between runs


class Effort(IntEnum):
    """Work that an estimate may do beside reading records."""

    records = 0  # none: memory is known where it was computed before, lengths where a run on the data tells them
    gpus = 1  # reads the sizes of data, and computes the memory of runs on GPUs in a process of its own
    all = 2  # also the memory of CPU ranks


class Quantity(Interval):
    """An estimated quantity with its 90 % interval.

    marks: of the runs that it rests on, as in tables of results (`records.comparable`): "&" where others kept their
        cores busy, say; "?" where they scaled beyond linear.
    """

    basis: Basis
    marks: str = ""

    @property
    def may_exclude(self) -> bool:
        """True where the estimate may decide that a cell is not measured: its own runs or probes tell, unmarked."""
        return self.basis.may_exclude and not self.marks


@dataclass(frozen=True)
class Estimate:
    """What a run will take on its target; a quantity that nothing tells is None.

    Fields:
        prediction: as the run's record has it.
        start_s: from the command to training, by runs alike.
    """

    config: RunConfig
    target: Target
    prediction: Prediction
    start_s: Interval | None = None

    @property
    def basis(self) -> Basis:
        """The basis of the times."""
        return Basis(self.prediction.basis)

    @property
    def may_exclude(self) -> bool:
        """True where the times may decide that a cell is not measured (`Quantity.may_exclude`)."""
        return self.step_s is not None and self.step_s.may_exclude

    @property
    def fits(self) -> str | None:
        """yes, tight or no; None where the memory of the run or of the GPU is not known."""
        return self.prediction.fits

    @property
    def step_s(self) -> Quantity | None:
        return self._timed(self.prediction.step_s)

    @property
    def total_s(self) -> Quantity | None:
        """Training and evaluation, as the record's `total_s`."""
        return self._timed(self.prediction.total_s)

    @property
    def energy_joules(self) -> Quantity | None:
        """Energy of all GPUs."""
        return self._timed(self.prediction.energy_joules)

    @property
    def peak_memory_bytes(self) -> Quantity | None:
        """The figure that the record has under this name: the most of torch's allocator, on GPUs alone."""
        return self._of_memory(self.prediction.allocated_bytes)

    @property
    def needed_memory_bytes(self) -> Quantity | None:
        """Memory that a GPU must have: the peak, and what it holds beside torch's allocator."""
        return self._of_memory(self.prediction.memory_bytes)

    def _timed(self, interval: Interval | None) -> Quantity | None:
        if interval is None:
            return None
        return Quantity(interval.value, interval.low, interval.high, self.basis, self.prediction.marks)

    def _of_memory(self, interval: Interval | None) -> Quantity | None:
        own = Basis.of_memory(self.prediction)
        return None if interval is None else Quantity(interval.value, interval.low, interval.high, own)


def estimate(
    configs: Sequence[RunConfig],
    folder: Path,
    where: Sequence[Target] | None = None,
    effort: Effort = Effort.records,
    git: Mapping[str, Any] | None = None,
) -> list[Estimate]:
    """Estimates of runs, in the order of the configurations.

    Tables of `predict=true`, `fit=`, `gpus=auto`, races, plans and the prediction in a record all ask here, and believe
    the answer by its basis and marks.

    Args:
        folder: of one of the runs, <root>/<sweep>/<run>: the sweeps beside it are the history
            (`history.history_folders`). It need not exist.
        where: the target of each (`target.targets`); None: this machine, whatever `predict.gpu` says.
        effort: work beside reading records.
        git: the code that will run, as `environment.git` describes it; None: this checkout.
    """
    known = history.read(history.history_folders(folder.absolute()))
    commit = history.commit_of(git or environment.git(private.ROOT))
    where = targets(configs, here=True) if where is None else where
    estimates = dict[int, Estimate]()
    for target in dict.fromkeys(where):
        predictor, places = Predictor(target, known, commit), [n for n, own in enumerate(where) if own == target]
        own = [configs[place] for place in places]
        for place, config, prediction in zip(places, own, predictor.predict_all(own, effort), strict=True):
            estimates[place] = Estimate(config, target, prediction, predictor.start_s(config))
    return [estimates[place] for place in range(len(configs))]


class Predictor:
    """Predictions for one target, by a history.

    Args:
        commit: of the code that will run, with the digits of its changes (`history.commit_of`).
    """

    def __init__(self, target: Target, runs: Sequence[PastRun], commit: str | None) -> None:
        self.target, self.runs, self.commit = target, runs, commit
        self._here = [run for run in runs if run.is_of(target.hardware, target.cores)]
        self._factors: dict[tuple[str, str], float] = {}  # of intervals, by workload and basis

    def predict_all(self, configs: Sequence[RunConfig], effort: Effort = Effort.all) -> list[Prediction]:
        """Predictions of runs, in the order of the configurations."""
        reads = None if effort is Effort.records else facts.sizes
        predictions = [self._times(config, reads) for config in configs]
        on_gpu = self.target.device_type == "cuda"
        compute = effort is Effort.all or (effort is Effort.gpus and on_gpu)
        if compute or on_gpu:
            here = [run for run in self.runs if run.is_of(self.target.hardware, None)]
            peaks.add(predictions, configs, self.target, here, [facts.sizes(config) for config in configs], compute)
        return predictions

    def start_s(self, config: RunConfig) -> Interval | None:
        """Seconds from the command to training, by the runs nearest to it; None where no run tells."""
        runs = [run for run in self._timed(_kind(config)) if not run.is_raced]
        return Alike(history.setting(plain(config)), runs).interval(lambda run: run.record.startup_s, START_SD)

    def _times(self, config: RunConfig, sizes: totals.Sizes | None) -> Prediction:
        target, kind, own = self.target, _kind(config), history.setting(plain(config))
        printed = published.observations(str(target.hardware)) if target.device_type == "cuda" else ()
        seen = [*(run.observation for run in self._timed(kind, marked=True)), *printed]
        estimated = steps.step(own, str(target.hardware), self.commit, seen)
        if estimated is None:
            return Prediction(Basis.unknown, about=self._why_unknown(kind, own))
        here = self._timed(kind, marked=bool(estimated.marks))
        alike = Alike(own, here)
        step_s = Interval(estimated.value, estimated.low, estimated.high)
        prediction = Prediction(estimated.basis, estimated.runs, estimated.about, step_s, marks=estimated.marks)
        if estimated.basis.may_exclude and not alike.of_this_cell():
            prediction.basis, prediction.about = Basis.scaled, f"{estimated.about}, of another length"
        length = totals.length(config, alike, here, sizes)
        if length is None:
            prediction.about += "; the size of its data is not known, so no total"
            return prediction
        if getattr(config, "stop_at_target", False):
            prediction.about += "; the total is of all epochs, and the run stops at its target"
        prediction.calibration = self._calibration(kind, prediction.basis)
        whole = Alike(own, [run for run in here if not run.is_raced])
        _, are_probes = alike.nearest(lambda run: float(run.is_probe))
        total_s = totals.total_s(config, step_s, length, whole, probed=bool(are_probes) and all(are_probes))
        prediction.total_s = totals.widened(total_s, prediction.calibration)
        prediction.energy_joules = totals.energy_joules(prediction.total_s, config, whole)
        return prediction

    def _calibration(self, kind: str, basis: str) -> float:
        if (kind, basis) not in self._factors:
            self._factors[kind, basis] = totals.calibration(self._timed(kind), basis)
        return self._factors[kind, basis]

    def _timed(self, kind: str, marked: bool = False) -> list[PastRun]:
        """Runs of a workload on the target that tell about time: those without marks, or marked ones too."""
        runs = [run for run in self._here if run.record.kind == kind and run.left_out is None]
        return runs if marked else [run for run in runs if not run.marks]

    def _why_unknown(self, kind: str, own: dict[str, str]) -> str:
        """The reason for an unknown time, with the runs of the cell that tell nothing about it."""
        axes = observations.axes(own)
        runs = [run for run in self.runs if run.record.kind == kind and run.has_steps_of(axes)]
        reasons = Counter(run.left_out or f"measured on {run.hardware}, {run.cores}" for run in runs)
        words = ", ".join(f"{count(number, 'run')} {reason}" for reason, number in reasons.items())
        nothing = f"no run like it on {self.target.hardware or 'this GPU'}"
        return f"{nothing}; of this cell {words}" if words else nothing


def _kind(config: RunConfig) -> str:
    return "llm" if isinstance(config, LlmConfig) else "vision"
