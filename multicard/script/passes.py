"""The passes over the data of loaders, and the steps of a script, as the hooks see them."""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np

UNKNOWN = -1  # The size of a batch that does not show its samples.
NEVER = np.iinfo(np.int64).max  # Stands for a call of backward that does not come.


def _numbers() -> "array[int]":
    return array("q")


class Reach(Enum):
    """Which of the watched batches of a source reached a loss.

    `Reach.none` is a finding: no watched batch reached a loss. A `Pass.reach` of None means that
    nobody watched.
    """

    every = auto()
    some = auto()
    none = auto()
    unsure = auto()  # Later observations contradict earlier ones.

    @classmethod
    def of(cls, reached: int, count: int) -> "Reach":
        """Return the member for `reached` of `count` batches."""
        return cls.every if reached == count else cls.some if reached else cls.none


class PassEnd(NamedTuple):
    """The moment at which a loader had no further batch.

    Fields:
        calls: calls of backward before it.
        handed_out: batches of all loaders that were handed out before it.
    """

    calls: int
    handed_out: int


@dataclass(slots=True, eq=False)
class Pass:
    """One pass over the data of a loader, as far as it got. Lists have an entry for each batch.

    Attributes:
        source: what is drawn from. Passes of equal sources have the same loader.
        sizes: the samples, or UNKNOWN.
        places: the number of each batch among all that were handed out, from 0.
        backwards: calls of backward before the batch was handed out.
        trains: 1 for a batch that is trained on, 0 for any other.
        in_thread: the batches are drawn by another thread than the one that trains.
        begun_at: if `in_thread`, the steps that had ended when the pass began.
        ended: when the loader had no further batch; None if the pass was left before.
        workers: processes that collate the batches of a stream, each of which may end with a
            smaller one; None for other data.
        reach: which batches reached a loss; None if nobody watched.
        holds_back: a batch may be trained on later than by the first call after it; None if nobody
            knows.
    """

    source: Any
    sizes: "array[int]" = field(default_factory=_numbers)
    places: "array[int]" = field(default_factory=_numbers)
    backwards: "array[int]" = field(default_factory=_numbers)
    trains: bytearray = field(default_factory=bytearray)
    in_thread: bool = False
    begun_at: int = 0
    ended: PassEnd | None = None
    workers: int | None = None
    reach: Reach | None = None
    holds_back: bool | None = None

    def forget_short(self, batch_size: int | None) -> None:
        """Forget the sizes of smaller batches if there are more of them than workers.

        Each worker ends with at most one. Otherwise the sizes are no numbers of samples: the batch
        has packed rows, for instance, or tokens as its first dimension.
        """
        if self.workers is None or batch_size is None:
            return
        short = [number for number, size in enumerate(self.sizes) if 0 <= size < batch_size]
        if len(short) > max(1, self.workers):
            for number in short:
                self.sizes[number] = UNKNOWN


@dataclass(slots=True)
class StepEnd:
    """How far the run was when a step ended.

    Attributes:
        backwards: calls of backward.
        handed_out: batches that were handed out.
        cleared: calls of backward whose gradients were cleared before the step.
    """

    backwards: int
    handed_out: int
    cleared: int = 0


@dataclass
class StepData:
    """What each step trained on.

    Attributes:
        samples: of each step (steps,); 0 if nobody knows.
        batches: of each step (steps,); 0 if one of them may have been skipped.
        unknown: flags of the steps whose samples are not known. Their batches do not show them, or
            the steps computed gradients without a batch that was handed out for them.
        calls: calls of backward in each step.
        skips: some batches were seen to reach no loss.
    """

    samples: np.ndarray
    batches: np.ndarray
    unknown: np.ndarray
    calls: np.ndarray
    skips: bool = False
