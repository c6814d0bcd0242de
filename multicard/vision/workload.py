"""The workload of `train_vision.py`: image recognition.

The controller reads it, so this module imports neither torch nor torchvision.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from multicard.config.base import PROFILES, PrecisionConfig
from multicard.config.compilation import has_cuda_graphs
from multicard.config.job import count
from multicard.config.placement import Placement
from multicard.config.sweeps import starts_nothing
from multicard.config.vision import LayoutConfig, LayoutName, ModelConfig, VisionConfig
from multicard.config.vision_data import CacheMode, ImagesConfig
from multicard.machine import environment
from multicard.measure import memory
from multicard.messages import Message, Refusal, say
from multicard.records.schema import VisionRecord
from multicard.records.text_table import in_bytes
from multicard.run.workload import Named, Workload, untried
from multicard.vision import model_names, models, summary, trial
from multicard.vision.data import datasets
from multicard.vision.data.datasets import DATASETS
from multicard.vision.data.loaders import LOADERS
from multicard.vision.optim import OPTIMIZERS
from multicard.vision.precision import PRECISIONS, value_bytes
from multicard.vision.strategy import STRATEGIES, compiles
from multicard.vision.trial import Trial

# no roles: the objects of options, by group
NAMED: dict[str, Mapping[str, object]] = {
    "strategy": STRATEGIES,
    "loader": LOADERS,
    "precision": PRECISIONS,
    "dataset": DATASETS,
    "optimizer": OPTIMIZERS,
}


def refuse(config: VisionConfig) -> None:
    """Refuse names that no option has, as by `strategy.name=`, and what a loader cannot do."""
    for group, options in NAMED.items():
        name = getattr(config, group).name
        if name not in options:
            raise Refusal(
                "vision.no-option",
                f"{group}.name={name}: no such {group}; use"
                f" {', '.join(f'`{group}={option}`' for option in options)}",
                key=f"{group}.name",
                name=name,
                options=list(options),
            )
    LOADERS[config.loader.name].refuse(config)
    strategy = STRATEGIES[config.strategy.name]
    several = config.processes * config.nodes > 1
    if not isinstance(config.strategy, strategy.options):
        raise Refusal(
            "vision.other-strategy",
            f"strategy.name={config.strategy.name}: has other options; choose it by"
            f" `strategy={config.strategy.name}`",
            key="strategy.name",
            name=config.strategy.name,
        )
    grows = several and not strategy.shards and not strategy.takes_turns
    if grows and config.global_batch_size is not None:
        raise Refusal(
            "vision.global-batch",
            f"strategy={config.strategy.name}: trains on more samples an epoch if there are more"
            " ranks, whatever global_batch_size is; use `strategy=ddp_ds` or `strategy=ddp_rr`",
            key="strategy",
            strategy=config.strategy.name,
        )
    models.refuse(config.model.name)


def fits(config: VisionConfig, placement: Placement) -> None:
    """Refuse a strategy or a precision that these devices do not support."""
    STRATEGIES[config.strategy.name].refuse(config, placement)
    on_cuda = placement.device == "cuda"
    precision = config.precision.name
    if not on_cuda and not PRECISIONS[precision].cpu:
        raise Refusal(
            "vision.precision-on-cpu",
            f"precision={precision}: needs CUDA devices; CPU ranks compute in IEEE fp32, use"
            " `precision=fp32`",
            key="precision",
            precision=precision,
        )
    if compiles(config, placement.device):
        environment.require_compilers(config.compile, placement.device)


def has_room(config: VisionConfig, placement: Placement) -> None:
    """Refuse a run that cannot fit into memory, and warn of a run that may not.

    Two things need room: copies of the data set in memory, and the batches of worker processes in
    this machine's shared memory. If shared memory is full, a bus error kills the workers.

    During a slow step the workers make all batches that they may make ahead. The loop holds one
    more, or two while it takes the next one. If batches are copied to page-locked memory, each
    leaves shared memory at once. Only one batch is then certain to be there.
    """
    DATASETS[config.dataset.name].require_room(config.dataset, placement.processes)
    rank_workers = workers(config, placement)
    batches_ahead = LOADERS[config.loader.name].in_shared_memory(config.loader, rank_workers)
    free_bytes = memory.free_shared_memory_bytes()
    if not batches_ahead or free_bytes is None:
        return
    dataset = config.dataset
    batch_size = config.rank_batch_size
    image_bytes = (
        3 * dataset.image_size**2 * value_bytes(PRECISIONS[config.precision.name].transfer)
    )
    batch_bytes = batch_size * (image_bytes + 8)  # A label is an int64.
    batches = math.inf if dataset.train_limit is None else -(-dataset.train_limit // batch_size)
    pinned = config.pin_memory and placement.device == "cuda"
    least_batches = 1 if pinned else placement.processes * min(batches_ahead + 1, batches)
    most_batches = placement.processes * min(batches_ahead + 2, batches)
    if least_batches * batch_bytes > free_bytes:
        problem = _shared_memory_message(
            "need", rank_workers, placement.processes, int(least_batches * batch_bytes), free_bytes
        )
        raise Refusal.of(problem)
    if most_batches * batch_bytes > free_bytes:
        say(
            _shared_memory_message(
                "may need",
                rank_workers,
                placement.processes,
                int(most_batches * batch_bytes),
                free_bytes,
            ),
            error=True,
        )


def _shared_memory_message(
    verb: str, workers: int, ranks: int, needed_bytes: int, free_bytes: int
) -> Message:
    """Return the message that the workers' batches do not fit, or may not, into shared memory."""
    return Message(
        "vision.shared-memory",
        f"num_workers={workers}: the workers of"
        f" {count(ranks, 'rank')} {verb} {in_bytes(needed_bytes)} in /dev/shm, which has"
        f" {in_bytes(free_bytes)} free; use `num_workers=0`, `loader=device`, or a container with a"
        " larger `--shm-size=SIZE`, or with `--ipc=host`",
        key="num_workers",
        verb=verb,
        workers=workers,
        ranks=ranks,
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
    )


