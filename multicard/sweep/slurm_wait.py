"""Wait for the jobs of a sweep, and record the end of jobs that left no record."""

import sys
from contextlib import suppress
from pathlib import Path

from multicard.config.job import count
from multicard.machine import slurm
from multicard.machine.slurm import State
from multicard.measure.timing import clock_s, pause
from multicard.messages import Message, say
from multicard.ranks import interruption
from multicard.ranks.failures import Failure
from multicard.ranks.process import LOG_LINES
from multicard.records import ownership, run_folder
from multicard.run import outcome
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.drive import Drive, StartedCell
from multicard.sweep.grid import Grid, Pace
from multicard.sweep.job import SUBMITTED
from multicard.sweep.streak import SameFailureError, Streak

# The time between two looks at the queue grows while nothing happens.
SHORTEST_POLL_S = 1.0
LONGEST_POLL_S = 15.0
RECORD_LAG_S = 20.0  # The record of a job that left the queue is visible here within this time.
ACCOUNTING_LAG_S = 60.0  # Accounting knows about a job that ended within this time.
STATUS_OF = {
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "oom",
    "CANCELLED": "interrupted",
}
REFUSED = "refused: "  # The last line of a job that refused to run begins with this.
NO_OUTPUT = "0:53"  # The exit code if SLURM could not open the job's log.


def wait(sweep: Sweep, jobs: dict[int, str], streak: Streak) -> None:
    """Wait until every job has ended and its cell has a record, or until the user interrupts.

    Args:
        jobs: SLURM's name of each cell's job, by the cell's number.

    Raises:
        SameFailureError: the remaining cells would fail as the cells before did. Their jobs are
            cancelled.
    """
    queue = Queue(sweep.cells, jobs)
    drive = Drive(Grid(queue.waiting(), Pace(len(jobs))), queue, streak)
    goes_on = True
    while goes_on:
        try:
            drive.run()
            return
        except KeyboardInterrupt as interrupted:
            # Ctrl-C must work again at the question, and if the command goes on waiting.
            interruption.answer_again()
            goes_on = _offer_to_cancel(sweep, queue, asks=str(interrupted) in ("", "SIGINT"))


