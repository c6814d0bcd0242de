"""Estimates of runs: time, energy and memory. Everything that needs one calls `estimate`."""

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
from multicard.estimate.totals import Alike
from multicard.llm import step_work
from multicard.machine import devices, environment, gpu_models, load
from multicard.messages import Message, say
from multicard.records.rank_files import ModelSizes
from multicard.records.schema_parts import AsBusy, PredictedInterval, Prediction

START_SD = 0.3  # of the logarithm of the time from the command to training, between runs


class Effort(IntEnum):
    """Work that an estimate may do beside reading records and the sizes of data."""

    records = 0  # none: memory is known where it was computed before
    gpus = 1  # computes the memory of runs on GPUs in a process of its own
    all = 2  # also the memory of CPU ranks


@dataclass(frozen=True)
class Estimate:
    """Estimate of a run on its target: `prediction` as the run's record has it, what nothing tells
    is None; `start_s` are seconds from the command to training, by runs alike.
    """

    config: RunConfig
    target: TargetMachine
    prediction: Prediction
    start_s: PredictedInterval | None = None

    @property
    def basis(self) -> Basis:
        """The basis of the times."""
        return Basis(self.prediction.basis)


def estimate(
    configs: Sequence[RunConfig],
    folder: Path,
    where: Sequence[TargetMachine] | None = None,
    effort: Effort = Effort.records,
    git: Mapping[str, Any] | None = None,
) -> list[Estimate]:
    """Estimates of runs, in the order of the configurations.

    Tables of `predict=true`, `fit=`, `gpus=auto`, races, plans and the prediction in a record all
    ask here, and believe the answer by its basis and marks.

    Args:
        folder: of one of the runs, <root>/<sweep>/<run>: the sweeps beside it are the history
            (`history.history_folders`). It need not exist.
        where: the target of each (`target.targets`); None: this machine; `predict.gpu` is ignored.
        effort: work beside reading records.
        git: the code that will run, as `environment.git` describes it; None: this checkout.
    """
    known = history.read(history.history_folders(folder.absolute()))
    shared = shared_rows.read(folder.parent)
    commit = history.commit_of(git or environment.git())
    where = targets(configs, here=True) if where is None else where
    estimates = dict[int, Estimate]()
    # for a second, where an estimate rests on runs beside others
    watched = cache(load.busy_share_now)

    def busy_now(target: TargetMachine) -> float | None:
        return watched() if target in targets(configs, here=True) else None

    for target in dict.fromkeys(where):
        predictor = Predictor(target, known, commit, shared, busy_now)
        places = [place for place, own in enumerate(where) if own == target]
        own = [configs[place] for place in places]
        for place, config, prediction in zip(
            places, own, predictor.predict_all(own, effort), strict=True
        ):
            estimates[place] = Estimate(config, target, prediction, predictor.start_s(config))
    return [estimates[place] for place in range(len(configs))]


def prediction(config: RunConfig, folder: Path, git: Mapping[str, Any] | None) -> Prediction | None:
    """The record's `prediction` of a run in `folder`, on the code that `environment.git` describes;
    None where nothing is known of it.
    """
    with printing_errors():
        if history.read(history.history_folders(folder)) or devices.visible_gpus():
            found = estimate([config], folder, git=git)[0].prediction
            return None if found.basis == Basis.unknown and found.memory_bytes is None else found
    return None


@contextmanager
def printing_errors() -> Iterator[None]:
    """Print an error of an estimate instead of losing a run; with MULTICARD_STRICT raise it."""
    try:
        yield
    except Exception as error:
        if os.environ.get("MULTICARD_STRICT"):
            raise
        kind = type(error).__name__
        sentence = f"no prediction ({kind}: {error}); please report this error of multicard"
        say(Message("estimate.error", sentence, error=kind, reason=str(error)), error=True)


