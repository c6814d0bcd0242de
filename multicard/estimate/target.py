"""What runs are estimated for: this machine, or a GPU that is named."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.job import Device, resources
from multicard.config.prediction import is_elsewhere, memory_bytes
from multicard.estimate import gpus, history
from multicard.machine import environment
from multicard.records.text_table import in_bytes


@dataclass(frozen=True)
class Target:
    """Machine that a run is estimated for.

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

    @property
    def in_words(self) -> str:
        """The GPU with its memory, "NVIDIA H100 of 99.9 GB", or the processor of CPU ranks."""
        if self.device_type == "cpu":
            return f"CPU ranks on {self.hardware or 'this machine'}"
        gpu = self.gpu or "a GPU"
        return gpu if self.memory_bytes is None else f"{gpu} of {in_bytes(self.memory_bytes)}"


UNKNOWN_NODE = Target(None, None, "cuda")  # of SLURM, of whose GPUs nothing is known


def targets(configs: Sequence[RunConfig], here: bool = False, on_slurm: bool = False) -> list[Target]:
    """The target of each configuration: this machine, or the GPU of `predict.gpu` and `predict.memory`.

    Args:
        here: this machine, whatever `predict.gpu` and `predict.memory` say.
        on_slurm: nodes of SLURM instead of this machine; their processor is taken to be this machine's.

    Raises:
        ValueError: `predict.gpu` is no name of the table; the message lists them.
    """
    found = environment.gpus() if any(config.device is not Device.cpu for config in configs) else []
    return [_target(config, found, here, on_slurm) for config in configs]


def _target(config: RunConfig, found: Sequence[Mapping[str, Any]], here: bool, on_slurm: bool) -> Target:
    asked = config.predict
    memory = memory_bytes(asked.memory) if asked.memory and not here else None
    if asked.gpu is not None and not here:
        gpu = gpus.named(asked.gpu)
        return Target(gpu.name, None, "cuda", gpu.products[0], memory or gpu.memory_bytes)
    if on_slurm and config.device is not Device.cpu and not is_elsewhere(config):
        return UNKNOWN_NODE
    found = [] if config.device is Device.cpu else found
    names = sorted({str(gpu["name"]) for gpu in found if gpu.get("name")})
    sizes = [gpus.usable_bytes(gpu["name"], gpu["memory_bytes"]) for gpu in found if gpu.get("memory_bytes")]
    if names:
        least = memory or min(sizes, default=None)
        return Target(history.product(", ".join(names)), None, "cuda", names[0], least, len(found))
    if memory is not None or config.device is Device.cuda:
        return Target(None, None, "cuda", None, memory)
    return Target(environment.cpu_model(), _cores(config, on_slurm), "cpu", None, environment.memory_bytes())


def _cores(config: RunConfig, on_slurm: bool) -> str:
    in_job = os.environ.get("SUBMITIT_EXECUTOR") == "slurm"
    if on_slurm:
        return history.cores_in_words(resources(config).cpus, config.gpus, in_job=True)
    cores = environment.cores()
    if config.exclusive is False and not in_job:  # runs beside each other
        cores = min(cores, resources(config).cpus)
    return history.cores_in_words(cores, config.gpus, in_job or config.exclusive is False)
