"""Attempts of a run (`segments` in its record): each start of its job.
More than one only if it was requeued.
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
from multicard.records.schema_parts import Attempt, DataContent, Load, Prediction, Segment


def begin(
    folder: Path,
    allocation: Allocation,
    git: dict[str, Any] | None = None,
    data: DataContent | None = None,
    started_s: float | None = None,
    prediction: Prediction | None = None,
) -> None:
    """Note an attempt: the run starts, or resumes from its checkpoint.

    Args:
        data: the fingerprint of its data.
        started_s: when its start-up began, on the machine's clock.
        prediction: of the record; that of the run's first attempt stays.
    """
    before = run_folder.read_segments(folder)
    # its ranks may have saved a checkpoint before all were killed
    if before and before[-1].end is None:
        before[-1].saved_step = _saved_step(folder, before[-1])
    run_folder.remove_files(folder / "ranks", "e*_r*.json")  # how an earlier start's ranks ended
    attempt = Attempt(
        started_at=timestamp(),
        job=allocation.job,
        hosts=list(allocation.hosts),
        commit=(git or {}).get("commit"),
        first_step=checkpoint.latest(folder) or 0,
        data=data,
        started_s=started_s,
        prediction=before[0].prediction if before else prediction,
    )
    run_folder.write_segments(folder, [*before, attempt])


def require_same_data(folder: Path, data: DataContent) -> None:
    """Refuse (ValueError) to resume from a checkpoint on other data than it was trained on."""
    before = next(
        (attempt.data for attempt in reversed(run_folder.read_segments(folder)) if attempt.data),
        None,
    )
    changed = content.difference(before, data)
    if checkpoint.latest(folder) is not None and changed is not None:
        raise Refusal(
            "checkpoint.other-data",
            f"the data is no longer that of the run's checkpoint ({changed}); put that data back, "
            "or start the run again with `rerun=true`",
            changed=changed,
        )


def end(
    folder: Path,
    failure: Failure | None,
    load: Load | None = None,
    beside: int | None = None,
    data: DataContent | None = None,
) -> None:
    """Note how the last attempt ended, the step that it was saved at, and all else that only this
    process knows: from now on the record follows from the folder.

    Args:
        load, beside: of the record.
        data: the fingerprint of its data by now.
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
    """The step of the newest checkpoint, unless the attempt itself resumed from it."""
    saved = checkpoint.latest(folder)
    return saved if saved != (attempt.first_step or None) else None


def last(folder: Path) -> Attempt:
    return _attempts(folder)[-1]


def _attempts(folder: Path) -> list[Attempt]:
    attempts = run_folder.read_segments(folder)
    if not attempts:  # somebody removed the folder
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(folder / run_folder.SEGMENTS)
        )
    return attempts


def is_trained(folder: Path, ranks: int) -> bool:
    """True where the last attempt ended with a measurement,
    by the files of its controller or of all its ranks.

    One that was stopped saved a checkpoint to go on from.
    """
    attempts = run_folder.read_segments(folder)
    if not attempts:
        return False
    if attempts[-1].end is not None:
        return attempts[-1].end in run_folder.DONE
    saved = checkpoint.latest(folder) not in (None, attempts[-1].first_step)
    return not saved and all(ended_file(folder, rank).exists() for rank in range(ranks))


def moved_on(folder: Path) -> bool:
    """True where the last attempt came further than the one
    before: else a job would be requeued for ever.
    """
    attempts = run_folder.read_segments(folder)
    return bool(attempts) and attempts[-1].saved_step is not None


def requeues(folder: Path) -> int:
    """How often a time limit or a preemption stopped the run."""
    return sum(
        attempt.end in ("timeout", "preempted") for attempt in run_folder.read_segments(folder)
    )


def current(folder: Path) -> int:
    """The number of the last attempt, from 0."""
    return len(run_folder.read_segments(folder)) - 1


def parts(folder: Path) -> list[tuple[int, int]]:
    """The number of the attempt and of the node, both from 0,
    of everything whose work is in the result.
    """
    attempts = run_folder.read_segments(folder)
    numbered = []
    for number in in_result(folder):
        hosts = attempts[number].hosts or ()
        numbered.extend((number, node) for node in range(len(hosts)))
    return numbered


def in_result(folder: Path) -> list[int]:
    """The attempts, from 0, whose work is in the result: those that saved it, and the last."""
    attempts = run_folder.read_segments(folder)
    return [
        number
        for number, attempt in enumerate(attempts)
        if attempt.saved_step or attempt is attempts[-1]
    ]


def merge(folder: Path, trained: list[Segment]) -> list[Segment]:
    """The `segments` of the record: each attempt with what it trained.

    Args:
        trained: by the ranks, one entry for each attempt whose work is in the result.
    """
    figures = iter(trained)
    numbers = in_result(folder)
    segments = []
    for number, attempt in enumerate(run_folder.read_segments(folder)):
        segment = Segment(**{name: getattr(attempt, name) for name in Segment.__struct_fields__})
        own = next(figures, None) if number in numbers else None
        segment.steps, segment.trained_s = (0, None) if own is None else (own.steps, own.trained_s)
        segment.first_step = segment.first_step if own is None else own.first_step
        segments.append(segment)
    return segments
