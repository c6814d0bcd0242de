"""What a rank notes of the batches of an epoch, and the columns of its steps that follow."""

from collections.abc import Sequence

import numpy as np

from multicard.llm.batches import COUNTS

REWARDS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies")
LOGGED = ("loss", "grad_norm", *REWARDS)  # of what engines log of a step


class EpochMarks:
    """An epoch's batches: when each was asked for and received, what is in it, what was logged.

    Args:
        per_step: batches of an optimiser step.

    Attributes:
        requested_s: when each batch was asked for, on the probe's clock.
        received_s: when it was there.
        counts: of each batch, by `COUNTS`.
        logged: figures of each step; empty on other ranks than 0.
        steps: that have ended.
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
        """Tokens of the step that has just ended, without padding."""
        place = COUNTS.index("non_padding")
        return sum(counts[place] for counts in self.counts[-self.per_step :])

    def lasted_s(self, ended_s: float) -> float:
        """Seconds from the first request to the end of the epoch."""
        return ended_s - (self.requested_s[0] if self.requested_s else ended_s)

    def columns(self, most_steps: int, ended_s: float) -> dict[str, np.ndarray]:
        """A value for each step: its time, its wait for batches, counts, and what was logged.

        Args:
            most_steps: of an epoch. An engine that stops early has fetched one batch more.
            ended_s: when the epoch's last step had ended.
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
        for place, name in enumerate(COUNTS):
            columns[name] = counts[:, place]
        for name in (*LOGGED, "lr"):
            columns[name.replace("/", "_")] = np.array(self._logged(name, steps))
        return columns

    def _logged(self, name: str, steps: int) -> Sequence[float]:
        """A logged figure of each step; NaN on ranks that log nothing."""
        if not self.logged:
            return [np.nan] * steps
        return [figures.get(name, np.nan) for figures in self.logged[:steps]]
