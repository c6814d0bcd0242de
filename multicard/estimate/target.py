"""Targets of estimates: this machine, or a GPU that `predict.gpu` names. No torch."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.job import Device, resources
from multicard.config.sweeps import is_elsewhere, memory_bytes
from multicard.machine import environment
from multicard.machine.gpu_models import GPUS, GpuModel, product, usable_bytes
from multicard.messages import Refusal
from multicard.records.text_table import in_bytes


def find_gpu(name: str, key: str = "predict.gpu") -> GpuModel:
    """Return the GPU that `key` names, or raise a Refusal that lists the known GPUs."""
    gpu = GPUS.get(name.strip().lower())
    if gpu is None:
        sentence = f"{key}={name}: no such GPU; choose one of {', '.join(GPUS)}"
        raise Refusal("predict.gpu", sentence, key=key, value=name, known=[*GPUS])
    return gpu


def cores_in_words(number: int | None, ranks: int, in_job: bool) -> str:
    """Return the cores of a run in words. They distinguish machines of CPU ranks.

    Args:
        in_job: True if the run has only a part of the machine, and each rank of a node has cores
            of its own.
    """
    return f"{number / ranks:g} cores a rank" if in_job and number else f"{number} cores"


@dataclass(frozen=True)
class TargetMachine:
    """The machine that a run is estimated for.

    Fields:
        hardware: as records store it (`product`). None if it is not known.
        cores: cores of CPU ranks (`cores_in_words`). None for GPUs, whose name is enough.
        device_type: "cuda" or "cpu".
        gpu: the GPU's name, as NVML reports it.
        memory_bytes: a GPU's memory as CUDA offers it, or the machine's memory for CPU ranks.
        gpus: number of GPUs. None for another machine.
    """

    hardware: str | None = None
    cores: str | None = None
    device_type: str = "cuda"
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


UNKNOWN_NODE = TargetMachine()  # A node of SLURM, whose GPUs are not known.


def targets(
    configs: Sequence[RunConfig], here: bool = False, on_slurm: bool = False
) -> list[TargetMachine]:
    """Return the target of each configuration: this machine, or the GPU of `predict.gpu`.

    Raises a Refusal (ValueError) if the GPU is unknown, `find_gpu`.

    Args:
        here: True to ignore `predict.gpu` and `predict.memory`.
        on_slurm: True for a node of SLURM. Its processor is assumed to be this machine's.
    """
    gpus = environment.gpus() if any(config.device is not Device.cpu for config in configs) else []
    return [_target(config, gpus, here, on_slurm) for config in configs]


def _target(
    config: RunConfig, gpus: Sequence[Mapping[str, Any]], here: bool, on_slurm: bool
) -> TargetMachine:
    prediction_options = config.predict
    memory = (
        memory_bytes(prediction_options.memory) if prediction_options.memory and not here else None
    )
    if prediction_options.gpu is not None and not here:
        gpu = find_gpu(prediction_options.gpu)
        return TargetMachine(gpu.name, None, "cuda", gpu.products[0], memory or gpu.memory_bytes)
    if config.device is not Device.cpu:
        if on_slurm and not is_elsewhere(config):
            return UNKNOWN_NODE
        names = sorted({str(gpu["name"]) for gpu in gpus if gpu.get("name")})
        if names:
            sizes = [
                usable_bytes(gpu["name"], gpu["memory_bytes"])
                for gpu in gpus
                if gpu.get("memory_bytes")
            ]
            least = memory or min(sizes, default=None)
            return TargetMachine(
                product(", ".join(names)), None, "cuda", names[0], least, len(gpus)
            )
    if memory is not None or config.device is Device.cuda:
        return TargetMachine(memory_bytes=memory)
    return TargetMachine(
        environment.cpu_model(), _cores(config, on_slurm), "cpu", None, environment.memory_bytes()
    )


def _cores(config: RunConfig, on_slurm: bool) -> str:
    in_job = on_slurm or os.environ.get("SUBMITIT_EXECUTOR") == "slurm"
    cores = resources(config).cpus if on_slurm else environment.cores()
    if config.exclusive is False and not in_job:  # Runs share the machine.
        cores, in_job = min(cores, resources(config).cpus), True
    return cores_in_words(cores, config.gpus, in_job)
