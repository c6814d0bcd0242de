"""Compile the model with torch.compile, and do all of the compilation before training starts.

So the time of compilation is recorded apart from the steps. cuDNN's search for the fastest
convolutions is kept out of the measured steps in the same way.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from multicard.config import compilation
from multicard.config.vision import LayoutName, VisionConfig
from multicard.measure import timing
from multicard.ranks.failures import compile_explained
from multicard.vision.data.batch import Input
from multicard.vision.data.device_loader import Resident
from multicard.vision.loop import Loop
from multicard.vision.strategy import compiles

# Inductor stores an intermediate result that has several uses if it reads more than 4 tensors,
# however small they are. BatchNorm's output reads 5, of which 4 have one value per channel. The
# gradient of ReLU6 or SiLU reads one more. So the backward pass would build it again, store it, and
# read it again. A result that reads two or more tensors of one size is stored as before. Otherwise
# sums of gradients would be computed again for each of their uses. `python -m
# benchmarks.generated_code` counts the bytes of both variants. docs/studies/h200.md has the table,
# also for models without BatchNorm, for which it does not pay.
STORING = {"realize_reads_threshold": 6, "realize_acc_reads_size_threshold": 1}


def own_options(model: nn.Module, layout: str, device_type: str) -> dict[str, Any]:
    """Return the options of Inductor that this project sets besides those of a mode.

    Inductor turns convolutions to channels-last if its heuristics expect a gain, and on CPU always.
    With layout=nchw this is forbidden, because the layout is an axis of sweeps. See
    `torch._inductor.graph.GraphLowering.decide_layout_opt`.
    """
    options: dict[str, Any] = {}
    if layout == LayoutName.nchw:
        options["layout_optimization"] = False
    if device_type == "cuda" and any(isinstance(module, _BatchNorm) for module in model.modules()):
        options |= STORING
    return options


def inductor_options(model: nn.Module, mode: str, layout: str, device_type: str) -> dict[str, Any]:
    """Return all options of Inductor for a model that is compiled in a mode of torch.compile."""
    from torch._inductor import list_mode_options

    return {**list_mode_options(mode), **own_options(model, layout, device_type)}


def compile_model(model: nn.Module, config: VisionConfig, device_type: str) -> None:
    """Have torch compile `model` in place when it is first called."""
    mode = compilation.mode(config.compile)
    layout = config.layout.name
    options = inductor_options(model, mode, layout, device_type)
    model.compile(dynamic=False, options=options)


def recorded_options(model: nn.Module, config: VisionConfig, device_type: str) -> dict[str, Any]:
    """Return this project's options of Inductor as flags of a run's record.

    They are empty if the run is not compiled.
    """
    if not compiles(config, device_type):
        return {}
    options = own_options(model, config.layout.name, device_type)
    return {f"inductor_{name}": value for name, value in options.items()}


def is_slow_at_first(loop: Loop) -> bool:
    """Return True if the first steps and evaluations are slow, so that `prepare` has to run."""
    return loop.compiled or (loop.config.cudnn_benchmark and loop.rank.device.type == "cuda")


def prepare(loop: Loop, test_samples: int, loaders: Sequence[Input] = ()) -> float | None:
    """Compile and warm up all code of a run by training and evaluating on zeros.

    Weights, statistics and random numbers are the same afterwards. The zeros have the shapes of the
    run, including its smaller last batches. Those run uncompiled, but cuDNN searches convolutions
    for each shape. All ranks call this function. A model that torch cannot compile is refused.

    Args:
        test_samples: Number of samples that this rank evaluates.
        loaders: Loaders to warm up too, if compiled code prepares their batches.

    Returns:
        The seconds that this took, or None if the model is not compiled.
    """
    share = loop.share
    started_s = timing.clock_s()
    buffers = [buffer.clone() for buffer in share.plain.buffers()]
    with torch.random.fork_rng([device for device in share.devices if device.type == "cuda"]):
        with compile_explained(loop.config.compile):
            for loader in loaders:
                if isinstance(loader, Resident):
                    loader.warm()
            for _ in range(compilation.GRAPH_PASSES if loop.cuda_graphs else 1):
                train_on_zeros(loop, share.model, share.batch_size)
                evaluate_zeros(loop, share.batch_size)
        full_batches, last_batch_size = divmod(len(share.sampler), share.batch_size)
        # The smaller last batch trains without DDP: other ranks may not have one.
        if full_batches % share.batches_per_step == share.turn:
            train_on_zeros(loop, share.evaluation_model, last_batch_size)
        evaluate_zeros(loop, test_samples % share.batch_size)
    with torch.no_grad():
        for buffer, buffer_before in zip(share.plain.buffers(), buffers, strict=True):
            buffer.copy_(buffer_before)
    timing.synchronize(loop.rank.device)
    return timing.clock_s() - started_s if loop.compiled else None


def train_on_zeros(loop: Loop, model: nn.Module, size: int) -> None:
    """Compute the gradients for `size` images of zeros, and drop them. Do nothing if size is 0."""
    if not size:
        return
    labels = torch.zeros(size, dtype=torch.int64, device=loop.rank.device)
    loop.share.model.train()
    loop.optim.scaler.scale(loop.loss(model, zero_images(loop, size), labels)).backward()
    loop.optim.optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def evaluate_zeros(loop: Loop, size: int) -> None:
    """Evaluate `size` images of zeros. Do nothing if size is 0."""
    if size:
        loop.share.evaluation_model.eval()
        loop.outputs(loop.share.evaluation_model, zero_images(loop, size))


def zero_images(loop: Loop, size: int) -> torch.Tensor:
    """Return images (size, 3, S, S) on the device, in the type that the loader transfers."""
    side = loop.config.dataset.image_size
    return torch.zeros(
        size, 3, side, side, dtype=loop.precision.transfer_dtype, device=loop.rank.device
    )


def cuda_graphs(device: torch.device, compile_value: bool | str | None) -> dict[str, Any]:
    """Return whether this process ran its compiled code as CUDA graphs. Call it after training.

    Returns:
        `cuda_graphs`: True if no compiled code was kept from running as a CUDA graph. On CPU ranks
        nothing keeps it from that. `cuda_graphs_recorded`: the number of graphs. Inductor may split
        a graph and record its parts (`graph_partition`), so several graphs do not mean that some
        are missing. The dictionary is empty if the compile mode has no CUDA graphs.
    """
    if not compilation.has_cuda_graphs(compile_value):
        return {}
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    manager = (
        get_manager(device.index or 0, create_if_none_exists=False)
        if device.type == "cuda"
        else None
    )
    # The counter is an iterator. Its copy yields the number of graphs so far without advancing it.
    recorded = next(copy(manager.graph_counter)) if manager is not None else 0
    all_recorded = counters["inductor"]["cudagraph_skips"] == 0 and (
        recorded > 0 or device.type != "cuda"
    )
    return {"cuda_graphs": all_recorded, "cuda_graphs_recorded": recorded}
