"""What a claim measures in two cells, `top` and `bottom`: a ratio or difference with its interval.

- `time` is that of the training, `total_s`. A single run has one of it and so no spread; its epochs have (each from the
  end of one evaluation to the end of the next; not the first, with the warm-up), and where there are too few of them
  its steps, each taken as often as the run had steps. Several runs a cell (seeds) are resampled too; from `MANY` on,
  their own scatter is enough, and no steps are read.
- `iteration` is the mean step of a tuning run.
- Counted bytes and the peak of torch's allocator are exact: the interval of single runs has no width. The resident
  memory of CPU ranks is not: there several runs are needed.
- What a profile tells is summed over its steps: each rank of each run is a sample of it, so that a single rank has no
  interval. Ranks are taken to scatter alike, by the same share, on both sides: there are few of them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.runs import steps
from analysis.runs.load import Run
from analysis.stats import bootstrap, intervals
from analysis.stats.intervals import Interval
from multicard.profiling.names import COPIES
from multicard.profiling.profile_data import Profile, RankProfile
from multicard.records.text_table import clean

MANY = 8  # runs a cell from which on their figures alone say how they scatter
THINNED = 250  # steps of a run that are resampled, or means of neighbours where it has twice as many
Runs = Sequence[Run]


class Known:
    """What was read of the runs that are compared, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Path], Any] = {}

    def _once(self, what: str, run: Run, read: Callable[[Run], Any]) -> Any:
        key = what, run.folder
        if key not in self._found:
            self._found[key] = read(run)
        return self._found[key]

    def epochs(self, run: Run) -> list[dict[str, Any]]:
        return self._once("record", run, _parts)["epochs"]

    def steps_s(self, run: Run) -> np.ndarray:
        """Its measured steps; neighbours averaged so that there are no more than twice THINNED."""
        return self._once("steps", run, lambda run: _thinned(steps.measured_s(run)))

    def step_count(self, run: Run) -> int:
        """All steps, those of the warm-up too."""
        found = self._once("record", run, _parts)["steps"]
        if found is None:
            raise ValueError(f"{clean(str(run.folder))}: its record does not count its steps")
        return found

    def profile(self, run: Run) -> Profile:
        found = self._once("record", run, _parts)["profile"]
        if isinstance(found, str):
            raise ValueError(f"{clean(str(run.folder))}: {clean(found)}")
        return found


def _parts(run: Run) -> dict[str, Any]:
    """What claims need of a record: epochs, number of steps, and the profile or why there is none."""
    record = run.record()
    counted = record.get("step_s") or record.get("iteration_s") or {}
    counts = [count for name in ("count", "warmup_count") if isinstance(count := counted.get(name), int)]
    told = [epoch for epoch in record.get("epochs") or () if isinstance(epoch, dict)]
    whole = sum(counts) if len(counts) == 2 else None
    return {"epochs": told, "steps": whole, "profile": _profile(record.get("profile"))}


def _profile(content: Any) -> Profile | str:
    if not isinstance(content, dict):
        return "its record has no profile"
    if "error" in content:
        return f"its profile could not be read ({content['error']})"
    try:
        return Profile.from_dict(content)
    except ValueError:
        return "its profile is broken"


