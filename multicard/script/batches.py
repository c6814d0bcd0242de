"""The batches that DataLoaders hand out: for a step of training or for an evaluation,
and of how many samples.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch

from multicard.script.attribution import attribute
from multicard.script.contributions import Contributions
from multicard.script.passes import UNKNOWN, Pass, StepData, StepEnd
from multicard.script.sizes import samples

KEPT = 16  # sources that are drawn from in turn

__all__ = ["BatchSource", "DrawnBatch", "Draws", "samples"]


class BatchSource:  # noqa: PLW1641  compared, and never hashed
    """A data set, and how a loader draws from it: what is trained on may be evaluated too,
    in other batches.

    Args:
        data: the data set.
        index_sampler: of the loader, or of an iterator of it.
    """

    def __init__(self, data: Any, index_sampler: Any) -> None:
        # within Accelerate's shard
        drawn_by = getattr(index_sampler, "batch_sampler", index_sampler)
        size = getattr(drawn_by, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None
        self._data = data
        self._how = (size, type(getattr(drawn_by, "sampler", None)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BatchSource) and self._data is other._data and self._how == other._how
        )

    def is_like(self, other: "BatchSource") -> bool:
        """True for data of one kind that are drawn from in one way,
        as those that are built anew for each pass.
        """
        return type(self._data) is type(other._data) and self._how == other._how

    def tries_again(self, other: "BatchSource") -> bool:
        """True for fewer samples a batch of the same data,
        as where the other's did not fit into memory.

        A framework may wrap the same data anew: then their kind and their length tell.
        """
        if (
            self.batch_size is None
            or other.batch_size is None
            or self.batch_size >= other.batch_size
        ):
            return False
        return self._data is other._data or (
            type(self._data) is type(other._data)
            and isinstance(self._data, Sized)
            and len(self._data) == len(other._data)
        )


@dataclass(slots=True)
class DrawnBatch:
    """A batch that was handed out: the so many-th of its pass."""

    of: Pass
    number: int

    @property
    def source(self) -> BatchSource:
        return self.of.source

    @property
    def size(self) -> int | None:
        size = self.of.sizes[self.number]
        return None if size == UNKNOWN else size


class Draws:
    """Batches drawn since the last step, and the sources that training draws from.

    An evaluation draws its batches without gradients, or from other sources than the training did
    before. Where a step had no batches but of a new source, training goes on with that. A new
    source whose loader had ended before another was drawn from was not of the step: it was
    evaluated, in the first step as well. So was a source that is drawn from anew after a whole pass
    without a step.

    Attributes:
        ever: any batch for training, in the whole run. backwards: calls of backward so far.
    """

    def __init__(self) -> None:
        self._known: list[BatchSource] = []
        self._first_step = True
        self.ever = False
        self.calls_backward = False  # and not `torch.autograd.grad` alone
        self.backwards = self._handed_out = self._cleared = 0
        self._passes: list[Pass] = []  # with batches of the training
        self._ends: list[StepEnd] = []
        self._part_end = StepEnd(0, 0)
        self._changing = RLock()  # another thread may draw a batch while a step ends
        self._clear()

    def _clear(self) -> None:
        self.asked = False  # for a batch of the training
        self._trained_on = 0  # batches, by an optimiser that does not count
        self._pending: list[DrawnBatch] = []  # of known sources
        self._new: list[DrawnBatch] = []  # with gradients, of other sources
        self._ended: list[BatchSource] = []  # whose loader had no more
        # after a whole pass since the last step of so many batches
        self.without_step: list[tuple[BatchSource, int]] = []

    def begins(self, data: Any, index_sampler: Any) -> Pass:
        """A loader begins a pass. Its source is, of those drawn from before, the same object, as
        lists find an object without a comparison, and passes of a source are told from others by
        it.
        """
        source = BatchSource(data, index_sampler)
        before = (*self._known, *(each.source for each in self._new))
        return Pass(next((each for each in before if each == source), source))

    def is_known(self, source: BatchSource) -> bool:
        """True for a source that training draws from."""
        return source in self._known

    def is_new_batch(self) -> bool:
        """True where a batch that may be of the training was handed out since the last step."""
        return bool(self._pending or self._new)

    def begins_anew(self, source: BatchSource) -> bool:
        """True where a source is drawn from once more after a whole pass without a step that seemed
        to train: it was an evaluation. Batches of such a pass are of no step.
        """
        count = next((count for ended, count in self.without_step if ended == source), 0)
        if not count:
            return False
        self.without_step = [each for each in self.without_step if each[0] != source]
        for drawn in (self._pending, self._new):
            of_source = [place for place, one in enumerate(drawn) if one.source == source]
            for place in of_source[: -count - 1 : -1]:
                del drawn[place]
        return self._first_step or source in self._known

    def asks(self, source: BatchSource) -> bool:
        """True where a batch that is asked for is for training."""
        if not torch.is_grad_enabled() or not (source in self._known or self._first_step):
            return False
        self.asked = True
        return True

    def add(self, of: Pass, trains: bool, size: int | None) -> None:
        """Count a batch of so many samples."""
        with self._changing:
            self._add(of, trains, size)

    def _add(self, of: Pass, trains: bool, size: int | None) -> None:
        if trains:
            self.ever = True
        of.sizes.append(UNKNOWN if size is None else size)
        of.places.append(self._handed_out)
        of.backwards.append(self.backwards)
        of.trains.append(0)
        self._handed_out += 1
        batch = DrawnBatch(of, len(of.sizes) - 1)
        if of.source in self._known:
            if trains:
                self._pending.append(batch)
        elif torch.is_grad_enabled():
            self._leave_ended(of.source)
            self._new.append(batch)

    def _leave_ended(self, source: BatchSource) -> None:
        """New sources that ended before this one is drawn from are not of the step."""
        self._new = [
            each for each in self._new if each.source == source or each.source not in self._ended
        ]

    def step_uncounted(self) -> None:
        """An optimiser that does not count has ended a
        step: no pass up to here was an evaluation.
        """
        self._trained_on = len(self._pending) + len(self._new)

    def ends(self, of: Pass, handed_out: int) -> None:
        """The loader has no more batches, after so many in this pass over the data."""
        with self._changing:
            self._end(of, handed_out)

    def _end(self, of: Pass, handed_out: int) -> None:
        source = of.source
        if of.ended is None:
            of.ended = (self.backwards, self._handed_out)
        if source in self._known:
            self._leave_ended(source)
        self._ended.append(source)
        since_step = (
            sum(one.source == source for one in (*self._pending, *self._new)) - self._trained_on
        )
        self.without_step += [(source, handed_out)] if 0 < handed_out <= since_step else []
        self.asked = self.asked and source not in self._known

    def take(self, joined: Sequence[BatchSource] = ()) -> tuple[list[DrawnBatch], bool]:
        """The batches that were handed out for the step that has ended, and whether they were of a
        source that seemed to be evaluated.

        Args:
            joined: sources that seemed to be, of which batches reached a loss.
        """
        with self._changing:
            return self._take(joined)

    def _take(self, joined: Sequence[BatchSource]) -> tuple[list[DrawnBatch], bool]:
        seemed_evaluated = (
            bool(self._new) and (self._joins(joined) or self._moves()) and not self._first_step
        )
        drawn = self._pending
        for one in drawn:
            if not any(one.of.trains):
                self._passes.append(one.of)
            one.of.trains[one.number] = 1
        self._ends.append(self._now())
        self._first_step = False
        self._clear()
        return drawn, seemed_evaluated

    def _now(self) -> StepEnd:
        return StepEnd(self.backwards, self._handed_out, self._cleared)

    def may_end_step(self) -> None:
        """The next step may turn out to be two: the first of them has ended here."""
        self._part_end = self._now()

    def ends_step(self) -> None:
        """It was two."""
        self._ends.append(self._part_end)

    def of_steps(self, contributions: Contributions, is_stopped: bool = False) -> StepData:
        """What each step trained on, as far as it is known by now.

        Args:
            is_stopped: the run was stopped before its end.
        """
        for one in self._passes:
            one.forget_short(one.source.batch_size)
            one.reach = contributions.reach(one.source)
            one.holds_back = contributions.holds_back(one.source)
        with self._changing:
            return attribute(self._passes, self._ends, self.backwards, is_stopped)

    @property
    def known(self) -> Sequence[BatchSource]:
        """The sources of the training."""
        return self._known

    def handed_out(self) -> int:
        """Batches since the last step, of whatever seems to be trained on."""
        return len(self._pending) + len(self._new)

    def clears(self) -> None:
        """Gradients were cleared: those of calls up to here are in no step to come."""
        self._cleared = self.backwards

    def _joins(self, sources: Sequence[BatchSource]) -> bool:
        """Go on with further sources, whose batches reached a loss.
        True if the step has a batch of them.
        """
        joining = [one for one in self._new if any(one.source is each for each in sources)]
        for one in joining:
            if one.source not in self._known:
                self._known = [*self._known[-KEPT:], one.source]
        self._new = [one for one in self._new if one not in joining]
        self._pending += joining
        return bool(joining)

    def _moves(self) -> bool:
        """Go on with the new sources, where the step was of them. Returns whether it was."""
        if not self._first_step and not self._known:  # steps without a loader go on without it
            self._new = [each for each in self._new if each.source not in self._ended]
        if self._new and self._tries_again():
            self._known += [each.source for each in self._new]
            self._pending += self._new
            return True
        if not self._new or (self.asked and not self._first_step):
            return False
        self._known = [each.source for each in self._new]
        self.ever = True
        self._pending += self._new
        return True

    def _tries_again(self) -> bool:
        """True where training goes on in smaller batches of the same data,
        as those before did not fit into memory.

        An evaluation of the same data has no call of backward after it,
        before the training draws on.
        """
        if self._first_step or not self._pending:
            return False
        first = self._new[0]
        last = self._new[-1]
        before = self._pending[-1]
        return (
            first.of.places[first.number] > before.of.places[before.number]
            and self.backwards > last.of.backwards[last.number]
            and last.source.tries_again(before.source)
        )
