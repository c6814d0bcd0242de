"""Shares the progress of the ranks with the controller, through a memory-mapped file.

The controller uses the same file to tell the ranks after which step to stop, or to pause in a race.
Neither side waits for the other during training: after every step, a rank posts six doubles, which
takes about a microsecond, and reads the doubles that the controller writes.
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

# The step to stop after (0: none), and the step to pause after in a race.
_HEADER = struct.Struct("2d")
_PAUSE_AT = struct.Struct("d").size  # Offset of the step to pause after.
_SLOT = struct.Struct("6d")
FILE = ".progress"
# Every rank reads the step to stop after within this time.
HEARD_AFTER_S = {"one node": 0.5, "several": 2.0}


@dataclass(frozen=True)
class RankProgress:
    """The last post of a rank.

    steps: steps trained so far.
    of: steps of the whole run (0: it has not begun; -1: not known).
    samples: samples trained on in these steps.
    epoch: from 0.
    loss: a recent loss (NaN: none).
    """

    steps: int
    of: int
    samples: int
    epoch: int
    loss: float
    evaluating: bool = False


class Board:
    """A file of the run folder with a slot for each rank. Each node has a file of its own, with the
    slots of all ranks.

    Args:
        create: create the file, as the controller does; ranks open it.
        node: the node of the file; None for this process's node.
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
                # A full disk raises an error here, instead of SIGBUS later.
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
        """Let the ranks of a race train up to the run's step `step`, from 1, and then pause.
        Until the first call, they wait before their first step.
        """
        struct.pack_into("d", self._map, _PAUSE_AT, step)

    @property
    def pause_at(self) -> int:
        """The step after which the ranks of a race pause."""
        return int(struct.unpack_from("d", self._map, _PAUSE_AT)[0])

    @property
    def stop_at(self) -> int:
        """The step to stop after; 0 if no stop was asked for."""
        return int(_HEADER.unpack_from(self._map)[0])

    def stops(self, steps: int) -> bool:
        """Return whether a rank that has just finished the run's step `steps` must stop.

        Raises:
            RuntimeError: the step to stop after has already passed, and other ranks may have
                stopped there.
        """
        stop_at = self.stop_at
        if stop_at and steps > stop_at:
            message = Message(
                "rank.stop-missed",
                f"asked to stop after step {stop_at}, but noticed it only after {steps} steps",
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
    """A copy of a board's file for other commands, as it was at the last `read_again`. Other
    commands do not map the file: over NFS, a process dies if a file that it maps is removed.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def read_again(self) -> None:
        self._map: Any = self.path.read_bytes()


class LossPeek:
    """Reads a recent loss on the host without waiting for the device. It starts a copy every
    `every` steps, and reads the copy once it has arrived.
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
