"""What claims read of runs beside their columns, each record once, and how runs of one setting differ."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.runs.load import Run
from analysis.stats import between_runs
from analysis.stats.between_runs import Machines
from multicard.observe.profiles.profile_data import Profile
from multicard.records.text_table import clean

READ = ("epochs", "transfer_bytes", "input")  # keys of a record, beside its profile
Scale = Callable[[float], float | None]


class Readings:
    """
    Args:
        runs: all that are judged; those of a setting that was measured more than once show how runs differ.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._repeated = between_runs.RepeatedRuns(runs)
        self._machines: dict[Figure, Machines] = {}
        self._records: dict[Path, tuple[dict[str, Any], dict[str, Any], Profile | str]] = {}

    def machines(self, figure: "Figure", scale: Scale, prior_sd: float, of_seeds: bool = False) -> Machines:
        """How runs differ in a figure on a scale (see `between_runs.by_machine`); a figure always has one scale."""
        if figure not in self._machines:
            self._machines[figure] = between_runs.by_machine(
                self._repeated.settings, lambda run: scale(figure(self, run)), prior_sd, of_seeds
            )
        return self._machines[figure]

    def record(self, run: Run) -> dict[str, Any]:
        """The record's keys of READ; those that it lacks are empty."""
        return self._read(run)[0]

    def profile(self, run: Run) -> Profile:
        """The summary of the run's profile.

        Raises:
            ValueError: there is none, or it is broken.
        """
        *_, profile = self._read(run)
        if isinstance(profile, str):
            raise ValueError(f"{clean(str(run.folder))}: {clean(profile)}")
        return profile

    def profiled_step_ratio(self, run: Run) -> float | None:
        """The mean time of a step inside the profile / outside of it; None where that was not measured."""
        return self._read(run)[1].get("ratio")

    def _read(self, run: Run) -> tuple[dict[str, Any], dict[str, Any], Profile | str]:
        """Keys of READ, times of a step inside and outside of the profile, and the profile or why there is none."""
        if run.folder not in self._records:
            record = run.record()
            content = record.get("profile")
            parts = {key: record.get(key) or {} for key in READ}
            self._records[run.folder] = parts, (content or {}).get("step_s") or {}, _profile(content)
        return self._records[run.folder]


Figure = Callable[[Readings, Run], float]  # raises ValueError where a run has none


def _profile(content: dict[str, Any] | None) -> Profile | str:
    if content is None:
        return "its record has no profile"
    if "error" in content:
        return f"its profile could not be read ({content['error']})"
    try:
        return Profile.from_dict(content)
    except ValueError:
        return "its profile is broken"
