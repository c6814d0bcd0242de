"""torch.compile of the model: its options, and all of its work before training starts,
so that its time is apart.

cuDNN's search for the fastest convolutions is kept out of measured steps in the same way.
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

# Inductor stores an intermediate result with several uses if it reads more than 4 tensors, however
# small these are. BatchNorm's output reads 5, of which 4 have one value a channel, and the gradient
# of ReLU6 or SiLU reads one more: the backward pass would build it anew, store it, and read it
# again. What reads two or more tensors of one size is stored as before, so that sums of gradients
# are not computed again by each of their uses. `python -m benchmarks.generated_code` counts the
# bytes of both; docs/studies/h200.md has the table, also of models without BatchNorm,
# where it does not pay.
STORING = {"realize_reads_threshold": 6, "realize_acc_reads_size_threshold": 1}


def own_options(model: nn.Module, layout: str, device_type: str) -> dict[str, Any]:
    """The options of Inductor that this project sets beside those of a mode of torch.compile.

    Inductor turns convolutions to channels-last where its heuristics expect a gain (on CPU always).
    With layout=nchw that is forbidden: the layout is an axis. See
    `torch._inductor.graph.GraphLowering.decide_layout_opt`.
    """
    options: dict[str, Any] = {}
    if layout == LayoutName.nchw:
        options["layout_optimization"] = False
    if device_type == "cuda" and any(isinstance(module, _BatchNorm) for module in model.modules()):
        options |= STORING
    return options


def inductor_options(model: nn.Module, mode: str, layout: str, device_type: str) -> dict[str, Any]:
    """All options of Inductor, by its own names, for a model in a mode of torch.compile."""
    from torch._inductor import list_mode_options

    return {**list_mode_options(mode), **own_options(model, layout, device_type)}


def compile_model(model: nn.Module, config: VisionConfig, device_type: str) -> None:
    """Have torch compile `model` in place, at its first call, for a type of device."""
    mode = compilation.mode(config.compile)
    layout = config.layout.name
    options = inductor_options(model, mode, layout, device_type)
    model.compile(dynamic=False, options=options)


def recorded_options(model: nn.Module, config: VisionConfig, device_type: str) -> dict[str, Any]:
    """The flags of a compiled run's record: this project's options of Inductor;
    empty if it is not.
    """
    if not compiles(config, device_type):
        return {}
    options = own_options(model, config.layout.name, device_type)
    return {f"inductor_{name}": value for name, value in options.items()}


def is_slow_at_first(loop: Loop) -> bool:
    """Whether a run's first steps and evaluations do what `prepare` does before them."""
    return loop.compiled or (loop.config.cudnn_benchmark and loop.rank.device.type == "cuda")


def prepare(loop: Loop, evaluated: int, loaders: Sequence[Input] = ()) -> float | None:
    """Have all of a run's code compiled and warm,
    by steps and evaluations of zeros that leave no trace.

    These have the shapes of the run, those of its odd last batches too: they run uncompiled, and
    cuDNN tries its convolutions for each shape. All ranks call it. A model that torch cannot
    compile here is refused.

    Args:
        evaluated: samples that this rank evaluates.
        loaders: those whose batches are prepared by compiled code are warm too.

    Returns:
        The seconds that it took; None where the model is not compiled.
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
        full, odd = divmod(len(share.sampler), share.batch_size)
        # not under DDP: other ranks may have no odd batch
        if full % share.batches_per_step == share.turn:
            train_on_zeros(loop, share.evaluated, odd)
        evaluate_zeros(loop, evaluated % share.batch_size)
    with torch.no_grad():
        for buffer, before in zip(share.plain.buffers(), buffers, strict=True):
            buffer.copy_(before)
    timing.synchronize(loop.rank.device)
    return timing.clock_s() - started_s if loop.compiled else None


def train_on_zeros(loop: Loop, model: nn.Module, size: int) -> None:
    """A step on `size` images, up to the gradients, which are dropped; none for 0."""
    if not size:
        return
    labels = torch.zeros(size, dtype=torch.int64, device=loop.rank.device)
    loop.share.model.train()
    loop.optim.scaler.scale(loop.loss(model, zeros(loop, size), labels)).backward()
    loop.optim.optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def evaluate_zeros(loop: Loop, size: int) -> None:
    """An evaluation of `size` images; none for 0."""
    if size:
        loop.share.evaluated.eval()
        loop.outputs(loop.share.evaluated, zeros(loop, size))


def zeros(loop: Loop, size: int) -> torch.Tensor:
    """Images (size, 3, S, S) on the device, as the loader would have moved them."""
    side = loop.config.dataset.image_size
    return torch.zeros(
        size, 3, side, side, dtype=loop.precision.transfer_dtype, device=loop.rank.device
    )


def cuda_graphs(device: torch.device, compile_value: bool | str | None) -> dict[str, Any]:
    """Of this process, once it has trained: `cuda_graphs`, True if nothing that was compiled was
    kept from running as CUDA graphs, as it is on CPU ranks, and `cuda_graphs_recorded`;
    nothing where the mode has none.

    Inductor may divide a graph, and record its parts (`graph_partition`),
    so several do not mean that some are missing.
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
    recorded = next(copy(manager.graph_counter)) if manager is not None else 0
    whole = counters["inductor"]["cudagraph_skips"] == 0 and (recorded > 0 or device.type != "cuda")
    return {"cuda_graphs": whole, "cuda_graphs_recorded": recorded}
