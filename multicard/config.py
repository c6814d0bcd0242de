"""The schema of every option group, and what is refused before anything starts.

YAML files under `conf/` hold values; these dataclasses hold types. `__post_init__` refuses values that can never
work, `place` what this machine cannot do. Nothing here imports torch: `--help`, `--cfg job` and refusals are
answered in well under a second.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from json import dumps, loads
from types import UnionType
from typing import TYPE_CHECKING, Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from multicard.config_job import ASKED, Device, JobConfig, require


class Backend(StrEnum):
    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


class Malloc(StrEnum):
    tuned = "tuned"
    system = "system"


class Schedule(StrEnum):
    onecycle = "onecycle"
    cosine = "cosine"
    constant = "constant"


class PrecisionName(StrEnum):
    fp64 = "fp64"
    fp32 = "fp32"
    fp32_ieee = "fp32_ieee"
    tf32 = "tf32"
    fp16 = "fp16"
    bf16 = "bf16"


class StrategyName(StrEnum):
    ddp_ds = "ddp_ds"
    ddp_rr = "ddp_rr"
    ddp = "ddp"
    dp = "dp"


class LoaderName(StrEnum):
    torch = "torch"


class LayoutName(StrEnum):
    nchw = "nchw"
    nhwc = "nhwc"


class DatasetName(StrEnum):
    digits = "digits"
    mnist = "mnist"
    images = "images"


class OptimizerName(StrEnum):
    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


class TrackerMode(StrEnum):
    offline = "offline"
    online = "online"
    disabled = "disabled"


@dataclass
class PrecisionConfig:
    name: PrecisionName = MISSING


@dataclass
class LayoutConfig:
    name: LayoutName = MISSING


@dataclass
class StrategyConfig:
    name: StrategyName = MISSING


@dataclass
class DdpConfig(StrategyConfig):
    """The options of `DistributedDataParallel`, with its own defaults."""

    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = False
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        require(self.bucket_cap_mb > 0, f"strategy.bucket_cap_mb={self.bucket_cap_mb}: must be above 0 (default 25)")


@dataclass
class LoaderConfig:
    name: LoaderName = MISSING
    prefetch_factor: int = 2
    persistent_workers: bool = True

    def __post_init__(self) -> None:
        require(self.prefetch_factor >= 1, f"loader.prefetch_factor={self.prefetch_factor}: must be 1 or more")


@dataclass
class DatasetConfig:
    """What every data set has. `mean` and `std` are of grey or RGB values in 0..1."""

    name: DatasetName = MISSING
    image_size: int = MISSING
    train_limit: Optional[int] = None
    test_limit: Optional[int] = None
    mean: list[float] = MISSING
    std: list[float] = MISSING

    def __post_init__(self) -> None:
        size = self.image_size
        require(size >= 32, f"dataset.image_size={size}: MobileNetV2 halves an image five times; take 32 or more")
        for key in ("train_limit", "test_limit"):
            limit = getattr(self, key)
            require(limit is None or limit >= 1, f"dataset.{key}={limit}: must be 1 or more, or null for all")
        for key in ("mean", "std"):
            values = getattr(self, key)
            require(len(values) == 3, f"dataset.{key}={values}: give three values, one a channel (R, G, B)")
        require(min(self.std) > 0, f"dataset.std={self.std}: must be above 0")


@dataclass
class MnistConfig(DatasetConfig):
    root: str = MISSING
    download: bool = False


@dataclass
class ImagesConfig(DatasetConfig):
    root: Optional[str] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "set it to a folder that holds train/<class>/ and validation/<class>/"
        require(self.root is not None, f"dataset.root is not set: {remedy}")


@dataclass
class ModelConfig:
    name: str = MISSING
    width: float = 1.0

    def __post_init__(self) -> None:
        require(self.width > 0, f"model.width={self.width}: must be above 0")
        has_width = self.name == "mobilenet_v2"
        require(has_width or self.width == 1, f"model.width={self.width}: only mobilenet_v2 has it; leave it at 1")


@dataclass
class OptimizerConfig:
    name: OptimizerName = MISSING
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require(self.weight_decay >= 0, f"optimizer.weight_decay={self.weight_decay}: must be 0 or more")


@dataclass
class SgdConfig(OptimizerConfig):
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, f"optimizer.momentum={self.momentum}: must be in [0, 1)")
        works = self.momentum > 0 or not self.nesterov
        require(works, "optimizer.nesterov=true: needs optimizer.momentum above 0")


@dataclass
class AdamConfig(OptimizerConfig):
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        works = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(works, f"optimizer.betas={self.betas}: give two values in [0, 1)")
        require(self.eps > 0, f"optimizer.eps={self.eps}: must be above 0")


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
    """What both entries share."""

    name: str = MISSING
    backend: Backend = Backend.auto
    oversubscribe: bool = False
    seed: int = 0
    epochs: int = 1
    batch_size: int = 1
    pin_memory: bool = True
    lr: float = MISSING
    malloc: Malloc = Malloc.tuned
    rerun: bool = False
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


def own(group: str, chosen: object, schema: type | UnionType, entry: str, options: Iterable[str]) -> None:
    """Refuse what the other entry put into a group that both share.

    Raises:
        ValueError: where `chosen` is not of this entry's `schema`; the message lists the entry's own `options`.
    """
    name = getattr(chosen, "name", chosen)
    require(isinstance(chosen, schema), f"{group}={name}: {entry} has no such {group}; it has {', '.join(options)}")


# Groups that both entries share are typed by their options' schemas: `own` then refuses the other entry's.
if TYPE_CHECKING:
    Dataset = DatasetConfig
    Model = ModelConfig
else:
    Dataset = Model = Any


@dataclass
class VisionConfig(RunConfig):
    """The configuration of `train_vision.py`, once composed."""

    precision: PrecisionConfig = MISSING
    strategy: StrategyConfig = MISSING
    loader: LoaderConfig = MISSING
    layout: LayoutConfig = MISSING
    dataset: Dataset = MISSING
    model: Model = MISSING
    optimizer: OptimizerConfig = MISSING
    schedule: Schedule = Schedule.onecycle
    warmup_steps: int = 5
    num_workers: Optional[int] = None
    target_accuracy: Optional[float] = None
    stop_at_target: bool = False

    def __post_init__(self) -> None:
        own("dataset", self.dataset, DatasetConfig, "train_vision.py", DatasetName)
        own("model", self.model, ModelConfig, "train_vision.py", ["mobilenet_v2"])
        super().__post_init__()
        require(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps}: must be 0 or more")
        workers, target = self.num_workers, self.target_accuracy
        require(workers is None or workers >= 0, f"num_workers={workers}: must be 0 or more, or null to choose")
        in_range = target is None or 0 < target <= 1
        require(in_range, f"target_accuracy={target}: is a share; give a value in (0, 1], as 0.97")
        stops = target is not None or not self.stop_at_target
        require(stops, "stop_at_target=true: needs target_accuracy")


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


def place(config: RunConfig, cuda_devices: int, nodes: int = 1) -> Placement:
    """Decide device and backend on a machine with `cuda_devices` visible CUDA devices, one of `nodes` that the run
    was given.

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
    processes = config.gpus
    if isinstance(config, VisionConfig):
        _check_vision(config, on_cuda, oversubscribed)
        if config.strategy.name is StrategyName.dp:
            processes = 1
    return Placement(device.value, backend.value, processes, oversubscribed, nodes)


