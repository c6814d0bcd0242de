"""The schema of `train_vision.py`.

It includes the schemas of options. The objects in `multicard.vision` (`STRATEGIES`, `LOADERS`,
`DATASETS`, `OPTIMIZERS`) assign a schema to each option.
"""

from dataclasses import dataclass
from enum import StrEnum

# OmegaConf supports Optional[...] in every Python version.
from typing import ClassVar, Optional, Union

from omegaconf import MISSING

from multicard.config import compilation
from multicard.config.base import GroupOption, PrecisionConfig, TrainingConfig
from multicard.config.keys import Group, Tries, key, option_name
from multicard.config.roles import MODEL_SIZE, WAY_TO_TRAIN, Role
from multicard.config.saving import Save, require_whole_training
from multicard.config.vision_data import DatasetConfig
from multicard.messages import Refusal

Schedule = StrEnum("Schedule", ["onecycle", "cosine", "constant"])
LayoutName = StrEnum("LayoutName", ["nchw", "nhwc"])


@dataclass
class LayoutConfig(Group):
    name: LayoutName = option_name()


@dataclass
class StrategyConfig(GroupOption):
    """The keys of every strategy. Strategies with more keys extend it."""


@dataclass
class DdpConfig(StrategyConfig):
    """The options of `DistributedDataParallel`, with its own defaults."""

    bucket_cap_mb: float = key(
        25.0,
        "DDP: size of a bucket of gradients that are reduced together, in MiB",
        Role.identity | Role.memory | Role.speed,
        above=0,
    )
    gradient_as_bucket_view: bool = key(
        False,
        "DDP: let gradients share the memory of the buckets, which saves a copy",
        Role.identity | Role.memory | Role.speed,
    )
    sync_batchnorm: bool = key(
        False,
        "CUDA: compute BatchNorm statistics over all ranks instead of one",
        WAY_TO_TRAIN,
    )


@dataclass
class DpConfig(StrategyConfig):
    """`DataParallel` uses one process for all GPUs of the node. It has no options."""


@dataclass
class LoaderConfig(GroupOption):
    """The keys of every loader. Loaders with more keys extend it."""


@dataclass
class WorkersConfig(LoaderConfig):
    """The options of torch's `DataLoader`, with its defaults except for `persistent_workers`."""

    prefetch_factor: int = key(
        2, "number of batches that each worker loads ahead", Role.identity | Role.speed, least=1
    )
    persistent_workers: bool = key(
        True, "keep the workers alive from epoch to epoch", Role.identity | Role.speed
    )


@dataclass
class BatchedConfig(LoaderConfig):
    ahead: int = key(
        2,
        "batches that the threads prepare ahead of the step; host memory holds up to three more",
        Role.identity | Role.speed,
        least=1,
    )


@dataclass
class DaliConfig(LoaderConfig):
    threads: Optional[int] = key(
        None,
        "CPU threads of a pipeline; null: the rank's share of the cores",
        Role.identity | Role.speed,
        least=1,
    )
    prefetch_queue_depth: int = key(
        2, "batches that a pipeline loads ahead", Role.identity | Role.memory | Role.speed, least=1
    )


Pointwise = StrEnum("Pointwise", ["convolution", "linear"])
Depthwise = StrEnum("Depthwise", ["convolution", "triton"])
Freeze = StrEnum("Freeze", ["none", "backbone"])


