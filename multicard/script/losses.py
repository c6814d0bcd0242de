"""Keeps the losses that a script reports, by step."""

import math
from typing import Any

import numpy as np
import torch

LOSSES_PER_CHUNK = 256  # So many losses on the device become one tensor.


class Losses:
    """The losses of steps.

    Losses on a device stay there until they are read at the end. Many of them share a tensor.
    """

    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._chunks: list[tuple[list[int], torch.Tensor]] = []
        self._last: dict[int, torch.Tensor] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._known or number in self._last

    def add(self, number: int, loss: Any) -> None:
        """Keep the loss of a step."""
        if not isinstance(loss, torch.Tensor) or loss.device.type == "cpu":
            self._known[number] = float(loss)
            return
        self._last[number] = loss.detach().to(torch.float32, copy=True).reshape(-1)[:1]
        if len(self._last) == LOSSES_PER_CHUNK:
            self._chunks.append(([*self._last], torch.cat([*self._last.values()])))
            self._last = {}

    def read(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each step (steps,), NaN if none was reported, and whether one was.

        Waits for the device.
        """
        last = [([*self._last], torch.cat([*self._last.values()]))] if self._last else []
        for numbers, chunk in [*self._chunks, *last]:
            self._known |= dict(zip(numbers, chunk.tolist(), strict=True))
        is_reported = np.array([number in self._known for number in range(steps)], dtype=bool)
        return np.array([self._known.get(number, math.nan) for number in range(steps)]), is_reported
