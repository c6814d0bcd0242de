"""Finds out whether a script trains on all samples of the batches that it draws.

A rank may draw the whole batch, and give the model every W-th sample of it. Mining of hard examples
gives it only the hardest samples. Then the samples that loaders hand out are not the samples that
are trained on. In a few early steps, the inputs of the model are therefore counted, too: tensors
with as many numbers per sample as one of the batch.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from multicard.script.contributions import has_compiled
from multicard.script.operations import tensors_in

FIRST = 1  # The first step that is counted, from 0: the warm-up covers these steps.
WATCHED = 3  # Steps that are counted.
ENOUGH = 2  # Steps on a part of the samples from which the run counts as such.


class TrainedPart(NamedTuple):
    """The samples that were drawn in a step, and the samples that the model was given."""

    drawn: int
    given: int


class ModelInputs:
    """Counts, in a few steps, the samples that are drawn and those that models are given.

    Samples are recognized by how many numbers they have, so that images differ from their classes.
    """

    def __init__(self) -> None:
        # Samples and batches of them, by how many numbers each sample has.
        self._drawn = Counter[int]()
        self._batches = Counter[int]()
        # A call may take several tensors of the same samples, or of several batches. These are the
        # samples if all tensors of a call have the same ones, and if they have different ones.
        self._given_at_least = Counter[int]()
        self._given_at_most = Counter[int]()
        self._parts = list[TrainedPart]()
        self._hooks = list[Any]()
        self._thread = 0
        self._level = 0  # How deep the module that is called lies within others.
        self._counted_at = 0  # The level of the call whose inputs are counted, or 0.

    def receive_batch(self, batch: Any, count: int | None) -> None:
        """Note a batch of so many samples that was handed out for the training."""
        if not self._hooks or not count:
            return
        tensors = [tensor for tensor in tensors_in(batch) if _samples(tensor) == count]
        for numbers in {_numbers_a_sample(tensor) for tensor in tensors}:
            self._drawn[numbers] += count
            self._batches[numbers] += 1

    def end_step(self, steps: int) -> None:
        """Note that so many steps have ended."""
        if self._hooks:
            self._conclude()
        if steps == FIRST and not has_compiled():
            self._begin()
        elif steps >= FIRST + WATCHED:
            self.close()

    def close(self) -> None:
        """Watch nothing any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def trained(self) -> TrainedPart | None:
        """What was drawn and given in the first step on a part of the samples; None if most steps
        trained on all samples.
        """
        return self._parts[0] if len(self._parts) >= ENOUGH else None

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        self._level = self._counted_at = 0
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]

    def _enter_module(self, module: Any, inputs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._level += 1
        if self._counted_at or not torch.is_grad_enabled():
            return
        tensors = [*tensors_in(inputs)]
        if tensors:  # Otherwise they are keyword arguments, and inner modules show them.
            self._counted_at = self._level
            self._count_inputs(tensors)

    def _count_inputs(self, tensors: Iterable[Tensor]) -> None:
        largest = Counter[int]()
        for tensor in tensors:
            if _samples(tensor):
                numbers = _numbers_a_sample(tensor)
                largest[numbers] = max(largest[numbers], _samples(tensor))
                self._given_at_most[numbers] += _samples(tensor)
        self._given_at_least += largest

    def _leave_module(self, module: Any, inputs: Any, result: Any) -> None:
        if threading.get_ident() != self._thread or not self._level:
            return
        if self._level == self._counted_at:
            self._counted_at = 0
        self._level -= 1

    def _conclude(self) -> None:
        """Judge the step by the samples with the most numbers, which are inputs.

        A model that is given other samples, as crops of them, shows nothing.
        """
        largest = max(self._drawn, default=0)
        has_several_batches = self._batches[largest] > 1
        given = self._given_at_most if has_several_batches else self._given_at_least
        part = TrainedPart(self._drawn[largest], given[largest])
        if 0 < part.given < part.drawn:
            self._parts.append(part)
        self._drawn.clear()
        self._batches.clear()
        self._given_at_least.clear()
        self._given_at_most.clear()
        self._level = self._counted_at = 0


def _samples(tensor: Tensor) -> int:
    return int(tensor.shape[0]) if tensor.ndim and tensor.numel() else 0


def _numbers_a_sample(tensor: Tensor) -> int:
    return tensor.numel() // int(tensor.shape[0])
