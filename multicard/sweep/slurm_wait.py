"""Waits for the jobs of a sweep, shows how far they are, and records the end of those that nobody else recorded."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from multicard.config.job import Resources
from multicard.controller import run
from multicard.controller.session import SESSION, say
from multicard.machine import slurm
from multicard.machine.slurm import State
from multicard.measure.timing import clock_s, pause
from multicard.ranks.failures import Failure
from multicard.ranks.process import LOG_LINES
from multicard.records import run_folder
from multicard.sweep import plan
from multicard.sweep.plan import SUBMITTED, Planned
from multicard.sweep.slurm_submit import Options, told

FIRST_LOOK_S, LAST_LOOK_S = 1.0, 15.0  # between two looks at the queue: longer while nothing happens
SETTLED_S = 20.0  # after which a job that left the queue is asked about, and its record is no longer waited for
LAG_S = 60.0  # within which accounting knows of a job that ended
STATUS_OF = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "PREEMPTED": "preempted", "OUT_OF_MEMORY": "oom"}
REFUSED = "refused: "  # what a job prints last that refused to run
NO_OUTPUT = "0:53"  # SLURM could not open the job's log


class Waiting:
    """The jobs that have not ended yet, by their cell's number."""

    def __init__(self, planned: list[Planned], jobs: dict[int, str]) -> None:
        self.planned, self.jobs = planned, dict(jobs)
        self.states: dict[str, State] = {}
        self.left_s: dict[str, float] = {}  # when a job was first missed in the queue
        self.started_s = clock_s()

    def look(self) -> list[Planned]:
        """Ask once about all jobs. Returns the cells that have ended since the last look."""
        waiting = [cell for cell in self.planned if cell.number in self.jobs]
        try:
            self.states = slurm.queued(list(self.jobs.values()))
        except slurm.SilentError:  # a job that cannot be seen now has not left the queue for that
            self.left_s.clear()
            return []
        ended = []
        for cell in waiting:
            job = self.jobs[cell.number]
            found = plan.read(cell)
            if found is not None and found.get("job") == job:
                cell.result = found
                ended.append(cell)
            elif job in self.states:
                self.left_s.pop(job, None)
            else:
                self.left_s.setdefault(job, clock_s())
        ended += self._record_lost([cell for cell in waiting if cell.result is None])
        for cell in ended:
            del self.jobs[cell.number]
        return ended

    def _record_lost(self, waiting: list[Planned]) -> list[Planned]:
        """Record the end of those whose job is gone and that nobody recorded."""
        now_s = clock_s()
        gone = [c for c in waiting if now_s - self.left_s.get(self.jobs[c.number], now_s) > SETTLED_S]
        known = slurm.accounted([self.jobs[cell.number] for cell in gone])
        late = {c.number for c in gone if now_s - self.left_s[self.jobs[c.number]] < LAG_S}
        gone = [c for c in gone if self.jobs[c.number] in known or c.number not in late]
        for cell in gone:
            job = self.jobs[cell.number]
            assert SESSION.workload is not None
            status, failure = judge(job, known.get(job), cell.folder)
            cell.result = run.fail(SESSION.workload, cell.cfg, cell.folder, status, failure, job)
            run_folder.release(cell.folder)
        return gone