class Queue:
    """The jobs of a sweep that have not ended, by their cell's number. See `drive.Backend`.

    Jobs are submitted before, many in one array, and SLURM starts them.
    """

    shares_terminal = False

    def __init__(self, cells: list[Cell], jobs: dict[int, str]) -> None:
        self.cells = cells
        self.jobs = dict(jobs)
        self.states: dict[str, State] = {}
        self.missing_since_s: dict[str, float] = {}  # When each job was first not in the queue.
        self.stuck: set[str] = set()
        # Jobs that have left the queue, although SLURM does not say how they ended.
        self.unknown: set[str] = set()
        # When a job was last seen to end, or None before the first look.
        self._changed_s: float | None = None

    def is_busy(self) -> bool:
        return bool(self.jobs)

    def waiting(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.number in self.jobs]

    def start(self, cell: Cell) -> StartedCell:
        """Do nothing: the job has been submitted."""
        return StartedCell(cell)

    def collect(self) -> list[Cell]:
        if self._changed_s is None:
            self._changed_s = clock_s()
        else:
            idle_s = clock_s() - self._changed_s
            pause(min(max(idle_s / 10, SHORTEST_POLL_S), LONGEST_POLL_S))
        ended = self.poll()
        for cell in ended:
            assert cell.result is not None
            say(outcome.line(cell.result, cell.title))
        if ended:
            self._changed_s = clock_s()
        for reason, jobs in self.newly_stuck().items():
            names = " ".join(slurm.ranges(jobs))
            say(_stuck_message(names, reason), error=True)
        return ended

    def poll(self) -> list[Cell]:
        """Ask SLURM once about all jobs.

        Returns:
            The cells whose jobs have ended, or let go of their folder, since the last call.
        """
        waiting = self.waiting()
        try:
            self.states = slurm.queued(list(self.jobs.values()))
        # If SLURM does not answer, a job that cannot be seen has not therefore left the queue.
        except slurm.SilentError:
            self.missing_since_s.clear()
            return []
        ended = []
        for cell in waiting:
            job = self.jobs[cell.number]
            run = run_folder.read_run(cell.folder)
            if run is not None and run.record.job == job:
                # After its record, a job still removes its checkpoints and mirrors the run.
                if job not in self.states or not ownership.is_held_by(cell.folder, job):
                    cell.result = run
                    ended.append(cell)
            elif job in self.states:
                self.missing_since_s.pop(job, None)
            else:
                self.missing_since_s.setdefault(job, clock_s())
        ended += self._record_lost([cell for cell in waiting if cell.result is None])
        for cell in ended:
            del self.jobs[cell.number]
        return ended

    def newly_stuck(self) -> dict[str, list[str]]:
        """Return jobs that do not begin by themselves since the last call, by SLURM's reason."""
        stuck = {job: state.reason for job, state in self.states.items() if state.stuck}
        newly_stuck = {job: reason for job, reason in stuck.items() if job not in self.stuck}
        self.stuck = {*stuck}
        return {
            reason: [job for job in newly_stuck if newly_stuck[job] == reason]
            for reason in sorted({*newly_stuck.values()})
        }

    def give_up(self, why: SameFailureError) -> int:
        queued = self._not_begun()
        if not queued:
            return 0
        # Some jobs may have begun by now, and these must go on.
        slurm.ask("scancel", "--state=PENDING", *slurm.ranges([*queued.values()]))
        unended = {*queued.values()}
        with suppress(slurm.SilentError):
            unended = slurm.unended([*queued.values()])
        cells = {cell.number: cell for cell in self.cells}
        for number, job in queued.items():
            run = run_folder.read_run(cells[number].folder)
            if job not in unended and (run is None or run.record.job != job):
                del self.jobs[number]
        cancelled = len(queued.keys() - self.jobs.keys())
        message = Message(
            "job.cancelled-rest",
            f"{why}; cancelled: {count(cancelled, 'job')} of {len(queued)} that had not begun",
            reason=str(why),
            cancelled=cancelled,
            queued=len(queued),
        )
        say(message, error=True)
        if not_begun := self._not_begun():
            names = slurm.ranges([*not_begun.values()])
            message = Message(
                "job.left",
                f"To cancel those that are left: `scancel {' '.join(names)}`",
                jobs=names,
            )
            say(message, error=True)
        return cancelled

    def _not_begun(self) -> dict[int, str]:
        states = self.states
        return {
            cell: job for cell, job in self.jobs.items() if job in states and states[job].queued
        }

    def _record_lost(self, waiting: list[Cell]) -> list[Cell]:
        """Record the end of cells whose job is gone without a record, and return these cells."""
        now_s = clock_s()
        missing_s = {
            cell.number: now_s - self.missing_since_s.get(self.jobs[cell.number], now_s)
            for cell in waiting
        }
        gone_cells = [cell for cell in waiting if missing_s[cell.number] > RECORD_LAG_S]
        states = slurm.ended([self.jobs[cell.number] for cell in gone_cells])
        overdue_jobs = {
            self.jobs[cell.number]
            for cell in gone_cells
            if missing_s[cell.number] > ACCOUNTING_LAG_S
        } - states.keys()
        if newly_unknown := overdue_jobs - self.unknown:
            names = " ".join(slurm.ranges([*newly_unknown]))
            message = Message(
                "job.end-unknown",
                f"job {names} has left the queue, and SLURM does not say how it ended; asking on",
                job=names,
            )
            say(message, error=True)
        self.unknown = overdue_jobs
        lost_cells = list[Cell]()
        for cell in gone_cells:
            job = self.jobs[cell.number]
            state = states.get(job)
            if state is None or not (state.name or missing_s[cell.number] > ACCOUNTING_LAG_S):
                # Accounting may not know yet about a job that the controller has forgotten.
                continue
            status, failure = judge(job, state, cell.folder)
            cell.result = outcome.fail(
                outcome.begin(cell.workload, cell.cfg, cell.folder, job), failure, status
            )
            ownership.release(cell.folder, job)
            lost_cells.append(cell)
        return lost_cells


