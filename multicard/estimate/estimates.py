"""Estimates of a run's time, energy and memory. `estimate` is the one entry point."""

import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig, plain
from multicard.config.job import count
from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.estimate import (
    history,
    observations,
    peaks,
    published,
    roofline,
    shared_rows,
    steps,
    totals,
)
from multicard.estimate.history import PastRun
from multicard.estimate.memory import facts
from multicard.estimate.observations import Basis, StepEstimate
from multicard.estimate.roofline import Roofline
from multicard.estimate.shared_rows import SharedRow
from multicard.estimate.target import TargetMachine, targets
from multicard.estimate.totals import NearestRuns
from multicard.llm import step_work
from multicard.machine import devices, environment, gpu_models, load
from multicard.messages import Message, say
from multicard.records.rank_files import ModelSizes
from multicard.records.schema_parts import AsBusy, PredictedInterval, Prediction

# Standard deviation, between runs, of the logarithm of the time from the command to training.
START_SD = 0.3


class Effort(IntEnum):
    """Work that an estimate may do in addition to reading records and the sizes of data."""

    records = 0  # No work: memory is known only if it was computed before.
    gpus = 1  # Computes the memory of GPU runs in a separate process.
    all = 2  # Computes the memory of CPU ranks too.


@dataclass(frozen=True)
class Estimate:
    """An estimate of a run on its target.

    Fields:
        prediction: as the run's record stores it. Quantities that cannot be estimated are None.
        start_s: seconds from the command to training, by similar runs.
    """

    config: RunConfig
    target: TargetMachine
    prediction: Prediction
    start_s: PredictedInterval | None = None

    @property
    def basis(self) -> Basis:
        """The basis of the estimated times."""
        return Basis(self.prediction.basis)


def estimate(
    configs: Sequence[RunConfig],
    folder: Path,
    where: Sequence[TargetMachine] | None = None,
    effort: Effort = Effort.records,
    git: Mapping[str, Any] | None = None,
) -> list[Estimate]:
    """Estimate runs, in the order of the configurations.

    The tables of `predict=true`, `fit=`, `gpus=auto`, races, plans and the prediction in a record
    all call this function. They decide by an estimate's basis and marks how far to trust it.

    Args:
        folder: the folder of one of the runs, <root>/<sweep>/<run>. The sweeps next to it are the
            history (`history.history_folders`). It need not exist.
        where: the target of each run (`target.targets`). None means this machine, and
            `predict.gpu` is ignored.
        effort: the work to do in addition to reading records.
        git: the code that will run, as `environment.git` describes it. None means this checkout.
    """
    past_runs = history.read_runs(history.history_folders(folder.absolute()))
    shared_steps = shared_rows.read_rows(folder.parent)
    commit = history.commit_of(git or environment.git())
    where = targets(configs, here=True) if where is None else where
    estimates = dict[int, Estimate]()
    # Measuring takes a second, so it happens only if an estimate rests on runs next to others.
    measured_busy_share = cache(load.busy_share_now)

    def busy_now(target: TargetMachine) -> float | None:
        return measured_busy_share() if target in targets(configs, here=True) else None

    for target in dict.fromkeys(where):
        predictor = Predictor(target, past_runs, commit, shared_steps, busy_now)
        indices = [index for index, machine in enumerate(where) if machine == target]
        target_configs = [configs[index] for index in indices]
        for index, config, prediction in zip(
            indices, target_configs, predictor.predict_all(target_configs, effort), strict=True
        ):
            estimates[index] = Estimate(config, target, prediction, predictor.start_s(config))
    return [estimates[index] for index in range(len(configs))]


def prediction(config: RunConfig, folder: Path, git: Mapping[str, Any] | None) -> Prediction | None:
    """Return the `prediction` for the record of a run in `folder`, or None if nothing is known.

    Args:
        git: the code that runs, as `environment.git` describes it.
    """
    with printing_errors():
        if history.read_runs(history.history_folders(folder)) or devices.visible_gpus():
            predicted = estimate([config], folder, git=git)[0].prediction
            if predicted.basis != Basis.unknown or predicted.memory_bytes is not None:
                return predicted
    return None


@contextmanager
def printing_errors() -> Iterator[None]:
    """Print an error of an estimate instead of losing the run. With MULTICARD_STRICT, raise it."""
    try:
        yield
    except Exception as error:
        if os.environ.get("MULTICARD_STRICT"):
            raise
        kind = type(error).__name__
        sentence = f"no prediction ({kind}: {error}); please report this error of multicard"
        say(Message("estimate.error", sentence, error=kind, reason=str(error)), error=True)


