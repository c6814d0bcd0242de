"""The seconds of each step, from laps of the device's work that are labelled as the script goes."""

from enum import IntEnum

import numpy as np


class Lap(IntEnum):
    """What the time since the lap before was for.

    What seems to be of no step has a label of its own until something shows what it was: a pass
    over the training's data that begins, or a step that ends.
    """

    work = 0
    data = 1  # a wait for a batch of the training
    step = 2  # work that ends a step
    resumed = 3  # the same, of new data: what seemed to be an evaluation belongs to the step
    part = 4  # work that ends a step of an optimiser that does not count, or not yet
    evaluate = 5  # seems to be an evaluation
    evaluate_wait = 6  # the same, for a batch
    evaluated = 7  # the end of an evaluation
    between = 8  # after a pass over the training's data: seems to be of no step
    pass_begins = 9  # the end of that
    eval_mode = 10  # a module is in evaluation mode: seems to be an evaluation
    train_mode = 11  # the end of that
    left_mode = 12  # that was none
    apart = 13  # between steps that are marked
    pause = 14  # of a race


class StepTimes:
    """Adds laps up to steps.

    Attributes:
        total_s: of all laps up to the last step, without pauses. span_s: with them.
        evaluate_s: of evaluations that draw batches. between_s: between passes over the data.
        ended: steps of optimisers, counted or not, whose laps are known.
    """

    def __init__(self) -> None:
        self.total_s = self.span_s = self.evaluate_s = self.between_s = 0.0
        self._lapsed_s = self._paused_s = 0.0
        self._step_s = self._data_s = 0.0
        self._evaluation_s = self._evaluation_wait_s = self._gap_s = self._mode_s = (
            self._in_mode_s
        ) = 0.0
        self._parts: list[tuple[float, float, float]] = []

    @property
    def ended(self) -> int:
        return len(self._parts)

    def add(self, label: int, seconds: float) -> None:
        """A lap that has ended."""
        self._lapsed_s += seconds
        if label == Lap.pause:
            self._paused_s += seconds
        elif label in (Lap.work, Lap.step, Lap.resumed, Lap.part):
            self._step_s += seconds
        elif label == Lap.data:
            self._step_s += seconds
            self._data_s += seconds
        elif label in (Lap.evaluate, Lap.evaluated):
            self._evaluation_s += seconds
        elif label == Lap.evaluate_wait:
            self._evaluation_s += seconds
            self._evaluation_wait_s += seconds
        elif label in (Lap.between, Lap.pass_begins):
            self._gap_s += seconds
        elif label in (Lap.eval_mode, Lap.train_mode, Lap.left_mode):
            self._mode_s += seconds
        self._settle(label)

    def _settle(self, label: int) -> None:
        """What seemed to be of no step is, or is not, by what has happened now."""
        if label == Lap.resumed:
            self._step_s += self._evaluation_s
            self._data_s += self._evaluation_wait_s
            self.between_s += self._gap_s
        elif label == Lap.step:
            self.evaluate_s += self._evaluation_s
            self._step_s += self._gap_s
        elif label == Lap.evaluated:
            self.evaluate_s += self._evaluation_s
        elif label == Lap.pass_begins:
            self.between_s += self._gap_s
        elif label == Lap.train_mode:
            self._in_mode_s += self._mode_s
        if label in (Lap.step, Lap.resumed, Lap.left_mode):
            self._step_s += self._mode_s
        if label in (Lap.step, Lap.resumed, Lap.evaluated):
            self._evaluation_s = self._evaluation_wait_s = 0.0
        if label in (Lap.step, Lap.resumed, Lap.pass_begins):
            self._gap_s = 0.0
        if label in (Lap.step, Lap.resumed, Lap.train_mode, Lap.left_mode):
            self._mode_s = 0.0
        if label in (Lap.step, Lap.resumed, Lap.part):
            self._parts.append((self._step_s, self._data_s, self._in_mode_s))
            self._step_s = self._data_s = self._in_mode_s = 0.0
        if label in (Lap.step, Lap.resumed):
            self.total_s = self._lapsed_s - self._paused_s
            self.span_s = self._lapsed_s

    def close(self) -> None:
        """The run has ended: what seemed to be an evaluation was one."""
        self.evaluate_s += self._evaluation_s
        self._evaluation_s = 0.0

    def of_steps(self, counted: list[bool]) -> np.ndarray:
        """Seconds of the steps that count (steps, 3): of all, of waits for data, and in evaluation
        mode, which the first leaves out.

        Args:
            counted: of each step of an optimiser, in their order, whether it counts; the time of
                others belongs to the next one that does.
        """
        known = counted[: len(self._parts)]
        if not any(known):
            return np.empty((0, 3))
        parts = np.array(self._parts)[: len(known)]
        ends = np.flatnonzero(known)
        starts = np.append(0, ends[:-1] + 1)
        return np.add.reduceat(parts[: ends[-1] + 1], starts, axis=0)
