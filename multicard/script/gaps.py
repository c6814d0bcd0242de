"""Finds times that seem to belong to no step.

Such a time lies between two passes over the training's data. Or a module is in evaluation mode, as
if the script samples images or estimates a loss without a loader.
"""

import weakref
from collections.abc import Callable
from typing import Any

from multicard.script.step_times import Lap


class Gaps:
    """Notices gaps between passes, and evaluations without a loader.

    Args:
        end_lap: credits the time since the last lap to a label.

    Attributes:
        is_between: a pass over the training's data has ended, and no other has begun.
        evaluations: evaluations without a loader since the last step.
    """

    def __init__(self, end_lap: Callable[[Lap], None]) -> None:
        self._end_lap = end_lap
        self.is_between = False
        self.evaluations = 0
        self._module: Any = None  # A module set to evaluation mode since the last step.
        self._has_loader = False  # Batches are drawn for the evaluation in that mode.

    @property
    def seems_open(self) -> bool:
        """True if the time since the last lap seems to belong to no step."""
        return self.is_between or self._module is not None

    def work_label(self, otherwise: Lap) -> Lap:
        """Return the label of the time since the last lap."""
        if self._module is not None:
            return Lap.eval_mode
        return Lap.between if self.is_between else otherwise

    def part_label(self) -> Lap:
        """Return the label of a step of an optimizer that does not count yet."""
        return Lap.resumed if self.seems_open else Lap.part

    def note_evaluation_batch(self) -> None:
        """Note that a loader draws batches for an evaluation."""
        self._has_loader = self._module is not None

    def note_training_batch(self) -> bool:
        """Note that a pass over the training's data begins or goes on.

        Return whether an evaluation without a loader has ended.
        """
        ended = self._leave_mode(self._has_loader)
        if self.is_between:
            self._end_lap(Lap.pass_begins)
            self.is_between = False
        return ended

    def set_mode(self, module: Any, trains: bool, otherwise: Lap) -> bool:
        """Note that a module is set to training or to evaluation.

        Return whether an evaluation without a loader has ended.
        """
        if not trains and self._module is None:
            self._end_lap(self.work_label(otherwise))
            self._module = weakref.ref(module)
            self._has_loader = False
        elif trains and self._module is not None and self._module() is module:
            return self._leave_mode(is_evaluation=True)
        return False

    def _leave_mode(self, is_evaluation: bool) -> bool:
        if self._module is None:
            return False
        self._end_lap(Lap.train_mode if is_evaluation else Lap.left_mode)
        self._module = None
        alone = is_evaluation and not self._has_loader
        self.evaluations += alone
        return alone

    def end_step(self, resumed: bool) -> None:
        """Let a step end: what seemed to belong to no step belongs to this one."""
        self._module = None
        self.evaluations = 0
        if resumed:
            self.is_between = False
