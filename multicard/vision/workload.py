"""What makes a run one of image recognition. Imports neither torch nor torchvision."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicard.config.base import Placement, PrecisionName, require
from multicard.config.vision import CacheMode, ImagesConfig, LayoutName, LoaderName, StrategyName, VisionConfig
from multicard.controller.workload import Workload
from multicard.machine import environment
from multicard.vision import summary
from multicard.vision.data import datasets


def check(config: VisionConfig) -> None:
    """See that the data set, the model and the loader are there.

    Raises:
        ValueError: with the key and the remedy.
    """
    if config.loader.name is LoaderName.dali:
        installed = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
        remedy = "pip install -r requirements-dali.txt (or make dali), or use loader=device"
        require(installed, f"loader=dali: NVIDIA DALI is not installed; {remedy}")
    datasets.check(config.dataset)
    if config.model.name != "mobilenet_v2":
        from multicard.vision import models  # needs torchvision, so seconds

        models.check(config.model)


def workers(config: VisionConfig, placement: Placement) -> int:
    """Loader workers a rank. On CPU ranks none: the input is a hundredth of a step, and they would take its cores."""
    if config.num_workers is not None:
        return config.num_workers
    if placement.device == "cpu":
        return 0
    gpus = config.gpus // placement.processes  # that this rank feeds: all of them with dp
    return min(8 * gpus, environment.cores() // placement.processes)


def arguments(config: VisionConfig, placement: Placement, folder: Path) -> tuple[Any, ...]:
    return config, folder, workers(config, placement)


def describe(config: VisionConfig, placement: Placement) -> str:
    """One line of what will run."""
    size = config.dataset.image_size
    where = placement.ranks(config.gpus)
    return (
        f"{config.model.name} on {config.dataset.name} {size} px, {config.precision.name}, {config.layout.name}, "
        f"{config.strategy.name} on {where}, batch {config.batch_size} a rank, {config.epochs} epochs"
    )


def advise(config: VisionConfig, placement: Placement, bound: str) -> str:
    """The option to try next where a run is bound by this."""
    return next(option for option, open_to_try in _options(config, placement, bound) if open_to_try)


def _options(config: VisionConfig, placement: Placement, bound: str) -> list[tuple[str, bool]]:
    """Options against what bounds a run, the best first, and whether each is still open to it."""
    on_cuda, loader, options = placement.device == "cuda", config.loader.name, config.dataset
    several = config.gpus * config.nodes > 1
    undecoded = isinstance(options, ImagesConfig) and options.cache is CacheMode.none
    found = {
        "input": [
            ("dataset.cache=mmap", undecoded),
            ("loader=device", loader is not LoaderName.device),
            ("dataset.device_budget_bytes, larger", options.device_budget_bytes is not None),
            ("a smaller dataset.image_size", True),
        ],
        "copy": [
            ("loader=device", loader is not LoaderName.device),
            ("pin_memory=true", not config.pin_memory),
            ("dataset.device_budget_bytes, larger", True),
        ],
        "communication": [
            ("strategy=ddp_ds", config.strategy.name is not StrategyName.ddp_ds),
            ("backend=nccl", on_cuda and placement.backend != "nccl"),
            ("a larger batch_size", True),
        ],
        "launch": [
            ("compile=true", on_cuda and not config.compile),
            ("a larger batch_size", True),
        ],
        "compute": [
            ("precision=half", on_cuda and config.precision.name not in LOW),
            ("precision=fp32", config.precision.name is PrecisionName.fp64),
            ("layout=nhwc", config.layout.name is not LayoutName.nhwc),
            ("compile=true", on_cuda and config.compile is False),
            (f"gpus={2 * config.gpus}", not several),
            ("more GPUs", True),
        ],
    }
    return found[bound]


LOW = (PrecisionName.half, PrecisionName.fp16, PrecisionName.bf16)


WORKLOAD = Workload(
    name="vision",
    work="multicard.vision.train:train",
    preload=("multicard.vision.train", "pyarrow.parquet", "hydra.main"),
    check=check,
    arguments=arguments,
    axes=summary.axes,
    describe=describe,
    summarise=summary.summarise,
    advise=advise,
    resumable=True,
)
