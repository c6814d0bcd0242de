"""torch.compile of torchtune's recipes: its mode, and all of its work before training starts, so that neither time nor
energy of training includes it.

torch.compile works when a model is called, and again for the backward pass and for another length of rows. The recipe's
own loop therefore takes some steps on the first rows, which leave no trace.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from multicard.config import compilation
from multicard.config.compilation import GRAPH_PASSES, has_cuda_graphs
from multicard.config.llm import LlmConfig
from multicard.llm.after_tuning import train_on
from multicard.llm.batches import Batch, mapped
from multicard.llm.step_probe import Probe
from multicard.measure import memory, timing
from multicard.ranks import compiler


@contextmanager
def in_mode(config: LlmConfig) -> Iterator[None]:
    """Have torchtune's layers and losses compiled in the mode of `compile`.

    `training.compile_model` and `compile_loss` reach `torch.compile`, the first through `nn.Module.compile`, while the
    recipe is set up. A call that names a mode or options of its own keeps them.
    """
    compile_in_default_mode, mode = torch.compile, compilation.mode(config.compile)

    def compile_in_mode(*arguments: Any, **keywords: Any) -> Any:
        own = keywords.get("mode") or keywords.get("options")
        return compile_in_default_mode(*arguments, **(keywords if own else keywords | {"mode": mode}))

    with mock.patch.object(torch, "compile", compile_in_mode):
        yield


def compiles(probe: Probe) -> bool:
    """True if anything is compiled: torchtune compiles the attention of packed rows on GPUs even without `compile`."""
    return bool(probe.config.compile) or (probe.config.packed and probe.rank.device.type == "cuda")


def compile_now(recipe: Any, probe: Probe) -> dict[str, Any]:
    """Have the recipe compile what its steps call. All ranks call it. What torch cannot compile here is refused.

    Returns:
        `compile_s`, the seconds that it took, the steps included, and `compile_cache`, the look-ups in its cache.
    """
    device = probe.rank.device
    started_s, looked_up = timing.clock_s(), compiler.lookups()
    generators = [device] if device.type == "cuda" else []
    with compiler.errors_explained(probe.config.compile), unchanged(recipe), torch.random.fork_rng(generators):
        train_on(recipe, probe, iter(first_batches(recipe, probe)))
    for parameter in recipe._model.parameters():
        parameter.grad = None
    timing.synchronize(device)
    memory.reset_peak_memory(device)
    return {"compile_s": timing.clock_s() - started_s, "compile_cache": compiler.since(looked_up)}


def first_batches(recipe: Any, probe: Probe) -> list[Batch]:
    """Batches of the first rows, made past the loader, whose order of rows the training needs.

    Where lengths differ, a second one is shorter: at the second length, torch compiles for any. CUDA graphs take
    GRAPH_PASSES steps.
    """
    config, loader = probe.config, recipe._dataloader.loader
    rows = [loader.dataset[index % len(loader.dataset)] for index in range(config.batch_size)]
    lengths = [1.0] if config.packed else [1.0, 0.75]
    if has_cuda_graphs(config.compile):
        lengths *= GRAPH_PASSES * config.gradient_accumulation_steps

    def cut(share: float) -> Batch:
        return mapped(loader.collate_fn(rows), lambda values: values[:, : round(share * values.shape[1])])

    return [probe.moved(cut(share)) for share in lengths]


@contextmanager
def unchanged(recipe: Any) -> Iterator[None]:
    """Keep weights, optimiser, schedule and counters of the recipe as they are while it takes steps."""
    counters = ("epochs_run", "total_epochs", "max_steps_per_epoch", "global_step")
    before = {name: value for name, value in vars(recipe).items() if name in counters}
    wrapper = getattr(recipe, "_optim_ckpt_wrapper", None)  # where each weight steps in the backward pass
    optimisers = [recipe._optimizer] if wrapper is None else list(wrapper.optim_map.values())
    with ExitStack() as stack:
        for stepping in (*optimisers, getattr(recipe, "_lr_scheduler", None)):
            if stepping is not None:
                stack.enter_context(mock.patch.object(stepping, "step", lambda *_, **__: None))
        yield
    vars(recipe).update(before)
