"""The figures that a script reports about its training."""

import math
from typing import Any

import numpy as np
import torch

from multicard.records.progress import LossPeek
from multicard.script.losses import Losses


class ReportedFigures:
    """The losses, the accuracy and other figures that the script gives to `multicard.log` or to
    `multicard.step`.

    Attributes:
        peek: a recent loss, which the controller shows.
    """

    def __init__(self, device: torch.device) -> None:
        self.peek = LossPeek(device)
        self._losses = Losses()
        self._pending_loss: Any = None  # Of the step that is under way.
        self._accuracy: Any = None
        self._logged: dict[str, Any] = {}

    def log(self, values: dict[str, Any], ended_step: int | None) -> None:
        """Keep figures that the script logs.

        Args:
            ended_step: the number of the step that has just ended; None within a step. A loss is
                of that step, unless it has one.
        """
        for name, value in values.items():
            if name == "accuracy":
                self._accuracy = value
            elif name != "loss":
                self._logged[name] = value
            elif ended_step is not None and ended_step not in self._losses:
                self._keep_loss(ended_step, value)
            else:
                self._pending_loss = value

    def end_step(self, number: int, marked_loss: Any = None) -> None:
        """Keep the loss of a step that has ended: that of its mark, or the last that was logged."""
        loss = self._pending_loss if marked_loss is None else marked_loss
        self._pending_loss = None
        if loss is not None:
            self._keep_loss(number, loss)

    def _keep_loss(self, number: int, loss: Any) -> None:
        self._losses.add(number, loss)
        if isinstance(loss, torch.Tensor):
            self.peek.offer(loss.detach().reshape(-1)[0])
        else:
            self.peek.value = float(loss)

    def losses(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses as `Losses.read`. Waits for the device."""
        return self._losses.read(steps)

    def last_loss(self, steps: int) -> float:
        """Return the loss of the last of `steps` steps, 0 if the script did not report it."""
        losses, is_reported = self._losses.read(steps)
        return float(losses[-1]) if len(is_reported) and is_reported[-1] else 0.0

    def accuracy_and_others(self) -> tuple[float | None, dict[str, float]]:
        """Return the accuracy, and the other figures that are finite numbers.

        An accuracy that is no share, as one in percent, is among the others.
        """
        figures = {name: float(value) for name, value in self._logged.items()}
        accuracy = None if self._accuracy is None else float(self._accuracy)
        if accuracy is not None and not 0 <= accuracy <= 1:
            figures["accuracy"] = accuracy
            accuracy = None
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        return accuracy, finite
