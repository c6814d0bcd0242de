"""The schema that both entries share, and what is refused before anything starts.

YAML files under `conf/` hold values; these dataclasses hold types. `__post_init__` refuses values that can never
work, `place` what this machine cannot do. Nothing here imports torch: `--help`, `--cfg job` and refusals are
answered in well under a second.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from json import dumps, loads
from types import UnionType
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from omegaconf import MISSING

from multicard.config.job import ASKED, Device, JobConfig, require


class Backend(StrEnum):
    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


class Scale(StrEnum):
    full = "full"
    smoke = "smoke"


class Malloc(StrEnum):
    tuned = "tuned"
    system = "system"


class TrackerMode(StrEnum):
    offline = "offline"
    online = "online"
    disabled = "disabled"


class ProfileName(StrEnum):
    none = "none"
    kineto = "kineto"
    nsys = "nsys"


@dataclass
class ProfileConfig:
    name: ProfileName = MISSING


@dataclass
class WindowConfig(ProfileConfig):
    """Which steps are profiled, in a pass of their own after training: `skip` as they are, `warmup` with the profiler
    on and its events dropped, then `steps`, or as many as `seconds` take."""

    skip: int = 3
    warmup: int = 3
    steps: int = 10
    seconds: Optional[float] = None

    def __post_init__(self) -> None:
        for key, least in (("skip", 0), ("warmup", 1), ("steps", 1)):
            value = getattr(self, key)
            require(value >= least, f"profile.{key}={value}: must be {least} or more")
        seconds = self.seconds
        require(
            seconds is None or seconds > 0, f"profile.seconds={seconds}: must be above 0, or null for profile.steps"
        )


@dataclass
class PrecisionConfig:
    name: str = MISSING


@dataclass
class TrackerConfig:
    mode: TrackerMode = TrackerMode.offline
    project: str = "multicard"
    entity: Optional[str] = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        remedy = "W&B takes names of 1 to 128 characters without any of / \\ # ? % :"
        fits = 0 < len(self.project) <= 128 and not set(self.project) & set("/\\#?%:")
        require(fits, f"tracker.project={self.project}: {remedy}")


# Keys that do not change what is measured: a cell keeps its identity whatever they are.
NOT_IDENTITY = ("name", "rerun", "tracker", *ASKED)


@dataclass
class RunConfig(JobConfig):
    """What both entries share. `scale` is set by the group of that name: shrunk runs are marked by it."""

    name: str = MISSING
    scale: Scale = Scale.full
    backend: Backend = Backend.auto
    oversubscribe: bool = False
    seed: int = 0
    epochs: int = 1
    batch_size: int = 1
    pin_memory: bool = True
    lr: float = MISSING
    malloc: Malloc = Malloc.tuned
    rerun: bool = False
    profile: ProfileConfig = MISSING
    diagnose: bool = False
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("epochs", "batch_size"):
            require(getattr(self, key) >= 1, f"{key}={getattr(self, key)}: must be 1 or more")
        require(self.seed >= 0, f"seed={self.seed}: must be 0 or more")
        require(self.lr > 0, f"lr={self.lr}: must be above 0")
        named = self.name not in ("", ".", "..") and "/" not in self.name
        require(named, f"name={self.name!r}: is the name of a folder under multirun/; leave out '/'")

    def identity(self) -> str:
        """8 hex digits that two runs share exactly if they measure the same thing."""
        kept = {key: value for key, value in asdict(self).items() if key not in NOT_IDENTITY}
        return sha256(dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def own(group: str, chosen: object, schema: type | UnionType, entry: str) -> None:
    """Refuse an option of the other entry in a group that both have.

    Raises:
        ValueError: where `chosen` is not of this entry's `schema`; the message lists the entry's own options.
    """
    if isinstance(chosen, schema):
        return
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    registered: Any = ConfigStore.instance().repo["schema"][group]
    options = [
        option for option, node in registered.items() if issubclass(OmegaConf.get_type(node.node) or object, schema)
    ]
    names = ", ".join(option.removesuffix(".yaml") for option in options)
    raise ValueError(f"{group}={getattr(chosen, 'name', chosen)}: {entry} has no such {group}; it has {names}")


@dataclass(frozen=True)
class Placement:
    """Where a run's ranks go: the device type, the collectives' backend, the processes a node, and the nodes."""

    device: str
    backend: str
    processes: int
    oversubscribed: bool
    nodes: int = 1

    @property
    def world_size(self) -> int:
        return self.processes * self.nodes

    def ranks(self, gpus: int) -> str:
        """Where a run goes, in words."""
        each = f"{gpus} {'GPU' if self.device == 'cuda' else 'CPU rank'}{'s' if gpus > 1 else ''}"
        several = f"{self.nodes} nodes of {each}" if self.nodes > 1 else each
        return several + (", oversubscribed (not for figures)" if self.oversubscribed else "")


def place(config: RunConfig, cuda_devices: int, nodes: int = 1, processes: int | None = None) -> Placement:
    """Decide device and backend on a machine with `cuda_devices` visible CUDA devices, one of `nodes` that the run
    was given.

    Args:
        processes: ranks a node, where these are not one for each GPU.

    Raises:
        ValueError: what this machine cannot do, with the key and the remedy.
    """
    best = Device.cuda if cuda_devices else Device.cpu
    device = best if config.device is Device.auto else config.device
    on_cuda = device is Device.cuda
    require(not on_cuda or cuda_devices > 0, "device=cuda: no CUDA device is visible; use device=cpu or device=auto")
    fits = not on_cuda or config.gpus <= cuda_devices
    remedy = f"use gpus={cuda_devices} or fewer, device=cpu, or oversubscribe=true to try the code (never for figures)"
    require(fits or config.oversubscribe, f"gpus={config.gpus}: {cuda_devices} CUDA device(s) are visible; {remedy}")
    remedy = "submit it with hydra/launcher=submitit_slurm, or use nodes=1"
    require(config.nodes == nodes, f"nodes={config.nodes}: {nodes} was given; {remedy}")
    oversubscribed = on_cuda and not fits

    backend = config.backend
    if backend is Backend.auto:
        backend = Backend.nccl if on_cuda and not oversubscribed else Backend.gloo
    nccl = backend is Backend.nccl
    require(on_cuda or not nccl, "backend=nccl: needs CUDA devices; use backend=gloo or backend=auto on CPU")
    remedy = "use backend=gloo or backend=auto"
    require(not (nccl and oversubscribed), f"backend=nccl: two of its ranks cannot share a GPU; {remedy}")
    return Placement(device.value, backend.value, processes or config.gpus, oversubscribed, nodes)


def plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON-ready values."""
    return loads(dumps(asdict(config)))


PROFILES: dict[str, type] = {name: ProfileConfig if name is ProfileName.none else WindowConfig for name in ProfileName}
