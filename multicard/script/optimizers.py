"""Which steps of optimisers are steps of the training."""

import weakref
from collections import Counter
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from multicard.script.recorder import Recorder

# steps of another optimiser in which the first takes none, as it was of a phase that has ended
TAKES_OVER = 20


class Steps:
    """Steps of the first optimiser that steps, and of others in its turn.

    Another's step counts where a batch was handed out for it: optimisers then take turns, or follow
    one another. Where both step on without further batches, several times in a row, it counts too,
    as of a model that is trained layer by layer. One that steps on the same batch (of a
    discriminator, or of each layer) is not counted beside the first, nor is one that steps within
    another's step (a wrapper's, as of ZeRO). One that takes the place of a deleted one,
    or of one that steps no more, goes on with its count.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.calls = 0
        self._passed = Counter[int]()  # steps of others, by id, since the last that counted
        self._first: Any = lambda: None
        self._last: Any = lambda: None
        self._in_row = 0  # steps that the last one took, one after the other
        self._first_in_row = 0  # the same of the first, without further batches
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
        if not self._within and self._is_counted(optimizer):
            self.recorder.end_counted_step()

    def skipped(self, optimizer: Optimizer) -> None:
        """A step that a GradScaler left out: its batches were trained on all the same."""
        if not self._within and self._is_counted(optimizer):
            self.recorder.optimizers.skipped += 1
            self.recorder.steps_now()
            self.recorder.end_counted_step()

    def counts(self, optimizer: Optimizer) -> bool:
        """True of the optimiser whose steps count, or may count as there was none yet."""
        return self._first() is optimizer or not self.calls

    def trains(self, module: Module) -> bool:
        """True of a module with the first parameter of that optimiser."""
        optimizer = self._first()
        if optimizer is None:
            return not self.calls
        first = next(iter(optimizer.param_groups[0]["params"]), None)
        return any(parameter is first for parameter in module.parameters())

    def _is_counted(self, optimizer: Optimizer) -> bool:
        is_next = self._last() is optimizer
        has_batch = self.recorder.draws.is_new_batch()
        self._in_row = self._in_row + 1 if is_next else 1
        if not is_next:
            self._last = weakref.ref(optimizer)
        if self._first() is optimizer:
            self._passed.clear()
            if has_batch:
                self._first_in_row = 0
            else:
                self._first_in_row = self._first_in_row + 1 if is_next else 1
            return True
        late = self._passed[id(optimizer)] == TAKES_OVER
        if self._first() is None or late:
            self._takes_over(optimizer, 1 + TAKES_OVER if late else 1)
            return True
        if has_batch:
            self._takes_turn(optimizer)
            return True
        # a phase of its own, since its step before
        if self._first_in_row > 1 and self._in_row == 2:
            self.recorder.count_part()
            self._takes_over(optimizer, 1)
            self._first_in_row = 2
            return True
        self._passed[id(optimizer)] += 1
        self.recorder.ends_uncounted(
            optimizer, may_count=self._first_in_row > 1 and self._in_row == 1
        )
        return False

    def _takes_over(self, optimizer: Optimizer, together: int) -> None:
        self._first = weakref.ref(optimizer)
        self._first_in_row = 0
        self._passed.clear()
        self.recorder.counts_steps_of(optimizer, together)

    def _takes_turn(self, optimizer: Optimizer) -> None:
        """The next step of the first is counted as well."""
        if self._in_row > 1:
            self._takes_over(optimizer, 1)
        else:
            self.recorder.optimizers.add(optimizer)
