"""Which batches a script trains on, where the order of events does not show it.

Calls of backward do not tell a script that adds the losses of two batches from one that skips every
second, nor a loader that joins the training from one that is evaluated. The operations between show
it: each tensor that is computed from a batch is known as that batch's, up to the losses of which
gradients are computed. Some steps of such a script are watched in this way, and again after twice
as many each time, as a loss may come or go. That makes them slower: they are left out of its times.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from multicard.script.operations import Operations, tensors_in
from multicard.script.passes import Pass, Reach

ENOUGH = 2  # steps of several batches that are watched
LATER = 2  # steps after which a batch that was read ahead has been trained on
LONGEST = 6  # steps that are watched at once
KEPT = 8  # sources that joined the training last
AHEAD = 3  # batches of a new source that may be read before the first is trained on


@dataclass(eq=False)
class _Handed:
    """A batch that was handed out while operations are watched.

    Attributes:
        backwards: calls of backward before it. step: of the window.
            reached_by: the first call of whose losses it is.
    """

    source: Any
    backwards: int
    step: int
    reached_by: int | None = None


@dataclass
class _Window:
    """Some steps that are watched.

    Attributes:
        is_short: a step alone, in which a new source is drawn from.
        steps: that have ended in it. several: those of several batches, by their numbers.
    """

    is_short: bool = False
    handed: list[_Handed] = field(default_factory=list)
    steps: int = 0
    several: list[int] = field(default_factory=list)

    def is_enough(self) -> bool:
        return len(self.several) >= ENOUGH and self.steps > self.several[ENOUGH - 1] + LATER

    def settled(self, later: int = LATER) -> list[_Handed]:
        """The batches that were trained on by now, if ever.

        Args:
            later: steps after which they are.
        """
        return [each for each in self.handed if each.step < self.steps - later]


class Contributions:
    """Watches which batches reach the losses of which gradients are computed.

    Attributes:
        is_open: operations are watched in this step.
        joined: sources that seemed to be evaluated when they were first drawn from, and are trained
            on.
        operations: what watches them.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.joined: list[Any] = []
        self._evaluated: list[Any] = []
        self._found: list[tuple[Any, Reach]] = []
        self._held_back: list[tuple[Any, bool]] = []
        self._window: _Window | None = None
        self.operations = Operations()
        self._steps = 0
        self._not_before = 2
        # steps of several batches up to now: the first of a pass alone may read ahead
        self._in_row = 0
        self._is_due = False
        self._new = 0  # batches of new sources since the last call of backward

    def reach(self, source: Any) -> Reach | None:
        """Which batches of a source were trained on, where several are handed out in a step;
        None: nobody knows.
        """
        return next((found for each, found in self._found if each is source), None)

    def holds_back(self, source: Any) -> bool | None:
        """True where a batch was trained on later than by the first call after it;
        None: nobody knows.
        """
        return next((found for each, found in self._held_back if each is source), None)

    def receives(self, one: Pass, trains: bool, batch: Any) -> None:
        """A batch was handed out, and is the last of its pass."""
        if one.in_thread:
            return
        is_new = not trains and torch.is_grad_enabled() and not _is_in(one.source, self._evaluated)
        if is_new and self._joins_as_before(one.source):
            self.joined = [*self.joined[-KEPT:], one.source]
            is_new = False
            trains = True
        if not trains and not is_new:
            self.operations.rest()
            return
        self._new += is_new
        if self._window is None and (is_new or self._is_due) and not has_compiled():
            self._window = _Window(is_short=is_new)
            self._is_due = False
            self.is_open = True
        if self._window is None:
            return
        self._window.handed.append(_Handed(one.source, one.backwards[-1], self._window.steps))
        self.operations.marks(tensors_in(batch), len(self._window.handed) - 1)
        if self._new > AHEAD:
            self.operations.rest()
        else:
            self.operations.watch()

    def _joins_as_before(self, source: Any) -> bool:
        """True of data that are built anew for each pass, or each step,
        and were trained on before.
        """
        if any(source.is_like(each) for each in self._evaluated):
            return False
        return any(source.is_like(each) for each in self.joined)

    def computes(self, losses: Any, call: int) -> None:
        """Gradients of these are about to be computed, by a
        call of backward of this number, from 1.
        """
        self._new = 0
        if self._window is not None:
            for number in self.operations.batches_of(tree_leaves(losses)):
                handed = self._window.handed[number]
                if handed.reached_by is None:
                    handed.reached_by = call
        self.operations.rest()

    def computed(self) -> None:
        """They were computed."""
        if self._window is not None:
            self.operations.watch()

    def rest(self) -> None:
        """Watch nothing before the next batch, as where processes are forked."""
        self.operations.rest()

    def step_ends(self, batches: int, known: Iterable[Any]) -> None:
        """A step has ended, of so many batches.

        Args:
            known: the sources of the training. Others whose batches reached a loss join them.
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
        """The run has ended. Of a short one less is enough."""
        window = self._window
        if window is None or window.is_short:
            self.close()
            return
        self._conclude(
            window.settled(later=1),
            is_enough=any(step < window.steps - 1 for step in window.several),
        )

    def _conclude(self, settled: list[_Handed], is_enough: bool) -> None:
        """Say of the sources of these batches what was seen of them.

        Args:
            is_enough: there were steps of several batches.
        """
        sources = list[Any]()
        for handed in settled:
            if not _is_in(handed.source, sources) and not _is_in(handed.source, self._evaluated):
                sources.append(handed.source)
        # else operations are hidden
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
                self._finds(source, Reach.of(len(reached), len(calls)))
        self._not_before = 2 * self._steps
        self.close()

    def _finds(self, source: Any, reach: Reach) -> None:
        before = self.reach(source)
        if before is not None and before is not reach:
            reach = Reach.unsure
        self._found = [(each, found) for each, found in self._found if each is not source] + [
            (source, reach)
        ]

    def close(self) -> None:
        """Watch nothing any more, until it is due again."""
        self.is_open = False
        self._window = None
        self.operations.rest()
        self.operations.clear()


def _is_in(source: Any, sources: Iterable[Any]) -> bool:
    return any(each is source for each in sources)


def has_compiled() -> bool:
    """True where torch.compile is in use: its graphs hide their operations,
    and a mode would have it compile anew.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])
