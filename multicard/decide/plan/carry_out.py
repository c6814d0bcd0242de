"""Carries a plan out: starts its tasks in its order, and plans the rest again when one ends otherwise than planned."""

import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from multicard.decide.plan import planning
from multicard.decide.plan.journal import PlanJournal
from multicard.decide.plan.places import Place
from multicard.decide.plan.schedule import Option, Placed, Schedule, Task
from multicard.decide.plan.show import ranges
from multicard.measure.timing import in_hours, pause
from multicard.messages import say
from multicard.ranks import interruption
from multicard.records import run_folder
from multicard.records.schema_parts import Interval
from multicard.sweep.cells import Cell

POLL_S = 0.2
REPLANNING_S = 2.0  # at most, in which nothing new is started
OUTSIDE, LEAST_OUTSIDE_S = 0.05, 1.0  # beyond an interval's end, from which on a time is outside of it
LONGER = 1.5  # a task that runs beyond its interval is expected to take its time so far by this factor
LEAST_LEFT_S = 1.0  # of a task that runs
SCALED = 1.1  # to either side of a time that follows from that of another run of the job


@dataclass
class Progress:
    """The progress of a task.

    Fields:
        status: "" until it is over, then that of its record, or "skipped".
        cell: while it runs.
        option: that it was started with.
        begun: False while it waits in SLURM's queue.
        expected_s: its time as is known by now.
        limit_s: time after which it takes longer than that.
    """

    task: Task
    options: tuple[Option, ...]
    status: str = ""
    cause: str = ""
    gpu_ids: tuple[int, ...] = ()
    start_s: float | None = None
    end_s: float | None = None
    cell: Cell | None = None
    option: Option | None = None
    begun: bool = True
    planned_s: float = 0.0
    expected_s: float = 0.0
    limit_s: float = 0.0

    @property
    def waits(self) -> bool:
        return not self.status and self.cell is None

    @property
    def lasted_s(self) -> float | None:
        return None if self.start_s is None or self.end_s is None else self.end_s - self.start_s

    def rest(self, now_s: float) -> Option:
        """The time that is left of a task that runs; past the expected time, half of the most that its interval
        allows."""
        assert self.start_s is not None and self.option is not None
        lasted_s = now_s - self.start_s if self.begun else 0.0
        left_s = max(self.expected_s - lasted_s, (self.limit_s - lasted_s) / 2, LEAST_LEFT_S)
        return Option(self.option.gpus, left_s, Interval(left_s, left_s, left_s), left_s, self.option.basis)


