"""Runs a script and counts by itself what each step trained
on: `counting.py FOLDER SCRIPT WORD ...`.

It shares nothing with multicard. The contents of each batch that a loader hands out are hashed, and
so are the tensors that reach a module from outside of any other while gradients are recorded. Where
they are the same, the module trains on that batch. With BY_INPUTS before the folder, each such call
is a batch, of as many samples as its first tensor has
rows: for models that get what a script makes of a batch, as images with noise.

A step is the step of an optimiser since which before a batch was trained on; of a script without a
loader, that of its first optimiser. What was counted is written to `rank0.json` and so on,
in the folder.
"""

import functools
import hashlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

BY_INPUTS = "--by-inputs"
FEWEST = 4  # elements of a tensor that can be told from others


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch or in the arguments of a call, those of objects included."""
    for leaf in tree_leaves(dict(value) if hasattr(value, "keys") else value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "keys"):
            yield from tensors(leaf)


def digest(tensor: torch.Tensor) -> str | None:
    """None of tensors that many batches have, as masks."""
    if tensor.numel() < FEWEST or tensor.dtype == torch.bool or tensor.device.type == "meta":
        return None
    flat = tensor.detach().cpu().reshape(-1)[:4096].double()
    return None if len(flat.unique()) < 3 else hashlib.sha1(flat.numpy().tobytes()).hexdigest()


class Counter:
    """Samples and batches that each step trained on, in the order of the steps."""

    def __init__(self, by_inputs: bool = False) -> None:
        self.by_inputs = by_inputs
        self.steps: list[tuple[int, int]] = []
        self.optimizer_steps = 0
        # number and samples of a batch, by what is in it
        self._handed_out: dict[str, tuple[int, int]] = {}
        self._batches = self._depth = 0
        # samples, by number of the batch, since the last step
        self._trained_on: dict[int, int] = {}
        self._first: int | None = None

    def hands_out(self, batch: Any) -> None:
        self._batches += 1
        found = list(tensors(batch))
        sizes = [tensor.shape[0] for tensor in found if tensor.ndim]
        for tensor in found:
            mark = digest(tensor)
            if mark is not None:
                self._handed_out[mark] = (self._batches, sizes[0])

    def enters(self, module: Any, arguments: Any, keywords: Any = None) -> None:
        if self._depth == 0 and torch.is_grad_enabled() and self.by_inputs:
            first = next(tensors((arguments, keywords or {})), None)
            # no transform of an image
            if first is not None and any(True for _ in module.parameters()):
                self._trained_on[len(self._trained_on)] = first.shape[0]
        elif self._depth == 0 and torch.is_grad_enabled():
            for tensor in tensors((arguments, keywords or {})):
                number, size = self._handed_out.get(digest(tensor) or "", (0, 0))
                if number:
                    self._trained_on[number] = size
        self._depth += 1

    def leaves(self, *_: Any) -> None:
        self._depth -= 1

    def steps_by(self, optimizer: Any, *_: Any) -> None:
        self.optimizer_steps += 1
        if self._first is None:
            self._first = id(optimizer)
        if self._trained_on or (not self._batches and self._first == id(optimizer)):
            self.steps.append((sum(self._trained_on.values()), len(self._trained_on)))
            self._trained_on = {}

    def write(self, folder: str) -> None:
        path = Path(folder) / f"rank{os.environ.get('RANK', '0')}.json"
        path.write_text(json.dumps({"steps": self.steps, "optimizer_steps": self.optimizer_steps}))


@contextmanager
def counting(by_inputs: bool = False) -> Iterator[Counter]:
    """Count what is trained within."""
    counter = Counter(by_inputs)
    call, next_batch = modules.Module.__call__, _BaseDataLoaderIter.__next__

    @functools.wraps(call)
    def counted_call(module: Any, *arguments: Any, **keywords: Any) -> Any:
        counter.enters(module, arguments, keywords)
        try:
            return call(module, *arguments, **keywords)
        finally:
            counter.leaves()

    def counted_batch(batches: Any) -> Any:
        batch = next_batch(batches)
        counter.hands_out(batch)
        return batch

    handle = register_optimizer_step_post_hook(counter.steps_by)
    try:
        with (
            mock.patch.object(modules.Module, "__call__", counted_call),
            mock.patch.object(_BaseDataLoaderIter, "__next__", counted_batch),
        ):
            yield counter
    finally:
        handle.remove()


def main() -> None:
    by_inputs = sys.argv[1] == BY_INPUTS
    folder, script = sys.argv[1 + by_inputs : 3 + by_inputs]
    sys.argv = sys.argv[2 + by_inputs :]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with counting(by_inputs) as counter:
        try:
            runpy.run_path(script, run_name="__main__")
        finally:
            counter.write(folder)


if __name__ == "__main__":
    main()