class Predictor:
    """Predictions for one target, by a history and rows that others measured (`shared_rows.read`),
    of runs on the code of a commit (`history.commit_of`). `busy_now` gives the share of a target's
    cores that others have now.
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
        self._here = [run for run in runs if run.is_of(target.hardware, target.cores)]

    def predict_all(
        self, configs: Sequence[RunConfig], effort: Effort = Effort.all
    ) -> list[Prediction]:
        """Predictions of runs, in the order of the configurations."""
        predictions = [self._times(config) for config in configs]
        on_gpu = self.target.device_type == "cuda"
        compute = effort is Effort.all or (effort is Effort.gpus and on_gpu)
        if compute or on_gpu:
            here = [run for run in self.runs if run.is_of(self.target.hardware, None)]
            peaks.add(predictions, configs, self.target, here, compute)
        if on_gpu:
            pairs = zip(predictions, configs, strict=True)
            unknown = [pair for pair in pairs if pair[0].basis == Basis.unknown]
            self._bound_all(
                [(one, config) for one, config in unknown if isinstance(config, LlmConfig)], compute
            )
        return predictions

    def start_s(self, config: RunConfig) -> PredictedInterval | None:
        """Seconds from the command to training, by the runs nearest to it;
        None where no run tells.
        """
        runs = [run for run in self._timed(config.kind) if not run.is_raced]
        return Alike(history.setting(plain(config)), runs).interval(
            lambda run: run.record.startup_s, START_SD
        )

    def _times(self, config: RunConfig) -> Prediction:
        target = self.target
        kind = config.kind
        own = history.setting(plain(config))
        printed = (
            published.observations(str(target.hardware)) if target.device_type == "cuda" else ()
        )
        seen = [
            *(run.observation for run in self._timed(kind, marked=True)),
            *self._shared,
            *printed,
        ]
        estimated = steps.step(own, str(target.hardware), self.commit, seen)
        if estimated is None:
            return Prediction(Basis.unknown, about=self._why_unknown(kind, own))
        here = self._timed(kind, marked=bool(estimated.marks))
        alike = Alike(own, here)
        step_s = estimated.interval
        prediction = Prediction(
            estimated.basis, estimated.runs, estimated.about, step_s, marks=estimated.marks
        )
        if estimated.basis in (Basis.measured, Basis.probed) and not alike.of_this_cell():
            sentence = f"{estimated.about}, of another length"
            prediction.basis = Basis.scaled
            prediction.about = Message("estimate.other-length", sentence, about=estimated.about)
        prediction.as_busy = self._as_busy(estimated)
        length = self._length(prediction, config, alike, here)
        if length is None:
            return prediction
        whole = Alike(own, [run for run in here if not run.is_raced])
        prediction.total_s = totals.total_s(config, step_s, length, whole)
        prediction.energy_joules = totals.energy_joules(prediction.total_s, config, whole)
        if prediction.as_busy is not None:
            prediction.as_busy.total_s = totals.total_s(
                config, prediction.as_busy.step_s, length, whole
            )
        return prediction

    def _bound_all(self, unknown: Sequence[tuple[Prediction, LlmConfig]], compute: bool) -> None:
        """Give tuning runs of which nothing tells the times of a roofline."""
        gpu = gpu_models.known(self.target.hardware or "")
        asked = [
            (prediction, config)
            for prediction, config in unknown
            if gpu is not None and not config.oversubscribe
        ]
        models = peaks.folder_sizes([config for _, config in asked], self.target, compute)
        for (prediction, config), model in zip(asked, models, strict=True):
            self._bound(prediction, config, model)

    def _bound(self, prediction: Prediction, config: LlmConfig, model: ModelSizes | None) -> None:
        """Write the times of a roofline into a prediction,
        where the model's sizes are known; no energy.

        Args:
            model: the sizes of a folder's model; None where they were not counted.
        """
        gpu = gpu_models.known(self.target.hardware or "")
        size = facts.sizes(config)
        if gpu is None or not isinstance(size, facts.TextFacts):
            return
        if model is None and not isinstance(config.model, HfConfig):
            model = step_work.sizes_of_decoder(config, size.vocabulary)
        found = None if model is None else roofline.step(config, gpu, size, model)
        if not isinstance(found, Roofline):
            reason = found or Message(
                "roofline.no-sizes",
                "the work of a token of this model is not counted, as of a mixture of experts",
            )
            sentence = f"{prediction.about}; no roofline: {reason}"
            prediction.about = Message(
                "estimate.no-roofline", sentence, about=prediction.about, reason=reason
            )
            return
        prediction.basis = Basis.roofline
        prediction.about = found.about(gpu)
        prediction.step_s = found.step_s
        own = history.setting(plain(config))
        here = self._timed(config.kind)
        length = self._length(prediction, config, Alike(own, here), here)
        if length is not None:
            prediction.total_s = totals.total_s(config, found.step_s, length, Alike(own, []))

    def _length(
        self, prediction: Prediction, config: RunConfig, alike: Alike, here: Sequence[PastRun]
    ) -> totals.Length | None:
        """The length of an epoch of the run; what limits its total is said in the prediction."""
        length = totals.length(config, alike, here)
        if length is None:
            reason = _uncounted(config.kind)
            sentence = f"{prediction.about}; {reason}, so no total"
            prediction.about = Message(
                "estimate.no-total", sentence, about=prediction.about, reason=reason
            )
        elif getattr(config, "stop_at_target", False):
            sentence = (
                f"{prediction.about}; the total is of all epochs, and the run stops at its target"
            )
            prediction.about = Message("estimate.stops-at-target", sentence, about=prediction.about)
        return length

    def _as_busy(self, estimated: StepEstimate) -> AsBusy | None:
        """The step if others stay as busy; None where they are not as busy now, or nobody knows."""
        step_s = estimated.as_busy
        if step_s is None:
            return None
        during = statistics.fmean(estimated.busy)
        now = self._busy_now(self.target)
        if now is None or not observations.is_about_as_busy(now, during):
            return None
        return AsBusy(during, step_s)

    def _timed(self, kind: str, marked: bool = False) -> list[PastRun]:
        """Runs of a workload on the target that tell about time: those without marks,
        or marked ones too.
        """
        runs = [run for run in self._here if run.record.kind == kind and run.left_out is None]
        return runs if marked else [run for run in runs if not run.marks]

    def _why_unknown(self, kind: str, own: dict[str, str]) -> str:
        """The reason for an unknown time, with the runs of the cell that tell nothing about it."""
        axes = observations.axes(own)
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


def _uncounted(kind: str) -> Message:
    """Why the steps of a run are not known."""
    if kind == "script":
        remedy = "a run or a probe to its end tells, or `steps=NUMBER`"
        return Message(
            "estimate.uncounted", f"its number of steps is not known ({remedy})", key="steps"
        )
    return Message("estimate.unsized", "the size of its data is not known")
