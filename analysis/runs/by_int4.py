"""Runs as `best --by int4` judges them: by the loss of their
held-out rows once the model is quantised.

Who deploys a model in int4 chooses between `method=qat`, which trained for that, and full tuning
that is quantised afterwards. The plain loss, which decides otherwise, says little of either.
"""

from collections.abc import Sequence
from dataclasses import replace

from multicard.config.job import count
from multicard.messages import Message, Refusal
from multicard.records.held_out import INT4_LOSS

from . import details, grouping
from .grouping import HELD_OUT
from .load import Run

BY = ("int4",)  # what `best` can be told to judge by


def judged(runs: Sequence[Run]) -> tuple[list[Run], list[Message]]:
    """The runs that have such a loss, which stands for their held-out loss;
    and what is said of that.

    Raises:
        Refusal: no run has one.
    """
    ended = grouping.ok_runs(runs)
    scored = [run for run in ended if run[INT4_LOSS] is not None]
    if not scored:
        said = (
            f"--by int4: none of {count(len(runs), 'run')} has a loss in int4; tune with "
            "`method=qat,full dataset.split=0.1`"
        )
        raise Refusal("best.no-int4-loss", said, key="--by", runs=len(runs))
    sizes = sorted({size for run in scored if (size := details.int4_groupsize(run)) is not None})
    groups = " or ".join(map(str, sizes))
    said = f"Held-out losses are those of the models in int4, in groups of {groups} weights."
    notes = [Message("best.by-int4", said, groupsizes=sizes)]
    left_out = len(ended) - len(scored)
    if left_out:
        said = (
            f"left out: {count(left_out, 'run')} without a loss in int4 (adapters are not"
            " quantised)"
        )
        notes.append(Message("best.without-int4", said, runs=left_out))
    return [replace(run, columns=run.columns | {HELD_OUT: run[INT4_LOSS]}) for run in scored], notes


def is_judged_so(run: Run) -> bool:
    """True of a run whose held-out loss is that in int4."""
    return run[HELD_OUT] is not None and run[HELD_OUT] == run[INT4_LOSS]
