"""Carry out a plan: start its tasks in its order.

If a task ends otherwise than planned, the rest is planned again.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from multicard.decide.plan import planning
from multicard.decide.plan.schedule import GpusOption, PlanTask, Schedule
from multicard.decide.plan.task_progress import (
    LEAST_OUTSIDE_S,
    OUTSIDE,
    TaskProgress,
    latest_s,
)
from multicard.machine.environment import spans
from multicard.measure.timing import in_hours, since_epoch_s
from multicard.messages import Message, Refusal, say
from multicard.ranks import interruption
from multicard.records import run_folder
from multicard.records.journal import Journal
from multicard.sweep.cells import Cell
from multicard.sweep.drive import Drive, StartedCell
from multicard.sweep.executor import Executor, Processes, ending_on_error
from multicard.sweep.streak import SameFailureError, Streak

FOLDER = ".plan"  # The folder of a sweep with the files of its plan.
REPLANNING_S = 2.0  # The longest search for a new plan. Nothing starts meanwhile.
LONGER = 1.5  # An overdue task is expected to take at most this factor times its time so far.


class CarriedPlan:
    """The policy that starts the tasks of a plan in its order. See `drive.Policy`.

    Args:
        cells: by the task's name and its number of GPUs.
        journal: the first plan, and starts and ends, in seconds since the first command began.
            The records of the runs say which tasks are done.
        limit_s: longest search for a new plan, in seconds.

    Raises:
        Refusal: the journal is of a plan of other jobs.
    """

    def __init__(
        self,
        tasks: Sequence[PlanTask],
        gpus: int,
        cells: Mapping[tuple[str, int], Cell],
        journal: Journal,
        limit_s: float = REPLANNING_S,
        noun: str = "GPU",
    ) -> None:
        self.tasks = tasks
        self.gpus = gpus
        self.cells = cells
        self.limit_s = limit_s
        self.noun = noun
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
            sentence = f"--name {name}: is a plan of other jobs, such as {job}; choose another name"
            raise Refusal("plan.other-jobs", sentence, key="--name", value=name, job=job)
        self.progress = [TaskProgress(task, task.options) for task in tasks]
        self._reasons_to_replan = list[str]()
        self._is_given_up = False
        for progress in self.progress:
            self._take_record(progress)
        self._skip()

    def now_s(self) -> float:
        """Return seconds since the first command began.

        0 before it began, and if the clock was set back since.
        """
        return 0.0 if self.began is None else max(0.0, since_epoch_s() - self.began)

    def left(self) -> list[int]:
        """Return the numbers of the tasks that are not over."""
        return [number for number, progress in enumerate(self.progress) if not progress.status]

    def rest(self) -> list[PlanTask]:
        """Return the tasks that are not over. A running one has the time that it has left."""
        unfinished = self.left()
        now_s = self.now_s()
        index_of_task = {number: index for index, number in enumerate(unfinished)}
        tasks = []
        for number in unfinished:
            progress = self.progress[number]
            deadline_s = progress.task.deadline_s
            if deadline_s is not None:
                deadline_s -= now_s
            if progress.waits:
                waits_for = [
                    index_of_task[other] for other in progress.task.after if other in index_of_task
                ]
                changes = {"options": progress.options, "after": tuple(waits_for), "held": ()}
            else:
                changes = {
                    "options": (progress.rest(now_s),),
                    "after": (),
                    "held": progress.gpu_ids,
                }
            tasks.append(replace(progress.task, deadline_s=deadline_s, **changes))
        return tasks

    def run(self, schedule: Schedule, executor: Executor) -> None:
        """Run all remaining tasks by a schedule of `rest`.

        Raises:
            KeyboardInterrupt: on a signal, once the running tasks have ended.
            SameFailureError: the remaining tasks would fail as the tasks before did.
        """
        began = since_epoch_s()
        self.journal.add(began=began)
        self.began = began if self.began is None else self.began
        self.adopt(schedule)
        answered = interruption.answered(
            lambda number: KeyboardInterrupt(signal.Signals(number).name)
        )
        with answered, ending_on_error(executor):
            Drive(self, Processes(executor), Streak()).run()

    # ---- planning

    def _plan_again(self) -> None:
        """Plan the remaining tasks anew, if there is a reason to, and print the reasons."""
        reasons = self._reasons_to_replan
        self._reasons_to_replan = []
        if not reasons or not self.waiting():
            return
        now_s = self.now_s()
        schedule = planning.make(self.rest(), self.gpus, self.limit_s).schedule
        self.adopt(schedule)
        end_s = now_s + schedule.makespan_s
        why = "; ".join(reasons)
        sentence = f"{in_hours(now_s)} planned again, as {why}: all end at {in_hours(end_s)}"
        say(Message("plan.again", sentence, now_s=now_s, end_s=end_s, reasons=why))

    def adopt(self, schedule: Schedule) -> None:
        """Adopt a schedule of the remaining tasks as the plan, from now on."""
        unfinished = self.left()
        now_s = self.now_s()
        newly_planned = dict[str, dict[str, Any]]()
        for number, placed, others in zip(
            unfinished, schedule.placed, schedule.waits(self.rest()), strict=True
        ):
            progress = self.progress[number]
            if not progress.waits:
                continue
            progress.before = {unfinished[other] for other in others}
            progress.placed = replace(
                placed, start_s=now_s + placed.start_s, end_s=now_s + placed.end_s
            )
            if progress.task.name not in self.first:
                span = {"start_s": progress.placed.start_s, "end_s": progress.placed.end_s}
                newly_planned[progress.task.name] = {
                    "gpus": placed.option.gpus,
                    "gpu_ids": [*placed.gpu_ids],
                    **span,
                }
        if newly_planned:
            self.journal.add(planned=newly_planned)
            self.first |= newly_planned

    # ---- starts and ends

    def _take_record(self, progress: TaskProgress) -> None:
        """Restore from the records what an earlier command has done of a task."""
        name = progress.task.name
        last = next(
            (event for event in reversed(self.journal.entries) if event.get("ended") == name), {}
        )
        for option in progress.task.options:
            run = run_folder.read_run(self.cells[name, option.gpus].folder)
            if run is not None and run.status == "oom":
                self._require_more_gpus(progress.task.job, option.gpus)
            if run is not None and run.status in ("ok", "diverged") and progress.status != "ok":
                progress.status = run.status
                progress.gpus = option.gpus
                # An end with another status belongs to an earlier run.
                end_event = last if last.get("status") == run.status else {}
                progress.gpu_ids = tuple(end_event.get("gpu_ids", ()))
                progress.start_s = end_event.get("start_s")
                progress.end_s = end_event.get("end_s")
                sentence = f"{name}: {'done' if run.status == 'ok' else run.status} before"
                say(Message("plan.before", sentence, task=name, status=run.status))

    def waiting(self) -> list[Cell]:
        if self._is_given_up:
            return []
        return [
            self.cells[progress.task.name, progress.placed.option.gpus]
            for progress in self.progress
            if progress.waits and progress.placed
        ]

    def ready(self) -> Iterator[Cell]:
        """Yield the cells of the tasks that wait for nothing, in the plan's order.

        A task stays ready if other commands have leased its GPUs. If an earlier command's run of a
        task has ended meanwhile, nothing more starts before the rest is planned again.
        """
        if self._is_given_up:
            return
        self._plan_again()
        for progress in self._ready_tasks():
            assert progress.placed is not None  # always: so says `_ready_tasks`
            option = progress.placed.option
            self._take_record(progress)
            if progress.status == "ok":
                continue
            if reason := self._reason_not_to_start(progress, option):
                self._skip()
                self._reasons_to_replan.append(reason)
                return
            yield self.cells[progress.task.name, option.gpus]

    def _ready_tasks(self) -> list[TaskProgress]:
        """Return the tasks that wait for nothing, by their planned start."""
        over_numbers = {number for number, progress in enumerate(self.progress) if progress.status}
        ready = [
            progress
            for progress in self.progress
            if progress.waits and progress.placed and not progress.before - over_numbers
        ]
        ready.sort(key=lambda task: 0.0 if task.placed is None else task.placed.start_s)
        return ready

    def _reason_not_to_start(self, progress: TaskProgress, option: GpusOption) -> str:
        """Return why a task cannot start as planned; "" if it can."""
        name = progress.task.name
        status = progress.status
        if status:
            sentence = f"{name} ended {status} in an earlier command"
            return Message("plan.ended-before", sentence, task=name, status=status)
        if option.gpus not in {other.gpus for other in progress.options}:
            sentence = f"{name} does not fit on {option.gpus}"
            return Message("plan.does-not-fit", sentence, task=name, gpus=option.gpus)
        return ""

    def take_started(self, started: StartedCell) -> None:
        progress = next(
            progress
            for progress in self.progress
            if progress.placed
            and self.cells[progress.task.name, progress.placed.option.gpus] is started.cell
        )
        assert progress.placed is not None  # always: so says the search
        name = progress.task.name
        option = progress.placed.option
        now_s = self.now_s()
        progress.cell = started.cell
        progress.gpus = option.gpus
        progress.gpu_ids = progress.placed.gpu_ids
        progress.start_s = now_s
        progress.limit_s = latest_s(option)
        where = f"{self.noun}{'s' if option.gpus > 1 else ''} {spans(progress.gpu_ids)}"
        planned = f"{in_hours(progress.placed.start_s)} to {in_hours(progress.placed.end_s)}"
        log = str(started.log)
        sentence = f"{in_hours(now_s)} {name}: started on {where}, planned {planned}; log: {log}"
        say(
            Message(
                "plan.started",
                sentence,
                task=name,
                gpu_ids=[*progress.gpu_ids],
                planned_s=[progress.placed.start_s, progress.placed.end_s],
                log=log,
            )
        )

    def take_ended(self, ended: Sequence[Cell]) -> None:
        """Take the results of cells that have ended, and find tasks that run too long."""
        for progress in self.progress:
            if any(progress.cell is cell for cell in ended):
                reason = self._end(progress)
                if reason:
                    self._reasons_to_replan.append(reason)
        self._reasons_to_replan += self._overdue()

    def give_up(self, why: SameFailureError, cancelled: int) -> None:
        self._is_given_up = True
        for progress in self.progress:
            if progress.waits:
                progress.cause = str(why)

    def _end(self, progress: TaskProgress) -> str:
        assert progress.cell is not None and progress.cell.result is not None
        assert progress.start_s is not None and progress.placed is not None
        record = progress.cell.result.record
        name = progress.task.name
        option = progress.placed.option
        progress.cell = None
        progress.end_s = self.now_s()
        lasted_s = progress.end_s - progress.start_s
        planned = in_hours(progress.planned_s)
        status = record.status
        cause = "" if record.cause is None else record.cause.message.partition("\n")[0]
        span = {"start_s": progress.start_s, "end_s": progress.end_s}
        self.journal.add(
            ended=name, status=status, cause=cause, gpu_ids=[*progress.gpu_ids], **span
        )
        why = f"; {cause}" if cause else ""
        sentence = (
            f"{in_hours(progress.end_s)} {name}: {status} after {in_hours(lasted_s)}, planned"
            f" {planned}{why}"
        )
        say(
            Message("plan.ended", sentence, task=name, status=status, cause=cause, seconds=lasted_s)
        )
        if status == "oom":
            self._require_more_gpus(progress.task.job, option.gpus)
            if progress.options:
                progress.start_s = progress.end_s = None
                sentence = f"{name} does not fit on {option.gpus} and is tried on more"
                return Message("plan.tried-on-more", sentence, task=name, gpus=option.gpus)
            sentence = f"out of memory on {option.gpus}, and more are not allowed"
            cause = Message("plan.no-more-gpus", sentence, gpus=option.gpus)
        progress.status = status
        progress.cause = cause
        if status != "ok":
            self._skip()
            return Message("plan.ended-badly", f"{name} ended {status}", task=name, status=status)
        low = option.interval.low
        is_sooner = lasted_s < low - max(OUTSIDE * low, LEAST_OUTSIDE_S)
        if is_sooner or lasted_s > latest_s(option):
            self._scale(progress, lasted_s)
            sentence = f"{name} took {in_hours(lasted_s)}, not {planned}"
            return Message(
                "plan.took", sentence, task=name, seconds=lasted_s, planned_s=progress.planned_s
            )
        return ""

    def _overdue(self) -> list[str]:
        """Find tasks that run longer than expected. Return why the rest must be planned again."""
        reasons = []
        now_s = self.now_s()
        for progress in self.progress:
            if (
                progress.cell is not None
                and progress.start_s is not None
                and now_s - progress.start_s > progress.limit_s
            ):
                progress.limit_s = LONGER * (now_s - progress.start_s)
                self._scale(progress, progress.limit_s)
                name = progress.task.name
                so_far_s = now_s - progress.start_s
                sentence = f"{name} still runs after {in_hours(so_far_s)}"
                reasons.append(Message("plan.overdue", sentence, task=name, seconds=so_far_s))
        return reasons

    def _require_more_gpus(self, job: str, gpus: int) -> None:
        """Give a job's other runs more GPUs, because one ran out of memory on this number."""
        for progress in self.progress:
            if progress.task.job == job and progress.waits:
                progress.options = tuple(
                    option for option in progress.options if option.gpus > gpus
                )

    def _scale(self, source: TaskProgress, lasts_s: float) -> None:
        """Scale the expected times of a job's waiting runs by the surprise of one run.

        `lasts_s` is how long that run lasts, compared with its planned time.
        """
        first_option = next(option for option in source.task.options if option.gpus == source.gpus)
        ratio = lasts_s / first_option.interval.value
        for progress in self.progress:
            if progress.task.job == source.task.job and progress.waits:
                allowed_gpus = {option.gpus for option in progress.options}
                progress.options = tuple(
                    option.times(ratio)
                    for option in source.task.options
                    if option.gpus in allowed_gpus
                )

    def _skip(self) -> None:
        """Skip tasks that come after a failed one, and tasks that fit on no number of GPUs."""
        for progress in self.progress:
            if progress.waits and not progress.options:
                progress.status = "oom"
                sentence = "out of memory before on each number of GPUs that is allowed"
                progress.cause = Message("plan.fits-nowhere", sentence)
        while blocked := self._first_after_a_failure():
            progress, other = blocked
            name = self.tasks[other].name
            status = self.progress[other].status
            progress.status = "skipped"
            progress.cause = Message(
                "plan.after", f"comes after {name}, which is {status}", task=name, status=status
            )
            sentence = f"{progress.task.name}: skipped; it {progress.cause}"
            say(
                Message("plan.skipped", sentence, task=progress.task.name, cause=progress.cause),
                error=True,
            )

    def _first_after_a_failure(self) -> tuple[TaskProgress, int] | None:
        """Return a task that is not over, and the number of a failed task before it."""
        for progress in self.progress:
            if progress.status:
                continue
            for other in progress.task.after:
                if self.progress[other].status not in ("", "ok"):
                    return progress, other
        return None