class Predictor:
    """Predicts runs on one target.

    Args:
        runs: the history.
        commit: the commit of the code that will run (`history.commit_of`).
        shared: rows that others measured (`shared_rows.read_rows`).
        busy_now: returns the share of a target's cores that other programs use now.
    """

    def __init__(
        self,
        target: TargetMachine,
        runs: Sequence[PastRun],
        commit: str | None,
        shared: Sequence[tuple[str, SharedRow]] = (),
        busy_now: Callable[[TargetMachine], float | None] = lambda _: None,
    ) -> None:
        self._busy_now = busy_now
        self._shared = shared_rows.observations(shared, target)
        self.target = target
        self.runs = runs
        self.commit = commit
        self._target_runs = [run for run in runs if run.is_of(target.hardware, target.cores)]

    def predict_all(
        self, configs: Sequence[RunConfig], effort: Effort = Effort.all
    ) -> list[Prediction]:
        """Predict runs, in the order of the configurations."""
        predictions = [self._times(config) for config in configs]
        on_gpu = self.target.device_type == "cuda"
        compute = effort is Effort.all or (effort is Effort.gpus and on_gpu)
        if compute or on_gpu:
            runs_on_target = [run for run in self.runs if run.is_of(self.target.hardware, None)]
            peaks.add_peaks(predictions, configs, self.target, runs_on_target, compute)
        if on_gpu:
            pairs = zip(predictions, configs, strict=True)
            unknown = [pair for pair in pairs if pair[0].basis == Basis.unknown]
            self._bound_all(
                [
                    (prediction, config)
                    for prediction, config in unknown
                    if isinstance(config, LlmConfig)
                ],
                compute,
            )
        return predictions

    def start_s(self, config: RunConfig) -> PredictedInterval | None:
        """Return seconds from the command to training by the nearest runs, or None without any."""
        runs = [run for run in self._timed(config.kind) if not run.is_raced]
        return NearestRuns(history.setting(plain(config)), runs).interval(
            lambda run: run.record.startup_s, START_SD
        )

    def _times(self, config: RunConfig) -> Prediction:
        target = self.target
        kind = config.kind
        setting = history.setting(plain(config))
        published_steps = (
            published.observations(str(target.hardware)) if target.device_type == "cuda" else ()
        )
        step_observations = [
            *(run.observation for run in self._timed(kind, marked=True)),
            *self._shared,
            *published_steps,
        ]
        estimated = steps.step(setting, str(target.hardware), self.commit, step_observations)
        if estimated is None:
            return Prediction(Basis.unknown, about=self._why_unknown(kind, setting))
        timed_runs = self._timed(kind, marked=bool(estimated.marks))
        nearest_runs = NearestRuns(setting, timed_runs)
        step_s = estimated.interval
        prediction = Prediction(
            estimated.basis, estimated.runs, estimated.about, step_s, marks=estimated.marks
        )
        if estimated.basis in (Basis.measured, Basis.probed) and not nearest_runs.of_this_cell():
            sentence = f"{estimated.about}, with another number of steps"
            prediction.basis = Basis.scaled
            prediction.about = Message("estimate.other-length", sentence, about=estimated.about)
        prediction.as_busy = self._as_busy(estimated)
        length = self._length(prediction, config, nearest_runs, timed_runs)
        if length is None:
            return prediction
        unraced_runs = NearestRuns(setting, [run for run in timed_runs if not run.is_raced])
        prediction.total_s = totals.total_s(config, step_s, length, unraced_runs)
        prediction.energy_joules = totals.energy_joules(prediction.total_s, config, unraced_runs)
        if prediction.as_busy is not None:
            prediction.as_busy.total_s = totals.total_s(
                config, prediction.as_busy.step_s, length, unraced_runs
            )
        return prediction

    def _bound_all(self, unknown: Sequence[tuple[Prediction, LlmConfig]], compute: bool) -> None:
        """Give tuning runs without any known cell the times of a roofline."""
        gpu = gpu_models.known(self.target.hardware or "")
        boundable = [
            (prediction, config)
            for prediction, config in unknown
            if gpu is not None and not config.oversubscribe
        ]
        models = peaks.folder_sizes([config for _, config in boundable], self.target, compute)
        for (prediction, config), model in zip(boundable, models, strict=True):
            self._bound(prediction, config, model)

    def _bound(self, prediction: Prediction, config: LlmConfig, model: ModelSizes | None) -> None:
        """Write the times of a roofline into a prediction if the model's sizes are known.

        A roofline gives no energy.

        Args:
            model: the sizes of a folder's model, or None if they were not counted.
        """
        gpu = gpu_models.known(self.target.hardware or "")
        size = facts.sizes(config)
        if gpu is None or not isinstance(size, facts.TextFacts):
            return
        if model is None and not isinstance(config.model, HfConfig):
            model = step_work.sizes_of_decoder(config, size.vocabulary)
        bound = None if model is None else roofline.step(config, gpu, size, model)
        if not isinstance(bound, Roofline):
            reason = bound or Message(
                "roofline.no-sizes",
                "this model's operations per token are not counted (as in mixtures of experts)",
            )
            sentence = f"{prediction.about}; no roofline: {reason}"
            prediction.about = Message(
                "estimate.no-roofline", sentence, about=prediction.about, reason=reason
            )
            return
        prediction.basis = Basis.roofline
        prediction.about = bound.about(gpu)
        prediction.step_s = bound.step_s
        setting = history.setting(plain(config))
        timed_runs = self._timed(config.kind)
        length = self._length(prediction, config, NearestRuns(setting, timed_runs), timed_runs)
        if length is not None:
            prediction.total_s = totals.total_s(
                config, bound.step_s, length, NearestRuns(setting, [])
            )

    def _length(
        self,
        prediction: Prediction,
        config: RunConfig,
        nearest_runs: NearestRuns,
        timed_runs: Sequence[PastRun],
    ) -> totals.Length | None:
        """Return the length of the run's epoch. Note in the prediction what limits its total."""
        length = totals.epoch_length(config, nearest_runs, timed_runs)
        if length is None:
            reason = _unknown_steps_reason(config.kind)
            sentence = f"{prediction.about}; {reason}, so no total"
            prediction.about = Message(
                "estimate.no-total", sentence, about=prediction.about, reason=reason
            )
        elif getattr(config, "stop_at_target", False):
            sentence = (
                f"{prediction.about}; the total is for all epochs, and the run stops at its target"
            )
            prediction.about = Message("estimate.stops-at-target", sentence, about=prediction.about)
        return length

    def _as_busy(self, estimated: StepEstimate) -> AsBusy | None:
        """Return the step if other programs stay as busy as during the runs behind the estimate.

        None if they are not as busy now, or if their load is not known.
        """
        step_s = estimated.as_busy
        if step_s is None:
            return None
        during = statistics.fmean(estimated.busy_shares)
        now = self._busy_now(self.target)
        if now is None or not observations.is_about_as_busy(now, during):
            return None
        return AsBusy(during, step_s)

    def _timed(self, kind: str, marked: bool = False) -> list[PastRun]:
        """Return a workload's runs on the target whose times are usable.

        Args:
            marked: True to include runs with marks.
        """
        runs = [
            run for run in self._target_runs if run.record.kind == kind and run.left_out is None
        ]
        return runs if marked else [run for run in runs if not run.marks]

    def _why_unknown(self, kind: str, setting: dict[str, str]) -> str:
        """Return why the time is unknown, with the runs of the cell that cannot give it."""
        axes = observations.axes(setting)
        runs = [run for run in self.runs if run.record.kind == kind and run.has_steps_of(axes)]
        reasons = Counter(
            run.left_out or f"measured on {run.hardware}, {run.cores}" for run in runs
        )
        sentence = f"no run like it on {self.target.hardware or 'this GPU'}"
        if reasons:
            words = ", ".join(
                f"{count(number, 'run')} {reason}" for reason, number in reasons.items()
            )
            sentence += f"; this cell: {words}"
        return Message(
            "estimate.no-run", sentence, hardware=self.target.hardware, of_this_cell=dict(reasons)
        )


def _unknown_steps_reason(kind: str) -> Message:
    """Return why the number of a run's steps is not known."""
    if kind == "script":
        remedy = "a run or a probe to its end shows it, or `steps=NUMBER`"
        return Message(
            "estimate.uncounted", f"its number of steps is not known ({remedy})", key="steps"
        )
    return Message("estimate.unsized", "the size of its data is not known")
