"""The learning rate of each step of a training run, which its schedule sets and its record does not repeat."""

import math
from collections.abc import Mapping
from typing import Any

RISE = 0.3  # share of the steps in which `onecycle` rises: torch's defaults of OneCycleLR, which the run has
FIRST, LAST = 25.0, 1e4  # the highest rate by that of the first step, and that by the last


def of_step(config: Mapping[str, Any], step: int, steps: int) -> float | None:
    """The rate of a step.

    Args:
        config: of the run.
        step: of the run, from 0; `steps` that the schedule is made for.

    Returns:
        None under a schedule that is not known here.
    """
    schedule, highest = config.get("schedule"), config["lr"]
    if schedule == "constant":
        return highest
    if schedule == "cosine":
        return _cosine(highest, 0.0, step / steps)
    if schedule != "onecycle":
        return None
    turn, first = RISE * steps - 1, highest / FIRST
    if step <= turn:
        return _cosine(first, highest, step / turn)
    return _cosine(highest, first / LAST, (step - turn) / (steps - 1 - turn))


def _cosine(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
