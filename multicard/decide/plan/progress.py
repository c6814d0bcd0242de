"""How far a task of a plan is that is carried out, and how it has ended."""

from dataclasses import dataclass
from pathlib import Path

from multicard.decide.plan.places import Process, Record
from multicard.decide.plan.schedule import Option, Task
from multicard.records.schema_parts import Interval

FAILED = "failed"
LEAST_LEFT_S = 1.0  # of a task that runs, however long it was expected to


@dataclass
class Progress:
    """How far a task is. status: "" until it is over, then that of its record, or "skipped"."""

    task: Task
    options: tuple[Option, ...]
    status: str = ""
    cause: str = ""
    gpu_ids: tuple[int, ...] = ()
    start_s: float | None = None
    end_s: float | None = None
    process: Process | None = None
    record: Record | None = None  # that lay in its folder when it was started
    option: Option | None = None  # that it was started with
    begun: bool = True  # False: it waits in a queue
    planned_s: float = 0.0  # seconds that it takes by the plan it was started by
    expected_s: float = 0.0  # and as is known by now
    limit_s: float = 0.0  # after which it takes longer than that

    @property
    def runs(self) -> bool:
        return self.process is not None

    def ratio(self, lasted_s: float) -> float:
        """A time by that which its job was at first expected to take on so many GPUs, beside others as planned."""
        assert self.option is not None
        gpus = self.option.gpus
        first = next(option for option in self.task.options if option.gpus == gpus)
        return lasted_s / first.interval.value

    def rest(self, now_s: float) -> Option:
        """What is left of it while it runs; past what was expected, half of the most that its interval allows."""
        assert self.start_s is not None and self.option is not None
        lasted_s = now_s - self.start_s if self.begun else 0.0
        left_s = max(self.expected_s - lasted_s, (self.limit_s - lasted_s) / 2, LEAST_LEFT_S)
        return Option(self.option.gpus, left_s, Interval(left_s, left_s, left_s), left_s, self.option.basis)


def judged(record: Record | None, process: Process, log: Path) -> tuple[str, str]:
    """The status of a task that has ended, and its cause in words."""
    if record is None:
        return FAILED, f"exit code {process.popen.returncode} without a record; see {log}"
    cause = record.get("cause") or {}
    return record["status"], str(cause.get("message") or "").partition("\n")[0]