@dataclass
class ModelConfig(Group):
    name: str = key(
        MISSING,
        "mobilenet_v2, or another classifier of torchvision or timm, as in model=resnet50",
        Role.option,
    )
    width: float = key(
        1.0,
        "MobileNetV2's width multiplier",
        MODEL_SIZE,
        above=0,
    )
    pointwise: Pointwise = key(
        Pointwise.convolution,
        "how 1 x 1 convolutions are computed: convolution, or linear with layout=nhwc",
        Role.identity | Role.memory | Role.speed,
        since=("width", "convolution"),
    )
    depthwise: Depthwise = key(
        Depthwise.convolution,
        "how depthwise 3 x 3, 5 x 5 and 7 x 7 convolutions are computed: convolution, or triton"
        " with layout=nhwc on CUDA",
        Role.identity | Role.memory | Role.speed,
        since=("width", "convolution"),
    )
    weights: str = key(
        "random",
        "random, pretrained (by torchvision or timm), or a file of weights: .safetensors, .pth",
        Role.identity | Role.work | Role.content | Role.learning | Role.speed,
        since=("width", "random"),
        also=("pretrained",),
        means={"true": "pretrained", "false": "random"},
    )
    weights_from: Optional[str] = key(
        None,
        "which weights to take from a file with several, as state_dict or state_dict_ema; null:"
        " averaged ones",
        Role.identity | Role.work | Role.learning | Role.speed,
        since=("width", None),
    )
    freeze: Freeze = key(
        Freeze.none,
        "backbone: only the last layer trains, and all others compute as in evaluation",
        Role.identity | Role.work | Role.learning | Role.memory | Role.speed,
        since=("width", "none"),
    )

    def __post_init__(self) -> None:
        if not self.weights:
            raise Refusal(
                "config.model-weights-empty",
                "model.weights='': is not a file; use `model.weights=random`,"
                " `model.weights=pretrained` or `model.weights=FILE`",
                key="model.weights",
            )
        if self.weights_from is not None and self.weights in ("random", "pretrained"):
            raise Refusal(
                "config.model-weights-from",
                f"model.weights_from={self.weights_from}: chooses among the weights of a file, but"
                f" model.weights={self.weights} is not a file; use `model.weights=FILE`, or"
                " `model.weights_from=null`",
                key="model.weights_from",
                weights=self.weights,
            )
        if self.name == "mobilenet_v2":
            return
        if self.width != 1:
            raise Refusal(
                "config.model-width",
                f"model.width={self.width}: only mobilenet_v2 has a width; use `model.width=1`",
                key="model.width",
                value=self.width,
                model=self.name,
            )


@dataclass
class OptimizerConfig(Group):
    name: str = option_name()
    weight_decay: float = key(
        0.0,
        "factor of weight decay, which is decoupled with adamw",
        Role.identity | Role.learning | Role.speed,
        least=0,
        also=("wd",),
    )
    fused: bool = key(
        False, "update all parameters with one kernel", Role.identity | Role.memory | Role.speed
    )


@dataclass
class SgdConfig(OptimizerConfig):
    momentum: float = key(
        0.0,
        "momentum in [0, 1); schedule=onecycle instead moves it from 0.95 to 0.85 and back",
        WAY_TO_TRAIN,
    )
    nesterov: bool = key(
        False, "use Nesterov's momentum", Role.identity | Role.learning | Role.speed
    )

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise Refusal(
                "config.optimizer-momentum",
                f"optimizer.momentum={self.momentum}: must be in [0, 1)",
                key="optimizer.momentum",
                value=self.momentum,
            )
        if self.nesterov and self.momentum == 0:
            raise Refusal(
                "config.optimizer-nesterov",
                "optimizer.nesterov=true: needs a momentum above 0, as `optimizer.momentum=0.9`",
                key="optimizer.nesterov",
            )


@dataclass
class AdamConfig(OptimizerConfig):
    betas: list[float] = key(
        lambda: [0.9, 0.999],
        "decay rates of the two moments, in [0, 1); schedule=onecycle moves the first from 0.95 to"
        " 0.85 and back",
        Role.identity | Role.learning,
    )
    eps: float = key(
        1e-8, "added to the denominator of an update", Role.identity | Role.learning, above=0
    )

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise Refusal(
                "config.optimizer-betas",
                f"optimizer.betas={self.betas}: give two values in [0, 1), as"
                " `optimizer.betas=[0.9,0.999]`",
                key="optimizer.betas",
                value=self.betas,
            )


# The axes of a run's record, in the order of tables.
AXES = (
    "precision",
    "gpus",
    "nodes",
    "strategy",
    "loader",
    "layout",
    "pin_memory",
    "dataset",
    "dataset.image_size",
    "model",
    "batch_size",
    "epochs",
    "seed",
    "scale",
)


