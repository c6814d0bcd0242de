"""The modes of torch.compile for torchtune's recipes, which call it without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import torch

from multicard.config import compilation
from multicard.config.llm import LlmConfig

T = TypeVar("T")


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


def marked(batches: Iterator[T], config: LlmConfig) -> Iterator[T]:
    """The batches, with the beginning of each step marked where CUDA graphs run it.

    Layers are compiled one by one. Without the mark, CUDA graphs would take each for a step of its own wherever no
    backward pass is pending, as when activations are recomputed, and write over the activations of others.
    """
    has_graphs = compilation.has_cuda_graphs(config.compile)
    for number, batch in enumerate(batches):
        if has_graphs and number % config.gradient_accumulation_steps == 0:
            torch.compiler.cudagraph_mark_step_begin()
        yield batch
