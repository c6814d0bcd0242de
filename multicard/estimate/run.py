"""What runs will take: their steps, totals, energy and memory, each with what it rests on."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any

from multicard.config.base import RunConfig, plain
from multicard.config.job import Device, count, resources
from multicard.config.llm import LlmConfig
from multicard.config.prediction import memory_bytes
from multicard.estimate import gpus, history, lengths, peaks, published, totals
from multicard.estimate.alike import Alike
from multicard.estimate.history import History
from multicard.estimate.memory import facts
from multicard.estimate.memory.facts import Facts, Machine
from multicard.estimate.time import estimate, observations
from multicard.machine import environment
from multicard.records.schema_parts import Interval, Prediction

UNKNOWN = "unknown"
# Keys that the sizes of a set of texts follow from, and the model's vocabulary
TEXT = ("dataset", "tokenizer", "template", "method", "model", "seed", "packed", "max_seq_len", "batch_size", "gpus")


@dataclass(frozen=True)
class Target:
    """What is predicted for.

    hardware: as records have it (`history.product`); None where nothing is known of it. cores: of CPU ranks, in words
        (`history.cores_in_words`); None of GPUs, whose name is enough. device_type: "cuda" or "cpu".
    gpu: the GPU's name as NVML has it; memory_bytes: what CUDA offers of it, of CPU ranks the machine's memory.
    gpus: how many there are; None of another machine.
    """

    hardware: str | None
    cores: str | None
    device_type: str
    gpu: str | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


def targets(configs: Sequence[RunConfig], here: bool = False) -> list[Target]:
    """What each configuration is predicted for; the machine's GPUs are asked once.

    Args:
        here: this machine, whatever `predict.gpu` and `predict.memory` say.

    Raises:
        ValueError: `predict.gpu` is no name of the table; the message lists them.
    """
    found = environment.gpus() if any(config.device is not Device.cpu for config in configs) else []
    return [this_machine(config, None, found) if here else target(config, found) for config in configs]


def target(config: RunConfig, found: Sequence[Mapping[str, Any]] | None = None) -> Target:
    """What a configuration is predicted for: this machine, or the GPU of `predict.gpu` and `predict.memory`.

    Args:
        found: this machine's GPUs (`environment.gpus`); asked for where they are not given.

    Raises:
        ValueError: `predict.gpu` is no name of the table; the message lists them.
    """
    asked = config.predict
    memory = memory_bytes(asked.memory) if asked.memory else None
    if asked.gpu is not None:
        gpu = gpus.named(asked.gpu)
        return Target(gpu.name, None, "cuda", gpu.products[0], memory or gpu.memory_bytes)
    return this_machine(config, memory, found)


def this_machine(
    config: RunConfig, memory: int | None = None, found: Sequence[Mapping[str, Any]] | None = None
) -> Target:
    """The target of a run here.

    Args:
        memory: of each of its GPUs instead of what they have. found: as in `target`.
    """
    if config.device is Device.cpu:
        found = []
    found = environment.gpus() if found is None else found
    names = sorted({str(gpu["name"]) for gpu in found if gpu.get("name")})
    sizes = [gpus.usable_bytes(gpu["name"], gpu["memory_bytes"]) for gpu in found if gpu.get("memory_bytes")]
    if names:
        least = memory or min(sizes, default=None)
        return Target(history.product(", ".join(names)), None, "cuda", names[0], least, len(found))
    if memory is not None or config.device is Device.cuda:
        return Target(None, None, "cuda", None, memory)
    return Target(environment.cpu_model(), _cores(config), "cpu", None, environment.memory_bytes())


def _cores(config: RunConfig) -> str:
    cores, on_slurm = environment.cores(), os.environ.get("SUBMITIT_EXECUTOR") == "slurm"
    if config.exclusive is False and not on_slurm:  # runs beside each other
        cores = min(cores, resources(config).cpus)
    return history.cores_in_words(cores, config.gpus, on_slurm or config.exclusive is False)


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
            sizes = [self._sizes_or_reason(config) for config in configs]
            peaks.add(predictions, configs, machine, here, sizes, memory)
        return predictions

    def _sizes(self, config: RunConfig) -> Facts:
        """The sizes of a run's data, read once for all runs that have the same.

        Raises:
            ValueError: they cannot be read, with the key and the remedy.
        """
        sizes = self._sizes_or_reason(config)
        if isinstance(sizes, str):
            raise ValueError(sizes)
        return sizes

    def _sizes_or_reason(self, config: RunConfig) -> Facts | str:
        values = plain(config)
        key = dumps([values.get(group) for group in TEXT] if isinstance(config, LlmConfig) else values["dataset"])
        if key not in self._known_sizes:
            try:
                self._known_sizes[key] = facts.of(config)
            except (ValueError, OSError) as error:
                reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
                self._known_sizes[key] = f"the data cannot be read ({reason})"
        return self._known_sizes[key]

    def _times(self, config: RunConfig, sizes: lengths.Sizes | None) -> Prediction:
        kind = "llm" if isinstance(config, LlmConfig) else "vision"
        target, own = self.target, history.setting(plain(config))
        printed = published.observations(str(target.hardware)) if target.device_type == "cuda" else ()
        seen = [*self.history.observations(kind, target.hardware, target.cores), *printed]
        estimated = estimate.step(own, str(target.hardware), self.commit, seen)
        if estimated is None:
            return Prediction(UNKNOWN, about=self._why_unknown(kind, own))
        here = [run for run in self.history.timed(kind) if run.is_of(target.hardware, target.cores)]
        alike = Alike(own, here)
        probed = alike.mean(lambda run: float(run.is_probe)) == 1.0
        epochs = 1.0 if probed else alike.mean(lambda run: None if run.is_probe else float(len(run.record.epochs)))
        step_s = Interval(estimated.value, estimated.low, estimated.high)
        step_s = step_s if epochs is None else totals.over_epochs(step_s, config.epochs, epochs, alike)
        prediction = Prediction(estimated.basis, estimated.runs, estimated.about, step_s)
        if estimated.basis in (estimate.MEASURED, estimate.PROBED) and not alike.of_this_cell():
            prediction.basis, prediction.about = estimate.SCALED, f"{estimated.about}, of another length"
        try:
            length = lengths.length(config, alike, here, sizes)
        except ValueError:  # the data is not there
            length = None
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
            here = [run for run in self.history.timed(kind) if run.is_of(self.target.hardware, self.target.cores)]
            self._factors[kind, basis] = totals.calibration(here, basis)
        return self._factors[kind, basis]

    def _why_unknown(self, kind: str, own: dict[str, str]) -> str:
        """What is known of the cell all the same: runs that say nothing about time."""
        axes = observations.axes(own)
        runs = [run for run in self.history.runs if run.record.kind == kind and run.has_steps_of(axes)]
        reasons = Counter(run.left_out or f"measured on {run.hardware}, {run.cores}" for run in runs)
        words = ", ".join(f"{count(number, 'run')} {reason}" for reason, number in reasons.items())
        nothing = f"no run like it on {self.target.hardware or 'this GPU'}"
        return f"{nothing}; of this cell {words}" if words else nothing
