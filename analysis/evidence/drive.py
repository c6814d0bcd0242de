"""Measures the steps that are left, the most valuable first, as long as they fit,
and goes on where it stopped.

The record of a step (FOLDER/<step>.json), its log and its runs stay in the folder. One that is
expected to take longer than what is left waits for the next call. One that takes longer, or twice
as long as expected, is stopped, and comes after the others next time, as one that failed does. When
all have been measured, what time is left goes to measuring them again,
so that more and more figures have a spread.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from multicard.measure.timing import clock_s, pause, timestamp
from multicard.messages import Message
from multicard.ranks import os_calls
from multicard.records import run_folder

from .findings import Finding
from .place import Circumstances
from .steps import Step

GRACE_S = 15.0  # for a stopped command to record what it has
PATIENCE = 2  # times its estimate, for which a step may take from the others at its first attempt
TAIL = 20  # lines of a log, in the record
LOOK_S = 0.5  # between looks at a command that runs
MOST_REPEATS = 10
OK = "ok"
STOPPED = "stopped"
FAILED = "failed"
SKIPPED = "skipped"
LEFT = "left"
RUNNING = "running"


class StepRecord(msgspec.Struct):
    """What became of a step.

    status: RUNNING in a file: it was left by a call that was killed. why: it did not end ok.
    repeats: how often it has been measured. seconds: of all attempts. measured_s: of those that
    measured it.
    """

    step: str
    title: str
    status: str = LEFT
    why: str = ""
    attempts: int = 0
    repeats: int = 0
    seconds: float = 0.0
    measured_s: float = 0.0
    started_at: str = ""
    command: str = ""
    code: int | None = None
    tail: list[str] = []


def record_of(place: Circumstances, step: Step) -> StepRecord:
    """The record of a step; a new one where it has none that can be read. One that says RUNNING was
    left by a command that was killed.
    """
    record = StepRecord(step.name, step.title)
    with suppress(OSError, msgspec.MsgspecError):
        record = msgspec.json.decode(file_of(place, step).read_bytes(), type=StepRecord)
    if record.status == RUNNING:
        record.status = STOPPED
    return record


def file_of(place: Circumstances, step: Step) -> Path:
    return place.out / f"{step.name}.json"


def write(place: Circumstances, step: Step, record: StepRecord) -> None:
    record.why = str(record.why)  # a message too
    run_folder.write_text(
        file_of(place, step), msgspec.json.format(msgspec.json.encode(record)).decode() + "\n"
    )


class StepProgress:
    """Is told what is measured now. This one says nothing of it."""

    def began(self, step: Step, repeat: int) -> None:
        """A step begins, to be measured for the `repeat`th time."""

    def tick(self) -> None:
        """The step still runs; twice a second."""

    def ended(self, step: Step, record: StepRecord) -> None:
        """A step has ended, was skipped, or does not fit."""


def undone(place: Circumstances, steps: Sequence[Step]) -> list[Step]:
    """The steps that are left: those never tried, in their order,
    then those that were stopped or failed.
    """
    records = {step.name: record_of(place, step) for step in steps}
    # what was skipped may be there by now
    left = [step for step in steps if records[step.name].status != OK]
    return sorted(left, key=lambda step: records[step.name].attempts)


def estimate_s(place: Circumstances, step: Step) -> float:
    """Seconds that a step will take: as long as it took, where it has ended before."""
    record = record_of(place, step)
    return record.measured_s / record.repeats if record.measured_s else step.estimate_s(place)


def take_all(
    place: Circumstances, steps: Sequence[Step], minutes: float, progress: StepProgress
) -> None:
    """Measure what fits into so many minutes, and then again what is worth it. Without a GPU
    nothing is repeated: such figures are no results.
    """
    ends_s = clock_s() + 60 * minutes - GRACE_S
    for step in undone(place, steps):
        progress.ended(step, take_once(place, step, ends_s - clock_s(), progress))
    repeatable = [*steps] if place.is_cuda else []
    while step := least_repeated(place, repeatable, ends_s - clock_s()):
        repeat = record_of(place, step).repeats + 1
        progress.began(step, repeat)
        record = take(place, step, repeat, ends_s - clock_s(), progress.tick)
        progress.ended(step, record)
        if record.repeats < repeat:  # it failed, as it would again
            repeatable.remove(step)


def take_once(
    place: Circumstances, step: Step, left_s: float, progress: StepProgress
) -> StepRecord:
    """Measure a step for the first time, unless this place leaves it out, or it does not fit."""
    record = record_of(place, step)
    reason = step.skip(place)
    if reason:
        record.status = SKIPPED
        record.why = reason
        write(place, step, record)
        return record
    expected_s = step.estimate_s(place)
    if left_s <= 0 or (place.is_cuda and expected_s > left_s):
        said = f"takes about {expected_s:.0f} s, {max(0.0, left_s):.0f} s are left"
        record.why = Message("evidence.no-time", said, expected_s=expected_s, left_s=left_s)
        return record
    is_first = place.is_cuda and not record.attempts
    progress.began(step, 1)
    return take(
        place, step, 1, min(left_s, PATIENCE * expected_s) if is_first else left_s, progress.tick
    )


def least_repeated(place: Circumstances, steps: Sequence[Step], left_s: float) -> Step | None:
    """The step that has been measured least often, of those that fit into what is left;
    None where none does.
    """
    counts = {step.name: record_of(place, step).repeats for step in steps if step.repeats}
    fitting = [step for step in steps if 0 < counts.get(step.name, 0) < MOST_REPEATS]
    fitting = [step for step in fitting if estimate_s(place, step) <= left_s]
    return min(fitting, key=lambda step: counts[step.name], default=None)


def take(
    place: Circumstances, step: Step, repeat: int, limit_s: float, tick: Callable[[], None]
) -> StepRecord:
    """Run a step for `limit_s` seconds at most. Its record is written however that ends."""
    command = step.command(place, repeat)
    record = record_of(place, step)
    was_ok = record.status == OK
    record.attempts += 1
    record.started_at = timestamp()
    record.command = shlex.join(command)
    record.status = RUNNING
    record.why = Message("evidence.killed", "the command was killed")
    write(place, step, record)
    log = place.log(step.name)
    started_s = clock_s()
    code: int | None = None
    try:
        with log.open("a") as output:
            code = run_command(command, output, limit_s, tick)
    finally:  # also where this process is told to stop
        record.code = code
        lasted_s = clock_s() - started_s
        record.seconds += lasted_s
        record.tail = log.read_text(errors="replace").splitlines()[-TAIL:]
        record.status, record.why = outcome(place, step, code)
        if record.status == OK:
            record.repeats = repeat
            record.measured_s += lasted_s
        elif was_ok:  # its repetition failed: what was measured before counts
            record.status = OK
            record.why = ""
        write(place, step, record)
    return record


def outcome(place: Circumstances, step: Step, code: int | None) -> tuple[str, str]:
    """Status and reason of a step that ended with an exit code; None where it was stopped."""
    if code is None:
        return STOPPED, Message("evidence.out-of-time", "out of time")
    found = findings_of(place, step)
    bad = [finding.what for finding in found if finding.is_failure]
    if bad:
        return FAILED, Message("evidence.failed", f"failed: {', '.join(bad)}", findings=bad)
    if code and not any(finding.is_refusal for finding in found):
        return FAILED, Message("evidence.exit-code", f"exit code {code}", code_of_exit=code)
    return OK, ""


def findings_of(place: Circumstances, step: Step) -> list[Finding]:
    """The findings of a step, from what its runs and its log hold now;
    none where they cannot be read.
    """
    log = place.log(step.name)
    try:
        return step.read(
            place.runs(step.name), log.read_text(errors="replace") if log.exists() else ""
        )
    # cut off, or a command that failed
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return []


def run_command(
    command: Sequence[str], output: Any, limit_s: float, tick: Callable[[], None]
) -> int | None:
    """Run a command; its exit code, or None where it was stopped. It leaves no process behind."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=partial(os_calls.die_with_parent, os.getpid()),  # noqa: PLW1509 - this process has one thread
    )
    ends_s = clock_s() + limit_s
    try:
        while child.poll() is None:
            if clock_s() >= ends_s:
                return None
            tick()
            pause(LOOK_S)
        return child.returncode
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # at which pytest, too, says what failed so far
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and what it left running
        child.wait()
