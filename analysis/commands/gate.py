"""`compare --gate`: tell a program whether a change made anything slower by more than a share."""

from collections.abc import Sequence
from enum import IntEnum

from multicard.config.job import count
from multicard.measure.repeated_runs import CONFIDENCE
from multicard.messages import Message

from .compared_cells import CellComparison


class GateVerdict(IntEnum):
    """The result of a gate. Its value is the command's exit code."""

    passed = 0
    failed = 1
    cannot_tell = 2


def gated(compared: Sequence[CellComparison], gate: float) -> tuple[GateVerdict, Message]:
    """Return whether no cell became slower by more than `gate`, and a line about it.

    The gate passes only if each cell is shown not to be slower by more than that. Intervals are
    widened for the number of cells (Bonferroni). So even if every cell is slower by exactly the
    gate, it fails in at most 5 % of the cases.
    """
    judged = sum(cell.judged for cell in compared)
    # Only the lower bound of this interval counts, so the interval may miss on one side.
    confidence = 1 - 2 * (1 - CONFIDENCE) / max(1, judged)
    slower = sum(cell.regressed(gate, confidence) for cell in compared)
    # Only the upper bound of this interval counts.
    one_sided = 2 * CONFIDENCE - 1
    unclear = sum(not cell.cleared(gate, one_sided) for cell in compared) - slower
    about = {"gate": gate, "cells": len(compared), "unclear": unclear}
    percent = f"{100 * gate:g}%"
    cells = count(len(compared), "cell")
    if slower:
        text = f"gate {percent}: {slower} of {cells} slower by more, or failed"
        return GateVerdict.failed, Message("compare.gate-failed", text, slower=slower, **about)
    if unclear:
        text = (
            f"gate {percent}: cannot tell: {unclear} of {cells} may be slower by more; repeat both"
            " sides, with `repeat=5` or longer runs"
        )
        return GateVerdict.cannot_tell, Message("compare.gate-cannot-tell", text, **about)
    return GateVerdict.passed, Message("compare.gate-passed", f"gate {percent}: passed", **about)
