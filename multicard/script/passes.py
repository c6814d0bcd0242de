"""The passes over the data of loaders, and the steps of a script, as its hooks saw them."""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np

UNKNOWN = -1  # samples of a batch that does not show them
NEVER = np.iinfo(np.int64).max  # instead of a call of backward


def _numbers() -> "array[int]":
    return array("q")


class Reach(Enum):
    """Which of the batches that were watched reached a loss."""

    every = auto()
    some = auto()
    none = auto()
    unsure = auto()  # other ones at another time

    @classmethod
    def of(cls, reached: int, count: int) -> "Reach":
        """So many of them did."""
        return cls.every if reached == count else cls.some if reached else cls.none


@dataclass(slots=True, eq=False)
class Pass:
    """One pass over the data of a loader, as far as it got. Lists have an entry for each batch.

    Attributes:
        source: what is drawn from; passes of equal sources have the same loader.
        sizes: samples, or UNKNOWN.
        places: the number of each batch among all that were handed out, from 0.
        backwards: calls of backward before the batch was handed out.
        trains: 1 for a batch of the training, 0 for one of an evaluation, or of nobody.
        in_thread: batches are drawn by another thread than that which trains. begun_at: steps that
            had ended before.
        ended: the calls of backward, and the batches of all loaders, before the loader had no more;
            None: it was left.
        workers: of a stream, processes that collate its batches, each of which may end with a
            smaller one.
        reach: which batches were trained on, where several are handed out in a step; None: nobody
            knows.
        holds_back: a batch may be trained on later than by the first call after it;
            None: nobody knows.
    """

    source: Any
    sizes: "array[int]" = field(default_factory=_numbers)
    places: "array[int]" = field(default_factory=_numbers)
    backwards: "array[int]" = field(default_factory=_numbers)
    trains: bytearray = field(default_factory=bytearray)
    in_thread: bool = False
    begun_at: int = 0
    ended: tuple[int, int] | None = None
    workers: int | None = None
    reach: Reach | None = None
    holds_back: bool | None = None

    def forget_short(self, batch_size: int | None) -> None:
        """Of more smaller batches than workers can end with, the sizes are no numbers of samples:
        of packed rows, or of tokens that come first.
        """
        if self.workers is None or batch_size is None:
            return
        short = [number for number, size in enumerate(self.sizes) if 0 <= size < batch_size]
        if len(short) > max(1, self.workers):
            for number in short:
                self.sizes[number] = UNKNOWN


@dataclass(slots=True)
class StepEnd:
    """How far the run was when a step ended: calls of backward, and batches that were handed out.

    cleared: calls of backward whose gradients were cleared before it, and all before.
    """

    backwards: int
    handed_out: int
    cleared: int = 0


@dataclass
class StepData:
    """What each step trained on: samples, 0 where they are not known, and batches (steps,).

    unknown: flags of the steps whose samples are not known: their batches do not show them, or they
    computed gradients
        without a batch that was handed out for them. Of steps with a batch that may have been
        skipped, the batches are
        not known either: 0.
    calls: of backward in each step.
    skips: batches were seen to reach no loss.
    """

    samples: np.ndarray
    batches: np.ndarray
    unknown: np.ndarray
    calls: np.ndarray
    skips: bool = False
