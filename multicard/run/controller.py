"""Measure one run: from its composed configuration to `result.json`.

The controller checks the run, starts the ranks, waits for them, and writes the record.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from omegaconf import DictConfig
from rich.text import Text

from multicard.config.sweeps import pauses
from multicard.machine.slurm import Allocation
from multicard.measure.timing import clock_s
from multicard.messages import Message, link, say
from multicard.observe.sampler import MachineSampler
from multicard.ranks import elastic, failures
from multicard.ranks.failures import Failure, Interrupted
from multicard.records import ownership, run_folder
from multicard.records.progress import Board
from multicard.records.run_folder import RecordedRun
from multicard.records.schema_parts import Load
from multicard.run import attempts, outcome
from multicard.run.peers import Peers
from multicard.run.preemption import StopOnWarning
from multicard.run.prepare import (
    Predict,
    PreparedRun,
    crowd_notice,
    data_now,
    job_of,
    prepare,
)
from multicard.run.progress_bar import ALONE, InSweep, ProgressBar
from multicard.run.workload import Workload, new_notices
from multicard.tracking.upload import Mirror

FOLDER_TAKEN = Failure(
    "claim",
    Message(
        "claim.taken",
        "another process took over its folder, because this one was silent for minutes; nothing is"
        " recorded",
    ),
)


def measure(
    workload: Workload,
    cfg: DictConfig,
    folder: Path,
    keep_refused: bool,
    allocation: Allocation | None = None,
    requeue: Callable[[Failure], bool] = lambda _: False,
    predict: Predict = lambda *_: None,
    started_s: float | None = None,
    cell: InSweep = ALONE,
    family: int | None = None,
) -> RecordedRun:
    """Measure one configuration into `folder`, or print why not.

    Args:
        keep_refused: Write a record of a refusal too, as a sweep does.
        allocation: The nodes of the run, with this process on the first. None stands for this
            machine alone.
        requeue: Puts the job back in the queue after a failure, and returns True if it did. Then
            nothing is recorded.
        predict: Makes the record's `prediction`. It does not raise.
        started_s: When the run began, by `clock_s`. None stands for now.
        cell: The run's place in the sweep that this process measures.
        family: Id of the process whose descendants do not count as load by others. None stands for
            this process.

    Returns:
        The run with its record, which says how the run ended. Its status is "requeued" if nothing
        is recorded yet.
    """
    started_s = clock_s() if started_s is None else started_s
    allocation = allocation or Allocation()
    recorded_run = outcome.begin(workload, cfg, folder, allocation.job)
    peers = Peers(allocation)
    claimed = False
    try:
        with failures.interruptible():
            try:
                run = prepare(workload, cfg, folder, started_s, allocation, peers, predict, family)
            except ValueError as refusal:
                return outcome.refuse(recorded_run, str(refusal), keep_refused, cell.title)
            claimed = True
            mirror = Mirror(
                run.config.tracker, folder, partial(outcome.so_far, run, recorded_run.record)
            )
            try:
                failure = _train(run, mirror, peers, cell)
                if (
                    failure is not None
                    and outcome.status_of(failure) not in run_folder.DONE
                    and requeue(failure)
                ):
                    claimed = False  # The requeued job keeps its claim.
                    recorded_run.record.status = "requeued"
                    return recorded_run
                if ownership.is_lost(folder):  # Another process's files are in the folder now.
                    recorded_run.record.status = "failed"
                    recorded_run.record.cause = FOLDER_TAKEN
                    return recorded_run
                recorded_run = outcome.complete(run, recorded_run, mirror)
            except Exception as error:
                recorded_run = outcome.not_recorded(recorded_run, error)
    # The signal came before or after the ranks ran. Files that are written by then stay.
    except Interrupted as interruption:
        recorded_run = outcome.fail(recorded_run, interruption.failure)
    finally:
        peers.close()
        if claimed:
            ownership.release(folder)
    say(outcome.line(recorded_run, cell.title))
    return recorded_run


def _train(run: PreparedRun, mirror: Mirror, peers: Peers, cell: InSweep) -> Failure | None:
    """Run the ranks, unless an earlier start did so, and note how they ended.

    Returns:
        The failure that ended the run early, if there is one.
    """
    failure = None
    load = None
    runs_beside = None
    if run.load is None:
        message = Message(
            "run.trained-before",
            f"trained before, and cut off before its record was written: {run.folder}",
            folder=str(run.folder),
        )
        say(f"{cell.title}{message}")
    else:
        # The sweep has printed what its cells have in common, and the title says how they differ.
        if not cell.title:
            ranks_in_words = run.placement.ranks(run.config.gpus)
            say(
                Text(
                    f"{', '.join([*run.workload.describe(run.config), ranks_in_words])} -> "
                ).append(link(run.folder))
            )
            for notice in run.workload.notices(run.config):
                say(f"  {notice}")
        else:
            for notice in new_notices(run.workload, run.config, run.folder.parent):
                say(f"  {notice}")
        if (crowd := crowd_notice(run.placement)) is not None:
            say(f"  {crowd}")
        failure = _run_ranks(run, mirror, peers, cell)
        if failure is not None:
            is_measured = run.workload.note_failure_after_measurement(run.folder, failure)
            if is_measured:
                failure = None
        load = msgspec.convert(run.load.end(), Load)
        if not pauses(run.config):  # In a race other cells run at the same time by design.
            runs_beside = ownership.count_concurrent_runs(
                run.folder, set(run.allocation.hosts), run.others
            )
    peers.close()  # The other nodes need not wait for the record.
    if attempts.last(run.folder).end is None:
        data = data_now(run.workload, run.config) if failure is None else None
        attempts.end(run.folder, failure, load, runs_beside, data)
    return failure


def _run_ranks(run: PreparedRun, mirror: Mirror, peers: Peers, cell: InSweep) -> Failure | None:
    """Start the ranks of this node and wait for them. Return the failure that ended the run."""
    config = run.config
    placement = run.placement
    workload = run.workload
    folder = run.folder
    elastic.warm_up(placement.device, workload.preloaded(placement.device))
    try:
        if mirror.is_online:
            mirror.open()
    except RuntimeError as error:
        reason = failures.words_of(error)
        message = Message(
            "tracker.not-opened",
            f"tracker.mode={config.tracker.mode}: {reason}; check that there is network and that"
            " you are logged in (`wandb login`), or use `tracker.mode=offline`",
            key="tracker.mode",
            value=str(config.tracker.mode),
            reason=reason,
        )
        return Failure("tracker", message)
    try:
        board = Board(folder, placement.world_size, create=True, node=0)
    except OSError as error:
        return Failure("disk", failures.unwritable(folder, error))
    try:
        resumable = workload.resumable and not config.probe.enabled
        stop = StopOnWarning(run.allocation, board, placement, folder, resumable, peers)
        tick = mirror.update if mirror.is_online else None
        progress = ProgressBar(
            board, placement.world_size, getattr(config, "epochs", 1), workload.unit, tick, cell
        )
        sampler = MachineSampler.of_run(config, placement, folder, attempts.current(folder))
        with progress, stop, sampler:
            job = job_of(workload, config, placement, folder, run.allocation)
            failure = elastic.launch(workload.work, run.arguments, placement, job)
        sampler.write()
        return peers.outcome(stop.outcome(failure))
    except Interrupted as interruption:
        # A signal, or another node, ended the run outside of `launch`. `launch` itself returns its
        # failures.
        return interruption.failure
    finally:
        board.remove()
