"""What runs will take: `estimate` is the one place that answers it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from json import dumps
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig, plain
from multicard.config.job import count
from multicard.config.llm import LlmConfig
from multicard.estimate import basis, history, lengths, peaks, published, totals
from multicard.estimate.alike import Alike
from multicard.estimate.basis import Basis
from multicard.estimate.history import History, PastRun
from multicard.estimate.memory import facts
from multicard.estimate.memory.facts import Facts, Machine
from multicard.estimate.target import Target, targets
from multicard.estimate.time import estimate as time_estimate
from multicard.estimate.time import observations
from multicard.machine import environment, private
from multicard.records.schema_parts import Interval, Prediction

# Keys that the sizes of a set of texts follow from, and the model's vocabulary
TEXT = ("dataset", "tokenizer", "template", "method", "model", "seed", "packed", "max_seq_len", "batch_size", "gpus")
START_SD = 0.3  # of the logarithm of the time from the command to training, between runs


class Effort(Enum):
    """What an estimate may take beside reading records."""

    records = 0  # nothing: memory is known where it was computed before, lengths where a run on the data tells them
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
    """What a run will take on its target.

    A quantity is None where nothing tells it: then there is no interval either.

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
        """What the times rest on."""
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
        """Of all GPUs."""
        return self._timed(self.prediction.energy_joules)

    @property
    def peak_memory_bytes(self) -> Quantity | None:
        """The figure that the record has under this name: the most of torch's allocator, of GPUs alone."""
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
        own = basis.of_memory(self.prediction)
        return None if interval is None else Quantity(interval.value, interval.low, interval.high, own)


def estimate(
    configs: Sequence[RunConfig],
    folder: Path,
    where: Sequence[Target] | None = None,
    effort: Effort = Effort.records,
    git: Mapping[str, Any] | None = None,
) -> list[Estimate]:
    """What each run will take, in the order of the configurations.

    Whoever wants to know (tables of `predict=true`, `fit=`, `gpus=auto`, races, plans, the prediction in a record)
    asks here, and believes the answer by its basis and marks.

    Args:
        folder: of one of the runs, <root>/<sweep>/<run>: the sweeps beside it are what is learned from
            (`history.history_folders`). It need not exist.
        where: the target of each (`target.targets`); None: this machine, whatever `predict.gpu` says.
        effort: what may be computed or read beside records.
        git: the code that will run, as `environment.git` describes it; None: this checkout.
    """
    known = history.read(history.history_folders(folder.absolute()))
    commit = history.commit_of(git or environment.git(private.ROOT))
    where = targets(configs, here=True) if where is None else where
    predictors = {target: Predictor(target, known, commit) for target in dict.fromkeys(where)}
    predictions = dict[int, Prediction]()
    for target, predictor in predictors.items():
        places = [place for place, own in enumerate(where) if own == target]
        memory = effort is Effort.all or (effort is Effort.gpus and target.device_type == "cuda")
        answers = predictor.predict_all([configs[place] for place in places], memory, effort is not Effort.records)
        predictions |= zip(places, answers, strict=True)
    return [
        Estimate(config, target, predictions[place], predictors[target].start_s(config))
        for place, (config, target) in enumerate(zip(configs, where, strict=True))
    ]


