"""Carries a plan out: starts its tasks in its order,
and plans the rest again when one ends otherwise than planned.
"""

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from multicard.decide.plan import planning
from multicard.decide.plan.schedule import GpusOption, Placed, PlanTask, Schedule
from multicard.estimate.totals import exact
from multicard.machine.environment import spans
from multicard.measure.timing import in_hours, pause, since_epoch_s
from multicard.messages import Message, Refusal, say
from multicard.ranks import interruption
from multicard.records import run_folder
from multicard.records.journal import Journal
from multicard.sweep.cells import Cell
from multicard.sweep.executor import Executor, ending_on_error

FOLDER = ".plan"  # of the sweep
POLL_S = 0.2
REPLANNING_S = 2.0  # longest search for a new plan; nothing starts meanwhile
# A time is outside of its predicted interval if it is beyond the end by this share, and by at
# least so many seconds
OUTSIDE = 0.05
LEAST_OUTSIDE_S = 1.0
LONGER = 1.5  # an overdue task is expected to take at most its time so far by this factor
LEAST_LEFT_S = 1.0  # of a task that runs
PLANNED_KEYS = ("gpus", "gpu_ids", "start_s", "end_s")


@dataclass
class TaskProgress:
    """The progress of a task.

    Fields:
        options: that it may still be started with.
        placed: its place in the plan, in seconds since the first command began; once it has
            started, its last one.
        before: numbers of the tasks that it waits for.
        status: "" until it is over, then that of its record, or "skipped".
        cell: while it runs.
        gpus: that it was started with; 0 before.
        limit_s: the longest time that it is expected to take,
            after which the rest is planned again.
    """

    task: PlanTask
    options: tuple[GpusOption, ...]
    placed: Placed | None = None
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
        """The time left of a running task: as planned, and once that has passed, up to the longest
        time that is expected.
        """
        assert self.start_s is not None and self.placed is not None
        so_far_s = now_s - self.start_s
        expected_s = self.planned_s if so_far_s < self.planned_s else self.limit_s
        left_s = max(expected_s - so_far_s, LEAST_LEFT_S)
        return GpusOption(self.gpus, left_s, exact(left_s), exact(left_s), self.placed.option.basis)


