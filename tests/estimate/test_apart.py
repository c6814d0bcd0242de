"""Runs of scripts whose ranks trained apart teach no time of more ranks,
to predictions and to plans.
"""

import msgspec
import pytest

from multicard.records import limits
from multicard.records.limits import APART, OTHER_STEPS, OTHER_WEIGHTS
from tests.helpers import records
from tests.helpers.past_runs import config, past, predicted


def of_ranks(gpus: int, **changes):
    return records.script("cpu", gpus=gpus, **changes)


@pytest.mark.parametrize("kind", [APART, OTHER_WEIGHTS, OTHER_STEPS])
def test_the_time_on_more_ranks_is_not_that_of_ranks_that_trained_apart(kind: limits.LimitKind):
    alone, together = of_ranks(1), of_ranks(2)
    apart = of_ranks(2, limits=[msgspec.to_builtins(kind.limit())])
    wanted = config(together)
    assert predicted(wanted, past(alone, together)).basis == "measured"
    (known,) = past(apart)
    assert known.left_out is not None
    told = predicted(wanted, past(alone, apart))
    assert told.basis != "measured"
    assert predicted(wanted, past(alone)).step_s == told.step_s
