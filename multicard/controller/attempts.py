"""The starts of a run: one, unless a time limit or a preemption cut it and its job was put into the queue again."""

from pathlib import Path
from typing import Any

from multicard.machine.allocation import Allocation
from multicard.measure.timing import timestamp
from multicard.ranks import checkpoint
from multicard.ranks.failures import Failure
from multicard.records import run_folder


def begin(folder: Path, allocation: Allocation, git: dict[str, Any] | None = None) -> None:
    """Note that the run starts, or goes on from its checkpoint, and on which code."""
    begun = {
        "started_at": timestamp(),
        "ended_at": None,
        "end": None,  # stays so where nobody was left to write it
        "job": allocation.job,
        "hosts": list(allocation.hosts),
        "commit": (git or {}).get("commit"),
        "first_step": checkpoint.latest(folder) or 0,
        "saved_step": None,
    }
    run_folder.write_segments(folder, [*run_folder.read_segments(folder), begun])


def end(folder: Path, failure: Failure | None) -> None:
    """Note how the start that `begin` noted last ended, and the step that it was saved at."""
    segments = run_folder.read_segments(folder)
    last = segments[-1]
    saved = checkpoint.latest(folder)
    last |= {"ended_at": timestamp(), "end": "ok" if failure is None else failure.kind}
    last["saved_step"] = saved if saved != (last["first_step"] or None) else None
    run_folder.write_segments(folder, segments)


def moved_on(folder: Path) -> bool:
    """Whether the last start came further than the one before: else a job would be requeued for ever."""
    segments = run_folder.read_segments(folder)
    return bool(segments) and segments[-1]["saved_step"] is not None


def requeues(folder: Path) -> int:
    """How often the run was stopped by a time limit or a preemption."""
    return sum(segment["end"] in ("timeout", "preempted") for segment in run_folder.read_segments(folder))


def current(folder: Path) -> int:
    """The number of the start that `begin` noted last, from 0."""
    return len(run_folder.read_segments(folder)) - 1


def parts(folder: Path) -> list[tuple[int, int]]:
    """Start and node, from 0, of all that has a part in the result."""
    starts = run_folder.read_segments(folder)
    return [(number, node) for number in kept(folder) for node in range(len(starts[number]["hosts"]))]


def kept(folder: Path) -> list[int]:
    """The starts, from 0, whose work is in the result: those that saved it, and the last."""
    starts = run_folder.read_segments(folder)
    return [number for number, start in enumerate(starts) if start["saved_step"] is not None or start is starts[-1]]


def merge(folder: Path, trained: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each start with what it trained.

    Args:
        trained: of the ranks, one entry a start whose work was kept: those that saved it, and the last.
    """
    figures, whole = iter(trained), kept(folder)
    merged = []
    for number, start in enumerate(run_folder.read_segments(folder)):
        own = (next(figures, None) if number in whole else None) or {"steps": 0, "trained_s": None}
        merged.append({key: value for key, value in start.items() if key != "saved_step"} | own)
    return merged
