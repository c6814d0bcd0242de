"""Judge runs as `best --by int4` does: by the loss of their held-out rows once they are quantised.

A user who deploys a model in int4 can tune it with `method=qat`, which trains for that, or tune it
fully and quantise it afterwards. The plain held-out loss says little about either.
"""

from collections.abc import Sequence
from dataclasses import replace

from multicard.config.job import count
from multicard.messages import Message, Refusal
from multicard.records.held_out import INT4_LOSS

from . import details, grouping
from .grouping import HELD_OUT
from .load import Run

SCORES = ("int4",)  # The values that `best --by` takes.


def judge_by_int4(runs: Sequence[Run]) -> tuple[list[Run], list[Message]]:
    """Return the runs that have a loss in int4, which replaces their held-out loss, and notes.

    Raises:
        Refusal: no run has such a loss.
    """
    ended_runs = grouping.ok_runs(runs)
    scored_runs = [run for run in ended_runs if run[INT4_LOSS] is not None]
    if not scored_runs:
        text = (
            f"--by int4: none of {count(len(runs), 'run')} has a loss in int4; tune with "
            "`method=qat,full dataset.split=0.1`"
        )
        raise Refusal("best.no-int4-loss", text, key="--by", runs=len(runs))
    sizes = sorted(
        {size for run in scored_runs if (size := details.int4_groupsize(run)) is not None}
    )
    group_sizes = " or ".join(map(str, sizes))
    text = (
        f"Held-out losses are measured on the models in int4, in groups of {group_sizes} weights."
    )
    notes = [Message("best.by-int4", text, groupsizes=sizes)]
    unscored_count = len(ended_runs) - len(scored_runs)
    if unscored_count:
        text = (
            f"left out: {count(unscored_count, 'run')} without a loss in int4 (adapters are not"
            " quantised)"
        )
        notes.append(Message("best.without-int4", text, runs=unscored_count))
    return [
        replace(run, columns=run.columns | {HELD_OUT: run[INT4_LOSS]}) for run in scored_runs
    ], notes


def is_judged_by_int4(run: Run) -> bool:
    """Return True if the run's held-out loss is the one in int4."""
    return run[HELD_OUT] is not None and run[HELD_OUT] == run[INT4_LOSS]
