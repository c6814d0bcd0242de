"""torch.compile of torchtune's recipes: all of its work before training starts, so that neither time nor energy of
training includes it.

torch.compile works when a model is called, and again for the backward pass and for another length of rows. The recipe's
own loop therefore takes some steps on the first rows, which leave no trace.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from multicard.llm.after_tuning import train_on
from multicard.llm.batches import Batch, mapped
from multicard.llm.step_probe import Probe
from multicard.measure import memory, timing
from multicard.ranks.failures import compile_explained


def compiles(probe: Probe) -> bool:
    """True if anything is compiled: torchtune compiles the attention of packed rows on GPUs even without `compile`."""
    return bool(probe.config.compile) or (probe.config.packed and probe.rank.device.type == "cuda")


def compile_now(recipe: Any, probe: Probe) -> float:
    """Have the recipe compile what its steps call: the seconds that it took. All ranks call it. What torch cannot
    compile here is refused."""
    device = probe.rank.device
    started_s = timing.clock_s()
    generators = [device] if device.type == "cuda" else []
    with compile_explained(probe.config.compile), unchanged(recipe), torch.random.fork_rng(generators):
        train_on(recipe, probe, iter(first_batches(recipe, probe)))
    for parameter in recipe._model.parameters():
        parameter.grad = None
    timing.synchronize(device)
    memory.reset_peak_memory(device)
    return timing.clock_s() - started_s


def first_batches(recipe: Any, probe: Probe) -> list[Batch]:
    """Batches of the first rows, made past the loader, whose order of rows the training needs.

    Where lengths differ, a second one is shorter: at the second length, torch compiles for any.
    """
    config, loader = probe.config, recipe._dataloader.loader
    rows = [loader.dataset[index % len(loader.dataset)] for index in range(config.batch_size)]
    lengths = [1.0] if config.packed else [1.0, 0.75]

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
