"""Which runs did the same amount of the same work, and so may be ranked against one another."""

from collections.abc import Sequence

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


def by_amount(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by how much they trained on: "runs of all rows", "preference pairs of 100 rows".

    With `max_steps`, a tuning run on more GPUs takes more rows. A run on preference pairs has rewards in its record;
    packed rows are counted as sequences.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        counted = run["kind"] == "llm" and run["max_steps"] is not None
        count = run["samples_trained"] if counted else "all"
        unit = "packed sequences" if counted and run["packed"] else "rows"
        of = "runs" if run["reward_accuracy"] is None else "preference pairs"
        groups.setdefault(f"{of} of {count} {unit}", []).append(run)
    return groups
