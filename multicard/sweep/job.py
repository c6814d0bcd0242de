"""Run a cell of a sweep as a job: a task of SLURM, or a process beside others on this machine."""

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

# These signals reach all processes of a command.
TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
# A job's process is started by this. `job_process` checks that the job belongs to this user.
STARTS_JOBS = shlex.join([sys.executable, "-u", str(Path(__file__).with_name("job_process.py"))])
# A sweep's folder for submitit's files, and for the lists of the cells in each array of jobs.
SUBMITTED = ".submitit"
KILLED_WITHIN_S = 60.0  # SLURM ends a job that was requeued within this time.


@contextmanager
def terminal_blocked() -> Iterator[None]:
    """Start processes that the terminal's signals do not reach until they unblock them."""
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


@dataclass(frozen=True)
class CellJob(ABC):
    """A composed cell as a job. Edits to files while it waits do not change its configuration.

    Args:
        code: `environment.git` at the submission.
        umask: for the files that are measured. Only the owner can read the job itself and its
            output.
    """

    workload: Workload
    cfg: DictConfig
    folder: Path
    code: dict[str, Any] | None
    variables: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022

    def __call__(self) -> str:
        """Measure the cell, and return its status."""
        with private.umask(self.umask):
            return self.measure()

    @abstractmethod
    def measure(self) -> str: ...

    def refused_code(self, job: str | None = None) -> str | None:
        """Refuse the cell if the code has changed since the submission.

        Returns:
            The status of the refused cell, or None.
        """
        code = environment.git()
        if code == self.code or self.cfg.code == Code.latest:
            return None
        submitted = repository.in_words(self.code)
        current = repository.in_words(code)
        problem = Message(
            "job.other-code",
            f"code=submitted: submitted on {submitted}, found {current}; submit again, "
            "or use `code=latest` to run what is there",
            key="code",
            submitted=submitted,
            found=current,
        )
        return outcome.refuse(
            outcome.begin(self.workload, self.cfg, self.folder, job), problem
        ).status


@dataclass(frozen=True)
class LocalJob(CellJob):
    """A process on this machine, which uses only its share of it.

    Args:
        gpus: the value of CUDA_VISIBLE_DEVICES; None leaves it.
        cpus: the cores to use.
        leased: the names of the GPUs and cores, as leases.
        ends_with: a process, and the signal that this process gets when that one is gone; None lets
            it go on alone.
    """

    gpus: str | None = None
    cpus: tuple[int, ...] = ()
    leased: tuple[str, ...] = ()
    ends_with: tuple[int, int] | None = None

    def measure(self) -> str:
        if self.ends_with is not None:
            os_calls.die_with(*self.ends_with)
        # The leases last as long as this process, even if the command that started it is gone.
        shares.hold(self.leased)
        os.environ.update(self.variables)
        if (refused := self.refused_code()) is not None:
            return refused
        if self.gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus
        os.sched_setaffinity(0, self.cpus)
        # The launcher has blocked these signals until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)
        began: dict[str, Any] = {"predict": estimates.prediction, "started_s": process_started_s()}
        if pauses(self.cfg) and self.ends_with is not None:
            # The race is the family of this cell: its other cells do not disturb this one.
            began["family"] = self.ends_with[0]
        return run.measure(self.workload, self.cfg, self.folder, True, **began).status


@dataclass(frozen=True)
class SlurmJob(CellJob):
    """A task of SLURM, one on each node, with a secret of the submission. Submitit calls it."""

    key: str = ""
    grace_s: float = 0.0

    def measure(self) -> str:
        preemption.hold_warnings()
        os.environ.update(self.variables)
        allocation = slurm.allocation(self.key, self.grace_s)
        several = slurm.several_tasks(allocation.nodes)
        if several is not None:
            # Only one of the tasks records the refusal.
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
        # SLURM requeued the job after everything was recorded.
        if done is not None and done.record.job == allocation.job:
            with closing(Peers(allocation)) as peers:
                peers.meet()  # Otherwise the other nodes would wait for this one.
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
        """Put this job back into the queue if that helps, unless SLURM has done so.

        A run that has saved nothing new would reach its time limit again. After a preemption, the
        job is always requeued.

        Returns:
            True if the job starts again.
        """
        job = os.environ["SLURM_JOB_ID"]
        if slurm.is_requeued(job):
            return True
        is_useful = failure.kind == "preempted" or (
            failure.kind == "timeout" and attempts.moved_on(self.folder)
        )
        return (
            is_useful
            and attempts.requeues(self.folder) <= self.cfg.max_requeues
            and slurm.requeue(job)
        )

    def assist(self, allocation: Allocation) -> str:
        """Do the part of a node that is not the first.

        If the first node is lost, the second node records that.
        """
        try:
            with failures.interruptible():
                failure = self._run_ranks(allocation)
        except Interrupted as interruption:
            failure = interruption.failure
        is_first_node_lost = (
            failure is not None and failure.kind == "node" and failure.host == allocation.hosts[0]
        )
        if failure is not None and is_first_node_lost and allocation.node == 1:
            outcome.fail(
                outcome.begin(self.workload, self.cfg, self.folder, allocation.job),
                failure,
                "failed",
            )
            ownership.release(self.folder, allocation.job)
        return "ended"

    def _run_ranks(self, allocation: Allocation) -> Failure | None:
        """Run this node's ranks once node 0 says so. Return the failure that ended them early."""
        guest = Guest(allocation)
        try:
            config = prepare.typed(self.workload, self.cfg)
            placement = prepare.check_run(self.workload, config, allocation)
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
            if failure is None:  # After a failure, node 0 may have recorded the run by now.
                gpus.write()
            guest.finish(failure)
            return failure
        finally:
            board.remove()


def make_jobs(
    cells: Sequence[Cell], job_class: Callable[..., CellJob], **options: Any
) -> list[CellJob]:
    """Return the cells as jobs, which note the present state of the code."""
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
    """Submit jobs in this context: their files are readable only for their owner.

    Yields:
        The umask of the command.
    """
    with private.imports(), private.umask() as umask_before:
        yield umask_before


def jobs_folder(sweep: Path) -> Path:
    """Return the folder of a sweep with the files of its jobs. It is closed to other users."""
    return private.folder(
        sweep / SUBMITTED, "choose another folder for the sweep (name, hydra.sweep.dir)"
    )
