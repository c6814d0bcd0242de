"""The schema of `train_vision.py`.

The schemas of a group's options stand here, too; which option has which is for the objects of `multicard.vision` to
say (`STRATEGIES`, `LOADERS`, `DATASETS`, `OPTIMIZERS`).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from omegaconf import MISSING

from multicard.config.base import PrecisionConfig, RunConfig, own, require


class Schedule(StrEnum):
    onecycle = "onecycle"
    cosine = "cosine"
    constant = "constant"


class CacheMode(StrEnum):
    mmap = "mmap"
    ram = "ram"
    none = "none"


class LayoutName(StrEnum):
    nchw = "nchw"
    nhwc = "nhwc"


class ExperimentName(StrEnum):
    table2 = "table2"
    table3 = "table3"
    strategies = "strategies"
    image_size = "image_size"
    vision_metrics = "vision_metrics"
    loss_curves = "loss_curves"
    loaders = "loaders"
    layout = "layout"


@dataclass
class LayoutConfig:
    name: LayoutName = MISSING


@dataclass
class StrategyConfig:
    name: str = MISSING


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
    name: str = MISSING


@dataclass
class WorkersConfig(LoaderConfig):
    """The options of torch's `DataLoader`, with its own defaults but for `persistent_workers`."""

    prefetch_factor: int = 2
    persistent_workers: bool = True

    def __post_init__(self) -> None:
        require(self.prefetch_factor >= 1, f"loader.prefetch_factor={self.prefetch_factor}: must be 1 or more")


@dataclass
class DaliConfig(LoaderConfig):
    """`threads` of a pipeline; null is the rank's share of the cores."""

    threads: Optional[int] = None
    prefetch_queue_depth: int = 2

    def __post_init__(self) -> None:
        threads, depth = self.threads, self.prefetch_queue_depth
        remedy = "must be 1 or more, or null for the rank's share of the cores"
        require(threads is None or threads >= 1, f"loader.threads={threads}: {remedy}")
        require(depth >= 1, f"loader.prefetch_queue_depth={depth}: must be 1 or more")


@dataclass
class DatasetConfig:
    """What every data set has. `mean` and `std` are of grey or RGB values in 0..1; `crop`, the share of an image's
    sides that is shown at a random place, and `flip`, which mirrors half of the images, take effect with `augment`."""

    name: str = MISSING
    image_size: int = MISSING
    train_limit: Optional[int] = None
    test_limit: Optional[int] = None
    mean: list[float] = MISSING
    std: list[float] = MISSING
    augment: bool = False
    crop: float = 0.875
    flip: bool = False
    device_budget_bytes: Optional[int] = None

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
        require(0 < self.crop <= 1, f"dataset.crop={self.crop}: is a share of an image's sides; give one in (0, 1]")
        budget = self.device_budget_bytes
        remedy = "must be 0 or more, or null for a quarter of the memory that is free"
        require(budget is None or budget >= 0, f"dataset.device_budget_bytes={budget}: {remedy}")


@dataclass
class MnistConfig(DatasetConfig):
    root: str = MISSING
    download: bool = False


@dataclass
class ImagesConfig(DatasetConfig):
    root: Optional[str] = None
    cache: CacheMode = CacheMode.mmap
    cache_dir: Optional[str] = None
    skip_broken: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        looked_at = self.cache is not CacheMode.none or not self.skip_broken
        remedy = "broken images are found when the cache is built; use dataset.cache=mmap or ram"
        require(looked_at, f"dataset.skip_broken=true: does not go with dataset.cache=none: {remedy}")
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
    name: str = MISSING
    weight_decay: float = 0.0
    fused: bool = False

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
    compile: Optional[bool] = False
    cudnn_benchmark: bool = False
    warmup_steps: int = 5
    num_workers: Optional[int] = None
    target_accuracy: Optional[float] = None
    stop_at_target: bool = False

    def __post_init__(self) -> None:
        own("dataset", self.dataset, DatasetConfig, "train_vision.py")
        own("model", self.model, ModelConfig, "train_vision.py")
        super().__post_init__()
        require(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps}: must be 0 or more")
        workers, target = self.num_workers, self.target_accuracy
        require(workers is None or workers >= 0, f"num_workers={workers}: must be 0 or more, or null to choose")
        in_range = target is None or 0 < target <= 1
        require(in_range, f"target_accuracy={target}: is a share; give a value in (0, 1], as 0.97")
        stops = target is not None or not self.stop_at_target
        require(stops, "stop_at_target=true: needs target_accuracy")
