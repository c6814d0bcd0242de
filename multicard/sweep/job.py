"""A cell of a sweep as a job: a task of SLURM, or a process beside others on this machine."""

import os
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from multicard import repository
from multicard.config.job import Code
from multicard.config.sweeps import pauses
from multicard.estimate import estimates
from multicard.machine import environment, private, shares, slurm
from multicard.machine.slurm import Allocation
from multicard.measure.timing import pause, process_started_s
from multicard.messages import Message
from multicard.observe.profiles import nsys
from multicard.observe.sampler import MachineSampler
from multicard.ranks import elastic, failures, os_calls
from multicard.ranks.failures import Failure, Interrupted
from multicard.records import ownership, run_folder
from multicard.records.progress import Board
from multicard.run import attempts, outcome, preemption, prepare
from multicard.run import controller as run
from multicard.run.peers import Guest, Peers
from multicard.run.workload import Workload
from multicard.sweep.cells import Cell

# which reach all processes of a command
TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
# How a job's process is started: `job_process` sees that the job is this user's own
STARTS_JOBS = shlex.join([sys.executable, "-u", str(Path(__file__).with_name("job_process.py"))])
# folder of the sweep: submitit's own files, and which cells each array of jobs holds
SUBMITTED = ".submitit"
KILLED_WITHIN_S = 60.0  # SLURM ends a job that was requeued


