"""Keys for the machine or cluster that a run uses.

Only gpus, nodes, device and numa change what is measured.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.keys import check_bounds, key
from multicard.config.roles import Role

Device = StrEnum("Device", ["auto", "cuda", "cpu"])
Code = StrEnum("Code", ["submitted", "latest"])
Numa = StrEnum("Numa", ["node", "none"])
Auto = StrEnum("Auto", ["gpus", "batch_size", "max_seq_len"])


def _words_of_auto() -> dict[str, tuple[str, ...]]:
    """Return the overrides that `gpus=auto` and the like stand for.

    They replace the axis of an experiment, and turn a single run into a sweep of one cell.
    """
    words = {}
    for auto in Auto:
        least = 2 if auto is Auto.max_seq_len else 1
        read_as = (f"{auto}={least}", f"auto={auto}", "hydra.mode=MULTIRUN")
        words[f"{auto}=auto"] = read_as
        words[f"auto={auto}"] = read_as
    return words


AUTO = _words_of_auto()


@dataclass
class JobConfig:
    """Where a run takes place, and which resources its job requests.

    The default launcher ignores the keys of jobs.
    """

    gpus: int = key(
        1,
        "CUDA devices, or CPU ranks, per node; auto: chosen for each cell by predicted times",
        Role.identity | Role.ranks | Role.learning | Role.speed | Role.text | Role.planned,
        least=1,
        shown=15,
        title="GPUs",
        also=(
            "gpu",
            "num_gpus",
            "n_gpus",
            "ngpus",
            "gpu_count",
            "gpus_per_node",
            "devices",
            "num_devices",
            "nproc_per_node",
            "nproc",
            "num_processes",
            "ntasks_per_node",
        ),
    )
    auto: Optional[Auto] = key(
        None,
        "set by gpus=auto and the like: the key whose value is chosen for each cell",
        Role.beside | Role.one_value,
        is_internal=True,
    )
    nodes: int = key(
        1,
        "number of nodes; more than one needs hydra/launcher=submitit_slurm",
        Role.identity | Role.ranks | Role.learning | Role.speed | Role.planned,
        least=1,
        shown=16,
        also=("nnodes", "num_nodes", "num_machines"),
    )
    device: Device = key(
        Device.auto,
        "auto, cuda or cpu; auto: CUDA if there is a device",
        Role.identity | Role.speed,
        also=("accelerator",),
        means={"gpu": "cuda"},
    )
    numa: Numa = key(
        Numa.node,
        "node binds each rank to the NUMA node of its GPU (needs numactl); none does not",
        Role.identity | Role.speed,
    )
    cpus_per_gpu: int = key(
        2,
        "submitit launchers: cores per GPU or CPU rank",
        Role.beside | Role.planned | Role.site,
        least=1,
        also=("cpus_per_task",),
    )
    memory_gb: Optional[int] = key(
        None,
        "SLURM: memory per node, in GB; null: the site's default",
        Role.beside | Role.site,
        least=1,
        also=("mem", "memory", "mem_gb"),
    )
    time_min: int = key(
        60,
        "SLURM: time limit of a job, in minutes",
        Role.beside | Role.site,
        least=1,
        also=("time", "time_limit", "walltime", "timeout_min"),
    )
    max_requeues: int = key(
        3,
        "SLURM: how often a stopped job is requeued",
        Role.beside | Role.site,
        least=0,
    )
    exclusive: Optional[bool] = key(
        None,
        "submitit launchers: true gives each run its machine or nodes alone; null: true on this"
        " machine, false on SLURM",
        Role.beside | Role.planned | Role.site,
    )
    max_jobs: Optional[int] = key(
        None,
        "submitit_local: most cells at a time; null: as many as fit onto the machine",
        Role.beside | Role.one_value | Role.site,
        least=1,
    )
    code: Code = key(
        Code.submitted,
        "submitit launchers: submitted refuses a job if the code has changed; latest runs it",
        Role.beside,
    )
    dry_run: bool = key(
        False,
        "check everything and print what would be measured, without measuring it",
        Role.beside | Role.planned,
        also=("dryrun",),
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Resources:
    """Resources that a job requests, per node except for `nodes` and `time_min`.

    Jobs with equal resources share an array.
    """

    nodes: int
    gpus: int
    cpus: int
    memory_gb: int | None
    time_min: int
    exclusive: bool

    def in_words(self) -> str:
        parts = [count(self.nodes, "node"), count(self.gpus, "GPU"), count(self.cpus, "core")]
        parts += [f"{self.memory_gb} GB"] if self.memory_gb is not None else []
        return ", ".join([*parts, f"{self.time_min} min"]) + (
            ", alone on its nodes" if self.exclusive else ""
        )


def count(number: int, noun: str) -> str:
    """Format a number with its noun, as in "1 GPU" and "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def resources(config: JobConfig) -> Resources:
    """Return the resources that a run's job requests. CPU ranks request no GPU."""
    gpus = 0 if config.device is Device.cpu else config.gpus
    cpus = config.gpus * config.cpus_per_gpu
    return Resources(
        config.nodes, gpus, cpus, config.memory_gb, config.time_min, bool(config.exclusive)
    )
