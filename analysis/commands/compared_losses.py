"""`compare`: compare the held-out losses of a cell's two sides row by row."""

from collections.abc import Sequence
from dataclasses import dataclass

from multicard.measure.repeated_runs import ABOVE, BELOW, WITHIN
from multicard.messages import Message

from ..runs import grouping, quality, works
from ..runs.grouping import HELD_OUT
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns, is_one_loss

LOWER = "lower"
HIGHER = "higher"
SAME = "no difference"
UNDECIDED = "undecided"
VERDICTS = {ABOVE: HIGHER, BELOW: LOWER, WITHIN: SAME}
OTHER_ROWS = Message("compare.other-held-out-rows", f"{UNDECIDED}: different held-out rows")
OTHER_WORK = Message("compare.other-amounts", f"{UNDECIDED}: trained on different amounts")
OTHER_LOSS = Message("compare.other-loss", f"{UNDECIDED}: different kinds of loss")


@dataclass(frozen=True)
class ComparedLosses:
    """The held-out losses of A and B, in nats per token.

    bounds: the interval of B / A, or None if the losses cannot be compared.
    """

    a: float
    b: float
    bounds: tuple[float, float] | None
    verdict: str


def compared(repeated: RepeatedRuns, a: Sequence[Run], b: Sequence[Run]) -> ComparedLosses | None:
    """Compare the held-out losses of a cell's runs that ended ok.

    Return None if a side has no held-out loss, or none that may be compared.
    """
    ok_a = grouping.ok_runs(a)
    ok_b = grouping.ok_runs(b)
    if not ok_a or not ok_b:
        return None
    loss_a, loss_b = (quality.of(side).get(HELD_OUT) for side in (ok_a, ok_b))
    if loss_a is None or loss_b is None:
        return None
    if not is_one_loss(ok_a[0], ok_b[0]):
        return ComparedLosses(loss_a, loss_b, None, OTHER_LOSS)
    if not works.did_as_much(ok_a, ok_b):
        return ComparedLosses(loss_a, loss_b, None, OTHER_WORK)
    if min(loss_a, loss_b) <= 0 or not repeated.have_same_rows(ok_a, ok_b):
        return ComparedLosses(loss_a, loss_b, None, OTHER_ROWS)
    ratio = repeated.ratio(HELD_OUT, ok_a, ok_b)
    verdict = VERDICTS.get(ratio.verdict(quality.LOSS_APART, is_known=True), UNDECIDED)
    return ComparedLosses(loss_a, loss_b, ratio.bounds(), verdict)
