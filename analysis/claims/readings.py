"""What claims read of runs beside their columns: epochs and profiles, each read once, and how runs differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.runs.load import Run
from analysis.stats import between_runs
from analysis.stats.between_runs import Machines
from multicard.observe.profiles.profile_data import Profile, RankProfile
from multicard.records.text_table import clean
from multicard.vision.precision import PRECISIONS

Figure = Callable[[Run], float]
OfRank = Callable[[Profile, RankProfile], float]


@dataclass(frozen=True)
class _Record:
    """profile: or why there is none. h2d_bytes: to the devices, by what is copied and for what."""

    epochs: list[dict[str, Any]]
    profile: Profile | str
    h2d_bytes: dict[str, dict[str, Any]]
    step_s: dict[str, Any]
    read_s: float | None


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

    def trained_h2d_bytes(self, run: Run) -> float:
        """Bytes to the devices of what is trained on, over all ranks.

        Raises:
            ValueError: a record that does not tell them from those of the evaluation.
        """
        recorded = [part.get("train") for part in self._record(run).h2d_bytes.values()]
        parts = [part for part in recorded if isinstance(part, int)]
        if not parts or len(parts) < len(recorded):
            raise ValueError("a record that does not tell bytes of training from those of evaluation")
        return sum(parts)

    def share_of_tensors(self, run: Run) -> float:
        """Bytes of the images that were copied for training, in those of all images trained on as tensors of three
        channels.

        Raises:
            ValueError: a record without them, or a precision whose values have no known size.
        """
        images = self._record(run).h2d_bytes.get("h2d_images", {}).get("train")
        samples, size_px, precision = (
            run["samples_trained"],
            run["dataset.image_size"],
            PRECISIONS.get(run["precision"]),
        )
        if not isinstance(images, int) or not samples or not size_px or precision is None:
            raise ValueError("a record without bytes of images, their number, size or precision")
        value_bits = int(precision.transfer[-2:])  # float32, bfloat16
        return images / (samples * 3 * size_px**2 * value_bits / 8)

    def share_of_reading(self, run: Run) -> float:
        """The share of reading the data set into each process (`input.read_s`) in the run, its start included.

        Raises:
            ValueError: a record without these times.
        """
        read_s, start_s, total_s = self._record(run).read_s, run["startup_s"], run["total_s"]
        if not isinstance(read_s, int | float) or not start_s or not total_s:
            raise ValueError("a record without the time of reading: dataset.cache=process has it")
        return read_s / (start_s + total_s)

    def cost_of_nsys(self, run: Run) -> float:
        """The time of a step that Nsight Systems records, to one that it does not.

        Raises:
            ValueError: another profiler, or a profile without these times.
        """
        if self.profile(run).source != "nsys":
            raise ValueError("not of Nsight Systems: profile=nsys, where it is installed")
        ratio = self._record(run).step_s.get("ratio")
        if not isinstance(ratio, int | float):
            raise ValueError("a profile without the times of steps inside and outside of it")
        return ratio

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
                {
                    key: part
                    for key, part in (record.get("transfer_bytes") or {}).items()
                    if key.startswith("h2d_") and isinstance(part, dict)
                },
                step_s if isinstance(step_s := (record.get("profile") or {}).get("step_s"), dict) else {},
                (record.get("input") or {}).get("read_s"),
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
