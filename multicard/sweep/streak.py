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
# Keys that say where the data of cells is, with which refusals and errors begin
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
        """Whether the cells that are left would fail likewise."""
        return len(self.cells) >= IN_A_ROW and bool(left) and _would_fail(left, self.cause, self.cells)

    def error(self) -> SameFailureError:
        result = self.cells[-1].result
        assert result is not None and result.record.cause is not None
        return SameFailureError(f"{len(self.cells)} cells in a row failed for one cause: {result.record.cause.message}")


def would_fail_too(left: Sequence[Cell], ended: Cell) -> bool:
    """Whether cells would fail for the cause for which one has ended."""
    cause = cause_of(ended)
    return bool(cause) and _would_fail(left, cause, [ended])


def _would_fail(left: Sequence[Cell], cause: str, failed: Sequence[Cell]) -> bool:
    """Whether cells would fail as others did: where the data is gone, those that read the same."""
    same_data = {_data(cell) for cell in left} <= {_data(cell) for cell in failed}
    return same_data or not cause.startswith("data")


def cause_of(cell: Cell) -> str:
    """What failures of one cause have in common; empty where a cell did not fail, or may have failed for its own
    settings."""
    cause = cell.result and cell.result.record.cause
    if cause is None:
        return ""
    kind, message = cause.kind, cause.message
    if kind in EVERYWHERE and f"disk of {SHARED_MEMORY}" not in message:
        return kind
    if kind == "refused" and message.startswith(FOLDERS) and "cannot write to" in message:
        return "disk"
    if kind == "refused" and message.startswith("code="):
        return "code"
    return _cause_in_data(message) if kind in ("refused", "exception") else ""


def _cause_in_data(message: str) -> str:
    number = re.match(r"\w+: \[Errno (\d+)\]", message)
    if number is not None:
        is_full = int(number[1]) in FULL and str(SHARED_MEMORY) not in message
        return f"data, error {number[1]}" if is_full or int(number[1]) in GONE else ""
    key = re.match(r"[\w.]*", message)
    return f"data, {key[0]}" if key is not None and key[0] in PLACES else ""


def _data(cell: Cell) -> tuple[str, ...]:
    """What the cell reads."""
    return tuple(str(OmegaConf.select(cell.cfg, key)) for key in ("dataset.name", *PLACES))
