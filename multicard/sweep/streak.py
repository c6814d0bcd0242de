"""Failures of one cause, one cell after the other, which end a sweep."""

import re
from collections.abc import Sequence

from omegaconf import OmegaConf

from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure.memory import SHARED_MEMORY
from multicard.messages import Message
from multicard.sweep.cells import Cell

IN_A_ROW = 3  # failures of one cause that end a sweep
EVERYWHERE = ("disk", "tracker", "record")  # kinds of failure that are no cell's own
# codes of refusals for a folder that cannot be written to
UNWRITABLE = ("folder.unwritable", "job.log-unwritable")
OTHER_CODE = "job.other-code"  # code of the refusal of a job whose code was changed


class SameFailureError(Exception):
    """Cells in a row have failed for one cause, which the message says."""

    def __str__(self) -> str:
        return self.args[0]


class Streak:
    """The cells that have ended last, as long as they failed for one cause that the next ones have
    too: the disk is full, the data is gone. What a cell's own settings may cause does not count:
    running out of memory, of its host's too, or of open files, too few rows for a step, diverging,
    an exception of the model.
    """

    def __init__(self) -> None:
        self.cause = ""
        self.cells = list[Cell]()

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
        cause = result.record.cause
        message = Message(
            "sweep.same-failure",
            f"{len(self.cells)} cells in a row failed for one cause: {cause.message}",
            cells=len(self.cells),
            cause=cause.code,
            key=cause.key,
            reason=cause.message,
        )
        return SameFailureError(message)


def would_fail_too(left: Sequence[Cell], *failed: Cell) -> bool:
    """True where cells would fail for the cause that others have failed for: where data is gone,
    those that read it.
    """
    cause = cause_of(failed[0])
    return bool(cause) and (
        not cause.startswith("data") or {*map(_data, left)} <= {*map(_data, failed)}
    )


def cause_of(cell: Cell) -> str:
    """The cause that all failures of a kind share; empty where a cell did not fail, or may have
    failed for its own settings.
    """
    cause = cell.result and cell.result.record.cause
    if cause is None:
        return ""
    is_shared_memory = cause.code == "disk.full" and cause.facts.get("path", "").startswith(
        str(SHARED_MEMORY)
    )
    if cause.kind in EVERYWHERE and not is_shared_memory:
        return cause.kind
    if cause.kind != "refused":
        return ""
    if cause.code in UNWRITABLE:
        return "disk"
    if cause.code == OTHER_CODE:
        return "code"
    # a refusal without a code begins with its key
    key = cause.key or re.split("[=:]", cause.message)[0]
    return f"data, {key}" if key in schema.keys(Role.input) else ""


def _data(cell: Cell) -> tuple[str, ...]:
    """Values of the keys that say which data the cell reads."""
    return tuple(
        str(OmegaConf.select(cell.cfg, key)) for key in ("dataset.name", *schema.keys(Role.input))
    )
