"""Separate batches for training from batches for evaluation, and count their samples."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch

from multicard.script.attribution import attribute
from multicard.script.contributions import Contributions
from multicard.script.passes import UNKNOWN, Pass, PassEnd, StepData, StepEnd
from multicard.script.sizes import samples

MOST_SOURCES = 16  # So many sources that joined the training before are remembered.

__all__ = ["BatchSource", "DrawnBatch", "Draws", "samples"]


class BatchSource:  # noqa: PLW1641  compared, and never hashed
    """A data set, and how a loader draws from it.

    The data that is trained on may also be evaluated, in other batches: that is another source.

    Args:
        data: the data set.
        index_sampler: the sampler of a loader, or of its iterator.
    """

    def __init__(self, data: Any, index_sampler: Any) -> None:
        # Accelerate's shard holds the batch sampler.
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
        """Return True for data of the same kind, drawn from in the same way.

        Some scripts build their data anew for each pass.
        """
        return type(self._data) is type(other._data) and self._how == other._how

    def tries_again(self, other: "BatchSource") -> bool:
        """Return True if the same data comes in batches of fewer samples.

        The script tries again so if the other batches did not fit into memory. A framework may wrap
        the same data anew. Then its type and its length are compared.
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
    """A batch that was handed out, by its number in its pass."""

    data_pass: Pass
    number: int

    @property
    def source(self) -> BatchSource:
        return self.data_pass.source

    @property
    def size(self) -> int | None:
        size = self.data_pass.sizes[self.number]
        return None if size == UNKNOWN else size


