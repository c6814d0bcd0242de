"""The measured steps of a run, from steps.parquet, as its record counts them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.runs.load import STEPS, Run

COLUMNS = ["epoch", "rank", "step", "step_s"]


def measured_s(run: Run) -> np.ndarray:
    """Seconds of each step (n,) in their order, without the warm-up: a step lasts until its slowest rank is done.

    The warm-up is `warmup_steps` of every segment of a training run, `skip_steps` of a tuning run; the mean of what is
    left is the record's `step_s.mean`, or `iteration_s.mean`.

    Raises:
        ValueError: the file is absent or broken.
    """
    path = run.folder / STEPS
    try:
        table = pq.read_table(path, columns=COLUMNS)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path}: no steps can be read ({str(error).splitlines()[0]})") from None
    epoch, step, step_s = (table[name].to_numpy() for name in ("epoch", "step", "step_s"))
    if not len(step_s):
        return np.empty(0)
    number = epoch.astype(int) * (int(step.max()) + 1) + step
    slowest_s = np.zeros(int(number.max()) + 1)
    np.maximum.at(slowest_s, number, step_s)
    return slowest_s[~_warmup(run, len(slowest_s))]


def epochs_s(run: Run) -> np.ndarray:
    """`train_s` of each epoch (n,) but the first, which holds the warm-up."""
    known = [epoch.get("train_s") for epoch in run.record().get("epochs", ())[1:]]
    return np.array([train_s for train_s in known if train_s is not None], dtype=float)


def _warmup(run: Run, steps: int) -> np.ndarray:
    warmup = np.zeros(steps, dtype=bool)
    if run["kind"] == "llm":
        warmup[: run["skip_steps"] or 0] = True
        return warmup
    for segment in run.record().get("segments") or [{"steps": steps}]:
        if segment.get("steps"):  # work that was not saved has no first step of its own
            warmup[segment.get("first_step", 0) :][: run["warmup_steps"] or 0] = True
    return warmup
