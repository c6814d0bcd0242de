"""Collect the times and counts of an epoch's batches, and turn them into columns of steps."""

from collections.abc import Sequence

import numpy as np

from multicard.llm.batches import COUNTS

REWARDS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies")
LOGGED = (
    "loss",
    "grad_norm",
    *REWARDS,
)  # The figures of a step that are kept, if engines log them.


class EpochMarks:
    """The batches of an epoch: request and arrival times, contents, and logged figures.

    Args:
        per_step: Number of batches in an optimizer step.

    Attributes:
        requested_s: When each batch was requested, on the probe's clock.
        received_s: When each batch arrived.
        counts: The counts of each batch, in the order of `COUNTS`.
        logged: The logged figures of each step. Empty on all ranks except rank 0.
        steps: Number of steps that have ended.
    """

    def __init__(self, per_step: int) -> None:
        self.per_step = per_step
        self.requested_s: list[float] = []
        self.received_s: list[float] = []
        self.counts: list[tuple[int, ...]] = []
        self.logged: list[dict[str, float]] = []
        self.steps = 0

    @property
    def is_between_steps(self) -> bool:
        return len(self.counts) % self.per_step == 0

    @property
    def tokens_of_last_step(self) -> int:
        """Number of non-padding tokens in the step that has just ended."""
        index = COUNTS.index("non_padding")
        return sum(counts[index] for counts in self.counts[-self.per_step :])

    def lasted_s(self, ended_s: float) -> float:
        """Return the seconds from the first request to the end of the epoch."""
        return ended_s - (self.requested_s[0] if self.requested_s else ended_s)

    def columns(self, most_steps: int, ended_s: float) -> dict[str, np.ndarray]:
        """Return the columns of the steps: time, wait for batches, counts and logged figures.

        Args:
            most_steps: Number of steps in an epoch. An engine that stops early has requested one
                further batch, which does not count.
            ended_s: When the last step of the epoch ended.
        """
        per_step = self.per_step
        steps = min(len(self.counts) // per_step, most_steps)
        batches = steps * per_step
        marks = np.array([*self.requested_s, ended_s])[: batches + 1]
        waits = np.array(self.received_s[:batches]) - marks[:-1]
        counts = np.array(self.counts[:batches], dtype=np.int64)
        counts = counts.reshape(-1, per_step, len(COUNTS)).sum(axis=1)
        columns = {
            "step_s": np.diff(marks).reshape(-1, per_step).sum(axis=1),
            "data_s": waits.reshape(-1, per_step).sum(axis=1),
        }
        for index, name in enumerate(COUNTS):
            columns[name] = counts[:, index]
        for name in (*LOGGED, "lr"):
            columns[name.replace("/", "_")] = np.array(self._logged_figures(name, steps))
        return columns

    def _logged_figures(self, name: str, steps: int) -> Sequence[float]:
        """Return a logged figure of each step, or NaN on ranks that log nothing."""
        if not self.logged:
            return [np.nan] * steps
        return [figures.get(name, np.nan) for figures in self.logged[:steps]]
