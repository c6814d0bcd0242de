"""Finds out which batches a script trains on if the order of events does not show it.

A script may add the losses of two batches, or skip every second batch: the calls of backward are
the same. A new loader may join the training, or be evaluated. The operations in between show which.
Each tensor that is computed from a batch is known as that batch's, up to the losses whose gradients
are computed.

A few steps of such a script are watched in this way. Losses may come and go, so it is watched again
after twice as many steps each time. Watched steps are slower, so they are left out of its times.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from multicard.script.operations import Operations, tensors_in
from multicard.script.passes import Pass, Reach

ENOUGH = 2  # Steps of several batches that are watched.
LATER = 2  # Steps after which a batch that was read ahead has been trained on.
LONGEST = 6  # Steps that are watched at once.
MOST_JOINED = 8  # Sources that joined the training last.
AHEAD = 3  # Batches of a new source that may be read before the first is trained on.


@dataclass(eq=False)
class _HandedBatch:
    """A batch that was handed out while operations are watched.

    Attributes:
        backwards: calls of backward before it.
        step: the number of the step in the window.
        reached_by: the first call that computes gradients of a loss of this batch.
    """

    source: Any
    backwards: int
    step: int
    reached_by: int | None = None


@dataclass
class _Window:
    """Some steps that are watched.

    Attributes:
        is_short: the window is a single step, in which a new source is drawn from.
        steps: steps that have ended in it.
        several: the numbers of its steps of several batches.
    """

    is_short: bool = False
    handed: list[_HandedBatch] = field(default_factory=list)
    steps: int = 0
    several: list[int] = field(default_factory=list)

    def is_enough(self) -> bool:
        return len(self.several) >= ENOUGH and self.steps > self.several[ENOUGH - 1] + LATER

    def settled(self, later: int = LATER) -> list[_HandedBatch]:
        """Return the batches that are trained on by now, if they ever are.

        Args:
            later: steps after which a batch has been trained on.
        """
        return [each for each in self.handed if each.step < self.steps - later]


class Contributions:
    """Watches which batches reach the losses whose gradients are computed.

    Attributes:
        is_open: operations are watched in this step.
        joined: sources that are trained on, though they seemed to be evaluated when they were first
            drawn from.
        operations: the mode that watches operations.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.joined: list[Any] = []
        self._evaluated: list[Any] = []
        self._reaches: list[tuple[Any, Reach]] = []
        self._held_back: list[tuple[Any, bool]] = []
        self._window: _Window | None = None
        self.operations = Operations()
        self._steps = 0
        self._not_before = 2
        # Steps of several batches in a row: the first step of a pass may only read ahead.
        self._in_row = 0
        self._is_due = False
        self._new = 0  # Batches of new sources since the last call of backward.

    def reach(self, source: Any) -> Reach | None:
        """Return which batches of a source were trained on, if a step has several; None if nobody
        knows.
        """
        for known_source, reach in self._reaches:
            if known_source is source:
                return reach
        return None

    def holds_back(self, source: Any) -> bool | None:
        """Return True if a batch was trained on later than by the first call after it; None if
        nobody knows.
        """
        for known_source, is_held_back in self._held_back:
            if known_source is source:
                return is_held_back
        return None

    def receive_batch(self, data_pass: Pass, trains: bool, batch: Any) -> None:
        """Note a batch that was handed out, the last so far of its pass."""
        if data_pass.in_thread:
            return
        is_new = (
            not trains and torch.is_grad_enabled() and not _is_in(data_pass.source, self._evaluated)
        )
        if is_new and self._joins_as_before(data_pass.source):
            self.joined = [*self.joined[-MOST_JOINED:], data_pass.source]
            is_new = False
            trains = True
        if not trains and not is_new:
            self.operations.pause()
            return
        self._new += is_new
        if self._window is None and (is_new or self._is_due) and not has_compiled():
            self._window = _Window(is_short=is_new)
            self._is_due = False
            self.is_open = True
        if self._window is None:
            return
        self._window.handed.append(
            _HandedBatch(data_pass.source, data_pass.backwards[-1], self._window.steps)
        )
        self.operations.mark(tensors_in(batch), len(self._window.handed) - 1)
        if self._new > AHEAD:
            self.operations.pause()
        else:
            self.operations.watch()

    def _joins_as_before(self, source: Any) -> bool:
        """Return True for data that are built anew for each pass or step, if they were trained on
        before.
        """
        if any(source.is_like(each) for each in self._evaluated):
            return False
        return any(source.is_like(each) for each in self.joined)

    def begin_backward(self, losses: Any, call: int) -> None:
        """Note which batches reach the losses of a call of backward, by its number from 1."""
        self._new = 0
        if self._window is not None:
            for number in self.operations.batches_of(tree_leaves(losses)):
                handed = self._window.handed[number]
                if handed.reached_by is None:
                    handed.reached_by = call
        self.operations.pause()

    def end_backward(self) -> None:
        """Go on watching: the gradients are computed."""
        if self._window is not None:
            self.operations.watch()

    def pause(self) -> None:
        """Watch nothing before the next batch, for instance while processes are forked."""
        self.operations.pause()

    def end_step(self, batches: int, known: Iterable[Any]) -> None:
        """End a step of so many batches.

        Args:
            known: the sources of the training. Others join them if their batches reached a loss.
        """
        self._steps += 1
        self._in_row = self._in_row + 1 if batches > 1 else 0
        window = self._window
        if window is not None:
            known = [*known]
            for handed in window.handed:
                if not _is_in(handed.source, known):
                    of_source = self._evaluated if handed.reached_by is None else self.joined
                    if not _is_in(handed.source, of_source):
                        of_source.append(handed.source)
            if batches > 1:
                window.several.append(window.steps)
            window.steps += 1
            if window.is_short:
                self.close()
            elif window.is_enough() or window.steps >= LONGEST:
                self._conclude(window.settled(), window.is_enough())
        if self._window is None and self._in_row > 1 and self._steps >= self._not_before:
            self._is_due = True

    def finish(self) -> None:
        """End the run. If it was short, fewer steps are enough."""
        window = self._window
        if window is None or window.is_short:
            self.close()
            return
        self._conclude(
            window.settled(later=1),
            is_enough=any(step < window.steps - 1 for step in window.several),
        )

    def _conclude(self, settled: list[_HandedBatch], is_enough: bool) -> None:
        """Conclude what these batches show of their sources.

        Args:
            is_enough: there were enough steps of several batches.
        """
        sources = list[Any]()
        for handed in settled:
            if not _is_in(handed.source, sources) and not _is_in(handed.source, self._evaluated):
                sources.append(handed.source)
        # If no batch reached a loss, the operations are hidden, and nothing is concluded.
        is_any = any(handed.reached_by is not None for handed in settled)
        for source in sources if is_any else ():
            calls = [
                (handed.backwards, handed.reached_by)
                for handed in settled
                if handed.source is source
            ]
            reached = [(before, by) for before, by in calls if by is not None]
            if reached:
                self._held_back.append((source, any(by > before + 1 for before, by in reached)))
            if is_enough:
                self._set_reach(source, Reach.of(len(reached), len(calls)))
        self._not_before = 2 * self._steps
        self.close()

    def _set_reach(self, source: Any, reach: Reach) -> None:
        before = self.reach(source)
        if before is not None and before is not reach:
            reach = Reach.unsure
        self._reaches = [entry for entry in self._reaches if entry[0] is not source]
        self._reaches.append((source, reach))

    def close(self) -> None:
        """Watch nothing until it is due again."""
        self.is_open = False
        self._window = None
        self.operations.pause()
        self.operations.clear()


def _is_in(source: Any, sources: Iterable[Any]) -> bool:
    return any(each is source for each in sources)


def has_compiled() -> bool:
    """Return True if torch.compile is in use.

    Its graphs hide their operations, and a mode would make it compile anew.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])
