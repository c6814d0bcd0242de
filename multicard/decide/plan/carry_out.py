"""Carries a plan out: starts its tasks in its order, and plans the rest again when one ends otherwise than planned."""

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from multicard.decide.plan import durations, planning
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.places import Place, Process, Record, Start
from multicard.decide.plan.progress import Progress, judged
from multicard.decide.plan.schedule import Option, Placed, Schedule, Task
from multicard.decide.plan.show import ranges
from multicard.decide.plan.state import State
from multicard.measure.timing import in_hours, pause
from multicard.ranks import interruption
from multicard.run.session import say

POLL_S = 0.2
REPLANNING_S = 2.0  # at most, in which nothing new is started
OUTSIDE, LEAST_OUTSIDE_S = 0.05, 1.0  # beyond an interval's end, from which on a time is outside of it
LONGER = 1.5  # a task that runs beyond what was expected is expected to take so much of its time so far
ENDS_WITHIN_S = 120.0  # after an interruption, else it is killed

Starts = Mapping[tuple[str, int], Start]  # by the task's name and its number of GPUs
# Options of tasks by their names, as the records that there are by now tell
Learn = Callable[[], Mapping[str, tuple[Option, ...]]]


@dataclass
class CarryingOut:
    """A plan that is carried out.

    Fields:
        limit_s: in which the rest is planned again, and nothing new is started.
        goal, seed: as `planning.make` has them.
        noun: what GPUs are called.
    """

    tasks: Sequence[Task]
    gpus: int
    goal: Goal
    starts: Starts
    place: Place
    state: State
    learn: Learn = dict
    limit_s: float = REPLANNING_S
    seed: int = 0
    noun: str = "GPU"
    progress: list[Progress] = field(default_factory=list)
    plan: dict[int, Placed] = field(default_factory=dict)  # of what waits and runs
    before: dict[int, set[int]] = field(default_factory=dict)  # what each that waits waits for
    scaled: set[str] = field(default_factory=set)  # jobs whose other runs are planned by one that has run

    def __post_init__(self) -> None:
        self.progress = [Progress(task, task.options) for task in self.tasks]
        for number, each in enumerate(self.progress):
            if not each.status:
                self._take_record(number, each)
            if self.place.keeps_jobs and not each.status:
                self._keep_submitted(each)
        self._skip()

    def left(self) -> list[int]:
        """Places of the tasks that are not over."""
        return [number for number, each in enumerate(self.progress) if not each.status]

    def rest(self) -> list[Task]:
        """The tasks that are not over, with what is left for them."""
        left, now_s = self.left(), self.state.now_s()
        here = {number: index for index, number in enumerate(left)}
        return [replace(
            each.task,
            options=(each.rest(now_s),) if each.runs else each.options,
            after=() if each.runs else tuple(here[other] for other in each.task.after if other in here),
            held=each.gpu_ids if each.runs else (),
            deadline_s=None if each.task.deadline_s is None else each.task.deadline_s - now_s,
        ) for each in (self.progress[number] for number in left)]  # fmt: skip

    def run(self, schedule: Schedule) -> None:
        """Run all that is left.

        Args:
            schedule: of `rest`.

        Raises:
            KeyboardInterrupt: once what runs has ended; so for any other exception.
        """
        self.state.begin()
        self._follow(schedule)
        with interruption.answered(lambda number: KeyboardInterrupt(signal.Signals(number).name)):
            try:
                self._run_all()
            except BaseException as error:
                left = "leaving jobs in SLURM's queue (their logs say how to cancel them)"
                what = left if self.place.keeps_jobs else "ending what runs"
                why = "interrupted by" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}:"
                with suppress(OSError):  # a full disk, a terminal that is gone: jobs are ended all the same
                    self.place.wait_no_more()
                    say(f"{why} {error}: {what}", error=True)
                self._interrupt()
                raise

    def _run_all(self) -> None:
        while self.left():
            reasons = self._start_ready()
            if not reasons:
                pause(POLL_S)
            reasons += [*self._take_ended(), *self._overdue()]
            if reasons and any(not self.progress[number].runs for number in self.left()):
                self._plan("; ".join(reasons))

    def _take_record(self, number: int, each: Progress) -> str:
        """Take what an earlier command has done of a task. Returns why the rest is to be planned again."""
        name, reasons = each.task.name, []
        for option in each.task.options:
            record = self.starts[name, option.gpus].record() or {}
            status = record.get("status")
            if status == "oom" and any(own.gpus <= option.gpus for own in each.options):
                self._forget_few(number, option.gpus)
                reasons.append(f"{name} does not fit on {option.gpus}")
            if status in ("ok", "diverged") and each.status != "ok":
                each.status, each.option = status, option
                self._take_times(each, record, option)
                say(f"{name}: {'done' if status == 'ok' else status} before")
                reasons += [f"{name} has {status}"] if status == "diverged" else []
        return "; ".join(reasons)

    def _take_times(self, each: Progress, record: Record, option: Option) -> None:
        """Take when an earlier command's run began and ended: what was noted, or is in its record where none saw it."""
        known, begun = self.state.ended(each.task.name) or {}, self.state.unended(each.task.name) or {}
        if known.get("status") == each.status and not begun:
            each.start_s, each.end_s = known.get("start_s"), known.get("end_s")
        else:
            each.start_s, each.end_s = self.state.span_s(record) or (None, None)
        each.gpu_ids = tuple(begun.get("gpu_ids") or known.get("gpu_ids") or range(option.gpus))

    def _keep_submitted(self, each: Progress) -> None:
        """Leave a task the number of GPUs with which it may be queued, or run, since an earlier command."""
        begun = self.state.unended(each.task.name)
        gpus = None if begun is None else len(begun["gpu_ids"])
        each.options = tuple(option for option in each.options if option.gpus == gpus) or each.options

    # ---- planning

    def _plan(self, reason: str) -> None:
        """Plan what is left anew, and say so with the reason."""
        left, now_s = self.left(), self.state.now_s()
        rest = self.rest()
        before = [(index, self.plan[number].option) for index, number in enumerate(left) if number in self.plan]
        before = [(index, rest[index].options[0] if rest[index].held else option) for index, option in before]
        before.sort(key=lambda each: self.plan[left[each[0]]].start_s)
        if len(before) < len(rest) or any(option not in rest[index].options for index, option in before):
            before = []  # the plan so far has no place for all
        schedule = planning.make(rest, self.gpus, self.goal, self.limit_s, self.seed, before=before).schedule
        self._follow(schedule)
        say(f"{in_hours(now_s)} planned again, as {reason}: all end at {in_hours(now_s + schedule.makespan_s)}")

    def _follow(self, schedule: Schedule) -> None:
        """Take a schedule of what is left, from now on, as the plan."""
        left, now_s = self.left(), self.state.now_s()
        self.before = {
            left[index]: {left[other] for other in others} for index, others in enumerate(schedule.waits(self.rest()))
        }
        plan = self._from_now(schedule)
        if any(placed.gpu_ids != plan[number].gpu_ids for number, placed in self.plan.items() if number in plan):
            self.place.wait_no_more()  # in the turn of a task that now has other GPUs
        self.plan = plan
        known = self.state.planned()
        new = {self.tasks[number].name: _planned(placed) for number, placed in self.plan.items()}
        new = {name: placed for name, placed in new.items() if name not in known}
        if new:
            self.state.add(planned=new, at_s=now_s)

    def _from_now(self, schedule: Schedule) -> dict[int, Placed]:
        """A schedule of what is left, by the task's place, in times of the plan's clock."""
        now_s = self.state.now_s()
        return {
            number: replace(placed, start_s=now_s + placed.start_s, end_s=now_s + placed.end_s)
            for number, placed in zip(self.left(), schedule.placed, strict=True)
        }

    def whole(self, schedule: Schedule) -> tuple[list[Task], Schedule]:
        """Tasks that are done, as they ran, and the others by a schedule of what is left."""
        placed = self._from_now(schedule)
        for number, each in enumerate(self.progress):
            if each.status and each.option is not None and each.start_s is not None and each.end_s is not None:
                placed[number] = Placed(each.option, each.start_s, each.end_s, each.gpu_ids)
        numbers = sorted(placed)
        return [self.tasks[number] for number in numbers], Schedule(tuple(placed[number] for number in numbers))

    # ---- starts and ends

    def _start_ready(self) -> list[str]:
        """Start what waits for nothing, unless an earlier command's job of it has ended meanwhile. Returns why the rest
        is to be planned again, before anything else is started."""
        over = {number for number, each in enumerate(self.progress) if each.status}
        ready = [n for n in self.left() if not self.progress[n].runs and not self.before[n] - over]
        for number in sorted(ready, key=lambda number: (self.plan[number].start_s, number)):
            each = self.progress[number]
            reason = self._take_record(number, each)
            if reason:
                self._skip()
                return [reason]
            if not each.status:
                self.start_job(each, self.plan[number])
        if all(self.progress[number].runs for number in ready):
            self.place.wait_no_more()  # for others' leases
        return []

    def start_job(self, each: Progress, placed: Placed) -> None:
        """Start a task, unless others have leased its GPUs. An interruption waits meanwhile (`interruption`).

        A job of SLURM is in the queue since it was submitted, by an earlier command maybe, until it is seen to run.
        """
        name, option = each.task.name, placed.option
        start, log = self.starts[name, option.gpus], self.state.log(name)
        record = start.record()
        process = self.place.start(start, placed.gpu_ids, log)
        if process is None:
            return
        now_s, begun = self.state.now_s(), self.state.unended(name)
        each.process, each.option, each.record = process, option, record
        each.gpu_ids, each.start_s, each.begun = placed.gpu_ids, now_s, not self.place.keeps_jobs
        if self.place.keeps_jobs and begun is not None:  # then it is in the queue, or runs, since that command
            each.start_s = begun["at_s"]
        each.planned_s = each.expected_s = placed.end_s - placed.start_s
        each.limit_s = self._latest_s(option)
        self.state.add(started=name, at_s=now_s, gpu_ids=[*placed.gpu_ids], pid=process.popen.pid)
        where = f"{self.noun}{'s' if option.gpus > 1 else ''} {ranges(placed.gpu_ids)}"
        planned = f"{in_hours(placed.start_s)} to {in_hours(placed.end_s)}"
        say(f"{in_hours(now_s)} {name}: started on {where}, planned {planned}; log: {log}")

    def _take_ended(self) -> list[str]:
        """Take the ends of processes. Returns why the rest is to be planned again."""
        reasons = []
        for number, each in enumerate(self.progress):
            if each.process is not None and each.process.has_ended():
                reason = self._end(number, each, each.process)
                reasons += [reason] if reason else []
        return reasons

    def _end(self, number: int, each: Progress, process: Process) -> str:
        assert each.option is not None and each.start_s is not None
        self.place.give_back(process)
        each.process, each.end_s, name = None, self.state.now_s(), each.task.name
        record = self.starts[name, each.option.gpus].record()
        is_own = record != each.record or process.popen.returncode == 0  # else it is that of an earlier try
        span = self.state.span_s(record) if record and is_own else None
        if span is not None and (not each.begun or span[0] < each.start_s - LEAST_OUTSIDE_S):
            (each.start_s, each.end_s), each.begun = span, True  # it ran between two looks, or for an earlier command
        lasted_s = each.end_s - each.start_s
        status, cause = judged(record if is_own else None, process, self.state.log(name))
        self.state.add(ended=name, at_s=each.end_s, status=status, cause=cause, start_s=each.start_s, end_s=each.end_s,
                       gpu_ids=[*each.gpu_ids])  # fmt: skip
        planned = in_hours(each.planned_s)
        say(
            f"{in_hours(each.end_s)} {name}: {status} after {in_hours(lasted_s)}, planned {planned}"
            + (f"; {cause}" if cause else "")
        )
        if status == "oom":
            self._forget_few(number, each.option.gpus)
            if each.options:
                each.start_s = each.end_s = None
                self._learn()
                return f"{name} does not fit on {each.option.gpus} and is tried on more"
            cause = f"out of memory on {each.option.gpus}, and more are not allowed"
        each.status, each.cause = status, cause
        if status != "ok":
            self._skip()
            return f"{name} ended {status}"
        if each.begun and self._is_outside(each.option, lasted_s):
            self._scale(each, each.ratio(lasted_s))
            self._learn()
            return f"{name} took {in_hours(lasted_s)}, not {planned}"
        return ""

    def _overdue(self) -> list[str]:
        """What runs longer than expected. Returns why the rest is to be planned again."""
        reasons, now_s = [], self.state.now_s()
        for each in self.progress:
            if each.process is None or each.start_s is None or each.option is None:
                continue
            if not each.begun:
                age_s = self.starts[each.task.name, each.option.gpus].age_s()
                if age_s is None:
                    continue
                each.begun, each.start_s = True, min(max(each.start_s, now_s - age_s), now_s)
            lasted_s = now_s - each.start_s
            if lasted_s > each.limit_s:
                each.expected_s = each.limit_s = lasted_s * LONGER
                self._scale(each, each.ratio(each.expected_s))
                reasons.append(f"{each.task.name} still runs after {in_hours(lasted_s)}")
        return reasons

    def _latest_s(self, option: Option) -> float:
        """The longest that the interval of a time lets it take."""
        return option.interval.high + max(OUTSIDE * option.interval.high, LEAST_OUTSIDE_S)

    def _is_outside(self, option: Option, lasted_s: float) -> bool:
        low = option.interval.low
        return lasted_s > self._latest_s(option) or lasted_s < low - max(OUTSIDE * low, LEAST_OUTSIDE_S)

    # ---- what is learned

    def _forget_few(self, number: int, gpus: int) -> None:
        """Leave so few GPUs, or fewer, out for all runs of a job that are left: it ran out of memory on them."""
        job = self.tasks[number].job
        for each in self.progress:
            if each.task.job == job and not each.status and not each.runs:
                each.options = tuple(option for option in each.options if option.gpus > gpus)

    def _scale(self, by: Progress, ratio: float) -> None:
        """Take other runs of a job to be as much longer than planned."""
        self.scaled.add(by.task.job)
        for each in self.progress:
            if each.task.job == by.task.job and each is not by and not each.status and not each.runs:
                each.options = tuple(durations.scaled(option, ratio) for option in by.task.options
                                     if option.gpus in {own.gpus for own in each.options})  # fmt: skip

    def _learn(self) -> None:
        """Take the times that records tell by now of jobs of which no run has told its own."""
        try:
            learned = self.learn()
        except ValueError as error:
            say(f"nothing new is predicted: {error}", error=True)
            return
        for each in self.progress:
            allowed = {option.gpus for option in each.options}
            options = tuple(option for option in learned.get(each.task.name, ()) if option.gpus in allowed)
            if options and not each.status and not each.runs and each.task.job not in self.scaled:
                each.options = options

    def _skip(self) -> None:
        """Skip what comes after a task that is over without success, and what no number of GPUs is left for."""
        for each in self.progress:
            if not each.status and not each.options and not each.runs:
                each.status, each.cause = "oom", "out of memory before on each number of GPUs that is allowed"
        while True:
            lost = [(each, other) for each in self.progress if not each.status for other in each.task.after
                    if self.progress[other].status not in ("", "ok")]  # fmt: skip
            if not lost:
                return
            each, other = lost[0]
            each.status = "skipped"
            each.cause = f"comes after {self.tasks[other].name}, which is {self.progress[other].status}"
            say(f"{each.task.name}: skipped; it {each.cause}", error=True)

    def _interrupt(self) -> None:
        """End what runs, and note its ends."""
        running = [(each, each.process) for each in self.progress if each.process is not None]
        for _, process in running:
            process.interrupt()
        ends_s = self.state.now_s() + ENDS_WITHIN_S
        while not all(process.has_ended() for _, process in running):
            pause(POLL_S)
            if self.state.now_s() > ends_s:
                for _, process in running:
                    process.kill()
        for each, process in running:
            self.place.give_back(process)
            each.process, each.end_s = None, self.state.now_s()
            with suppress(OSError):
                self.state.add(ended=each.task.name, at_s=each.end_s, status="interrupted")


def _planned(placed: Placed) -> dict[str, Any]:
    ids = [*placed.gpu_ids]
    return {"gpus": placed.option.gpus, "gpu_ids": ids, "start_s": placed.start_s, "end_s": placed.end_s}