def check_requirements(config: VisionConfig) -> None:
    """Check that the loader's library, the data set and the model are there and can be used."""
    LOADERS[config.loader.name].check()
    dataset = DATASETS[config.dataset.name]
    if not (starts_nothing(config) and dataset.downloads(config.dataset)):
        dataset.check(config.dataset)
    if models.is_tried(config.model) and not (
        starts_nothing(config) and dataset.downloads(config.dataset)
    ):
        model = config.model
        # A dry run does not fetch weights.
        if starts_nothing(config) and model.weights == models.PRETRAINED:
            model = replace(model, weights=models.RANDOM)
        data = dataset.read(config.dataset, config.seed)
        ranks = config.processes * config.nodes
        trial.require_trainable(
            Trial(
                model,
                data.classes,
                config.dataset.image_size,
                min(2, config.batch_size),
                averages=ranks > 1,
                class_names=data.class_names if models.weights_file(model) else [],
            )
        )


def workers(config: VisionConfig, placement: Placement) -> int:
    """Return the number of loader workers per rank.

    By default CPU ranks have none: loading takes a hundredth of a step, and the cores are busy.
    """
    if config.num_workers is not None:
        return config.num_workers
    if placement.device == "cpu":
        return 0
    gpus_each = config.gpus // placement.processes
    return min(8 * gpus_each, environment.cores() // placement.processes)


def describe(config: VisionConfig) -> list[str]:
    """Return what will run, as parts of a line."""
    model = (
        f"{models.describe(config.model)} on {config.dataset.name} {config.dataset.image_size} px"
    )
    options = [config.precision.name, str(config.layout.name), config.strategy.name]
    whose = "a rank" if config.processes == config.gpus else "a GPU"
    return [model, *options, f"batch {config.batch_size} {whose}", count(config.epochs, "epoch")]


def advise(config: VisionConfig, placement: Placement, bound: str) -> str:
    """Return the option to try next, which is the best that the run does not have yet.

    Args:
        bound: The limit of the run: "input", "copy", "communication", "launch" or "compute".
    """
    on_cuda = placement.device == "cuda"
    loader = config.loader.name
    dataset = config.dataset
    can_compile = on_cuda and STRATEGIES[config.strategy.name].compiles
    not_compiled = can_compile and not compiles(config, placement.device)
    undecoded = isinstance(dataset, ImagesConfig) and dataset.cache is CacheMode.none
    options = {
        "input": [
            ("dataset.cache=mmap", undecoded),
            ("loader=device", loader != "device"),
            ("dataset.device_budget_bytes, larger", dataset.device_budget_bytes is not None),
            ("a smaller dataset.image_size", True),
        ],
        "copy": [
            ("loader=device", loader != "device"),
            ("pin_memory=true", not config.pin_memory),
            ("dataset.device_budget_bytes, larger", True),
        ],
        "communication": [
            ("strategy=ddp_ds", config.strategy.name != "ddp_ds"),
            ("backend=nccl", on_cuda and placement.backend != "nccl"),
        ],
        "launch": [
            ("compile=true", not_compiled),
            ("compile=reduce-overhead", can_compile and not has_cuda_graphs(config.compile)),
        ],
        "compute": [
            (
                "precision=half",
                on_cuda and not PRECISIONS[config.precision.name].transfer.endswith("16"),
            ),
            ("precision=fp32", config.precision.name == "fp64"),
            ("layout=nhwc", config.layout.name is not LayoutName.nhwc),
            ("compile=true", not_compiled),
            (f"gpus={2 * config.gpus}", config.gpus * config.nodes == 1),
            ("more GPUs" if on_cuda else "more cores", True),
        ],
    }
    return untried(options[bound], otherwise="a larger batch_size")


PRELOAD = (
    "multicard.vision.train",
    "multicard.vision.data.host_loader",
    "pyarrow.parquet",
    "hydra.main",
)
WORKLOAD = Workload(
    name="vision",
    entry="train_vision.py",
    schema=VisionConfig,
    # no roles: the schemas of options, by group
    options={
        "strategy": {name: strategy.options for name, strategy in STRATEGIES.items()},
        "loader": {name: loader.options for name, loader in LOADERS.items()},
        "layout": {str(name): LayoutConfig for name in LayoutName},
        "precision": dict.fromkeys(PRECISIONS, PrecisionConfig),
        "dataset": {name: dataset.options for name, dataset in DATASETS.items()},
        "model": dict.fromkeys(models.BUILDERS, ModelConfig),
        "optimizer": {name: options for name, (_, options) in OPTIMIZERS.items()},
        "profile": PROFILES,
    },
    work="multicard.vision.train:train",
    preload=PRELOAD,
    cuda_preload=PRELOAD,
    refuse=refuse,
    fits=fits,
    has_room=has_room,
    check=check_requirements,
    data=lambda config: datasets.content(config.dataset) | models.content(config.model),
    repeated=lambda config: datasets.repeated(config.dataset, config.seed),
    arguments=lambda config, placement, folder: (config, folder, workers(config, placement)),
    axes=summary.axes,
    describe=describe,
    record=VisionRecord,
    summarise=summary.summarise,
    advise=advise,
    resumable=True,
    free=("dataset.columns",),
    named={
        "model": Named(
            "any classifier of torchvision or timm", model_names.classifier_names, models.refuse
        )
    },
)
