"""What a run asks of the machine or the cluster that it runs on: typed, checked, and no part of what is measured."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Optional  # OmegaConf reads Optional[...] on every Python that it supports


class Device(StrEnum):
    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class Code(StrEnum):
    submitted = "submitted"
    latest = "latest"


class Numa(StrEnum):
    node = "node"
    none = "none"


def require(holds: bool, message: str) -> None:
    """Refuse: `message` names the key and the remedy.

    Raises:
        ValueError: where `holds` is false.
    """
    if not holds:
        raise ValueError(message)


# Keys of `JobConfig` that do not change what is measured: a cell keeps its identity whatever they are.
ASKED = ("cpus_per_gpu", "memory_gb", "time_min", "max_requeues", "exclusive", "code", "dry_run")


@dataclass
class JobConfig:
    """`gpus` counts ranks a node: CUDA devices, or CPU ranks. The others are of jobs that a launcher starts."""

    gpus: int = 1
    nodes: int = 1
    device: Device = Device.auto
    numa: Numa = Numa.node
    cpus_per_gpu: int = 2
    memory_gb: Optional[int] = None
    time_min: int = 60
    max_requeues: int = 3
    exclusive: Optional[bool] = None
    code: Code = Code.submitted
    dry_run: bool = False

    def __post_init__(self) -> None:
        for key in ("gpus", "nodes", "cpus_per_gpu", "time_min"):
            require(getattr(self, key) >= 1, f"{key}={getattr(self, key)}: must be 1 or more")
        memory = self.memory_gb
        require(memory is None or memory >= 1, f"memory_gb={memory}: must be 1 or more, or null for the site's default")
        require(self.max_requeues >= 0, f"max_requeues={self.max_requeues}: must be 0 or more")


@dataclass(frozen=True)
class Resources:
    """What one job of a queue asks for, a node where not said otherwise. Jobs with the same share an array."""

    nodes: int
    gpus: int
    cpus: int
    memory_gb: int | None
    time_min: int
    exclusive: bool


def resources(config: JobConfig) -> Resources:
    """The job's own: ranks on the CPU ask for no GPU."""
    gpus = 0 if config.device is Device.cpu else config.gpus
    cpus = config.gpus * config.cpus_per_gpu
    return Resources(config.nodes, gpus, cpus, config.memory_gb, config.time_min, bool(config.exclusive))