class CarryingOut:
    """A plan that is carried out.

    Args:
        cells: by the task's name and its number of GPUs.
        journal: what was planned first, and starts and ends, in seconds since the first command
            began. What is done is in the records of the runs.
        limit_s: longest search for a new plan.

    Raises:
        Refusal: the journal is of a plan of other jobs.
    """

    def __init__(
        self,
        tasks: Sequence[PlanTask],
        gpus: int,
        cells: Mapping[tuple[str, int], Cell],
        executor: Executor,
        journal: Journal,
        limit_s: float = REPLANNING_S,
        noun: str = "GPU",
    ) -> None:
        self.tasks = tasks
        self.gpus = gpus
        self.cells = cells
        self.limit_s = limit_s
        self.noun = noun
        self.executor = executor
        self.journal = journal
        events = journal.entries
        self.began: float | None = next(
            (event["began"] for event in events if "began" in event), None
        )
        plans = [event["planned"] for event in reversed(events) if "planned" in event]
        self.first: dict[str, dict[str, Any]] = {}
        for plan in plans:
            self.first |= plan
        if self.first and not any(task.name in self.first for task in tasks):
            name = journal.path.parents[1].name
            job = next(iter(self.first))
            sentence = f"--name {name}: is a plan of other jobs, as {job}; choose another name"
            raise Refusal("plan.other-jobs", sentence, key="--name", value=name, job=job)
        self.progress = [TaskProgress(task, task.options) for task in tasks]
        for each in self.progress:
            self._take_record(each)
        self._skip()

    def now_s(self) -> float:
        """Seconds since the first command began; 0 before,
        and where the clock was set back since.
        """
        return 0.0 if self.began is None else max(0.0, since_epoch_s() - self.began)

    def left(self) -> list[int]:
        """Numbers of the tasks that are not over."""
        return [number for number, each in enumerate(self.progress) if not each.status]

    def rest(self) -> list[PlanTask]:
        """The tasks that are not over, those that run with the time that is left."""
        left = self.left()
        now_s = self.now_s()
        here = {number: index for index, number in enumerate(left)}
        tasks = []
        for number in left:
            each = self.progress[number]
            deadline_s = each.task.deadline_s
            if deadline_s is not None:
                deadline_s -= now_s
            if each.waits:
                waits_for = [here[other] for other in each.task.after if other in here]
                changes = {"options": each.options, "after": tuple(waits_for), "held": ()}
            else:
                changes = {"options": (each.rest(now_s),), "after": (), "held": each.gpu_ids}
            tasks.append(replace(each.task, deadline_s=deadline_s, **changes))
        return tasks

    def run(self, schedule: Schedule) -> None:
        """Run all that is left, by a schedule of `rest`.

        An exception, such as Ctrl-C, is raised again once the running tasks have ended.
        """
        began = since_epoch_s()
        self.journal.add(began=began)
        self.began = began if self.began is None else self.began
        self._follow(schedule)
        answered = interruption.answered(
            lambda number: KeyboardInterrupt(signal.Signals(number).name)
        )
        with answered, ending_on_error(self.executor):
            while self.left():
                reasons = self._start_ready()
                pause(POLL_S)
                reasons += [*self._take_ended(), *self._overdue()]
                if reasons and any(each.waits for each in self.progress):
                    self._plan(reasons)

    # ---- planning

    def _plan(self, reasons: Sequence[str]) -> None:
        """Plan what is left anew, and say so with the reasons."""
        now_s = self.now_s()
        schedule = planning.make(self.rest(), self.gpus, self.limit_s).schedule
        self._follow(schedule)
        end_s = now_s + schedule.makespan_s
        why = "; ".join(reasons)
        sentence = f"{in_hours(now_s)} planned again, as {why}: all end at {in_hours(end_s)}"
        say(Message("plan.again", sentence, now_s=now_s, end_s=end_s, reasons=why))

    def _follow(self, schedule: Schedule) -> None:
        """Take a schedule of what is left, from now on, as the plan."""
        left = self.left()
        now_s = self.now_s()
        new = dict[str, dict[str, Any]]()
        for number, placed, others in zip(
            left, schedule.placed, schedule.waits(self.rest()), strict=True
        ):
            each = self.progress[number]
            if not each.waits:
                continue
            each.before = {left[other] for other in others}
            each.placed = replace(
                placed, start_s=now_s + placed.start_s, end_s=now_s + placed.end_s
            )
            if each.task.name not in self.first:
                span = {"start_s": each.placed.start_s, "end_s": each.placed.end_s}
                new[each.task.name] = {
                    "gpus": placed.option.gpus,
                    "gpu_ids": [*placed.gpu_ids],
                    **span,
                }
        if new:
            self.journal.add(planned=new)
            self.first |= new

    # ---- starts and ends

    def _take_record(self, each: TaskProgress) -> None:
        """Take what an earlier command has done of a task."""
        name = each.task.name
        last = next(
            (event for event in reversed(self.journal.entries) if event.get("ended") == name), {}
        )
        for option in each.task.options:
            run = run_folder.read(self.cells[name, option.gpus].folder)
            if run is not None and run.status == "oom":
                self._require_more_gpus(each.task.job, option.gpus)
            if run is not None and run.status in ("ok", "diverged") and each.status != "ok":
                each.status = run.status
                each.gpus = option.gpus
                # An end with another status belongs to an earlier run
                noted = last if last.get("status") == run.status else {}
                each.gpu_ids = tuple(noted.get("gpu_ids", ()))
                each.start_s = noted.get("start_s")
                each.end_s = noted.get("end_s")
                sentence = f"{name}: {'done' if run.status == 'ok' else run.status} before"
                say(Message("plan.before", sentence, task=name, status=run.status))

    def _start_ready(self) -> list[str]:
        """Start the tasks that wait for nothing, unless other commands have leased their GPUs, or
        an earlier command's run of the task has ended meanwhile.
        Returns why the rest is to be planned again before more is started.
        """
        over = {number for number, each in enumerate(self.progress) if each.status}
        ready = [
            each for each in self.progress if each.waits and each.placed and not each.before - over
        ]
        for each in sorted(
            ready, key=lambda each: 0.0 if each.placed is None else each.placed.start_s
        ):
            assert each.placed is not None
            name = each.task.name
            option = each.placed.option
            now_s = self.now_s()
            self._take_record(each)
            if each.status == "ok":
                continue
            if each.status:
                self._skip()
                sentence = f"{name} ended {each.status} in an earlier command"
                return [Message("plan.ended-before", sentence, task=name, status=each.status)]
            if option.gpus not in {own.gpus for own in each.options}:
                self._skip()
                sentence = f"{name} does not fit on {option.gpus}"
                return [Message("plan.does-not-fit", sentence, task=name, gpus=option.gpus)]
            cell = self.cells[name, option.gpus]
            share = self.executor.machine.take(cell.config)
            if share is None:
                continue
            process = self.executor.start(cell, share)
            each.cell = cell
            each.gpus = option.gpus
            each.gpu_ids = each.placed.gpu_ids
            each.start_s = now_s
            each.limit_s = _latest_s(option)
            where = f"{self.noun}{'s' if option.gpus > 1 else ''} {spans(each.gpu_ids)}"
            planned = f"{in_hours(each.placed.start_s)} to {in_hours(each.placed.end_s)}"
            log = f"{self.executor.folder}/{process.pid}_0_log.out"
            sentence = (
                f"{in_hours(now_s)} {name}: started on {where}, planned {planned}; log: {log}"
            )
            ends = [each.placed.start_s, each.placed.end_s]
            say(
                Message(
                    "plan.started",
                    sentence,
                    task=name,
                    gpu_ids=[*each.gpu_ids],
                    planned_s=ends,
                    log=log,
                )
            )
        return []

    def _take_ended(self) -> list[str]:
        """Take the ends of cells. Returns why the rest is to be planned again."""
        ended = self.executor.collect_ended()
        over = [each for each in self.progress if any(each.cell is cell for cell in ended)]
        reasons = [reason for each in over if (reason := self._end(each))]
        if any(each.status == "interrupted" for each in over):
            # a terminal's signal has reached a cell; Python can drop the command's
            raise KeyboardInterrupt
        return reasons

    def _end(self, each: TaskProgress) -> str:
        assert each.cell is not None and each.cell.result is not None
        assert each.start_s is not None and each.placed is not None
        record = each.cell.result.record
        name = each.task.name
        option = each.placed.option
        each.cell = None
        each.end_s = self.now_s()
        lasted_s = each.end_s - each.start_s
        planned = in_hours(each.planned_s)
        status = record.status
        cause = "" if record.cause is None else record.cause.message.partition("\n")[0]
        span = {"start_s": each.start_s, "end_s": each.end_s}
        self.journal.add(ended=name, status=status, cause=cause, gpu_ids=[*each.gpu_ids], **span)
        why = f"; {cause}" if cause else ""
        sentence = (
            f"{in_hours(each.end_s)} {name}: {status} after {in_hours(lasted_s)}, planned"
            f" {planned}{why}"
        )
        say(
            Message("plan.ended", sentence, task=name, status=status, cause=cause, seconds=lasted_s)
        )
        if status == "oom":
            self._require_more_gpus(each.task.job, option.gpus)
            if each.options:
                each.start_s = each.end_s = None
                sentence = f"{name} does not fit on {option.gpus} and is tried on more"
                return Message("plan.tried-on-more", sentence, task=name, gpus=option.gpus)
            sentence = f"out of memory on {option.gpus}, and more are not allowed"
            cause = Message("plan.no-more-gpus", sentence, gpus=option.gpus)
        each.status = status
        each.cause = cause
        if status != "ok":
            self._skip()
            return Message("plan.ended-badly", f"{name} ended {status}", task=name, status=status)
        low = option.interval.low
        is_sooner = lasted_s < low - max(OUTSIDE * low, LEAST_OUTSIDE_S)
        if is_sooner or lasted_s > _latest_s(option):
            self._scale(each, lasted_s)
            sentence = f"{name} took {in_hours(lasted_s)}, not {planned}"
            return Message(
                "plan.took", sentence, task=name, seconds=lasted_s, planned_s=each.planned_s
            )
        return ""

    def _overdue(self) -> list[str]:
        """Note what runs longer than expected. Returns why the rest is to be planned again."""
        reasons = []
        now_s = self.now_s()
        for each in self.progress:
            if (
                each.cell is not None
                and each.start_s is not None
                and now_s - each.start_s > each.limit_s
            ):
                each.limit_s = LONGER * (now_s - each.start_s)
                self._scale(each, each.limit_s)
                name = each.task.name
                so_far_s = now_s - each.start_s
                sentence = f"{name} still runs after {in_hours(so_far_s)}"
                reasons.append(Message("plan.overdue", sentence, task=name, seconds=so_far_s))
        return reasons

    def _require_more_gpus(self, job: str, gpus: int) -> None:
        """A run of the job ran out of memory on so many GPUs: its other runs take more."""
        for each in self.progress:
            if each.task.job == job and each.waits:
                each.options = tuple(option for option in each.options if option.gpus > gpus)

    def _scale(self, by: TaskProgress, lasts_s: float) -> None:
        """Scale the expected times of a job's waiting runs by how much longer, or shorter, than
        planned this run lasts.
        """
        first = next(option for option in by.task.options if option.gpus == by.gpus)
        ratio = lasts_s / first.interval.value
        for each in self.progress:
            if each.task.job == by.task.job and each.waits:
                allowed = {own.gpus for own in each.options}
                each.options = tuple(
                    option.times(ratio) for option in by.task.options if option.gpus in allowed
                )

    def _skip(self) -> None:
        """Skip tasks that come after one that failed, and tasks that fit no number of GPUs."""
        for each in self.progress:
            if each.waits and not each.options:
                each.status = "oom"
                sentence = "out of memory before on each number of GPUs that is allowed"
                each.cause = Message("plan.fits-nowhere", sentence)
        while blocked := self._first_after_a_failure():
            each, other = blocked
            name = self.tasks[other].name
            status = self.progress[other].status
            each.status = "skipped"
            each.cause = Message(
                "plan.after", f"comes after {name}, which is {status}", task=name, status=status
            )
            sentence = f"{each.task.name}: skipped; it {each.cause}"
            say(
                Message("plan.skipped", sentence, task=each.task.name, cause=each.cause), error=True
            )

    def _first_after_a_failure(self) -> tuple[TaskProgress, int] | None:
        """A task that is not over, and the number of a task before it that failed."""
        for each in self.progress:
            if each.status:
                continue
            for other in each.task.after:
                if self.progress[other].status not in ("", "ok"):
                    return each, other
        return None

    # ---- what became of it

    def result(self) -> dict[str, Any]:
        """The plan beside what became of it, in the order of real starts, for other programs."""
        jobs = []
        for each in sorted(self.progress, key=_start_s):
            first = self.first.get(each.task.name, {})
            planned_s = first.get("end_s", 0.0) - first.get("start_s", 0.0)
            lasted_s = (
                None if each.start_s is None or each.end_s is None else each.end_s - each.start_s
            )
            jobs.append(
                {
                    "name": each.task.name,
                    "job": each.task.job,
                    "status": each.status or "not run",
                    "cause": each.cause,
                    "gpus": each.gpus or None,
                    "gpu_ids": [*each.gpu_ids],
                    **{f"planned_{key}": first.get(key) for key in PLANNED_KEYS},
                    "start_s": each.start_s,
                    "end_s": each.end_s,
                    "ratio": lasted_s / planned_s if lasted_s is not None and planned_s else None,
                }
            )

        def latest_s(key: str) -> float | None:
            return max((job[key] for job in jobs if job[key] is not None), default=None)

        return {
            "makespan_s": latest_s("end_s"),
            "planned_makespan_s": latest_s("planned_end_s"),
            "jobs": jobs,
        }

    def failures(self) -> list[str]:
        """The tasks that have not ended well, and why."""
        return [_failure(each) for each in self.progress if each.status != "ok"]


def _failure(each: TaskProgress) -> Message:
    status = each.status or "not run"
    name = each.task.name
    sentence = f"{name}: {status}: {each.cause}" if each.cause else f"{name}: {status}"
    return Message("plan.failed", sentence, task=name, status=status, cause=each.cause)


def _latest_s(option: GpusOption) -> float:
    """The longest time within an option's interval."""
    return option.interval.high + max(OUTSIDE * option.interval.high, LEAST_OUTSIDE_S)


def _start_s(progress: TaskProgress) -> float:
    return math.inf if progress.start_s is None else progress.start_s
