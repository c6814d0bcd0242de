"""The batches that DataLoaders hand out: for a step of training or for an evaluation, and of how many samples."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class Draws:
    """Batches drawn since the last step, and the data sets that training draws from.

    An evaluation draws its batches without gradients, or from other data than the training did before. Where a step
    had no batches but of new data, training goes on with that data. New data whose loader had ended before other data
    was drawn from was not of the step: it was evaluated, in the first step as well.
    """

    def __init__(self) -> None:
        self._known: list[Any] = []
        self._first_step = True
        self.ever = False  # any batch for training, in the whole run
        self._clear()

    def _clear(self) -> None:
        self.asked = False  # for a batch of the training
        self._sizes: list[int | None] = []  # of batches of known data
        self._new: list[tuple[Any, int | None]] = []  # with gradients, from data that is not known
        self._ended: list[Any] = []  # such data, once its loader had no more

    def asks(self, data: Any) -> bool:
        """True where a batch that is asked for of `data` is for training."""
        if not torch.is_grad_enabled() or not (self._knows(data) or self._first_step):
            return False
        self.asked = True
        return True

    def add(self, data: Any, trains: bool, size: int | None) -> None:
        """Count a batch of so many samples; None: not known."""
        self.ever = self.ever or trains
        if self._knows(data):
            self._sizes += [size] if trains else []
        elif torch.is_grad_enabled():
            self._new = [each for each in self._new if each[0] is data or not _among(self._ended, each[0])]
            self._new.append((data, size))

    def ends(self, data: Any) -> None:
        """The loader of `data` has no more batches."""
        self._ended.append(data)
        self.asked = self.asked and not self._knows(data)

    def take(self) -> tuple[int | None, int, bool]:
        """The samples (None: not known) and batches of the step that has ended, and whether they were of data that
        seemed to be evaluated."""
        if not self._first_step and not self._known:  # steps without a loader go on without it
            self._new = [each for each in self._new if not _among(self._ended, each[0])]
        moves = bool(self._new) and (self._first_step or not self.asked)
        seemed_evaluated = moves and not self._first_step
        if moves:
            self._known = [data for data, _ in self._new]
            self._sizes += [size for _, size in self._new]
        sizes, self._first_step = self._sizes, False
        self.ever = self.ever or moves
        self._clear()
        known = [size for size in sizes if size is not None]
        return (sum(known) if len(known) == len(sizes) else None), len(sizes), seemed_evaluated

    def _knows(self, data: Any) -> bool:
        return _among(self._known, data)


def _among(several: list[Any], data: Any) -> bool:
    return any(data is each for each in several)


def samples(batch: Any, batch_size: int | None) -> int | None:
    """The samples of a batch; None where it does not show.

    That is the first dimension of its first tensor, or the length of a list of samples, whichever is the loader's
    batch size, or less in a last batch.
    """
    own = getattr(batch, "batch_size", None)  # of packed sequences, graphs and the like
    if isinstance(own, int):
        return own
    first = next(_tensors(batch), None)
    sizes = [len(first)] if first is not None and first.dim() else []
    sizes += [len(batch)] if isinstance(batch, list | tuple) else []
    if batch_size is None or batch_size in sizes:
        return batch_size if batch_size is not None else next(iter(sizes), None)
    return next((size for size in sizes if size < batch_size), None)


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested mappings and lists, in their order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, list | tuple):  # first: asking for a Mapping takes longer, in every step
        for part in batch:
            yield from _tensors(part)
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
