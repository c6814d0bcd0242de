"""Progress of the ranks for the controller, and the steps after which it has them stop, or pause in
a race, in a mapped file.

Neither side waits for the other while steps are trained: a rank posts six doubles after every step
(about a microsecond) and reads those that the controller writes.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.machine import private
from multicard.messages import Message

if TYPE_CHECKING:
    import torch

# the step to stop after, 0: none; and the step to pause after, in a race
_HEADER = struct.Struct("2d")
_PAUSE_AT = struct.Struct("d").size  # where the latter lies
_SLOT = struct.Struct("6d")
FILE = ".progress"
# within which every rank reads the step to stop after
HEARD_AFTER_S = {"one node": 0.5, "several": 2.0}


@dataclass(frozen=True)
class RankProgress:
    """The last post of a rank.

    steps: trained so far; of: in the run (0: it has not begun; -1: not known). samples: trained in
    these steps.
    epoch: from 0. loss: a recent one (NaN: none).
    """

    steps: int
    of: int
    samples: int
    epoch: int
    loss: float
    evaluating: bool = False


class Board:
    """A slot for each rank in a file of the run folder: one file a node,
    each with the slots of all ranks.

    Args:
        create: the file; ranks open the controller's.
        node: whose file it is; None for this process's own node.
    """

    def __init__(
        self, folder: Path, ranks: int, create: bool = False, node: int | None = None
    ) -> None:
        node = int(os.environ.get("GROUP_RANK", "0")) if node is None else node
        self.path = folder / (f"{FILE}-{node}" if node else FILE)
        size = _HEADER.size + ranks * _SLOT.size
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        descriptor = private.no_link(self.path, flags, 0o644)
        try:
            if create:
                # a full disk says so here, not by SIGBUS later
                os.posix_fallocate(descriptor, 0, size)
            self._map: Any = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        if create:
            for rank in range(ranks):
                self.post(rank, 0, 0, 0, 0, float("nan"))

    def ask_stop(self, step: int) -> None:
        """Ask the ranks of this node to stop after the run's step `step`, counted from 1."""
        struct.pack_into("d", self._map, 0, step)

    def run_to(self, step: int) -> None:
        """Have the ranks of a race train to the run's step `step`, counted from 1, and pause after
        it. Until the first call they wait before their first step.
        """
        struct.pack_into("d", self._map, _PAUSE_AT, step)

    @property
    def pause_at(self) -> int:
        """The step after which the ranks of a race pause."""
        return int(struct.unpack_from("d", self._map, _PAUSE_AT)[0])

    @property
    def stop_at(self) -> int:
        """The step after which to stop; 0 where no stop was asked for."""
        return int(_HEADER.unpack_from(self._map)[0])

    def stops(self, steps: int) -> bool:
        """True where a rank that has just done the run's step `steps` is to stop; a RuntimeError
        says that the step to stop after has passed, after which other ranks may have stopped.
        """
        stop_at = self.stop_at
        if stop_at and steps > stop_at:
            message = Message(
                "rank.stop-missed",
                f"asked to stop after step {stop_at}, but {steps} were done when this was seen",
                stop_at=stop_at,
                steps=steps,
            )
            raise RuntimeError(message)
        return steps == stop_at

    def post(
        self,
        rank: int,
        steps: int,
        of: int,
        samples: int,
        epoch: int,
        loss: float,
        evaluating: bool = False,
    ) -> None:
        _SLOT.pack_into(
            self._map, _HEADER.size + rank * _SLOT.size, steps, of, samples, epoch, loss, evaluating
        )

    def read(self, rank: int) -> RankProgress:
        steps, of, samples, epoch, loss, evaluating = _SLOT.unpack_from(
            self._map, _HEADER.size + rank * _SLOT.size
        )
        return RankProgress(int(steps), int(of), int(samples), int(epoch), loss, bool(evaluating))

    def remove(self) -> None:
        self._map.close()
        self.path.unlink(missing_ok=True)


class BoardCopy(Board):
    """A board as its file was when it was last read, for other commands: over NFS, a file that is
    removed ends the processes that have it mapped.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def read_again(self) -> None:
        self._map: Any = self.path.read_bytes()


class LossPeek:
    """A recent loss on the host without waiting for the device: a copy is started every `every`
    steps, and read when it has arrived.
    """

    def __init__(self, device: "torch.device", every: int = 10) -> None:
        self.value = float("nan")
        self._every = every
        self._steps = 0
        self._host: Any = None
        self._arrived: Any = None
        if device.type == "cuda":
            import torch

            self._host = torch.zeros((), pin_memory=True)
            self._arrived = torch.cuda.Event()

    def offer(self, loss: "torch.Tensor") -> None:
        """Offer the loss of a step."""
        if self._host is None:
            self.value = loss.item()
            return
        if self._steps % self._every == 0 and self._arrived.query():
            self.value = self._host.item() if self._steps else self.value
            self._host.copy_(loss.detach(), non_blocking=True)
            self._arrived.record()
        self._steps += 1
