"""Tells training, evaluation and gaps apart, and labels the laps of the clock by them."""

from collections.abc import Callable
from typing import Any

import torch

from multicard.script.evaluation_passes import EvaluationPasses
from multicard.script.gaps import Gaps
from multicard.script.left_out_steps import LeftOutSteps
from multicard.script.passes import Pass
from multicard.script.step_clock import StepClock
from multicard.script.step_times import Lap


class Activity:
    """Decides what the time between two events of a script is for.

    An evaluation draws batches that are not trained on, or has a module in evaluation mode.

    Args:
        left_out: is told which steps have an evaluation before them.
        evaluation_ended: called when training goes on after an evaluation.

    Attributes:
        evaluations: how many there were so far.
        is_evaluating: batches of an evaluation are being drawn.
        is_marked: the script marks its steps, so steps of optimizers do not count.
        is_in_mark: a marked step has begun and has not ended.
        gaps: times that seem to belong to no step.
    """

    def __init__(
        self, clock: StepClock, left_out: LeftOutSteps, evaluation_ended: Callable[[], None]
    ) -> None:
        self.evaluations = 0
        self.is_evaluating = False
        self.is_marked = False
        self.is_in_mark = False
        self.gaps = Gaps(clock.lap)
        self._clock = clock
        self._left_out = left_out
        self._evaluation_ended = evaluation_ended
        self._draws_with_gradients = False
        self._evaluation_passes = EvaluationPasses()

    def ask_batch(self, data_pass: Pass, trains: bool) -> None:
        """Label the time up to the request of a batch, and see whether an evaluation begins."""
        with_gradients = torch.is_grad_enabled()
        # A batch with gradients is not of an evaluation without them.
        has_ended = trains or with_gradients > self._draws_with_gradients
        if self.is_evaluating and has_ended:
            self._end_evaluation(Lap.evaluated)
        if self.is_evaluating:
            self.evaluations += self._evaluation_passes.draw(data_pass)
            self._clock.lap(Lap.evaluate)
        elif self._clock.is_running and trains:
            self._evaluation_passes.forget()
            self.go_on_training()
            self._clock.lap(self._work())
        elif self._clock.is_running:
            self._clock.lap(self.gaps.work_label(self._work()))
            self.is_evaluating = True
            self._draws_with_gradients = with_gradients
            self.gaps.note_evaluation_batch()
            if not self._evaluation_passes.resume(data_pass):
                self._evaluation_passes.begin(data_pass)
                self.count_evaluation()

    def receive_batch(self, trains: bool) -> None:
        """Label the time that the script waited for a batch."""
        if trains:
            self._clock.lap(Lap.data)
        elif self.is_evaluating:
            self._clock.lap(Lap.evaluate_wait)

    def end_pass(self, trains: bool, steps: int) -> None:
        """A loader has no further batch, after so many steps of the run."""
        if trains:
            self._clock.lap(Lap.data)
            self.gaps.is_between = steps > 0
        elif self.is_evaluating:
            self._end_evaluation(Lap.evaluated)

    def set_mode(self, module: Any, trains: bool) -> None:
        """A module is set to training or to evaluation: the time in between may be an evaluation
        without a loader.
        """
        if self.is_marked or self.is_evaluating:
            return
        if self.gaps.set_mode(module, trains, self._work()):
            self._end_evaluation_without_loader()

    def go_on_training(self) -> None:
        """A pass over the training's data begins or goes on."""
        if self.gaps.note_training_batch():
            self._end_evaluation_without_loader()

    def count_evaluation(self) -> None:
        """Count an evaluation before the step that is under way."""
        self.evaluations += 1
        self._left_out.leave_out_next()

    def begin_mark(self) -> None:
        """The script begins a step that it marks."""
        self.end_open_evaluation()
        self._clock.lap(Lap.apart)
        self.gaps.end_step(resumed=True)
        self.is_marked = True
        self.is_in_mark = True

    def end_mark(self) -> None:
        self.is_in_mark = False
        self._left_out.keep_next()

    def end_open_evaluation(self) -> None:
        """End the evaluation that is under way, if any."""
        if self.is_evaluating:
            self._end_evaluation(Lap.evaluate)

    def end_step(self, resumed: bool) -> bool:
        """End a step.

        Args:
            resumed: its batches seemed to be those of an evaluation.

        Returns:
            Whether an evaluation without a loader came before it.
        """
        self._clock.end_step(Lap.resumed if resumed else Lap.step)
        if resumed:
            self.evaluations -= self._evaluation_passes.count
            self._left_out.withdraw()
        self._evaluation_passes.forget()
        is_after_mode = self.gaps.evaluations > 0
        self.gaps.end_step(resumed)
        return is_after_mode

    def end_uncounted_step(self) -> None:
        """End a step of an optimizer that does not count, or not yet."""
        self._clock.end_uncounted_step(self.gaps.part_label())

    def _work(self) -> Lap:
        return Lap.apart if self.is_marked and not self.is_in_mark else Lap.work

    def _end_evaluation(self, label: Lap) -> None:
        self._clock.lap(label)
        self.is_evaluating = False
        self._evaluation_ended()

    def _end_evaluation_without_loader(self) -> None:
        self.evaluations += 1
        self._evaluation_ended()
