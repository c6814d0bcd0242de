"""The progress of one task of a plan that is carried out."""

from dataclasses import dataclass, field

from multicard.decide.plan.schedule import GpusOption, PlacedTask, PlanTask
from multicard.estimate.totals import exact
from multicard.sweep.cells import Cell

# A time is outside of its predicted interval if it is beyond the end by this share, and by at
# least this many seconds.
OUTSIDE = 0.05
LEAST_OUTSIDE_S = 1.0
LEAST_LEFT_S = 1.0  # The shortest time that a running task is expected to have left.


@dataclass
class TaskProgress:
    """The progress of a task.

    Fields:
        options: the options with which it may still be started.
        placed: its place in the plan, in seconds since the first command began. Once it has
            started, this is its last place.
        before: numbers of the tasks that it waits for.
        status: "" until it is over, then the status of its record, or "skipped".
        cell: its cell while it runs.
        gpus: the number of GPUs that it was started with; 0 before.
        limit_s: the longest time that it is expected to take. If it takes longer, the rest is
            planned again.
    """

    task: PlanTask
    options: tuple[GpusOption, ...]
    placed: PlacedTask | None = None
    before: set[int] = field(default_factory=set)
    status: str = ""
    cause: str = ""
    cell: Cell | None = None
    gpus: int = 0
    gpu_ids: tuple[int, ...] = ()
    start_s: float | None = None
    end_s: float | None = None
    limit_s: float = 0.0

    @property
    def waits(self) -> bool:
        return not self.status and self.cell is None

    @property
    def planned_s(self) -> float:
        return 0.0 if self.placed is None else self.placed.end_s - self.placed.start_s

    def rest(self, now_s: float) -> GpusOption:
        """Return an option with the time that a running task has left.

        The planned end counts until it has passed. After that, the longest expected time counts.
        """
        assert self.start_s is not None and self.placed is not None
        so_far_s = now_s - self.start_s
        expected_s = self.planned_s if so_far_s < self.planned_s else self.limit_s
        left_s = max(expected_s - so_far_s, LEAST_LEFT_S)
        return GpusOption(self.gpus, left_s, exact(left_s), exact(left_s), self.placed.option.basis)


def latest_s(option: GpusOption) -> float:
    """Return the longest time that still counts as within an option's interval."""
    return option.interval.high + max(OUTSIDE * option.interval.high, LEAST_OUTSIDE_S)