def _check_vision(config: VisionConfig, on_cuda: bool, oversubscribed: bool) -> None:
    strategy, precision = config.strategy, config.precision.name
    if strategy.name is StrategyName.dp:
        remedy = "use strategy=ddp_ds"
        require(on_cuda, f"strategy=dp: nn.DataParallel needs CUDA devices; {remedy}")
        require(config.nodes == 1, f"strategy=dp: nn.DataParallel is of one process, so nodes=1; {remedy}")
        require(not oversubscribed, f"strategy=dp: its replicas cannot share a GPU; {remedy}")
    synced = isinstance(strategy, DdpConfig) and strategy.sync_batchnorm
    remedy = "its last round may have no batch for some ranks, and their statistics would be waited for; use ddp_ds"
    alone = strategy.name is StrategyName.ddp_rr and synced
    require(not alone, f"strategy.sync_batchnorm=true: does not go with ddp_rr: {remedy}")
    require(on_cuda or not synced, "strategy.sync_batchnorm=true: torch's SyncBatchNorm needs CUDA; leave it false")
    remedy = "CPU ranks compute in IEEE fp32; use precision=fp32"
    require(on_cuda or precision is not PrecisionName.tf32, f"precision=tf32: needs CUDA devices; {remedy}")


def plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON-ready values."""
    return loads(dumps(asdict(config)))


# Options whose keys differ within their group, or whose group both entries share, name their own schema; the others
# are typed by VisionConfig's fields.
SCHEMAS: dict[str, dict[str, type]] = {
    "strategy": {name: StrategyConfig if name is StrategyName.dp else DdpConfig for name in StrategyName},
    "dataset": {
        DatasetName.digits: DatasetConfig,
        DatasetName.mnist: MnistConfig,
        DatasetName.images: ImagesConfig,
    },
    "model": {"mobilenet_v2": ModelConfig},
    "optimizer": {
        OptimizerName.sgd: SgdConfig,
        OptimizerName.adam: AdamConfig,
        OptimizerName.adamw: AdamConfig,
    },
}


def register() -> None:
    """Put the schemas where the files under `conf/` look for them (`schema/...`)."""
    from multicard import config_llm

    store = ConfigStore.instance()
    store.store(group="schema", name="vision", node=VisionConfig)
    store.store(group="schema", name="llm", node=config_llm.LlmConfig)
    for group, options in (*SCHEMAS.items(), *config_llm.SCHEMAS.items()):
        for name, node in options.items():
            store.store(group=f"schema/{group}", name=name, node=node)
