"""Measure the steps that are left, the most valuable first, as long as they fit into the time.

The record of a step (FOLDER/<step>.json), its log and its runs stay in the folder, so that the next
call continues where this one stopped.

A step that is expected to take longer than the time that is left waits for the next call. A step
that does take longer, or twice as long as expected, is stopped. Steps that were stopped or failed
come after the others in the next call. When all steps have been measured, the remaining time goes
to repetitions, so that more and more figures have a spread.
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

GRACE_S = 15.0  # The time that a stopped command has to record its results.
PATIENCE = 2  # A step's first attempt may take this many times its estimate.
TAIL = 20  # The number of lines of a log that the record has.
LOOK_S = 0.5  # The interval at which a running command is polled.
MOST_REPEATS = 10
OK = "ok"
STOPPED = "stopped"
FAILED = "failed"
SKIPPED = "skipped"
LEFT = "left"
RUNNING = "running"


class StepRecord(msgspec.Struct):
    """The state of a step.

    status: one of the constants above. RUNNING in a file means that the call was killed.
    why: why it did not end ok.
    repeats: how often it has been measured.
    seconds: the time of all attempts.
    measured_s: the time of the attempts that ended ok.
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
    """Read the record of a step, or return a new one if there is none that can be read.

    A record that says RUNNING was left by a command that was killed.
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
    record.why = str(record.why)  # It may be a Message.
    run_folder.write_text(
        file_of(place, step), msgspec.json.format(msgspec.json.encode(record)).decode() + "\n"
    )


class StepProgress:
    """Receives notice of what is being measured. This base class ignores it."""

    def began(self, step: Step, repeat: int) -> None:
        """A step begins. This is its repetition number `repeat`."""

    def tick(self) -> None:
        """The step is still running. This is called twice a second."""

    def ended(self, step: Step, record: StepRecord) -> None:
        """A step has ended, was skipped, or does not fit."""


def undone(place: Circumstances, steps: Sequence[Step]) -> list[Step]:
    """Return the steps that are left.

    Steps that were never tried come first, in their order, then those that were stopped or failed.
    """
    records = {step.name: record_of(place, step) for step in steps}
    # Skipped steps are included, because what they lacked may be there by now.
    steps_left = [step for step in steps if records[step.name].status != OK]
    return sorted(steps_left, key=lambda step: records[step.name].attempts)


def estimate_s(place: Circumstances, step: Step) -> float:
    """Estimate the seconds that a step takes: its mean so far, or the estimate of the step."""
    record = record_of(place, step)
    return record.measured_s / record.repeats if record.measured_s else step.estimate_s(place)


def take_all(
    place: Circumstances, steps: Sequence[Step], minutes: float, progress: StepProgress
) -> None:
    """Measure the steps that fit into this many minutes, then repeat steps in the remaining time.

    Without a GPU, nothing is repeated, because such figures only test the code.
    """
    deadline_s = clock_s() + 60 * minutes - GRACE_S
    for step in undone(place, steps):
        progress.ended(step, take_once(place, step, deadline_s - clock_s(), progress))
    repeatable = [*steps] if place.is_cuda else []
    while step := least_repeated(place, repeatable, deadline_s - clock_s()):
        repeat = record_of(place, step).repeats + 1
        progress.began(step, repeat)
        record = take(place, step, repeat, deadline_s - clock_s(), progress.tick)
        progress.ended(step, record)
        if record.repeats < repeat:  # It failed, and would fail again.
            repeatable.remove(step)


def take_once(
    place: Circumstances, step: Step, left_s: float, progress: StepProgress
) -> StepRecord:
    """Measure a step for the first time, unless this place skips it or it does not fit."""
    record = record_of(place, step)
    reason = step.skip(place)
    if reason:
        record.status = SKIPPED
        record.why = reason
        write(place, step, record)
        return record
    expected_s = step.estimate_s(place)
    if left_s <= 0 or (place.is_cuda and expected_s > left_s):
        text = f"takes about {expected_s:.0f} s, {max(0.0, left_s):.0f} s are left"
        record.why = Message("evidence.no-time", text, expected_s=expected_s, left_s=left_s)
        return record
    is_first = place.is_cuda and not record.attempts
    progress.began(step, 1)
    return take(
        place, step, 1, min(left_s, PATIENCE * expected_s) if is_first else left_s, progress.tick
    )


def least_repeated(place: Circumstances, steps: Sequence[Step], left_s: float) -> Step | None:
    """Return the step that was measured least often and fits into the remaining time, or None."""
    repeat_counts = {step.name: record_of(place, step).repeats for step in steps if step.repeats}
    candidates = [step for step in steps if 0 < repeat_counts.get(step.name, 0) < MOST_REPEATS]
    candidates = [step for step in candidates if estimate_s(place, step) <= left_s]
    return min(candidates, key=lambda step: repeat_counts[step.name], default=None)


def take(
    place: Circumstances, step: Step, repeat: int, limit_s: float, tick: Callable[[], None]
) -> StepRecord:
    """Run a step for at most `limit_s` seconds. However that ends, its record is written."""
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
    finally:  # This also runs if this process is told to stop.
        record.code = code
        lasted_s = clock_s() - started_s
        record.seconds += lasted_s
        record.tail = log.read_text(errors="replace").splitlines()[-TAIL:]
        record.status, record.why = outcome(place, step, code)
        if record.status == OK:
            record.repeats = repeat
            record.measured_s += lasted_s
        elif was_ok:  # Only a repetition failed, so the earlier measurement still counts.
            record.status = OK
            record.why = ""
        write(place, step, record)
    return record


def outcome(place: Circumstances, step: Step, code: int | None) -> tuple[str, str]:
    """Return the status and reason of a step by its exit code, which is None if it was stopped."""
    if code is None:
        return STOPPED, Message("evidence.out-of-time", "out of time")
    findings = findings_of(place, step)
    failures = [finding.what for finding in findings if finding.is_failure]
    if failures:
        return FAILED, Message(
            "evidence.failed", f"failed: {', '.join(failures)}", findings=failures
        )
    if code and not any(finding.is_refusal for finding in findings):
        return FAILED, Message("evidence.exit-code", f"exit code {code}", code_of_exit=code)
    return OK, ""


def findings_of(place: Circumstances, step: Step) -> list[Finding]:
    """Return the findings of a step, as far as its runs and its log have them now.

    The list is empty if they cannot be read.
    """
    log = place.log(step.name)
    try:
        return step.read(
            place.runs(step.name), log.read_text(errors="replace") if log.exists() else ""
        )
    # The files may be incomplete, or the command may have failed.
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return []


def run_command(
    command: Sequence[str], output: Any, limit_s: float, tick: Callable[[], None]
) -> int | None:
    """Run a command and return its exit code, or None if it was stopped.

    It leaves no process behind.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=partial(os_calls.die_with_parent, os.getpid()),  # noqa: PLW1509 - this process has one thread
    )
    deadline_s = clock_s() + limit_s
    try:
        while child.poll() is None:
            if clock_s() >= deadline_s:
                return None
            tick()
            pause(LOOK_S)
        return child.returncode
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # On this signal, pytest reports what failed so far.
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # This also ends processes that it started.
        child.wait()
