"""The batches that DataLoaders hand out: for a step of training or for an evaluation, and of how many samples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Source:  # noqa: PLW1641  compared, and never hashed
    """A data set, and how a loader draws from it: what is trained on may be evaluated too, in other batches.

    Args:
        batches: an iterator of a DataLoader.
    """

    def __init__(self, batches: Any) -> None:
        drawn_by = getattr(batches._index_sampler, "batch_sampler", batches._index_sampler)  # within Accelerate's shard
        size = getattr(drawn_by, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None
        self._data, self._how = batches._dataset, (size, type(getattr(drawn_by, "sampler", None)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self._data is other._data and self._how == other._how


class Draws:
    """Batches drawn since the last step, and the sources that training draws from.

    An evaluation draws its batches without gradients, or from other sources than the training did before. Where a step
    had no batches but of a new source, training goes on with that. A new source whose loader had ended before another
    was drawn from was not of the step: it was evaluated, in the first step as well. So was a source that is drawn from
    anew after a whole pass without a step.
    """

    def __init__(self) -> None:
        self._known: list[Source] = []
        self._first_step = True
        self.ever = False  # any batch for training, in the whole run
        self._clear()

    def _clear(self) -> None:
        self.asked = False  # for a batch of the training
        self._trained_on = 0  # batches, by an optimiser that does not count
        self._sizes: list[tuple[Source, int | None]] = []  # of batches of known sources
        self._new: list[tuple[Source, int | None]] = []  # with gradients, of other sources
        self._ended: list[Source] = []  # whose loader had no more
        self.without_step: list[tuple[Source, int]] = []  # after a whole pass since the last step of so many batches

    def source(self, batches: Any) -> Source:
        """The source of an iterator of a DataLoader, which keeps it: of those that training draws from the same object,
        as lists find an object without a comparison."""
        source = Source(batches)
        if self._first_step:  # `next(iter(loader))` for a look at a batch came before
            self._new = [each for each in self._new if each[0] != source]
        batches.multicard_source = next((known for known in self._known if known == source), source)
        return batches.multicard_source

    def begins_anew(self, source: Source) -> bool:
        """True where a source is drawn from once more after a whole pass without a step that seemed to train: it was an
        evaluation. Batches of such a pass are of no step."""
        count = next((count for ended, count in self.without_step if ended == source), 0)
        if not count:
            return False
        self.without_step = [each for each in self.without_step if each[0] != source]
        for drawn in (self._sizes, self._new):
            for place in [place for place, (one, _) in enumerate(drawn) if one == source][: -count - 1 : -1]:
                del drawn[place]
        return self._first_step or source in self._known

    def asks(self, source: Source) -> bool:
        """True where a batch that is asked for is for training."""
        if not torch.is_grad_enabled() or not (source in self._known or self._first_step):
            return False
        self.asked = True
        return True

    def add(self, source: Source, trains: bool, size: int | None) -> None:
        """Count a batch of so many samples."""
        if trains:
            self.ever = True
        if source in self._known:
            if trains:
                self._sizes.append((source, size))
        elif torch.is_grad_enabled():
            self._leave_ended(source)
            self._new.append((source, size))

    def _leave_ended(self, source: Source) -> None:
        """New sources that ended before this one is drawn from are not of the step."""
        self._new = [each for each in self._new if each[0] == source or each[0] not in self._ended]

    def step_uncounted(self) -> None:
        """An optimiser that does not count has ended a step: no pass up to here was an evaluation."""
        self._trained_on = len(self._sizes) + len(self._new)

    def ends(self, source: Source, handed_out: int) -> None:
        """The loader has no more batches, after so many in this pass over the data."""
        if source in self._known:
            self._leave_ended(source)
        self._ended.append(source)
        since_step = sum(one == source for one, _ in (*self._sizes, *self._new)) - self._trained_on
        self.without_step += [(source, handed_out)] if 0 < handed_out <= since_step else []
        self.asked = self.asked and source not in self._known

    def take(self) -> tuple[int | None, int, bool]:
        """The samples (None: not known) and batches of the step that has ended, and whether they were of a source that
        seemed to be evaluated."""
        seemed_evaluated = bool(self._new) and self._moves() and not self._first_step
        drawn, batches = 0, len(self._sizes)
        for _, size in self._sizes:
            drawn = None if drawn is None or size is None else drawn + size
        self._first_step = False
        self._clear()
        return drawn, batches, seemed_evaluated

    def _moves(self) -> bool:
        """Go on with the new sources, where the step was of them. Returns whether it was."""
        if not self._first_step and not self._known:  # steps without a loader go on without it
            self._new = [each for each in self._new if each[0] not in self._ended]
        if not self._new or (self.asked and not self._first_step):
            return False
        self._known, self.ever = [source for source, _ in self._new], True
        self._sizes += self._new
        return True


def samples(batch: Any, batch_size: int | None) -> int | None:
    """The samples of a batch of a stream, or of what a data set gives as a batch; None where it does not show.

    That is the first dimension of a tensor in it, or the length of a list of samples, whichever is the loader's batch
    size, or less in a last batch.
    """
    own = getattr(batch, "batch_size", None)  # of graphs and the like
    leaves = tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    sizes = [own] if isinstance(own, int) else [one.shape[0] for one in leaves if isinstance(one, Tensor) and one.ndim]
    sizes += [len(batch)] if isinstance(batch, list | tuple) else []
    fitting = [size for size in sizes if batch_size is None or size <= batch_size]
    return batch_size if batch_size in fitting else next(iter(fitting), None)
