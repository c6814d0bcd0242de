"""The clock of a run: Unix time and runtime at each second of its training.

A record counts training in seconds from its start, over all attempts (`ended_s`, `total_s`), and has each attempt's
start by the clock of the day, to a second. Runtime leaves out the time between two attempts, as W&B's does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from multicard.records.schema import Record
from multicard.records.schema_parts import Segment

RESOLUTION_S = 1.0  # of the record's times of day


@dataclass(frozen=True)
class Moment:
    """A moment of a run: its Unix time `at`, and the seconds on the run's clock."""

    at: float
    runtime_s: float


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run: Unix times of its start and of its training's, and the seconds trained before it."""

    started_at: float
    training_at: float
    trained_s: float


@dataclass(frozen=True)
class Timeline:
    """The clock of a run; `attempts` are numbered as the record's `segments`, and there is at least one."""

    attempts: Sequence[Attempt]
    startup_s: float
    runtime_s: float

    @classmethod
    def of(cls, record: Record) -> Self:
        """The clock of a record, or of its known part while the run goes on."""
        startup_s, total_s = record.startup_s or 0.0, record.total_s or 0.0
        segments = record.segments or [Segment(record.started_at, trained_s=total_s)]
        attempts, trained_s, lasted_s = [], 0.0, 0.0
        for number, segment in enumerate(segments, 1):
            started_at, own_s = unix(segment.started_at), segment.trained_s or 0.0
            training_at = started_at + startup_s
            if segment.ended_at:
                ended_at = unix(segment.ended_at)
                lasted_s += ended_at - started_at - RESOLUTION_S
                training_at = training_at if number == len(segments) else max(started_at, ended_at - own_s)
            attempts.append(Attempt(started_at, training_at, trained_s))
            trained_s += own_s
        return cls(attempts, startup_s, max(startup_s + total_s, lasted_s))

    @property
    def started_at(self) -> float:
        """Unix time of the first attempt's start."""
        return self.attempts[0].started_at

    @property
    def end(self) -> Moment:
        last = self.attempts[-1]
        return Moment(last.training_at - self.startup_s - last.trained_s + self.runtime_s, self.runtime_s)

    def moment(self, trained_s: float) -> Moment:
        """The moment after `trained_s` of training."""
        begun = [attempt for attempt in self.attempts if attempt.trained_s < trained_s]
        attempt = begun[-1] if begun else self.attempts[0]
        return Moment(attempt.training_at + trained_s - attempt.trained_s, self.startup_s + trained_s)


def unix(text: str | None) -> float:
    """Unix time of a record's time of day; 0 where it has none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