def judge(job: str, state: State | None, folder: Path) -> tuple[str, Failure]:
    """The status of a job that left no record, and what is known of its end."""
    if state is None:
        return "failed", Failure("slurm", f"job {job} left the queue without a record, and SLURM does not account jobs")
    if state.exit_code == NO_OUTPUT:
        message = f"hydra.sweep.dir: node {state.nodes} cannot write to {folder.parent}"
        return "refused", Failure("refused", f"{message}; choose a folder on a file system that the nodes share")
    status = STATUS_OF.get(state.name, "failed")
    log = folder.parent / SUBMITTED / f"{job}_0_log.err"
    tail: tuple[str, ...] = ()
    with suppress(OSError):
        tail = tuple(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    if state.name == "COMPLETED" and tail and tail[-1].startswith(REFUSED):  # beside a record that is kept
        return "refused", Failure("refused", tail[-1].removeprefix(REFUSED), host=state.nodes)
    ended = f"SLURM ended job {job} on {state.nodes} as {state.name} (exit code {state.exit_code})"
    message = f"{ended}, and no controller was left to record it"
    if state.name == "COMPLETED":
        message = f"job {job} ended on {state.nodes} without leaving a record in {folder}; do all nodes share it?"
    return status, Failure("slurm", message, host=state.nodes, log=str(log), log_tail=tail)


def wait(planned: list[Planned], jobs: dict[int, str]) -> None:
    """Wait until every job has ended and each cell has its record, or until the user will not."""
    waiting = Waiting(planned, jobs)
    console = Console(stderr=True)
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    while waiting.jobs:
        try:
            with live or nullcontext():
                _watch(waiting, live)
        except KeyboardInterrupt:
            if not _cancel(waiting):
                return


def _watch(waiting: Waiting, live: Live | None) -> None:
    changed_s = clock_s()
    while waiting.jobs:
        ended = waiting.look()
        for cell in ended:
            result: dict[str, Any] = cell.result or {}
            say(f"{plan.label(cell, waiting.planned)}{cell.folder.name}: {run.outcome(result).strip()}")
        changed_s = clock_s() if ended else changed_s
        if waiting.jobs:
            _pause(waiting, live, min(max((clock_s() - changed_s) / 10, FIRST_LOOK_S), LAST_LOOK_S))


def _pause(waiting: Waiting, live: Live | None, seconds: float) -> None:
    until_s = clock_s() + seconds
    while (rest_s := until_s - clock_s()) > 0:
        if live is not None:
            live.update(progress(waiting), refresh=True)
        pause(min(rest_s, 1.0))


def progress(waiting: Waiting) -> Table:
    """How many cells are queued, running and done, by status, and what runs now."""
    states = [waiting.states.get(job) for job in waiting.jobs.values()]
    running = sum(state is not None and not state.queued for state in states)
    done = Counter(cell.result["status"] for cell in waiting.planned if cell.result is not None)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("queued", "running", *done, "time"):
        table.add_column(heading, justify="right")
    elapsed_s = int(clock_s() - waiting.started_s)
    time = f"{elapsed_s // 3600}:{elapsed_s // 60 % 60:02d}:{elapsed_s % 60:02d}"
    table.add_row(str(len(states) - running), str(running), *(str(count) for count in done.values()), time)
    return table


def _cancel(waiting: Waiting) -> bool:
    """Ask what is to become of the jobs. Returns whether to go on waiting: for the records of cancelled jobs."""
    names = slurm.ranges(list(waiting.jobs.values()))
    if sys.stdin.isatty():
        with suppress(EOFError, KeyboardInterrupt):
            if input(f"\n{len(waiting.jobs)} jobs have not ended: cancel them? [y/N] ").strip().lower() in ("y", "yes"):
                slurm.ask("scancel", *names)
                return True
    say(f"left in the queue: {len(waiting.jobs)} jobs. To cancel them: scancel {' '.join(names)}", error=True)
    say(f"To wait for them again: the same command, with name={waiting.planned[0].folder.parent.name}", error=True)
    SESSION.abandoned = True
    return False


Groups = Sequence[tuple[tuple[Resources, Options] | None, list[Planned]]]


def show_plan(planned: list[Planned], groups: Groups, how: str) -> None:
    """Print what would be measured, and how; nothing is started."""
    from multicard.records import table

    console = Console(width=None if sys.stdout.isatty() else table.WIDTH, highlight=False)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("cells", "each", "which"):
        shown.add_column(heading)
    for asked, cells in groups:
        if cells:
            each = "-" if asked is None else "\n".join([told(asked[0]), *_site(asked[1])])
            shown.add_row(str(len(cells)), each, "\n".join(cell.folder.name for cell in cells))
    console.print(f"dry_run=true: nothing is started. {len(planned)} cells, to be measured as {how}:")
    console.print(shown)
    measured = sum(cell.result is not None for cell in planned)
    refused = [cell for cell in planned if cell.problem]
    queued = len(planned) - measured - len(refused) - sum(len(cells) for _, cells in groups)
    console.print(f"measured before: {measured}; in the queue: {queued}; refused: {len(refused)}")
    for cell in refused:
        say(f"{plan.label(cell, planned)}refused: {cell.problem}", error=True)


def _site(options: Options) -> list[str]:
    return [f"{key}={options[key]}" for key in ("partition", "account", "qos") if options.get(key)]
