"""End a sweep if several cells in a row fail for one cause."""

import re
from collections.abc import Sequence

from omegaconf import OmegaConf

from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure.memory import SHARED_MEMORY
from multicard.messages import Message
from multicard.records.schema_parts import Failure
from multicard.run import prepare
from multicard.sweep.cells import Cell

IN_A_ROW = 3  # This many failures of one cause end a sweep.
EVERYWHERE = ("disk", "tracker", "record")  # Failures of these kinds do not depend on the cell.
# Codes of refusals because a folder cannot be written to.
UNWRITABLE = ("folder.unwritable", "job.log-unwritable")
SCRIPT = "script"  # A missing script is as missing data: cells with another one may run.
OTHER_CODE = "job.other-code"  # Code of the refusal of a job whose code was changed.


class SameFailureError(Exception):
    """Several cells in a row have failed for the cause that the message names."""

    def __str__(self) -> str:
        return self.args[0]


class Streak:
    """The last cells that ended, as long as all failed for one cause that the next cells share.

    Such causes are a full disk or missing data. Failures that a cell's own settings may cause do
    not count: running out of memory, of the host too, or of open files, too few rows for a step,
    diverging, or an exception of the model.
    """

    def __init__(self) -> None:
        self.cause = ""
        self.cells = list[Cell]()

    def add(self, ended: Cell) -> None:
        cause = cause_of(ended)
        if cause != self.cause:
            self.cells = []
        if cause:
            self.cells = [*self.cells, ended]
        self.cause = cause

    def ends(self, left: Sequence[Cell]) -> bool:
        """Return True if there are cells left, and they would fail for the same cause.

        A refusal of the data suffices if this machine would refuse the data of all other cells with
        the same words.
        """
        if not left or not self.cells:
            return False
        if len(self.cells) >= IN_A_ROW:
            return would_fail_too(left, *self.cells)
        if not self.cause.startswith("data"):
            return False
        reason = _failure(self.cells[-1]).message
        # Reading a large folder takes a while, so one of several cells with the same data is asked.
        cell_by_data = {_all_about_data(cell): cell for cell in left}
        return all(
            prepare.problem_of(cell.workload, cell.config) == reason
            for cell in cell_by_data.values()
        )

    def error(self) -> SameFailureError:
        cause = _failure(self.cells[-1])
        reason = (
            "all other cells would be refused too"
            if len(self.cells) < IN_A_ROW
            else f"{len(self.cells)} cells in a row failed for one cause: {cause.message}"
        )
        message = Message(
            "sweep.same-failure",
            reason,
            cells=len(self.cells),
            cause=cause.code,
            key=cause.key,
            reason=cause.message,
        )
        return SameFailureError(message)


def _failure(cell: Cell) -> Failure:
    """Return why a cell that failed did so."""
    assert cell.result is not None and cell.result.record.cause is not None  # always: it failed
    return cell.result.record.cause


def would_fail_too(left: Sequence[Cell], *failed: Cell) -> bool:
    """Return True if the remaining cells would fail for the cause that failed cells share.

    If data is missing, only cells that read that data would fail.
    """
    cause = cause_of(failed[0])
    return bool(cause) and (
        not cause.startswith("data") or {*map(_data, left)} <= {*map(_data, failed)}
    )


def cause_of(cell: Cell) -> str:
    """Return a name of the cause that all failures of a kind share.

    It is empty if the cell did not fail, or if its settings may have caused the failure.
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
    # The message of a refusal without a code begins with its key.
    key = cause.key or re.split("[=:]", cause.message)[0]
    return f"data, {key}" if key in (SCRIPT, *schema.keys(Role.input)) else ""


def _data(cell: Cell) -> tuple[str, ...]:
    """Return the values of the keys that decide which data the cell reads."""
    return tuple(
        str(OmegaConf.select(cell.cfg, key))
        for key in ("dataset.name", SCRIPT, *schema.keys(Role.input))
    )


def _all_about_data(cell: Cell) -> str:
    """Return the keys of the data set with their values, and the other keys of `_data`."""
    data_set = OmegaConf.select(cell.cfg, "dataset")
    content = "" if data_set is None else OmegaConf.to_yaml(data_set)
    return "\n".join([content, *_data(cell)])
