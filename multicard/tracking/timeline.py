"""When the seconds of a training were: on the run's own clock, and by the time of day.

A record counts training in seconds from its start, over all attempts (`ended_s`, `total_s`), and has each attempt's
start by the clock of the day, to a second. The run's clock leaves out what lies between two attempts, as W&B's does
of a run that is resumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

RESOLUTION_S = 1.0  # of the record's times of day


@dataclass(frozen=True)
class Moment:
    """A moment of a run.

    at: Unix time.
    runtime_s: on the run's clock.
    """

    at: float
    runtime_s: float


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run.

    trained_s: seconds that earlier attempts had trained.
    training_at: Unix time at which its training began.
    """

    started_at: float
    training_at: float
    trained_s: float


@dataclass(frozen=True)
class Timeline:
    """The clock of a run.

    attempts: one at least; their numbers are those of the record's `segments`.
    runtime_s: of the whole run.
    """

    attempts: Sequence[Attempt]
    startup_s: float
    runtime_s: float

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The clock of a record, or of as much of one as is known while the run goes on."""
        startup_s, total_s = record.get("startup_s") or 0.0, record.get("total_s") or 0.0
        parts = record.get("segments") or [{"started_at": record.get("started_at"), "trained_s": total_s}]
        attempts, trained_s = [], 0.0
        for number, part in enumerate(parts):
            started_at, own_s = unix(part.get("started_at")), part.get("trained_s") or 0.0
            ended = part.get("ended_at")
            is_last = number == len(parts) - 1
            training_at = started_at + startup_s if is_last or ended is None else max(started_at, unix(ended) - own_s)
            attempts.append(Attempt(started_at, training_at, trained_s))
            trained_s += own_s
        lasted_s = sum(unix(p["ended_at"]) - unix(p["started_at"]) - RESOLUTION_S for p in parts if p.get("ended_at"))
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
        """The moment at which the run had trained for `trained_s`."""
        before = [attempt for attempt in self.attempts if attempt.trained_s < trained_s]
        attempt = before[-1] if before else self.attempts[0]
        return Moment(attempt.training_at + trained_s - attempt.trained_s, self.startup_s + trained_s)


def unix(text: str | None) -> float:
    """Unix time of a record's time of day; 0 where it has none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
