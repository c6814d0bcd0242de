"""`compare --gate`: whether a change made nothing slower by more than a share,
as a program asks for it.
"""

from collections.abc import Sequence
from enum import IntEnum

from multicard.config.job import count
from multicard.measure.repeated_runs import CONFIDENCE
from multicard.messages import Message

from .compared_cells import CellComparison


class GateVerdict(IntEnum):
    """What a gate says, by the command's exit code."""

    passed = 0
    failed = 1
    cannot_tell = 2


def gated(compared: Sequence[CellComparison], gate: float) -> tuple[GateVerdict, Message]:
    """Whether no cell regressed by more than `gate`,
    with a line about it: passed is what was shown not to have.

    If each cell is slower by the gate, one of them all is found to be
    slower by more in 5 % of the cases (Bonferroni).
    """
    judged = sum(cell.judged for cell in compared)
    # of an interval whose lower bound alone counts
    confidence = 1 - 2 * (1 - CONFIDENCE) / max(1, judged)
    slower = sum(cell.regressed(gate, confidence) for cell in compared)
    one_sided = 2 * CONFIDENCE - 1  # of an interval whose upper bound alone counts
    unclear = sum(not cell.cleared(gate, one_sided) for cell in compared) - slower
    about = {"gate": gate, "cells": len(compared), "unclear": unclear}
    percent = f"{100 * gate:g}%"
    cells = count(len(compared), "cell")
    if slower:
        said = f"gate {percent}: {slower} of {cells} slower by more, or failed"
        return GateVerdict.failed, Message("compare.gate-failed", said, slower=slower, **about)
    if unclear:
        said = (
            f"gate {percent}: cannot tell: {unclear} of {cells} may be slower by more; repeat both"
            " sides, with `repeat=5` or longer runs"
        )
        return GateVerdict.cannot_tell, Message("compare.gate-cannot-tell", said, **about)
    return GateVerdict.passed, Message("compare.gate-passed", f"gate {percent}: passed", **about)