@dataclass
class VisionConfig(TrainingConfig):
    """The composed configuration of `train_vision.py`."""

    kind: ClassVar[str] = "vision"

    precision: PrecisionConfig = key(
        MISSING,
        "number format of weights, activations and gradients",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.titled,
        shown=7,
        tries=Tries(("fp32", "bf16"), ("forward", "backward")),
        also=("dtype", "torch_dtype", "mixed_precision"),
        means={
            "float16": "fp16",
            "bfloat16": "bf16",
            "float32": "fp32",
            "float64": "fp64",
            "double": "fp64",
            "16": "fp16",
            "16-mixed": "fp16",
            "bf16-mixed": "bf16",
            "32": "fp32",
            "amp": "half",
            "autocast": "half",
        },
    )
    strategy: StrategyConfig = key(
        MISSING,
        "how ranks share the data and exchange gradients",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.titled | Role.defining,
        shown=9,
        title="data distribution",
        also=("parallelism", "distribution"),
        means={"distributed_data_parallel": "ddp_ds", "data_parallel": "dp"},
    )
    loader: LoaderConfig = key(
        MISSING,
        "how batches are prepared and copied to the device",
        Role.identity | Role.memory | Role.speed | Role.titled | Role.defining,
        shown=10,
        tries=Tries(("torch", "device"), ("data", "h2d")),
        also=("dataloader", "data_loader"),
    )
    layout: LayoutConfig = key(
        MISSING,
        "memory layout of images: nchw, or nhwc (channels last)",
        Role.identity | Role.memory | Role.speed | Role.titled | Role.defining,
        shown=8,
        title="memory layout",
        tries=Tries(("nchw", "nhwc"), ("forward", "backward")),
        also=("memory_format",),
        means={"channels_last": "nhwc", "channels_first": "nchw", "contiguous": "nchw"},
    )
    dataset: DatasetConfig = key(
        MISSING,
        "data set of images to train on",
        Role.identity
        | Role.work
        | Role.content
        | Role.learning
        | Role.memory
        | Role.speed
        | Role.titled,
        shown=0,
        also=(
            "data",
            "data_dir",
            "data_path",
            "data_root",
            "data_folder",
            "dataset_name",
            "dataset_path",
            "train_dir",
            "root",
        ),
        means={
            "image_folder": "images",
            "folder": "images",
            "imagenet": "images",
            "custom": "images",
        },
    )
    model: ModelConfig = key(
        MISSING,
        "image classifier to train",
        Role.identity
        | Role.work
        | Role.content
        | Role.learning
        | Role.memory
        | Role.speed
        | Role.titled,
        shown=2,
        also=("arch", "architecture", "model_name", "net", "network", "backbone"),
    )
    optimizer: OptimizerConfig = key(
        MISSING,
        "how weights are updated; also sets lr",
        WAY_TO_TRAIN,
        also=("optim", "opt", "optimiser"),
    )
    schedule: Schedule = key(
        Schedule.onecycle,
        "schedule of the learning rate: onecycle, cosine or constant",
        Role.identity | Role.learning,
        also=("scheduler", "lr_scheduler", "lr_schedule", "sched"),
        means={"none": "constant", "cosine_annealing": "cosine"},
    )
    compile: Optional[Union[bool, str]] = key(
        False,
        "torch.compile the model: true, or a mode such as reduce-overhead; null: only on CUDA",
        Role.identity | Role.speed,
        also=("torch_compile", "torchcompile"),
    )
    cudnn_benchmark: bool = key(
        False, "let cuDNN choose its convolutions by timing them", Role.identity | Role.speed
    )
    warmup_steps: int = key(
        5,
        "number of first steps that step_s and images_per_s leave out; records mark them",
        Role.identity,
        least=0,
    )
    num_workers: Optional[int] = key(
        None,
        "loader workers per rank: threads with loader=batched, processes with loader=torch; null: 0"
        " on CPU ranks, and min(8, cores / ranks) on CUDA",
        Role.identity | Role.speed,
        least=0,
        tries=Tries(("1", "2", "4"), ("data",)),
        also=("workers", "dataloader_num_workers"),
    )
    target_accuracy: Optional[float] = key(
        None,
        "record the time until the test accuracy reaches this value, in (0, 1]; null: none",
        Role.identity | Role.work,
    )
    stop_at_target: bool = key(
        False, "stop once target_accuracy is reached", Role.identity | Role.work | Role.learning
    )
    save: Save = key(
        Save.none,
        "what to keep in the run's folder: model (its weights) or none",
        Role.beside,
    )

    @property
    def processes(self) -> int:
        return 1 if isinstance(self.strategy, DpConfig) else self.gpus

    @property
    def rank_batch_size(self) -> int:
        """The number of images that a rank loads for a step: `batch_size` for each of its GPUs."""
        return self.batch_size * self.gpus // self.processes

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compile = compilation.checked(self.compile)
        require_whole_training(self, self.save)
        if self.model.pointwise is Pointwise.linear and self.layout.name is not LayoutName.nhwc:
            raise Refusal(
                "config.pointwise-layout",
                "model.pointwise=linear: treats the channels of NHWC images as a matrix; use"
                " `layout=nhwc` or `model.pointwise=convolution`",
                key="model.pointwise",
            )
        target = self.target_accuracy
        if target is not None and not 0 < target <= 1:
            raise Refusal(
                "config.target-accuracy",
                f"target_accuracy={target}: is a share; give a value in (0, 1], as"
                " `target_accuracy=0.97`",
                key="target_accuracy",
                value=target,
            )
        if self.stop_at_target and target is None:
            raise Refusal(
                "config.target-missing",
                "stop_at_target=true: needs an accuracy to stop at, as `target_accuracy=0.97`",
                key="stop_at_target",
            )
