"""Times that seem to be of no step: between two passes over the training's data, and while a module
is in evaluation mode, as where images are sampled or a loss is estimated without a loader.
"""

import weakref
from collections.abc import Callable
from typing import Any

from multicard.script.step_times import Lap


class Gaps:
    """What the training is doing, as far as it shows.

    Args:
        end_lap: credits the time since the lap before to a label.

    Attributes:
        is_between: a pass over the training's data has ended, and no other has begun.
        evaluations: since the last step, without a loader.
    """

    def __init__(self, end_lap: Callable[[Lap], None]) -> None:
        self._end_lap = end_lap
        self.is_between = False
        self.evaluations = 0
        self._module: Any = None  # set to evaluation mode since the last step
        self._has_loader = False  # the evaluation in that mode

    @property
    def seems_open(self) -> bool:
        """True where the time since the last lap seems to be of no step."""
        return self.is_between or self._module is not None

    def work(self, otherwise: Lap) -> Lap:
        """The label of what has been done since the last lap."""
        if self._module is not None:
            return Lap.eval_mode
        return Lap.between if self.is_between else otherwise

    def part(self) -> Lap:
        """The label of what an optimiser has done that does not count yet."""
        return Lap.resumed if self.seems_open else Lap.part

    def draws_evaluation(self) -> None:
        """A loader draws batches of an evaluation."""
        self._has_loader = self._module is not None

    def training_draws(self) -> bool:
        """A pass over the training's data begins or goes on.
        Returns whether an evaluation without a loader ended.
        """
        ended = self._leave_mode(self._has_loader)
        if self.is_between:
            self._end_lap(Lap.pass_begins)
            self.is_between = False
        return ended

    def sets_mode(self, module: Any, trains: bool, otherwise: Lap) -> bool:
        """A module is set to training or to evaluation.
        Returns whether an evaluation without a loader ended.
        """
        if not trains and self._module is None:
            self._end_lap(self.work(otherwise))
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

    def step_ended(self, resumed: bool) -> None:
        """What seemed to be of no step was of this one."""
        self._module = None
        self.evaluations = 0
        if resumed:
            self.is_between = False