def _thinned(samples: np.ndarray) -> np.ndarray:
    """Means of neighbours (THINNED to 2 THINNED,) of a long series, less the few first that fill no group."""
    size = max(1, len(samples) // THINNED)
    return samples[len(samples) % size :].reshape(-1, size).mean(axis=1)


# ---- time


def time(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    return _time(known, top, bottom, confidence, paused=True)


def time_without_pauses(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """The time of an epoch less that to its first batch, for which all ranks stand still."""
    return _time(known, top, bottom, confidence, paused=False)


def _time(known: Known, top: Runs, bottom: Runs, confidence: float, paused: bool) -> Interval:
    if paused and _many(top, bottom):
        return _over_runs("total_s", top, bottom, confidence)
    ours, theirs = ([_epochs_s(known, run, paused) for run in side] for side in (top, bottom))
    if min(len(samples) for samples in (*ours, *theirs)) >= bootstrap.MIN_SAMPLES:
        return intervals.resampled_ratio(ours, theirs, confidence, "epochs", block=1)
    if not paused:
        raise ValueError(f"pauses between epochs need {bootstrap.MIN_SAMPLES + 1} epochs")
    ours, theirs = ([known.steps_s(run) * known.step_count(run) for run in side] for side in (top, bottom))
    return intervals.resampled_ratio(ours, theirs, confidence, "steps")


def _epochs_s(known: Known, run: Run, paused: bool) -> np.ndarray:
    """Seconds of each epoch (n,) but the first; none where a record does not have them."""
    told = known.epochs(run)
    ended = [value for epoch in told if isinstance(value := epoch.get("ended_s"), int | float)]
    first = [epoch.get("first_batch_s") for epoch in told[1:]]
    waited = [0.0 if paused else value for value in first if paused or isinstance(value, int | float)]
    if not len(ended) - 1 == len(waited) == len(told) - 1:
        return np.empty(0)
    found = np.diff(ended) - np.array(waited)
    return found if (found > 0).all() else np.empty(0)


def iteration(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    if _many(top, bottom):
        return _over_runs("step_s", top, bottom, confidence)
    ours, theirs = ([known.steps_s(run) for run in side] for side in (top, bottom))
    return intervals.resampled_ratio(ours, theirs, confidence, "steps")


def _many(top: Runs, bottom: Runs) -> bool:
    return min(len(top), len(bottom)) >= MANY


def _over_runs(column: str, top: Runs, bottom: Runs, confidence: float) -> Interval:
    return intervals.ratio_of_means(_column(column, top), _column(column, bottom), confidence, _counted(top, bottom))


def _column(column: str, runs: Runs) -> list[float]:
    return _known((run[column] for run in runs), column)


def _known(values: Iterable[Any], what: str) -> list[float]:
    found = list(values)
    if any(value is None for value in found):
        raise ValueError(f"a record has no {what}")
    return found


def _counted(top: Runs, bottom: Runs) -> str:
    return _plural(len(top), len(bottom), "run")


def _plural(top: int, bottom: int, what: str) -> str:
    return f"{' and '.join(map(str, sorted({top, bottom})))} {what}{'s' * (max(top, bottom) > 1)}"


# ---- exact figures


def memory(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the peak on the rank that held most."""
    counted = not any(run["cpu_ranks"] for run in (*top, *bottom))
    return _exact("peak_memory_bytes", top, bottom, confidence, counted)


def to_device(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the bytes that crossed to the devices, over all ranks."""
    return _exact("h2d_bytes", top, bottom, confidence)


def between_ranks(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the bytes that a rank received in collectives."""
    return _exact("received_bytes", top, bottom, confidence)


def moved(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the bytes to the devices and in collectives, over all ranks."""
    ours, theirs = (_known(map(_moved_bytes, side), "bytes moved") for side in (top, bottom))
    return intervals.ratio_of_means(ours, theirs, confidence, _basis(top, bottom), exact=True)


def _moved_bytes(run: Run) -> float | None:
    h2d, received = run["h2d_bytes"], run["received_bytes"]
    return None if h2d is None or received is None else h2d + received * (run["gpus"] or 1) * (run["nodes"] or 1)


def _exact(column: str, top: Runs, bottom: Runs, confidence: float, counted: bool = True) -> Interval:
    basis = _basis(top, bottom) if counted else _counted(top, bottom)
    return intervals.ratio_of_means(_column(column, top), _column(column, bottom), confidence, basis, counted)


def _basis(top: Runs, bottom: Runs) -> str:
    return "exact" if len(top) == len(bottom) == 1 else _counted(top, bottom)


# ---- accuracy and loss


def accuracy(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """top - bottom, a share: Newcombe's interval of all answers of a side together. Where both have several runs,
    Student's over their accuracies if that is wider: few seeds may agree by chance, and many answers cannot tell how
    another training would have gone."""
    found = intervals.difference(_answers(top, confidence), _answers(bottom, confidence))
    if min(len(top), len(bottom)) < 2 or found.low is None or found.high is None:
        return found
    ours, theirs = (_column("test_accuracy", side) for side in (top, bottom))
    runs = intervals.difference_of_means(ours, theirs, confidence, _counted(top, bottom))
    assert runs.low is not None and runs.high is not None  # of several values each
    return runs if runs.high - runs.low > found.high - found.low else found


def _answers(runs: Runs, confidence: float) -> Interval:
    counts = [int(count) for count in _column("test_samples", runs)]
    right = sum(round(share * n) for share, n in zip(_column("test_accuracy", runs), counts, strict=True))
    if not sum(counts):
        raise ValueError("no image was tested")
    return intervals.wilson(right, sum(counts), confidence)


def loss(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """The ratio of the training losses, as a geometric mean over all epochs; infinite, or 0, where those of one side
    became no numbers (null in a record). Of single runs the interval is over the epochs, as many as they are worth when
    neighbours are alike; of several over the runs.

    Raises:
        ValueError: a record without losses; none of either side that is a number.
    """
    told = [[_losses(known, run) for run in side] for side in (top, bottom)]
    if len({len(losses) for side in told for losses in side}) > 1:
        raise ValueError("runs of different numbers of epochs")
    lost = [not np.isfinite(side).all() for side in told]
    if any(lost):
        if all(lost):
            raise ValueError("the losses became no numbers on both sides")
        ratio = math.inf if lost[0] else 0.0
        return Interval(ratio, ratio, ratio, "a loss that became no number")
    ours, theirs = (np.log(side) for side in told)  # (runs, epochs)
    if min(len(ours), len(theirs)) > 1:
        first, second = (side.mean(axis=1).tolist() for side in (ours, theirs))
        return intervals.difference_of_means(first, second, confidence, _counted(top, bottom)).mapped(math.exp)
    apart = ours.mean(axis=0) - theirs.mean(axis=0)
    found = float(apart.mean())
    if len(apart) < bootstrap.MIN_SAMPLES:
        return Interval(math.exp(found), None, None, "epochs")
    worth = max(2, round(len(apart) * _independent(apart)))
    half = intervals.student_quantile(confidence, worth - 1) * float(apart.std(ddof=1)) / math.sqrt(worth)
    return Interval(found, found - half, found + half, "epochs").mapped(math.exp)


def _losses(known: Known, run: Run) -> list[float]:
    """Of each epoch; infinite for one that became no number."""
    told = [epoch.get("train_loss", 0.0) for epoch in known.epochs(run)]
    found = [math.inf if value is None else value for value in told]
    if not found or not all(isinstance(value, int | float) and value > 0 for value in found):
        raise ValueError(f"{clean(str(run.folder))}: its record has no losses above 0")
    return found


def _independent(series: np.ndarray) -> float:
    """What share of a series' values independent ones would be: (1 - r) / (1 + r) of its correlation r with the value
    before (Bayley and Hammersley 1946); never more than all."""
    centred = series - series.mean()
    power = float(centred @ centred)
    if not power:
        return 1.0
    near = float(np.clip(centred[1:] @ centred[:-1] / power, 0.0, 0.95))
    return (1 - near) / (1 + near)


# ---- profiles


def copying(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the time of copies from host to device, a step and rank."""
    return _profiled(known, top, bottom, confidence, lambda profile, rank: _row(profile, rank, "copy", COPIES["HtoD"]))


def communicating(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the time during which collectives were at work, a step and rank."""
    return _profiled(known, top, bottom, confidence, lambda _, rank: _told(rank.derived.communication_s))


def synchronising(known: Known, top: Runs, bottom: Runs, confidence: float) -> Interval:
    """Of the time in cudaStreamSynchronize, a step and rank; infinite where the bottom never calls it."""
    ours, theirs = (
        _ranks(known, side, lambda profile, rank: _row(profile, rank, "api", "cudaStreamSynchronize"))
        for side in (top, bottom)
    )
    if min(ours) > 0 and not any(theirs):
        return Interval(math.inf, math.inf, math.inf, "none on one side")
    return intervals.ratio_of_geometric_means(ours, theirs, confidence, _plural(len(ours), len(theirs), "rank"))


def calling(known: Known, runs: Runs, _: Runs, confidence: float) -> Interval:
    """Kernel launches' and synchronisation's share of the time in all CUDA calls of a rank."""
    found = _ranks(known, runs, _waiting, per_step=False)
    interval = intervals.mean(found, confidence, _plural(len(found), len(found), "rank"))
    if interval.low is None or interval.high is None:
        return interval
    return Interval(interval.estimate, max(0.0, interval.low), min(1.0, interval.high), interval.basis)


def _waiting(profile: Profile, rank: RankProfile) -> float:
    calls = {row.metric: row.total_s for row in profile.of(rank.rank) if row.group == "api"}
    if not sum(calls.values()):
        raise ValueError("CPU ranks make no CUDA calls")
    return sum(s for name, s in calls.items() if "Launch" in name or "Synchronize" in name) / sum(calls.values())


def _profiled(
    known: Known, top: Runs, bottom: Runs, confidence: float, of: Callable[[Profile, RankProfile], float]
) -> Interval:
    ours, theirs = (_ranks(known, side, of) for side in (top, bottom))
    return intervals.ratio_of_geometric_means(ours, theirs, confidence, _plural(len(ours), len(theirs), "rank"))


def _ranks(known: Known, runs: Runs, of: Callable[[Profile, RankProfile], float], per_step: bool = True) -> list[float]:
    """What `of` finds of every rank of every run, by the steps that were profiled."""
    found = []
    for run in runs:
        profile = known.profile(run)
        for rank in profile.ranks:
            if not rank.steps:
                raise ValueError(f"{clean(str(run.folder))}: its profile does not mark steps")
            found.append(of(profile, rank) / (rank.steps if per_step else 1))
    if not found:
        raise ValueError("a profile has no ranks")
    return found


def _row(profile: Profile, rank: RankProfile, group: str, metric: str) -> float:
    for row in profile.of(rank.rank):
        if (row.group, row.metric) == (group, metric):
            return row.total_s
    raise ValueError(f"no {metric} in the profile: CPU ranks have none")


def _told(value: float | None) -> float:
    if value is None:
        raise ValueError("no communication in the profile")
    return value
