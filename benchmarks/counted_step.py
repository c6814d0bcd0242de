"""A step of training and a batch of evaluation on a GPU that is not there: what they launch and
which bytes they move."""

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
from benchmarks.kernel_bytes import BATCH, EagerLaunches, Graph, generated
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
SOURCE_SIDE = 28  # pixels of the images in the data set, as MNIST's
BATCHES = 4  # of the made data set


@dataclass
class StepCount:
    """What a step, and an evaluation of a batch, launch.

    graphs: generated code, of forward and backward pass and of inference.
    batch, step, evaluation: launches outside these graphs, by operation: making the batch, the
    step, the evaluation.
    """

    graphs: list[Graph]
    batch: Mapping[str, int]
    step: Mapping[str, int]
    evaluation: Mapping[str, int]

    @property
    def outside(self) -> int:
        """Launches of a step outside generated code."""
        return sum(self.batch.values()) + sum(self.step.values())


def count_step(config: VisionConfig, options: Mapping[str, Any] | None = None) -> StepCount:
    """Count what the training loop of one GPU launches with this configuration, on grey images of
    28 pixels a side that the GPU holds (`loader=device`; with others a batch is there already).

    Args:
        options: of Inductor, by its own names, beside those of the project.
    """
    torch._dynamo.reset()
    own = compiling.inductor_options

    def options_with(*of_model: Any) -> dict[str, Any]:
        # they are recorded on a device, of the same kernels
        graphs_run = {"triton.cudagraphs": False}
        return {**own(*of_model), **graphs_run, **(options or {})}

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(compiling, "inductor_options", options_with))
        mode = stack.enter_context(absent_gpu.pretended())
        graphs = stack.enter_context(generated(mode))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = models.build(config.model, CLASSES, config.dataset.image_size)
        with mode:
            absent_gpu.put(model, memory_format(config))
            loop = _loop(config, model, folder)
            make = _batches(config, loop)
        return _counted(loop, make, mode, graphs)


def _loop(config: VisionConfig, model: nn.Module, folder: Path) -> Loop:
    """The training loop as `train.train` makes it, of a model on the device."""
    device = torch.device(absent_gpu.DEVICE)
    rank = Rank(0, 0, 1, device, "nccl", 1)
    precision = choose(config.precision.name, device)
    compiling.compile_model(model, config, device.type)
    samples = BATCHES * config.batch_size
    share = STRATEGIES[config.strategy.name].share(model, samples, config, rank)
    optimisation = optim.build(
        share.model, config, config.epochs * share.steps, precision.scale_loss, device
    )
    Board(folder, 1, create=True)
    return Loop(rank, config, share, optimisation, folder)


def _batches(config: VisionConfig, loop: Loop) -> Callable[[], Batch]:
    """What makes a batch on the device."""
    size = config.batch_size
    side = config.dataset.image_size
    device = loop.rank.device
    if config.loader.name != "device":
        ready = torch.empty(size, 1, side, side, dtype=loop.precision.transfer_dtype, device=device)
        labels = torch.empty(size, dtype=torch.int64, device=device)
        return lambda: Batch(ready, labels, images_bytes=0, labels_bytes=0)
    draws = np.arange(BATCHES * size)
    split = Split(
        np.zeros((len(draws), SOURCE_SIDE, SOURCE_SIDE), np.uint8), np.zeros(len(draws), np.int64)
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
    loader.order = torch.empty(len(draws), dtype=torch.int64, device=device)
    return lambda: Batch(
        *loader._batch(slice(0, size), draws, draws), images_bytes=0, labels_bytes=0
    )


def _counted(loop: Loop, make: Callable[[], Batch], mode: Any, graphs: list[Graph]) -> StepCount:
    """Each part is run twice and its second time counted: the first makes what stays, as the
    optimiser's state."""
    batches: list[Batch] = []
    with mode:
        sums = torch.zeros(4, dtype=torch.float64, device=loop.rank.device)

    def make_batch() -> None:
        with mode:
            batches.append(make())

    def step() -> None:
        _, loss = loop.step(iter(batches[-1:]))
        assert loss is not None
        loop.losses[0] = loss  # as `Loop.train_epoch` keeps it

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
    of_batch = launches(make_batch)
    for graph in graphs:
        graph.part = BATCH
    of_step = launches(step)
    loop.share.evaluated.eval()
    return StepCount(graphs, of_batch, of_step, launches(evaluate))
