"""Ends a sweep whose cells fail for one cause that the next ones have too: the disk is full, the data is gone.

What a cell's own settings may cause does not end it: running out of memory, of its host's too, or of open files, too
few rows for a step, diverging, an exception of the model.
"""

import errno
import re
from collections.abc import Sequence

from omegaconf import OmegaConf

from multicard.measure.memory import SHARED_MEMORY
from multicard.sweep.cells import Cell

IN_A_ROW = 3
EVERYWHERE = ("disk", "tracker", "record")  # kinds of failure that are no cell's own
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")  # keys of the folder that a run cannot write to
# Keys of the places of data, with which refusals and errors begin
PLACES = ("dataset.root", "dataset.data_files", "dataset.source", "dataset.download", "dataset.cache_dir")
PLACES += ("tokenizer.path", "tokenizer.merges_file")
# Errors of disks and of what lies there
GONE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class SameFailureError(Exception):
    """Cells in a row have failed for one cause, which the message says."""


class Streak:
    """The cells that have ended last, as long as they failed for one cause."""

    def __init__(self) -> None:
        self.cause, self.cells = "", list[Cell]()

    def add(self, ended: Cell) -> None:
        cause = cause_of(ended)
        self.cells = [*(self.cells if cause == self.cause else []), ended] if cause else []
        self.cause = cause

    def ends(self, left: Sequence[Cell]) -> bool:
        """True where there are cells left that would fail likewise."""
        return len(self.cells) >= IN_A_ROW and bool(left) and would_fail_too(left, *self.cells)

    def error(self) -> SameFailureError:
        result = self.cells[-1].result
        assert result is not None and result.record.cause is not None
        return SameFailureError(f"{len(self.cells)} cells in a row failed for one cause: {result.record.cause.message}")


def would_fail_too(left: Sequence[Cell], *failed: Cell) -> bool:
    """True where cells would fail for the cause that others have failed for: where data is gone, those that read it."""
    cause = cause_of(failed[0])
    return bool(cause) and (not cause.startswith("data") or {*map(_data, left)} <= {*map(_data, failed)})


def cause_of(cell: Cell) -> str:
    """The cause that all failures of a kind share; empty where a cell did not fail, or may have failed for its own
    settings."""
    cause = cell.result and cell.result.record.cause
    if cause is None:
        return ""
    kind, message = cause.kind, cause.message
    if kind in EVERYWHERE and f"disk of {SHARED_MEMORY}" not in message:
        return kind
    if kind == "refused" and message.startswith(FOLDERS) and "cannot write to" in message:
        return "disk"
    if kind not in ("refused", "exception"):
        return ""
    error = re.match(r"\w+: \[Errno (\d+)\]", message)
    if error is None:
        key = message.partition("=")[0].partition(":")[0]
        return key if key == "code" else f"data, {key}" if key in PLACES else ""
    is_full = int(error[1]) in FULL and str(SHARED_MEMORY) not in message
    return f"data, error {error[1]}" if is_full or int(error[1]) in GONE else ""


def _data(cell: Cell) -> tuple[str, ...]:
    """Values of the keys that say which data the cell reads."""
    return tuple(str(OmegaConf.select(cell.cfg, key)) for key in ("dataset.name", *PLACES))