class Draws:
    """The batches drawn since the last step, and the sources that training draws from.

    An evaluation draws its batches without gradients, or from sources that the training has not
    used. If all batches of a step are of a new source, the training goes on with that source.

    A new source is evaluated, even in the first step, if its loader ends before another source is
    drawn from. A source is evaluated, too, if it is drawn from anew after a whole pass without a
    step.

    Attributes:
        ever: a batch for training was drawn at some time in the run.
        calls_backward: the script calls `backward`, and not only `torch.autograd.grad`.
        backwards: calls of backward so far.
        asked: a batch of the training was asked for since the last step.
        without_step: sources that ended a whole pass since the last step, with its batches.
    """

    def __init__(self) -> None:
        self._known: list[BatchSource] = []
        self._first_step = True
        self.ever = False
        self.calls_backward = False
        self.backwards = self._handed_out = self._cleared = 0
        self._passes: list[Pass] = []  # Passes with batches of the training.
        self._ends: list[StepEnd] = []
        self._part_end = StepEnd(0, 0)
        self._changing = RLock()  # Another thread may draw a batch while a step ends.
        self._clear()

    def _clear(self) -> None:
        self.asked = False
        self._trained_on = 0  # Batches of steps of an optimizer that does not count.
        self._pending: list[DrawnBatch] = []  # Batches of known sources.
        self._new: list[DrawnBatch] = []  # Batches of other sources, drawn with gradients.
        self._ended: list[BatchSource] = []  # Sources whose loader had no further batch.
        self.without_step: list[tuple[BatchSource, int]] = []

    def begin_pass(self, data: Any, index_sampler: Any) -> Pass:
        """Begin a pass of a loader.

        If its source equals one that was drawn from before, the pass gets that same object. Lists
        find an object without a comparison, and passes of one source are recognized by it.
        """
        source = BatchSource(data, index_sampler)
        for known_source in (*self._known, *(batch.source for batch in self._new)):
            if known_source == source:
                return Pass(known_source)
        return Pass(source)

    def is_known(self, source: BatchSource) -> bool:
        """Return True for a source that training draws from."""
        return source in self._known

    def is_new_batch(self) -> bool:
        """Return True if a batch that may be trained on was handed out since the last step."""
        return bool(self._pending or self._new)

    def drop_evaluated_pass(self, source: BatchSource) -> bool:
        """Drop the batches of a whole pass without a step, since its source is drawn from again.

        That pass seemed to train, but was an evaluation. Its batches belong to no step. Return
        whether it counts as an evaluation.
        """
        count = 0
        for ended_source, batches in self.without_step:
            if ended_source == source:
                count = batches
                break
        if not count:
            return False
        self.without_step = [ended for ended in self.without_step if ended[0] != source]
        for drawn in (self._pending, self._new):
            places = [place for place, batch in enumerate(drawn) if batch.source == source]
            for place in reversed(places[-count:]):
                del drawn[place]
        return self._first_step or source in self._known

    def ask_batch(self, source: BatchSource) -> bool:
        """Return True if a batch that is asked for is for training."""
        if not torch.is_grad_enabled() or not (source in self._known or self._first_step):
            return False
        self.asked = True
        return True

    def add(self, data_pass: Pass, trains: bool, size: int | None) -> None:
        """Add a batch of so many samples; None: nobody knows how many."""
        with self._changing:
            self._add(data_pass, trains, size)

    def _add(self, data_pass: Pass, trains: bool, size: int | None) -> None:
        if trains:
            self.ever = True
        data_pass.sizes.append(UNKNOWN if size is None else size)
        data_pass.places.append(self._handed_out)
        data_pass.backwards.append(self.backwards)
        data_pass.trains.append(0)
        self._handed_out += 1
        batch = DrawnBatch(data_pass, len(data_pass.sizes) - 1)
        if data_pass.source in self._known:
            if trains:
                self._pending.append(batch)
        elif torch.is_grad_enabled():
            self._drop_ended(data_pass.source)
            self._new.append(batch)

    def _drop_ended(self, source: BatchSource) -> None:
        """Drop new sources that ended before this one is drawn from: they are not of the step."""
        self._new = [
            batch
            for batch in self._new
            if batch.source == source or batch.source not in self._ended
        ]

    def note_uncounted_step(self) -> None:
        """Note a step of an optimizer that does not count: no pass up to here was an evaluation."""
        self._trained_on = len(self._pending) + len(self._new)

    def end_pass(self, data_pass: Pass, handed_out: int) -> None:
        """End a pass: its loader has no further batch, after so many."""
        with self._changing:
            self._end_pass(data_pass, handed_out)

    def _end_pass(self, data_pass: Pass, handed_out: int) -> None:
        source = data_pass.source
        if data_pass.ended is None:
            data_pass.ended = PassEnd(self.backwards, self._handed_out)
        if source in self._known:
            self._drop_ended(source)
        self._ended.append(source)
        since_step = (
            sum(batch.source == source for batch in (*self._pending, *self._new)) - self._trained_on
        )
        if 0 < handed_out <= since_step:
            self.without_step.append((source, handed_out))
        self.asked = self.asked and source not in self._known

    def end_step(self, joined: Sequence[BatchSource] = ()) -> tuple[list[DrawnBatch], bool]:
        """End a step.

        Args:
            joined: sources that seemed to be evaluated, though their batches reached a loss.

        Returns:
            The batches that were handed out for the step, and whether some of them seemed to be
            evaluated.
        """
        with self._changing:
            return self._end_step(joined)

    def _end_step(self, joined: Sequence[BatchSource]) -> tuple[list[DrawnBatch], bool]:
        seemed_evaluated = (
            bool(self._new)
            and (self._join_sources(joined) or self._move_to_new_sources())
            and not self._first_step
        )
        drawn = self._pending
        for batch in drawn:
            if not any(batch.data_pass.trains):
                self._passes.append(batch.data_pass)
            batch.data_pass.trains[batch.number] = 1
        self._ends.append(self._step_end())
        self._first_step = False
        self._clear()
        return drawn, seemed_evaluated

    def _step_end(self) -> StepEnd:
        return StepEnd(self.backwards, self._handed_out, self._cleared)

    def note_possible_end(self) -> None:
        """Note where a step ends if the next step turns out to be two."""
        self._part_end = self._step_end()

    def add_noted_end(self) -> None:
        """Add the step that was noted last: the next step was two."""
        self._ends.append(self._part_end)

    def of_steps(self, contributions: Contributions, is_stopped: bool = False) -> StepData:
        """Return what each step trained on, as far as it is known by now.

        Args:
            is_stopped: the run was stopped before its end.
        """
        for data_pass in self._passes:
            data_pass.forget_short(data_pass.source.batch_size)
            data_pass.reach = contributions.reach(data_pass.source)
            data_pass.holds_back = contributions.holds_back(data_pass.source)
        with self._changing:
            return attribute(self._passes, self._ends, self.backwards, is_stopped)

    @property
    def known(self) -> Sequence[BatchSource]:
        """The sources that training draws from."""
        return self._known

    def handed_out(self) -> int:
        """Return the number of batches since the last step that seem to be trained on."""
        return len(self._pending) + len(self._new)

    def clear_gradients(self) -> None:
        """Note that gradients are cleared: no later step has those computed up to here."""
        self._cleared = self.backwards

    def _join_sources(self, sources: Sequence[BatchSource]) -> bool:
        """Let further sources join the training, since their batches reached a loss.

        Return whether the step has a batch of them.
        """
        joining = [
            batch for batch in self._new if any(batch.source is source for source in sources)
        ]
        for batch in joining:
            if batch.source not in self._known:
                self._known = [*self._known[-MOST_SOURCES:], batch.source]
        self._new = [batch for batch in self._new if batch not in joining]
        self._pending += joining
        return bool(joining)

    def _move_to_new_sources(self) -> bool:
        """Go on with the new sources if the step was of them, and return whether it was."""
        # A training without a loader goes on without one.
        if not self._first_step and not self._known:
            self._new = [batch for batch in self._new if batch.source not in self._ended]
        if self._new and self._tries_again():
            self._known += [batch.source for batch in self._new]
            self._pending += self._new
            return True
        if not self._new or (self.asked and not self._first_step):
            return False
        self._known = [batch.source for batch in self._new]
        self.ever = True
        self._pending += self._new
        return True

    def _tries_again(self) -> bool:
        """Return True if training goes on in smaller batches of the same data.

        The batches before did not fit into memory. If it were an evaluation of the same data, the
        training would draw its next batch before any call of backward.
        """
        if self._first_step or not self._pending:
            return False
        first = self._new[0]
        last = self._new[-1]
        before = self._pending[-1]
        return (
            first.data_pass.places[first.number] > before.data_pass.places[before.number]
            and self.backwards > last.data_pass.backwards[last.number]
            and last.source.tries_again(before.source)
        )
