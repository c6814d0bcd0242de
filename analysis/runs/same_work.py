"""Which runs did the same amount of the same work, and so may be ranked against one another."""

from collections.abc import Sequence
from typing import Any

from analysis.runs import grouping
from analysis.runs.load import Run
from multicard.records.comparable import DATA

# The work itself; all other keys are ways to do it. `recipe`, `weights` and so on follow from these
WORK = {
    "vision": ("dataset", "model", "image_size", "epochs", "target_accuracy", "stop_at_target", "scale"),
    "llm": ("dataset", "model", "template", "tokenizer", "rows", "weights", "epochs", "max_seq_len", "scale"),
}
WORK_GROUPS = ("dataset.", "model.", "tokenizer.")
WAYS_TO_HAVE_THE_DATA = ("dataset.device_budget_bytes", "dataset.cache", *grouping.PLACES)


def work_keys(runs: Sequence[Run], mix: bool) -> list[str]:
    """The columns in which runs that did the same work are alike.

    Args:
        mix: let runs of several commits and machines count as one work.
    """
    work = {name for kind in {run["kind"] for run in runs} for name in WORK.get(kind, ())}
    keys = [
        name
        for name in grouping.settings(runs)
        if (name in work or name == DATA or name.startswith(WORK_GROUPS)) and name not in WAYS_TO_HAVE_THE_DATA
    ]
    return ["kind", *keys, *([] if mix else grouping.ORIGIN)]


def by_amount(runs: Sequence[Run]) -> dict[tuple[Any, bool], list[Run]]:
    """Runs by the rows they trained on (None for all of them) and whether these are DPO's preference pairs.

    With `max_steps`, a tuning run on more GPUs takes more rows.
    """
    groups: dict[tuple[Any, bool], list[Run]] = {}
    for run in runs:
        tuning = run["kind"] == "llm"
        rows = run["samples_trained"] if tuning and run["max_steps"] is not None else None
        groups.setdefault((rows, tuning and run["method"] == "dpo"), []).append(run)
    return groups
