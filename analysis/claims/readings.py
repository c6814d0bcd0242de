"""What claims read of runs beside their columns: epochs, steps and profiles, each read once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.runs import steps
from analysis.runs.load import Run
from multicard.profiling.profile_data import Profile
from multicard.records.text_table import clean

THINNED = 250  # a run with twice as many steps is reduced to means of neighbouring steps


@dataclass(frozen=True)
class _Record:
    """steps: all, with the warm-up; None where the record does not count them. profile: or why there is none."""

    epochs: list[dict[str, Any]]
    steps: int | None
    profile: Profile | str


class Readings:
    def __init__(self) -> None:
        self._records: dict[Path, _Record] = {}
        self._steps_s: dict[Path, np.ndarray] = {}

    def epochs(self, run: Run) -> list[dict[str, Any]]:
        return self._record(run).epochs

    def profile(self, run: Run) -> Profile:
        """The summary of the run's profile.

        Raises:
            ValueError: there is none, or it is broken.
        """
        profile = self._record(run).profile
        if isinstance(profile, str):
            raise ValueError(f"{clean(str(run.folder))}: {clean(profile)}")
        return profile

    def steps_s(self, run: Run) -> np.ndarray:
        """Seconds of each measured step (n,); means of neighbours where there are over twice THINNED steps."""
        if run.folder not in self._steps_s:
            samples = steps.measured_s(run)
            size = max(1, len(samples) // THINNED)
            self._steps_s[run.folder] = samples[len(samples) % size :].reshape(-1, size).mean(axis=1)
        return self._steps_s[run.folder]

    def all_steps_s(self, run: Run) -> np.ndarray:
        """`steps_s`, each multiplied by the number of steps of the run, those of the warm-up among them."""
        step_s, count = self.steps_s(run), self._record(run).steps
        if count is None:
            raise ValueError(f"{clean(str(run.folder))}: its record does not count its steps")
        return step_s * count

    def _record(self, run: Run) -> _Record:
        if run.folder not in self._records:
            record = run.record()
            step_s = record.get("step_s") or record.get("iteration_s") or {}
            counts = [count for name in ("count", "warmup_count") if isinstance(count := step_s.get(name), int)]
            self._records[run.folder] = _Record(
                [epoch for epoch in record.get("epochs") or () if isinstance(epoch, dict)],
                sum(counts) if len(counts) == 2 else None,
                _profile(record.get("profile")),
            )
        return self._records[run.folder]


def _profile(content: Any) -> Profile | str:
    if not isinstance(content, dict):
        return "its record has no profile"
    if "error" in content:
        return f"its profile could not be read ({content['error']})"
    try:
        return Profile.from_dict(content)
    except ValueError:
        return "its profile is broken"
