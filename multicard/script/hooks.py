"""What torch calls while a script trains: the iterators of DataLoaders, and the steps of optimisers. The script is not
changed, and no hook waits for a device."""

import os
import weakref
from collections import Counter
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from multicard.script import marks
from multicard.script.batches import samples
from multicard.script.recorder import Recorder

TAKES_OVER = 20  # steps of another optimiser in which the first takes none, as it was of a phase that has ended


@contextmanager
def installed(recorder: Recorder) -> Iterator[None]:
    """Have this process's training tell the recorder of itself; processes that it forks do not."""
    steps, next_batch, scaled_step = Steps(recorder), _BaseDataLoaderIter.__next__, GradScaler.step
    next_indices = _BaseDataLoaderIter._next_index

    def measured_indices(batches: Any) -> Any:
        number = getattr(batches, "_send_idx", batches._num_yielded)  # of the batch in this pass
        indices = next_indices(batches)
        if batches._auto_collation and batches._dataset_kind == _DatasetKind.Map and isinstance(indices, Sized):
            batches.__dict__.setdefault("multicard_drawn", {})[number] = len(indices)
        return indices

    def measured_batch(batches: Any) -> Any:
        if recorder.is_over:
            return next_batch(batches)
        source = getattr(batches, "multicard_source", None) or recorder.draws.source(batches)
        trains = recorder.asks(source)
        try:
            batch = next_batch(batches)
        except StopIteration:
            recorder.exhausted(source, trains, batches._num_yielded)
            raise
        drawn = getattr(batches, "multicard_drawn", {}).pop(batches._num_yielded - 1, None)
        recorder.receives(source, trains, samples(batch, source.batch_size) if drawn is None else drawn)
        return batch

    def measured_step(scaler: GradScaler, optimizer: Optimizer, *arguments: Any, **keywords: Any) -> Any:
        before = steps.calls
        result = scaled_step(scaler, optimizer, *arguments, **keywords)
        if steps.calls == before:
            steps.skipped(optimizer)
        return result

    handles = [register_optimizer_step_pre_hook(steps.begins), register_optimizer_step_post_hook(steps.ends)]
    marks.listen(recorder)
    os.register_at_fork(after_in_child=recorder.leave)
    try:
        with (
            mock.patch.object(_BaseDataLoaderIter, "__next__", measured_batch),
            mock.patch.object(_BaseDataLoaderIter, "_next_index", measured_indices),
            mock.patch.object(GradScaler, "step", measured_step),
        ):
            yield
    finally:
        marks.listen(None)
        for handle in handles:
            handle.remove()


class Steps:
    """Steps of the first optimiser that steps. One that steps within another's step (a wrapper's, as of ZeRO) is not
    counted beside it; one that takes the place of a deleted one, or of one that steps no more, goes on with its
    count."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.calls = recorder, 0
        self._passed = Counter[int]()  # steps of others, by id, since the last that counted
        self._first: Any = lambda: None
        self._within: list[int] = []

    def begins(self, optimizer: Optimizer, *_: Any) -> None:
        """Before a step of any optimiser."""
        if id(optimizer) in self._within:  # its last step ended by an exception
            self._within.clear()
        self._within.append(id(optimizer))
        if not self.calls:
            self.recorder.steps_now()

    def ends(self, optimizer: Optimizer, *_: Any) -> None:
        """After a step of any optimiser."""
        self.calls += 1
        if id(optimizer) in self._within:
            del self._within[self._within.index(id(optimizer)) :]
        if not self._within and (self._first() is optimizer or self._is_first(optimizer)):
            self._passed.clear()
            self.recorder.end_counted_step()

    def skipped(self, optimizer: Optimizer) -> None:
        """A step that a GradScaler left out: its batches were trained on all the same."""
        if not self._within and self._is_first(optimizer):
            self._passed.clear()
            self.recorder.skipped += 1
            self.recorder.steps_now()
            self.recorder.end_counted_step()

    def _is_first(self, optimizer: Optimizer) -> bool:
        late = self._passed[id(optimizer)] == TAKES_OVER
        if self._first() is None or late:
            self._first = weakref.ref(optimizer)
            self.recorder.counts_steps_of(optimizer, 1 + TAKES_OVER if late else 1)
        elif self._first() is not optimizer:
            self._passed[id(optimizer)] += 1
            self.recorder.others.add(id(optimizer))
            self.recorder.draws.step_uncounted()
        return self._first() is optimizer
