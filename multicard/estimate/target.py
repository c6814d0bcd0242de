"""Targets of estimates: this machine, or a GPU that `predict.gpu` names. No torch."""

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.job import Device, resources
from multicard.config.sweeps import is_elsewhere, memory_bytes
from multicard.machine import environment
from multicard.messages import Refusal
from multicard.records.text_table import in_bytes

GIB = 1 << 30
RESERVED_BYTES = GIB * 3 // 4  # the most that the driver kept for itself on the GPUs of the table


@dataclass(frozen=True)
class Gpu:
    """A model of GPU.

    Fields:
        name: as `predict.gpu` has it; models that differ in their links (SXM, PCIe) differ in name, as steps on several
            of them take other times. products: its names as NVML gives them.
        nvml_bytes: all of its memory, as nvidia-smi prints it.
        memory_bytes: `total_memory` in torch, the least that is reported; with ECC where the GPU can switch it off.
    """

    name: str
    products: tuple[str, ...]
    nvml_bytes: int
    memory_bytes: int
    capability: tuple[int, int]


def _gpu(row: Mapping[str, str]) -> Gpu:
    """The GPU of a row of `gpus.csv`.

    MiB are as nvidia-smi prints them, GiB as torch's messages on memory that ran out have them ("a total capacity of
    93.00 GiB"): public issues, as VACE 56 (H100 NVL), Step-Video-T2V 8 (L40S), MTVCrafter 21 (RTX 6000 Ada), CogVLM 236
    (A10), CogVideo 36 (RTX 4090), LlamaFactory 182 (V100). Where none was found (H20, GH200, L4, T4): the same less
    1 GiB. Compute capabilities: developer.nvidia.com/cuda-gpus
    """
    nvml_bytes, memory_bytes = int(row["nvml_mib"]) << 20, int(float(row["usable_gib"]) * GIB)
    major, minor = map(int, row["capability"].split("."))
    return Gpu(row["name"], tuple(row["products"].split("|")), nvml_bytes, memory_bytes, (major, minor))


with Path(__file__).with_name("gpus.csv").open(newline="") as lines:
    GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in map(_gpu, csv.DictReader(lines))}


def named(name: str, key: str = "predict.gpu") -> Gpu:
    """The GPU that `key` names; for one that is not in the table, a Refusal lists those that are."""
    gpu = GPUS.get(name.strip().lower())
    if gpu is None:
        sentence = f"{key}={name}: no such GPU; choose one of {', '.join(GPUS)}"
        raise Refusal("predict.gpu", sentence, key=key, value=name, known=[*GPUS])
    return gpu


def of_product(product: str, nvml_bytes: int | None = None) -> Gpu | None:
    """The GPU with NVML's name and a memory within 8 % of `nvml_bytes`; None: not known."""
    alike = [gpu for gpu in GPUS.values() if product in gpu.products]
    near = [gpu for gpu in alike if nvml_bytes is None or abs(gpu.nvml_bytes - nvml_bytes) <= 0.08 * gpu.nvml_bytes]
    return near[0] if near else None


def usable_bytes(product: str, nvml_bytes: int) -> int:
    """Memory that CUDA offers: by the table, else a little less than NVML's total."""
    gpu = of_product(product, nvml_bytes)
    return gpu.memory_bytes if gpu else nvml_bytes - RESERVED_BYTES


def capability(product: str | None) -> tuple[int, int] | None:
    """The compute capability of a GPU by its name as NVML or the table has it, or by its letters and number, as "H100"
    in "NVIDIA H100 SXM5 64GB"; None: not known."""
    words = re.findall(r"[A-Z]+\d+[A-Z]?", (product or "").upper())
    alike = next((gpu for gpu in GPUS.values() if gpu.name.split("-")[0].upper() in words), None)
    gpu = GPUS.get(product or "") or of_product(product or "") or alike
    return gpu.capability if gpu else None


def is_gpu(hardware: str) -> bool:
    """True for the hardware of a record that is a GPU, known or not."""
    return hardware in GPUS or hardware.startswith(("NVIDIA", "Tesla"))


def product(hardware: str | None) -> str | None:
    """One name for all names of a GPU; others unchanged."""
    known = None if hardware is None else of_product(hardware)
    return hardware if known is None else known.name


def cores_in_words(number: int | None, ranks: int, in_job: bool) -> str:
    """The cores of a run, which tell machines of CPU ranks apart; `in_job` each of a node's ranks has cores of its own,
    and the run not all of the machine."""
    return f"{number / ranks:g} cores a rank" if in_job and number else f"{number} cores"


@dataclass(frozen=True)
class Target:
    """Machine that a run is estimated for.

    hardware: as records have it (`product`); None: not known. cores: of CPU ranks (`cores_in_words`); None of GPUs,
        whose name is enough. device_type: "cuda" or "cpu".
    gpu: the GPU's name as NVML has it. memory_bytes: of the GPU as CUDA offers it, of CPU ranks the machine's.
    gpus: their number; None of another machine.
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


UNKNOWN_NODE = Target()  # of SLURM, whose GPUs are not known


def targets(configs: Sequence[RunConfig], here: bool = False, on_slurm: bool = False) -> list[Target]:
    """The target of each configuration: this machine, or unless it is to be `here` the GPU of `predict.gpu` and
    `predict.memory`; `on_slurm` its nodes, whose processor is taken to be this machine's. Refuses (ValueError) as
    `named`."""
    found = environment.gpus() if any(config.device is not Device.cpu for config in configs) else []
    return [_target(config, found, here, on_slurm) for config in configs]


def _target(config: RunConfig, found: Sequence[Mapping[str, Any]], here: bool, on_slurm: bool) -> Target:
    asked = config.predict
    memory = memory_bytes(asked.memory) if asked.memory and not here else None
    if asked.gpu is not None and not here:
        gpu = named(asked.gpu)
        return Target(gpu.name, None, "cuda", gpu.products[0], memory or gpu.memory_bytes)
    if config.device is not Device.cpu:
        if on_slurm and not is_elsewhere(config):
            return UNKNOWN_NODE
        names = sorted({str(gpu["name"]) for gpu in found if gpu.get("name")})
        if names:
            sizes = [usable_bytes(gpu["name"], gpu["memory_bytes"]) for gpu in found if gpu.get("memory_bytes")]
            least = memory or min(sizes, default=None)
            return Target(product(", ".join(names)), None, "cuda", names[0], least, len(found))
    if memory is not None or config.device is Device.cuda:
        return Target(memory_bytes=memory)
    return Target(environment.cpu_model(), _cores(config, on_slurm), "cpu", None, environment.memory_bytes())


def _cores(config: RunConfig, on_slurm: bool) -> str:
    in_job = on_slurm or os.environ.get("SUBMITIT_EXECUTOR") == "slurm"
    cores = resources(config).cpus if on_slurm else environment.cores()
    if config.exclusive is False and not in_job:  # runs beside each other
        cores, in_job = min(cores, resources(config).cpus), True
    return cores_in_words(cores, config.gpus, in_job)
