"""Computes the seconds of each step from laps of the device's work, which have labels."""

from enum import IntEnum

import numpy as np


class Lap(IntEnum):
    """What the time since the last lap was for.

    Time that seems to belong to no step is held back until a later lap shows what it was: the end
    of a step, or a new pass over the training's data.
    """

    work = 0
    data = 1  # A wait for a batch of the training.
    step = 2  # Work that ends a step.
    resumed = 3  # Work that ends a step on new data: the supposed evaluation belongs to the step.
    part = 4  # Work that ends a step of an optimizer that does not count, or not yet.
    evaluate = 5  # Seems to be an evaluation.
    evaluate_wait = 6  # Waits for a batch of a supposed evaluation.
    evaluated = 7  # The end of a certain evaluation.
    between = 8  # Time after a pass over the training's data, which seems to belong to no step.
    pass_begins = 9  # The next pass begins: the time since the last pass belongs to no step.
    eval_mode = 10  # A module is in evaluation mode: seems to be an evaluation.
    train_mode = 11  # The module is back in training mode: it was an evaluation.
    left_mode = 12  # Nothing was evaluated in evaluation mode: the time belongs to the step.
    apart = 13  # Time between marked steps.
    pause = 14  # A pause of a race.


class StepTimes:
    """Adds laps up to steps.

    Attributes:
        total_s: all laps up to the end of the last step, without pauses.
        span_s: all laps up to the end of the last step, with pauses.
        evaluate_s: evaluations that draw batches.
        between_s: time between passes over the data.
        ended: number of optimizer steps, counted or not, whose laps are known.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self.span_s = 0.0
        self.evaluate_s = 0.0
        self.between_s = 0.0
        self._lapsed_s = 0.0
        self._paused_s = 0.0
        # The step that is under way.
        self._step_s = 0.0
        self._data_s = 0.0
        self._in_mode_s = 0.0
        # Undecided so far: supposed evaluations, gaps between passes, and evaluation mode.
        self._evaluation_s = 0.0
        self._evaluation_wait_s = 0.0
        self._gap_s = 0.0
        self._mode_s = 0.0
        self._parts: list[tuple[float, float, float]] = []

    @property
    def ended(self) -> int:
        return len(self._parts)

    def add(self, label: int, seconds: float) -> None:
        """Add a lap that has ended."""
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
        """Credit the undecided time to a step or to none, now that this lap shows what it was."""
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
        """End the run: what seemed to be an evaluation was one."""
        self.evaluate_s += self._evaluation_s
        self._evaluation_s = 0.0

    def of_steps(self, counted: list[bool]) -> np.ndarray:
        """Return the seconds of the steps that count.

        Args:
            counted: for each optimizer step, in order, whether it counts. The time of a step that
                does not count belongs to the next one that does.

        Returns:
            An array (steps, 3) in seconds: the step without its time in evaluation mode, its waits
            for data, and its time in evaluation mode.
        """
        known = counted[: len(self._parts)]
        if not any(known):
            return np.empty((0, 3))
        parts = np.array(self._parts)[: len(known)]
        ends = np.flatnonzero(known)
        starts = np.append(0, ends[:-1] + 1)
        return np.add.reduceat(parts[: ends[-1] + 1], starts, axis=0)
