"""What claims read of runs beside their columns: epochs and profiles, each read once, and how runs differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.runs.load import Run
from analysis.stats import between_runs
from analysis.stats.between_runs import Machines
from multicard.profiling.profile_data import Profile, RankProfile
from multicard.records.text_table import clean

Figure = Callable[[Run], float]
OfRank = Callable[[Profile, RankProfile], float]


@dataclass(frozen=True)
class _Record:
    """profile: or why there is none."""

    epochs: list[dict[str, Any]]
    profile: Profile | str


class Readings:
    """
    Args:
        runs: all that are judged; those of a setting that was measured more than once show how runs differ.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._records: dict[Path, _Record] = {}
        self._repeated = between_runs.RepeatedRuns(runs)
        self._machines: dict[Figure, Machines] = {}
        self._of_ranks: dict[str, Figure] = {}

    def machines(
        self, figure: Figure, scale: Callable[[float], float | None], prior_sd: float, of_seeds: bool = False
    ) -> Machines:
        """How runs differ in a figure on a scale (see `between_runs.by_machine`); a figure always has one scale."""
        if figure not in self._machines:
            on_scale = lambda run: scale(figure(run))  # noqa: E731
            self._machines[figure] = between_runs.by_machine(self._repeated.settings, on_scale, prior_sd, of_seeds)
        return self._machines[figure]

    def epochs(self, run: Run) -> list[dict[str, Any]]:
        return self._record(run).epochs

    def pause_s(self, run: Run) -> float:
        """The mean time until the first batch of an epoch, after the first one.

        Raises:
            ValueError: fewer than two epochs, or a record that lacks one of these times.
        """
        pauses_s, _ = self._pauses_and_epochs_s(run)
        return sum(pauses_s) / len(pauses_s)

    def share_of_pauses(self, run: Run) -> float:
        """The share of these pauses in the time from the end of one evaluation to the end of the next."""
        pauses_s, epochs_s = self._pauses_and_epochs_s(run)
        return sum(pauses_s) / epochs_s

    def _pauses_and_epochs_s(self, run: Run) -> tuple[Sequence[float], float]:
        epochs = self.epochs(run)
        ended_s = [ended for epoch in epochs if isinstance(ended := epoch.get("ended_s"), int | float)]
        pauses_s = [pause for epoch in epochs[1:] if isinstance(pause := epoch.get("first_batch_s"), int | float)]
        if not len(ended_s) - 1 == len(pauses_s) == len(epochs) - 1 >= 1:
            raise ValueError("pauses between epochs need two epochs, and the times of all of them")
        return pauses_s, ended_s[-1] - ended_s[0]

    def accuracy_after_3(self, run: Run) -> float:
        """The accuracy after the third epoch.

        Raises:
            ValueError: fewer than three epochs, or no evaluation after the third.
        """
        epochs = self.epochs(run)
        reached = epochs[2].get("test_accuracy") if len(epochs) > 2 else None
        if not isinstance(reached, int | float):
            raise ValueError("the accuracy after three epochs needs three epochs, each evaluated")
        return reached

    def mean_loss(self, run: Run) -> float:
        """The geometric mean of the losses of all epochs; infinite where one became no number.

        Raises:
            ValueError: no losses, or some that are not above 0.
        """
        recorded = [epoch.get("train_loss", 0.0) for epoch in self.epochs(run)]
        losses = [math.inf if loss is None else loss for loss in recorded]
        if not losses or not all(isinstance(loss, int | float) and loss > 0 for loss in losses):
            raise ValueError(f"{clean(str(run.folder))}: its record has no losses above 0")
        return math.exp(sum(map(math.log, losses)) / len(losses))

    def of_ranks(self, name: str, of_rank: OfRank, per_step: bool = True) -> Figure:
        """The mean over the ranks of a run's profile of what `of_rank` takes from it, as a figure of a run."""

        def figure(run: Run) -> float:
            profile = self.profile(run)
            if not profile.ranks:
                raise ValueError("a profile has no ranks")
            if not all(rank.steps for rank in profile.ranks):
                raise ValueError(f"{clean(str(run.folder))}: its profile does not mark steps")
            values = [of_rank(profile, rank) / (rank.steps or 1 if per_step else 1) for rank in profile.ranks]
            return sum(values) / len(values)

        return self._of_ranks.setdefault(name, figure)

    def profile(self, run: Run) -> Profile:
        """The summary of the run's profile.

        Raises:
            ValueError: there is none, or it is broken.
        """
        profile = self._record(run).profile
        if isinstance(profile, str):
            raise ValueError(f"{clean(str(run.folder))}: {clean(profile)}")
        return profile

    def _record(self, run: Run) -> _Record:
        if run.folder not in self._records:
            record = run.record()
            self._records[run.folder] = _Record(
                [epoch for epoch in record.get("epochs") or () if isinstance(epoch, dict)],
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