class Predictor:
    """Predictions for one machine, from its history."""

    def __init__(self, target: Target, history: History, commit: str | None) -> None:
        self.target, self.history, self.commit = target, history, commit
        self._factors: dict[tuple[str, str], float] = {}  # of intervals, by workload and basis
        self._known_sizes: dict[str, Facts | str] = {}

    def predict_all(
        self, configs: Sequence[RunConfig], memory: bool = True, reads_data: bool | None = None
    ) -> list[Prediction]:
        """What each run will take.

        Args:
            memory: False: of memory only what was computed before, so that no process is started.
            reads_data: whether the sizes of data are read that no run has told; None: as `memory`.
        """
        reads = memory if reads_data is None else reads_data
        predictions = [self._times(config, self._sizes if reads else None) for config in configs]
        target = self.target
        if memory or target.device_type == "cuda":
            machine = Machine(target.device_type, target.gpu or "", target.memory_bytes)
            here = [run for run in self.history.runs if run.is_of(target.hardware, None)]
            sizes = [self._sizes(config) for config in configs]
            peaks.add(predictions, configs, machine, here, sizes, memory)
        return predictions

    def _sizes(self, config: RunConfig) -> Facts | str:
        """The sizes of a run's data, read once for all runs that have the same, or why they cannot be read."""
        values = plain(config)
        key = dumps([values.get(group) for group in TEXT] if isinstance(config, LlmConfig) else values["dataset"])
        if key not in self._known_sizes:
            try:
                self._known_sizes[key] = facts.facts_of(config)
            except (ValueError, OSError) as error:
                reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
                self._known_sizes[key] = f"the data cannot be read ({reason})"
        return self._known_sizes[key]

    def _times(self, config: RunConfig, sizes: lengths.Sizes | None) -> Prediction:
        target, kind, own = self.target, _kind(config), history.setting(plain(config))
        printed = published.observations(str(target.hardware)) if target.device_type == "cuda" else ()
        seen = [*self.history.observations(kind, target.hardware, target.cores), *printed]
        estimated = time_estimate.step(own, str(target.hardware), self.commit, seen)
        if estimated is None:
            return Prediction(Basis.unknown, about=self._why_unknown(kind, own))
        here = self._here(kind, marked=bool(estimated.marks))
        alike = Alike(own, here)
        probed = alike.mean(lambda run: float(run.is_probe)) == 1.0
        epochs = 1.0 if probed else alike.mean(lambda run: None if run.is_probe else float(len(run.record.epochs)))
        step_s = Interval(estimated.value, estimated.low, estimated.high)
        step_s = step_s if epochs is None else totals.over_epochs(step_s, config.epochs, epochs, alike)
        prediction = Prediction(estimated.basis, estimated.runs, estimated.about, step_s, marks=estimated.marks)
        if estimated.basis.may_exclude and not alike.of_this_cell():
            prediction.basis, prediction.about = Basis.scaled, f"{estimated.about}, of another length"
        length = lengths.length(config, alike, here, sizes)
        if length is None:
            prediction.about += "; the size of its data is not known, so no total"
            return prediction
        if getattr(config, "stop_at_target", False):
            prediction.about += "; the total is of all epochs, and the run stops at its target"
        prediction.calibration = self._calibration(kind, prediction.basis)
        whole = Alike(own, [run for run in here if not run.is_raced])
        total_s = totals.total_s(config, step_s, length, whole, probed)
        prediction.total_s = totals.widened(total_s, prediction.calibration)
        prediction.energy_joules = totals.energy_joules(prediction.total_s, config, whole)
        return prediction

    def _calibration(self, kind: str, basis: str) -> float:
        if (kind, basis) not in self._factors:
            self._factors[kind, basis] = totals.calibration(self._here(kind), basis)
        return self._factors[kind, basis]

    def start_s(self, config: RunConfig) -> Interval | None:
        """Seconds from the command to training, by the runs nearest to it; None where no run tells."""
        runs = [run for run in self._here(_kind(config)) if not run.is_raced]
        return Alike(history.setting(plain(config)), runs).interval(lambda run: run.record.startup_s, START_SD)

    def _here(self, kind: str, marked: bool = False) -> list[PastRun]:
        """Runs of the target that say something about time."""
        runs = self.history.timed(kind, marked)
        return [run for run in runs if run.is_of(self.target.hardware, self.target.cores)]

    def _why_unknown(self, kind: str, own: dict[str, str]) -> str:
        """What is known of the cell all the same: runs that say nothing about time."""
        axes = observations.axes(own)
        runs = [run for run in self.history.runs if run.record.kind == kind and run.has_steps_of(axes)]
        reasons = Counter(run.left_out or f"measured on {run.hardware}, {run.cores}" for run in runs)
        words = ", ".join(f"{count(number, 'run')} {reason}" for reason, number in reasons.items())
        nothing = f"no run like it on {self.target.hardware or 'this GPU'}"
        return f"{nothing}; of this cell {words}" if words else nothing


def _kind(config: RunConfig) -> str:
    return "llm" if isinstance(config, LlmConfig) else "vision"
