"""The measured steps and epochs of a run."""

import numpy as np

from analysis.runs.load import Run
from multicard.records import steps, validate
from multicard.records.run_folder import RESULT


def measured_s(run: Run) -> np.ndarray:
    """Seconds of each step (n,), without the warm-up; their mean is the column `step_s`. See `records.steps`.

    Raises:
        ValueError: the file is absent or broken.
    """
    return steps.measured_s(run.folder, validate.decode((run.folder / RESULT).read_bytes()))


def epochs_s(run: Run) -> np.ndarray:
    """`train_s` of each epoch (n,) but the first, which holds the warm-up."""
    known = [epoch.get("train_s") for epoch in run.record().get("epochs", ())[1:]]
    return np.array([train_s for train_s in known if train_s is not None], dtype=float)