def judge(job: str, state: State, folder: Path) -> tuple[str, Failure]:
    """Return the status and the cause of a job that left no record, by its last state."""
    if not state.name:  # SLURM has forgotten the job.
        message = Message(
            "job.forgotten",
            f"job {job} left the queue without a record, and SLURM does not account jobs",
            job=job,
        )
        return "failed", Failure("slurm", message)
    if state.exit_code == NO_OUTPUT:
        message = Message(
            "job.log-unwritable",
            f"hydra.sweep.dir: node {state.nodes} cannot write to {folder.parent}; "
            "choose a folder on a file system that the nodes share",
            key="hydra.sweep.dir",
            host=state.nodes,
            folder=str(folder.parent),
        )
        return "refused", Failure("refused", message)
    log = folder.parent / SUBMITTED / f"{job}_0_log.err"
    tail: tuple[str, ...] = ()
    with suppress(OSError):
        tail = tuple(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    # An earlier record of the cell is kept, so a refusal is only in the log.
    if state.name == "COMPLETED" and tail and tail[-1].startswith(REFUSED):
        return "refused", Failure("refused", tail[-1].removeprefix(REFUSED), host=state.nodes)
    if state.name == "CANCELLED" and state.nodes in ("", "None assigned", "(null)"):
        message = Message(
            "job.cancelled-early", f"job {job} was cancelled (scancel) before it began", job=job
        )
        return "interrupted", Failure("slurm", message)
    if state.name == "COMPLETED":
        message = Message(
            "job.no-record",
            f"job {job} ended on {state.nodes} without leaving a record in {folder}; do all nodes"
            " share it?",
            job=job,
            host=state.nodes,
            folder=str(folder),
        )
    else:
        message = Message(
            "job.ended",
            f"SLURM ended job {job} on {state.nodes} as {state.name} (exit code {state.exit_code}),"
            " and no controller was left to record it",
            job=job,
            host=state.nodes,
            state=state.name,
            exit_code=state.exit_code,
        )
    status = STATUS_OF.get(state.name, "failed")
    ran_out = "host" if status == "oom" else None
    return status, Failure(
        "slurm", message, host=state.nodes, ran_out=ran_out, log=str(log), log_tail=tail
    )


def _stuck_message(names: str, reason: str) -> Message:
    """Return the message about jobs that do not begin by themselves, by SLURM's reason."""
    if slurm.NEVER_STARTS.match(reason):
        return Message(
            "job.never-begins",
            f"job {names} never begins ({reason}); to give it up: `scancel {names}`",
            job=names,
            reason=reason,
        )
    if slurm.NODES_UNAVAILABLE.match(reason):
        return Message(
            "job.nodes-away",
            f"job {names} waits for nodes that are down, drained or reserved ({reason}); `sinfo -R`"
            f" says why, `scancel {names}` gives it up",
            job=names,
            reason=reason,
        )
    return Message(
        "job.held",
        f"SLURM holds job {names} ({reason}); to let it go on: `scontrol release {names}`",
        job=names,
        reason=reason,
    )


def _offer_to_cancel(sweep: Sweep, queue: Queue, asks: bool) -> bool:
    """On Ctrl-C at a terminal, ask whether to cancel the jobs.

    Returns:
        Whether to go on waiting, for the records of cancelled jobs.
    """
    names = slurm.ranges(list(queue.jobs.values()))
    if asks and sys.stdin.isatty():
        with suppress(EOFError, KeyboardInterrupt):
            answer = input(f"\n{len(queue.jobs)} jobs have not ended: cancel them? [y/N] ")
            if answer.strip().lower() in ("y", "yes"):
                slurm.ask("scancel", *names)
                return True
    message = Message(
        "job.left-in-queue",
        f"left in the queue: {count(len(queue.jobs), 'job')}. To cancel them: `scancel"
        f" {' '.join(names)}`",
        jobs=len(queue.jobs),
        names=names,
    )
    say(message, error=True)
    command = sweep.resume_command()
    say(
        Message("job.wait-again", f"To wait for them again: `{command}`", command=command),
        error=True,
    )
    sweep.command.abandoned = True
    return False
