"""Count the kernels and the bytes of a training step and of an evaluated batch, without a GPU."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from benchmarks import absent_gpu
from benchmarks.kernel_bytes import BATCH, EagerLaunches, Graph, collect_graphs
from multicard.config.vision import VisionConfig
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.vision import compiling, models, optim
from multicard.vision.data.batch import Batch, LoaderInput
from multicard.vision.data.device_loader import Resident
from multicard.vision.data.splits import Split
from multicard.vision.loop import COUNTS, Loop, memory_format
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES

CLASSES = 10
SOURCE_SIDE = 28  # The images of the data set have 28 x 28 pixels, like MNIST's.
BATCHES = 4  # The made data set has this number of batches.


@dataclass
class StepCount:
    """The launches of a training step and of the evaluation of a batch.

    Attributes:
        graphs: the generated code of the forward pass, the backward pass and inference.
        batch, step, evaluation: the launches outside these graphs, by operation, while the batch is
            made, in the step, and in the evaluation.
    """

    graphs: list[Graph]
    batch: Mapping[str, int]
    step: Mapping[str, int]
    evaluation: Mapping[str, int]

    @property
    def outside(self) -> int:
        """Return the number of launches of a step outside generated code."""
        return sum(self.batch.values()) + sum(self.step.values())


def count_step(config: VisionConfig, options: Mapping[str, Any] | None = None) -> StepCount:
    """Count the launches of the training loop on one GPU with this configuration.

    The images are grey, 28 x 28 pixels, and reside on the GPU (`loader=device`). With other
    loaders, each batch is on the device already.

    Args:
        options: options of Inductor, by their names there, which are set besides the project's.
    """
    torch._dynamo.reset()
    project_options = compiling.inductor_options

    def options_with(*model_arguments: Any) -> dict[str, Any]:
        # CUDA graphs would be recorded on a device. They consist of the same kernels.
        without_graphs = {"triton.cudagraphs": False}
        return {**project_options(*model_arguments), **without_graphs, **(options or {})}

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(compiling, "inductor_options", options_with))
        mode = stack.enter_context(absent_gpu.pretend_gpu())
        graphs = stack.enter_context(collect_graphs(mode))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = models.build(config.model, CLASSES, config.dataset.image_size)
        with mode:
            absent_gpu.move_model(model, memory_format(config))
            loop = _loop(config, model, folder)
            make = _batches(config, loop)
        return _counted(loop, make, mode, graphs)


def _loop(config: VisionConfig, model: nn.Module, folder: Path) -> Loop:
    """Return the training loop of a model on the device, as `train.train` makes it."""
    device = torch.device(absent_gpu.DEVICE)
    rank = Rank(0, 0, 1, device, "nccl", 1)
    precision = choose(config.precision.name, device)
    compiling.compile_model(model, config, device.type)
    samples = BATCHES * config.batch_size
    share = STRATEGIES[config.strategy.name].share(model, samples, config, rank)
    optimization = optim.build(
        share.model, config, config.epochs * share.steps, precision.scale_loss, device
    )
    Board(folder, 1, create=True)
    return Loop(rank, config, share, optimization, folder)


def _batches(config: VisionConfig, loop: Loop) -> Callable[[], Batch]:
    """Return a function that makes a batch on the device."""
    size = config.batch_size
    side = config.dataset.image_size
    device = loop.rank.device
    if config.loader.name != "device":
        ready = torch.empty(size, 1, side, side, dtype=loop.precision.transfer_dtype, device=device)
        labels = torch.empty(size, dtype=torch.int64, device=device)
        return lambda: Batch(ready, labels, images_bytes=0, labels_bytes=0)
    indices = np.arange(BATCHES * size)
    split = Split(
        np.zeros((len(indices), SOURCE_SIDE, SOURCE_SIDE), np.uint8),
        np.zeros(len(indices), np.int64),
    )
    dtype = loop.precision.transfer_dtype
    source = LoaderInput(
        split,
        loop.share.sampler,
        size,
        0,
        config,
        dtype,
        pin=True,
        device=device,
        compiled=loop.compiled,
    )
    loader = Resident(source)
    loader.order = torch.empty(len(indices), dtype=torch.int64, device=device)
    return lambda: Batch(
        *loader._batch(slice(0, size), indices, indices), images_bytes=0, labels_bytes=0
    )


def _counted(loop: Loop, make: Callable[[], Batch], mode: Any, graphs: list[Graph]) -> StepCount:
    """Run each part twice and count the second run.

    The first run allocates lasting tensors, such as the optimizer's state.
    """
    batches: list[Batch] = []
    with mode:
        sums = torch.zeros(4, dtype=torch.float64, device=loop.rank.device)

    def make_batch() -> None:
        with mode:
            batches.append(make())

    def step() -> None:
        _, loss = loop.step(iter(batches[-1:]))
        assert loss is not None
        loop.losses[0] = loss  # `Loop.train_epoch` stores it like this.

    def evaluate() -> None:
        with torch.no_grad():
            loop.add_tested(iter(batches[-1:]), sums, dict.fromkeys(COUNTS, 0))

    def launches(part: Callable[[], None]) -> Counter[str]:
        counts = []
        for _ in range(2):
            with EagerLaunches(mode) as eager:
                part()
            counts.append(eager.launches)
        return counts[-1]

    loop.share.model.train()
    batch_launches = launches(make_batch)
    for graph in graphs:
        graph.part = BATCH
    step_launches = launches(step)
    loop.share.evaluation_model.eval()
    return StepCount(graphs, batch_launches, step_launches, launches(evaluate))
