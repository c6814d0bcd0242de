"""What runs will take: their steps, totals, energy and memory, each with what it rests on."""

from collections.abc import Sequence
from dataclasses import dataclass

from multicard.config.base import RunConfig, plain
from multicard.config.job import Device
from multicard.config.llm import LlmConfig
from multicard.config.prediction import memory_bytes
from multicard.machine import environment
from multicard.predict import gpus, history
from multicard.predict.history import History
from multicard.predict.time import estimate
from multicard.records.schema_parts import Interval, Prediction

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Target:
    """What is predicted for.

    hardware: as records have it (`history.product`); None where nothing is known of it. cores: of the machine; None
        of another than this one. device_type: "cuda" or "cpu".
    gpu: the GPU's name as NVML has it; memory_bytes: what CUDA offers of it, of CPU ranks the machine's memory.
    gpus: how many there are; None of another machine.
    """

    hardware: str | None
    cores: int | None
    device_type: str
    gpu: str | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


def target(config: RunConfig) -> Target:
    """What a configuration is predicted for: this machine, or the GPU of `predict.gpu` and `predict.memory`.

    Raises:
        ValueError: `predict.gpu` is no name of the table; the message lists them.
    """
    asked = config.predict
    memory = memory_bytes(asked.memory) if asked.memory else None
    if asked.gpu is not None:
        gpu = gpus.named(asked.gpu)
        return Target(gpu.name, None, "cuda", gpu.products[0], memory or gpu.memory_bytes)
    found = environment.gpus() if config.device is not Device.cpu else []
    names = sorted({str(gpu["name"]) for gpu in found if gpu.get("name")})
    sizes = [gpus.usable_bytes(gpu["name"], gpu["memory_bytes"]) for gpu in found if gpu.get("memory_bytes")]
    if names:
        least = memory or min(sizes, default=None)
        return Target(history.product(", ".join(names)), environment.cores(), "cuda", names[0], least, len(found))
    if memory is not None or config.device is Device.cuda:
        return Target(None, None, "cuda", None, memory)
    return Target(environment.cpu_model(), environment.cores(), "cpu", None, environment.memory_bytes())


class Predictor:
    """Predictions for one machine, from its history."""

    def __init__(self, target: Target, history: History, commit: str | None) -> None:
        self.target, self.history, self.commit = target, history, commit

    def predict_all(self, configs: Sequence[RunConfig], memory: bool = True) -> list[Prediction]:
        """What each run will take.

        Args:
            memory: False: of memory only what was computed before, so that no process is started.
        """
        return [self._times(config) for config in configs]

    def _times(self, config: RunConfig) -> Prediction:
        kind = "llm" if isinstance(config, LlmConfig) else "vision"
        observations = self.history.observations(kind, self.target.hardware, self.target.cores)
        own = history.setting(plain(config))
        step = estimate.step(own, str(self.target.hardware), self.commit, observations)
        if step is None:
            return Prediction(UNKNOWN)
        return Prediction(step.basis, step.runs, step.about, Interval(step.value, step.low, step.high))
