"""Attempts of a run: each start of its job. They become the `segments` of its record.

A run has more than one attempt only if it was requeued.
"""

import errno
import os
from pathlib import Path
from typing import Any

from multicard.machine.slurm import Allocation
from multicard.measure.timing import timestamp
from multicard.messages import Refusal
from multicard.ranks import checkpoint
from multicard.ranks.failures import Failure
from multicard.ranks.process import ended_file
from multicard.records import content, run_folder
from multicard.records.schema_data import DataContent
from multicard.records.schema_parts import Attempt, Load, Prediction, Segment


def begin(
    folder: Path,
    allocation: Allocation,
    git: dict[str, Any] | None = None,
    data: DataContent | None = None,
    started_s: float | None = None,
    prediction: Prediction | None = None,
) -> None:
    """Note that an attempt begins: the run starts, or resumes from its checkpoint.

    Args:
        data: The fingerprint of the run's data.
        started_s: When the start-up began, on the machine's clock.
        prediction: The record's prediction. The first attempt's prediction stays.
    """
    earlier_attempts = run_folder.read_segments(folder)
    # The earlier attempt's ranks may have saved a checkpoint before all processes were killed.
    if earlier_attempts and earlier_attempts[-1].end is None:
        earlier_attempts[-1].saved_step = _saved_step(folder, earlier_attempts[-1])
    # Remove the files that say how the ranks of an earlier start ended.
    run_folder.remove_files(folder / "ranks", "e*_r*.json")
    attempt = Attempt(
        started_at=timestamp(),
        job=allocation.job,
        hosts=list(allocation.hosts),
        commit=(git or {}).get("commit"),
        first_step=checkpoint.latest(folder) or 0,
        data=data,
        started_s=started_s,
        prediction=earlier_attempts[0].prediction if earlier_attempts else prediction,
    )
    run_folder.write_segments(folder, [*earlier_attempts, attempt])


def require_same_data(folder: Path, data: DataContent) -> None:
    """Refuse to resume from a checkpoint on other data than it was trained on.

    Raises:
        ValueError: The data has changed.
    """
    checkpoint_data = next(
        (attempt.data for attempt in reversed(run_folder.read_segments(folder)) if attempt.data),
        None,
    )
    changed = content.difference(checkpoint_data, data)
    if checkpoint.latest(folder) is not None and changed is not None:
        raise Refusal(
            "checkpoint.other-data",
            f"the data has changed since the run's checkpoint ({changed}); put the earlier data"
            " back, or start the run again with `rerun=true`",
            changed=changed,
        )


def end(
    folder: Path,
    failure: Failure | None,
    load: Load | None = None,
    beside: int | None = None,
    data: DataContent | None = None,
) -> None:
    """Note how the last attempt ended, the step that it saved, and what else only this process
    knows.

    From now on the record can be made from the folder alone.

    Args:
        load, beside: Fields of the record.
        data: The fingerprint of the run's data by now.
    """
    attempts = _attempts(folder)
    last = attempts[-1]
    if last.data is not None:
        last.data.changed = content.difference(last.data, data)
    last.ended_at = timestamp()
    last.end = "ok" if failure is None else failure.kind
    last.failure = failure
    last.load = load
    last.beside = beside
    last.saved_step = _saved_step(folder, last)
    run_folder.write_segments(folder, attempts)


def _saved_step(folder: Path, attempt: Attempt) -> int | None:
    """Return the step of the newest checkpoint, unless the attempt itself resumed from it."""
    saved = checkpoint.latest(folder)
    return saved if saved != (attempt.first_step or None) else None


def last(folder: Path) -> Attempt:
    return _attempts(folder)[-1]


def _attempts(folder: Path) -> list[Attempt]:
    attempts = run_folder.read_segments(folder)
    if not attempts:  # Somebody removed the folder.
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(folder / run_folder.SEGMENTS)
        )
    return attempts


def is_trained(folder: Path, ranks: int) -> bool:
    """Return True if the last attempt ended with a measurement.

    The files of its controller, or of all its ranks, say so. An attempt that was stopped saved a
    checkpoint to resume from, and has not ended with one.
    """
    attempts = run_folder.read_segments(folder)
    if not attempts:
        return False
    if attempts[-1].end is not None:
        return attempts[-1].end in run_folder.DONE
    saved = checkpoint.latest(folder) not in (None, attempts[-1].first_step)
    return not saved and all(ended_file(folder, rank).exists() for rank in range(ranks))


def moved_on(folder: Path) -> bool:
    """Return True if the last attempt got further than the one before.

    Otherwise a job would be requeued forever.
    """
    attempts = run_folder.read_segments(folder)
    return bool(attempts) and attempts[-1].saved_step is not None


def requeues(folder: Path) -> int:
    """Return how often a time limit or a preemption stopped the run."""
    return sum(
        attempt.end in ("timeout", "preempted") for attempt in run_folder.read_segments(folder)
    )


def current(folder: Path) -> int:
    """Return the number of the last attempt, from 0."""
    return len(run_folder.read_segments(folder)) - 1


def parts(folder: Path) -> list[tuple[int, int]]:
    """Return pairs of an attempt and a node, both from 0, whose work is in the result."""
    attempts = run_folder.read_segments(folder)
    attempts_and_nodes = []
    for number in in_result(folder):
        hosts = attempts[number].hosts or ()
        attempts_and_nodes.extend((number, node) for node in range(len(hosts)))
    return attempts_and_nodes


def in_result(folder: Path) -> list[int]:
    """Return the attempts, from 0, whose work is in the result: those that saved it, and the
    last.
    """
    attempts = run_folder.read_segments(folder)
    return [
        number
        for number, attempt in enumerate(attempts)
        if attempt.saved_step or attempt is attempts[-1]
    ]


def merge(folder: Path, trained: list[Segment]) -> list[Segment]:
    """Return the `segments` of the record: each attempt with its steps and its training time.

    Args:
        trained: The ranks' training, with one entry for each attempt whose work is in the result.
    """
    figures = iter(trained)
    numbers = in_result(folder)
    segments = []
    for number, attempt in enumerate(run_folder.read_segments(folder)):
        segment = Segment(**{name: getattr(attempt, name) for name in Segment.__struct_fields__})
        trained_part = next(figures, None) if number in numbers else None
        if trained_part is None:
            segment.steps = 0
            segment.trained_s = None
        else:
            segment.steps = trained_part.steps
            segment.trained_s = trained_part.trained_s
            segment.first_step = trained_part.first_step
        segments.append(segment)
    return segments
