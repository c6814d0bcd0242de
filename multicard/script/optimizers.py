"""Decides which steps of optimizers are steps of the training."""

import weakref
from collections import Counter
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from multicard.script.recorder import Recorder

# An optimizer takes over after so many steps without one of the first: its phase has ended.
TAKES_OVER = 20


class Steps:
    """Counts the steps of the first optimizer that steps, and of others that take turns with it.

    - A step of another optimizer counts if a batch was handed out for it: optimizers take turns
      then, or follow one another.
    - It counts, too, if both step several times in a row without further batches, as for a model
      that is trained layer by layer.
    - It does not count if it trains on the same batch as the first, as a discriminator does.
    - It does not count within the step of another optimizer, as of ZeRO's wrapper.
    - An optimizer that replaces a deleted one, or one that steps no more, goes on with its count.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.calls = 0
        # Steps of other optimizers, by id, since the last step that counted.
        self._passed = Counter[int]()
        self._first: Any = lambda: None
        self._last: Any = lambda: None
        self._in_row = 0  # Steps in a row of the last optimizer.
        self._first_in_row = 0  # Steps in a row of the first one, without further batches.
        self._within: list[int] = []

    def begin_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that a step of any optimizer begins."""
        if id(optimizer) in self._within:  # An exception ended its last step.
            self._within.clear()
        self._within.append(id(optimizer))
        if not self.calls:
            self.recorder.begin_optimizer_step()

    def end_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that a step of any optimizer has ended."""
        self.calls += 1
        if id(optimizer) in self._within:
            del self._within[self._within.index(id(optimizer)) :]
        if not self._within and self._is_counted(optimizer):
            self.recorder.end_counted_step()

    def skip_step(self, optimizer: Optimizer) -> None:
        """Count a step that a GradScaler skipped: its batches were trained on all the same."""
        if not self._within and self._is_counted(optimizer):
            self.recorder.optimizers.skipped += 1
            self.recorder.begin_optimizer_step()
            self.recorder.end_counted_step()

    def counts(self, optimizer: Optimizer) -> bool:
        """Return True for the optimizer whose steps count, or for any before the first step."""
        return self._first() is optimizer or not self.calls

    def trains(self, module: Module) -> bool:
        """Return True for a module with the first parameter of that optimizer."""
        optimizer = self._first()
        if optimizer is None:
            return not self.calls
        parameters = optimizer.param_groups[0]["params"]
        if not parameters:
            return False
        return any(parameter is parameters[0] for parameter in module.parameters())

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
            self._take_over(optimizer, 1 + TAKES_OVER if late else 1)
            return True
        if has_batch:
            self._take_turn(optimizer)
            return True
        # It is a phase on its own since its last step.
        if self._first_in_row > 1 and self._in_row == 2:
            self.recorder.count_last_step()
            self._take_over(optimizer, 1)
            self._first_in_row = 2
            return True
        self._passed[id(optimizer)] += 1
        self.recorder.end_uncounted_step(
            optimizer, may_count=self._first_in_row > 1 and self._in_row == 1
        )
        return False

    def _take_over(self, optimizer: Optimizer, together: int) -> None:
        self._first = weakref.ref(optimizer)
        self._first_in_row = 0
        self._passed.clear()
        self.recorder.count_steps_of(optimizer, together)

    def _take_turn(self, optimizer: Optimizer) -> None:
        """Count the next step of the first optimizer as well."""
        if self._in_row > 1:
            self._take_over(optimizer, 1)
        else:
            self.recorder.optimizers.add(optimizer)