@contextmanager
def terminal_blocked() -> Iterator[None]:
    """Start processes that a terminal's signals do not reach until they unblock them themselves."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class CellJob(ABC):
    """A composed cell as a job. Edits to files while it waits do not change its configuration.

    Args:
        code: `environment.git` at the submission.
        umask: of the files that are measured; the job itself, and what it prints,
            is for its owner alone.
    """

    workload: Workload
    cfg: DictConfig
    folder: Path
    code: dict[str, Any] | None
    variables: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022

    def __call__(self) -> str:
        """Measure the cell. Returns its status."""
        with private.umask(self.umask):
            return self.measure()

    @abstractmethod
    def measure(self) -> str: ...

    def refused_code(self, job: str | None = None) -> str | None:
        """Refuse the cell where the code has changed since the submission.
        Returns its status then, else None.
        """
        code = environment.git()
        if code == self.code or self.cfg.code == Code.latest:
            return None
        submitted = repository.in_words(self.code)
        found = repository.in_words(code)
        problem = Message(
            "job.other-code",
            f"code=submitted: submitted on {submitted}, found {found}; submit again, "
            "or use `code=latest` to run what is there",
            key="code",
            submitted=submitted,
            found=found,
        )
        return outcome.refuse(
            outcome.begin(self.workload, self.cfg, self.folder, job), problem
        ).status


@dataclass(frozen=True)
class LocalJob(CellJob):
    """A process on this machine, on its own share of it.

    Args:
        gpus: what CUDA_VISIBLE_DEVICES is to be; None leaves it.
        cpus: the cores to keep to.
        leased: the names of both, as leases.
        ends_with: a process, and the signal that this one gets when that is gone;
            None: it goes on alone.
    """

    gpus: str | None = None
    cpus: tuple[int, ...] = ()
    leased: tuple[str, ...] = ()
    ends_with: tuple[int, int] | None = None

    def measure(self) -> str:
        if self.ends_with is not None:
            os_calls.die_with(*self.ends_with)
        # to the end of this process, also where the command that started it is gone
        shares.hold(self.leased)
        os.environ.update(self.variables)
        if (refused := self.refused_code()) is not None:
            return refused
        if self.gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus
        os.sched_setaffinity(0, self.cpus)
        # the launcher has them blocked until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)
        began: dict[str, Any] = {"predict": estimates.prediction, "started_s": process_started_s()}
        if pauses(self.cfg) and self.ends_with is not None:
            # the race, whose other cells do not disturb this one
            began["family"] = self.ends_with[0]
        return run.measure(self.workload, self.cfg, self.folder, True, **began).status


@dataclass(frozen=True)
class SlurmJob(CellJob):
    """A task of SLURM, one on each node, with a secret of the submission; submitit calls it."""

    key: str = ""
    grace_s: float = 0.0

    def measure(self) -> str:
        preemption.hold_warnings()
        os.environ.update(self.variables)
        allocation = slurm.allocation(self.key, self.grace_s)
        several = slurm.several_tasks(allocation.nodes)
        if several is not None:
            # the others leave it to this one to say so
            if allocation.node == 0 and slurm.task_of_node() == 0:
                outcome.refuse(
                    outcome.begin(self.workload, self.cfg, self.folder, allocation.job), several
                )
            return "refused"
        if allocation.node > 0:
            return self.assist(allocation)
        if (refused := self.refused_code(allocation.job)) is not None:
            return refused
        done = run_folder.finished(self.folder)
        # requeued after all was recorded
        if done is not None and done.record.job == allocation.job:
            with closing(Peers(allocation)) as peers:
                peers.meet()  # else the other nodes would wait for this one
            outcome.clean_up(self.folder)
            ownership.release(self.folder, allocation.job)
            return done.status
        began = {"predict": estimates.prediction, "started_s": process_started_s()}
        result = run.measure(
            self.workload, self.cfg, self.folder, True, allocation, self.requeue, **began
        )
        if result.status == "requeued":
            pause(KILLED_WITHIN_S)
        return result.status

    def requeue(self, failure: Failure) -> bool:
        """Put this job back into the queue, if that leads anywhere, unless SLURM has. Returns
        whether it starts again: a run that saves nothing would reach its time limit again;
        after a preemption it starts anew.
        """
        job = os.environ["SLURM_JOB_ID"]
        if slurm.is_requeued(job):
            return True
        useful = failure.kind == "preempted" or (
            failure.kind == "timeout" and attempts.moved_on(self.folder)
        )
        return (
            useful
            and attempts.requeues(self.folder) <= self.cfg.max_requeues
            and slurm.requeue(job)
        )

    def assist(self, allocation: Allocation) -> str:
        """Do the part of a node that is not the first. Where the first is lost,
        the second records that.
        """
        try:
            with failures.interruptible():
                failure = self._run_ranks(allocation)
        except Interrupted as interruption:
            failure = interruption.failure
        lost = (
            failure is not None and failure.kind == "node" and failure.host == allocation.hosts[0]
        )
        if failure is not None and lost and allocation.node == 1:
            outcome.fail(
                outcome.begin(self.workload, self.cfg, self.folder, allocation.job),
                failure,
                "failed",
            )
            ownership.release(self.folder, allocation.job)
        return "ended"

    def _run_ranks(self, allocation: Allocation) -> Failure | None:
        """Run the ranks of this node once node 0 says so. Returns what ended them early."""
        guest = Guest(allocation)
        try:
            config = prepare.typed(self.workload, self.cfg)
            placement = prepare.check(self.workload, config, allocation)
            config = nsys.resolve_auto(config, placement.device)
        except ValueError as error:
            guest.wait_for_start(str(error))
            return None
        start = guest.wait_for_start()
        if start is None:
            return None
        attempt, arguments = start
        board = Board(self.folder, placement.world_size, create=True, node=allocation.node)
        try:
            guest.listen(board.ask_stop)
            elastic.warm_up(placement.device, self.workload.preloaded(placement.device))
            job = prepare.job_of(self.workload, config, placement, self.folder, allocation)
            with MachineSampler.of_run(
                config, placement, self.folder, attempt, allocation.node
            ) as gpus:
                failure = elastic.launch(
                    self.workload.work, (config, self.folder, *arguments), placement, job
                )
            if failure is None:  # else node 0 may have recorded the run by now
                gpus.write()
            guest.finish(failure)
            return failure
        finally:
            board.remove()


def make_jobs(
    cells: Sequence[Cell], job_class: Callable[..., CellJob], **options: Any
) -> list[CellJob]:
    """The cells as jobs, with the present state of the code."""
    code = environment.git()
    jobs = []
    for cell in cells:
        variables = {key: str(value) for key, value in cell.composed.hydra.job.env_set.items()}
        jobs.append(
            job_class(cell.workload, cell.cfg, cell.folder.absolute(), code, variables, **options)
        )
    return jobs


@contextmanager
def submission() -> Iterator[int]:
    """Context in which jobs are submitted, with files for their owner alone.
    Yields the umask of the command.
    """
    with private.imports(), private.umask() as before:
        yield before


def jobs_folder(sweep: Path) -> Path:
    """The folder of a sweep in which its jobs find what they run. It is closed to other users."""
    return private.folder(
        sweep / SUBMITTED, "choose another folder for the sweep (name, hydra.sweep.dir)"
    )