@dataclass
class CarryingOut:
    """A plan that is carried out.

    Fields:
        cells: by the task's name and its number of GPUs.
        limit_s: in which the rest is planned again.
        noun: what GPUs are called.
        plan: what waits and runs, in times of the plan's clock.
        before: the tasks that each waits for.
    """

    tasks: Sequence[Task]
    gpus: int
    cells: Mapping[tuple[str, int], Cell]
    place: Place
    journal: PlanJournal
    limit_s: float = REPLANNING_S
    noun: str = "GPU"
    progress: list[Progress] = field(default_factory=list)
    plan: dict[int, Placed] = field(default_factory=dict)
    before: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress = [Progress(task, task.options) for task in self.tasks]
        for each in self.progress:
            self._take_record(each)
            last = self.journal.last(each.task.name)
            if self.place.keeps_jobs and "started" in last:  # it may be queued, or run, with as many GPUs
                own = tuple(option for option in each.options if option.gpus == len(last["gpu_ids"]))
                each.options = own or each.options
        self._skip()

    def left(self) -> list[int]:
        """Places of the tasks that are not over."""
        return [number for number, each in enumerate(self.progress) if not each.status]

    def rest(self) -> list[Task]:
        """The tasks that are not over, those that run with the time that is left."""
        left, now_s = self.left(), self.journal.now_s()
        here = {number: index for index, number in enumerate(left)}
        return [replace(
            each.task,
            options=each.options if each.waits else (each.rest(now_s),),
            after=tuple(here[other] for other in each.task.after if other in here) if each.waits else (),
            held=() if each.waits else each.gpu_ids,
            deadline_s=None if each.task.deadline_s is None else each.task.deadline_s - now_s,
        ) for each in (self.progress[number] for number in left)]  # fmt: skip

    def run(self, schedule: Schedule) -> None:
        """Run all that is left.

        Args:
            schedule: of `rest`.

        Raises:
            KeyboardInterrupt: once what runs has ended; so for any other exception.
        """
        self.journal.begin()
        self._follow(schedule)
        with interruption.answered(lambda number: KeyboardInterrupt(signal.Signals(number).name)):
            try:
                while self.left():
                    reasons = self._start_ready()
                    if not reasons:
                        pause(POLL_S)
                    reasons += [*self._take_ended(), *self._overdue()]
                    if reasons and any(each.waits for each in self.progress):
                        self._plan("; ".join(reasons))
            except BaseException as error:
                self._interrupt(error)
                raise

    def _interrupt(self, error: BaseException) -> None:
        """End what runs, also where the disk is full or the terminal gone."""
        with suppress(OSError):
            self.place.wait_no_more()
            what = "leaving jobs in SLURM's queue (scancel ends them)" if self.place.keeps_jobs else "ending what runs"
            why = "interrupted by" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}:"
            say(f"{why} {error}: {what}", error=True)
        self.place.interrupt()
        with suppress(OSError):
            for each in self.progress:
                if each.cell is not None and not self.place.keeps_jobs:
                    self.journal.add(ended=each.task.name, at_s=self.journal.now_s(), status="interrupted")

    # ---- planning

    def _plan(self, reason: str) -> None:
        """Plan what is left anew, and say so with the reason."""
        left, rest, now_s = self.left(), self.rest(), self.journal.now_s()
        before: list[tuple[int, Option]] = []
        for index, number in sorted(enumerate(left), key=lambda pair: self.plan[pair[1]].start_s):
            before.append((index, rest[index].options[0] if rest[index].held else self.plan[number].option))
        if any(option not in rest[index].options for index, option in before):
            before = []
        schedule = planning.make(rest, self.gpus, self.limit_s, before).schedule
        self._follow(schedule)
        say(f"{in_hours(now_s)} planned again, as {reason}: all end at {in_hours(now_s + schedule.makespan_s)}")

    def _follow(self, schedule: Schedule) -> None:
        """Take a schedule of what is left, from now on, as the plan."""
        left, now_s = self.left(), self.journal.now_s()
        waits = schedule.waits(self.rest())
        self.before = {left[index]: {left[other] for other in others} for index, others in enumerate(waits)}
        plan = {
            number: replace(placed, start_s=now_s + placed.start_s, end_s=now_s + placed.end_s)
            for number, placed in zip(left, schedule.placed, strict=True)
        }
        if any(placed.gpu_ids != plan[number].gpu_ids for number, placed in self.plan.items() if number in plan):
            self.place.wait_no_more()  # in the turn of a task that now has other GPUs
        self.plan, known = plan, self.journal.planned()
        new = {
            self.tasks[number].name: {
                "gpus": placed.option.gpus, "gpu_ids": [*placed.gpu_ids],
                "start_s": placed.start_s, "end_s": placed.end_s,
            }
            for number, placed in plan.items() if self.tasks[number].name not in known
        }  # fmt: skip
        if new:
            self.journal.add(planned=new, at_s=now_s)

    # ---- starts and ends

    def _take_record(self, each: Progress) -> str:
        """Take what an earlier command has done of a task. Returns why the rest is to be planned again."""
        name, reasons = each.task.name, []
        for option in each.task.options:
            run = run_folder.read(self.cells[name, option.gpus].folder)
            if run is None:
                continue
            if run.status == "oom" and any(own.gpus <= option.gpus for own in each.options):
                self._forget_few(each.task.job, option.gpus)
                reasons.append(f"{name} does not fit on {option.gpus}")
            if run.status in ("ok", "diverged") and each.status != "ok":
                each.status, each.option, last = run.status, option, self.journal.last(name)
                each.gpu_ids = tuple(last.get("gpu_ids") or range(option.gpus))
                is_noted = last.get("status") == run.status
                span = (last["start_s"], last["end_s"]) if is_noted else self.journal.span_s(run.record)
                each.start_s, each.end_s = span or (None, None)
                say(f"{name}: {'done' if run.status == 'ok' else run.status} before")
                reasons += [f"{name} has {run.status}"] if run.status == "diverged" else []
        return "; ".join(reasons)

    def _start_ready(self) -> list[str]:
        """Start what waits for nothing, unless an earlier command's job of it has ended meanwhile. Returns why the rest
        is to be planned again before anything else is started."""
        over = {number for number, each in enumerate(self.progress) if each.status}
        ready = [number for number in self.left() if self.progress[number].waits and not self.before[number] - over]
        for number in sorted(ready, key=lambda number: (self.plan[number].start_s, number)):
            each = self.progress[number]
            if reason := self._take_record(each):
                self._skip()
                return [reason]
            if not each.status:
                self._start(each, self.plan[number])
        if not any(self.progress[number].waits for number in ready):
            self.place.wait_no_more()  # for others' leases
        return []

    def _start(self, each: Progress, placed: Placed) -> None:
        """Start a task, unless others have leased its GPUs."""
        name, option = each.task.name, placed.option
        cell = self.cells[name, option.gpus]
        log = self.place.start(cell, placed.gpu_ids)
        if log is None:
            return
        now_s = self.journal.now_s()
        each.cell, each.option, each.gpu_ids, each.start_s = cell, option, placed.gpu_ids, now_s
        each.begun = not self.place.keeps_jobs
        each.planned_s = each.expected_s = placed.end_s - placed.start_s
        each.limit_s = _latest_s(option)
        self.journal.add(started=name, at_s=now_s, gpu_ids=[*placed.gpu_ids])
        where = f"{self.noun}{'s' if option.gpus > 1 else ''} {ranges(placed.gpu_ids)}"
        planned = f"{in_hours(placed.start_s)} to {in_hours(placed.end_s)}"
        say(f"{in_hours(now_s)} {name}: started on {where}, planned {planned}; log: {log}")

    def _take_ended(self) -> list[str]:
        """Take the ends of cells. Returns why the rest is to be planned again.

        Raises:
            KeyboardInterrupt: a terminal's signal has reached a cell here; Python can drop the command's.
        """
        ended = self.place.ended()
        over = [each for each in self.progress if any(each.cell is cell for cell in ended)]
        reasons = [reason for each in over if (reason := self._end(each))]
        if any(each.status == "interrupted" for each in over) and not self.place.keeps_jobs:
            raise KeyboardInterrupt
        return reasons

    def _end(self, each: Progress) -> str:
        assert each.cell is not None and each.option is not None and each.start_s is not None
        assert each.cell.result is not None
        record = each.cell.result.record
        each.cell, each.end_s, name = None, self.journal.now_s(), each.task.name
        span = self.journal.span_s(record) if self.place.keeps_jobs else None
        if span is not None:  # without its time in the queue
            each.start_s, each.end_s = span
        lasted_s = each.end_s - each.start_s
        status, cause = record.status, "" if record.cause is None else record.cause.message.partition("\n")[0]
        span_s = {"start_s": each.start_s, "end_s": each.end_s}
        self.journal.add(ended=name, at_s=each.end_s, status=status, cause=cause, gpu_ids=[*each.gpu_ids], **span_s)
        planned = in_hours(each.planned_s)
        told = f"; {cause}" if cause else ""
        say(f"{in_hours(each.end_s)} {name}: {status} after {in_hours(lasted_s)}, planned {planned}{told}")
        if status == "oom":
            self._forget_few(each.task.job, each.option.gpus)
            if each.options:
                each.start_s = each.end_s = None
                return f"{name} does not fit on {each.option.gpus} and is tried on more"
            cause = f"out of memory on {each.option.gpus}, and more are not allowed"
        each.status, each.cause = status, cause
        if status != "ok":
            self._skip()
            return f"{name} ended {status}"
        low = each.option.interval.low
        is_sooner = lasted_s < low - max(OUTSIDE * low, LEAST_OUTSIDE_S)
        if is_sooner or lasted_s > _latest_s(each.option):
            self._scale(each, lasted_s)
            return f"{name} took {in_hours(lasted_s)}, not {planned}"
        return ""

    def _overdue(self) -> list[str]:
        """Note what runs longer than expected. Returns why the rest is to be planned again."""
        reasons, now_s = [], self.journal.now_s()
        for each in self.progress:
            if each.cell is None or each.start_s is None:
                continue
            if not each.begun:
                age_s = self.place.age_s(each.cell)
                if age_s is None:
                    continue
                each.begun, each.start_s = True, max(now_s - age_s, 0.0)
            lasted_s = now_s - each.start_s
            if lasted_s > each.limit_s:
                each.expected_s = each.limit_s = lasted_s * LONGER
                self._scale(each, each.expected_s)
                reasons.append(f"{each.task.name} still runs after {in_hours(lasted_s)}")
        return reasons

    def _forget_few(self, job: str, gpus: int) -> None:
        """Leave out at most this many GPUs for the runs of a job that are left: they ran out of memory."""
        for each in self._waiting(job):
            each.options = tuple(option for option in each.options if option.gpus > gpus)

    def _scale(self, by: Progress, lasts_s: float) -> None:
        """Expect other runs of a job to be as much longer than first expected as one that lasts this long."""
        assert by.option is not None
        first = next(option for option in by.task.options if option.gpus == by.option.gpus)
        ratio = lasts_s / first.interval.value
        for each in self._waiting(by.task.job):
            allowed = {own.gpus for own in each.options}
            each.options = tuple(_scaled(option, ratio) for option in by.task.options if option.gpus in allowed)

    def _waiting(self, job: str) -> Iterable[Progress]:
        return (each for each in self.progress if each.task.job == job and each.waits)

    def _skip(self) -> None:
        """Skip what comes after a task that is over without success, and what no number of GPUs is left for."""
        for each in self.progress:
            if each.waits and not each.options:
                each.status, each.cause = "oom", "out of memory before on each number of GPUs that is allowed"
        while lost := [(each, other) for each in self.progress if not each.status for other in each.task.after
                       if self.progress[other].status not in ("", "ok")]:  # fmt: skip
            each, other = lost[0]
            each.status = "skipped"
            each.cause = f"comes after {self.tasks[other].name}, which is {self.progress[other].status}"
            say(f"{each.task.name}: skipped; it {each.cause}", error=True)

    # ---- what became of it

    def result(self) -> dict[str, Any]:
        """The plan beside what became of it, in the order of real starts, for other programs."""
        planned, jobs = self.journal.planned(), []
        for each in sorted(self.progress, key=lambda each: math.inf if each.start_s is None else each.start_s):
            wanted = planned.get(each.task.name, {})
            planned_s = wanted.get("end_s", 0.0) - wanted.get("start_s", 0.0)
            jobs.append({
                "name": each.task.name,
                "job": each.task.job,
                "status": each.status or "not run",
                "cause": each.cause,
                "gpus": None if each.option is None else each.option.gpus,
                "gpu_ids": [*each.gpu_ids],
                **{f"planned_{key}": wanted.get(key) for key in ("gpus", "gpu_ids", "start_s", "end_s")},
                "start_s": each.start_s,
                "end_s": each.end_s,
                "ratio": each.lasted_s / planned_s if each.lasted_s is not None and planned_s else None,
            })  # fmt: skip

        def latest_s(key: str) -> float | None:
            return max((job[key] for job in jobs if job[key] is not None), default=None)

        return {"makespan_s": latest_s("end_s"), "planned_makespan_s": latest_s("planned_end_s"), "jobs": jobs}

    def failures(self) -> list[str]:
        """The tasks that have not ended well, and why."""
        lost = [each for each in self.progress if each.status != "ok"]
        return [f"{each.task.name}: {each.status or 'not run'}{each.cause and f': {each.cause}'}" for each in lost]


def _latest_s(option: Option) -> float:
    """The longest time within an option's interval."""
    return option.interval.high + max(OUTSIDE * option.interval.high, LEAST_OUTSIDE_S)


def _scaled(option: Option, ratio: float) -> Option:
    """The option with its times multiplied."""
    value = option.interval.value * ratio
    interval = Interval(value, value / SCALED, value * SCALED)
    return replace(option, planned_s=value, interval=interval, alone_s=option.alone_s * ratio)
