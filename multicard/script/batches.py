"""The batches that DataLoaders hand out: for a step of training or for an evaluation, and of how many samples."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class Draws:
    """Batches drawn since the last step, and the data sets that training draws from.

    An evaluation draws its batches without gradients, or from other data than the training did before. Where a step
    had no batches but of new data, training goes on with that data.
    """

    def __init__(self) -> None:
        self._known: list[Any] = []
        self._first_step = True
        self.ever = False  # any batch for training, in the whole run
        self._clear()

    def _clear(self) -> None:
        self.asked = False  # for a batch of the training
        self._sizes: list[int | None] = []
        self._others: list[tuple[Any, int | None]] = []  # with gradients, from other data

    def asks(self, data: Any) -> bool:
        """True where a batch that is asked for of `data` is for training."""
        known = any(data is each for each in self._known)
        if not torch.is_grad_enabled() or not (known or self._first_step):
            return False
        self._known += [] if known else [data]
        self.asked = True
        return True

    def add(self, data: Any, trains: bool, size: int | None) -> None:
        """Count a batch of so many samples; None: not known."""
        if trains:
            self.ever = True
            self._sizes.append(size)
        elif torch.is_grad_enabled():
            self._others.append((data, size))
            self.asked = bool(self._sizes)  # what was asked for before had ended

    def take(self) -> tuple[int | None, int]:
        """The samples (None: not known) and batches of the step that has ended."""
        if self._others and not self.asked:
            self._known = [data for data, _ in self._others]
            self._sizes = [size for _, size in self._others]
        sizes, self._first_step = self._sizes, False
        self._clear()
        known = [size for size in sizes if size is not None]
        return (sum(known) if len(known) == len(sizes) else None), len(sizes)


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
