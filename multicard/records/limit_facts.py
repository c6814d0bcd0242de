"""Functions that find limiting facts in a record.

`multicard.records.limits` defines what each fact forbids.
"""

from collections.abc import Callable

from multicard.config.base import ProfileWindow
from multicard.config.job import count
from multicard.messages import Message
from multicard.records.schema import AnyRecord, ScriptRecord
from multicard.records.trained_weights import ApartBy

SEEN_SHARE = 0.01  # From this share of test images that are also trained on, accuracy is limited.
MOST_NAMED = 8  # A sentence lists at most this many slow steps.
# Codes of facts that the recorder of a script's steps observed. The oldest records have only texts.
APART_CODE = "script.no-process-group"
OLD_APART = "no process group"
WENT_ON_CODE = "script.went-on"


def is_crowded(record: AnyRecord) -> bool:
    """True if a node ran more CPU ranks than it had cores."""
    ranks = int(record.axes.get("gpus") or 1)
    return record.axes.get("device") == "cpu" and record.cores is not None and ranks > record.cores


def is_traced(record: AnyRecord) -> bool:
    profile = record.config.get("profile")
    return isinstance(profile, dict) and profile.get("window") == ProfileWindow.start


def is_stalled(record: AnyRecord) -> bool:
    return record.steps is not None and bool(record.steps.stalled_count)


def slow_steps(record: AnyRecord) -> list[int]:
    return [] if record.steps is None else record.steps.slow_steps


def slow_steps_message(record: AnyRecord) -> Message:
    """Return the sentence for a record with slow steps, which lists the first of them."""
    steps = slow_steps(record)
    named = ", ".join(map(str, steps[:MOST_NAMED]))
    more = f" and {len(steps) - MOST_NAMED} more" if len(steps) > MOST_NAMED else ""
    return Message(
        "limit.slow-steps-named",
        f"{count(len(steps), 'step')} took over three times the median (from 0: {named}{more});"
        " measure it again",
        steps=steps,
    )


def is_disturbed(record: AnyRecord) -> bool:
    return bool(record.gpu and record.gpu.disturbed_by)


def is_test_seen(record: AnyRecord) -> bool:
    repeated = record.data and record.data.repeated
    return repeated is not None and repeated.share_in_both >= SEEN_SHARE


def trained_apart(record: AnyRecord) -> bool:
    """True for a script whose recorder saw that its ranks did not join a process group."""
    if not isinstance(record, ScriptRecord):
        return False
    if record.trained is not None:
        return record.apart_by == ApartBy.group
    return APART_CODE in record.seen_codes or any(
        text.startswith(OLD_APART) for text in record.seen
    )


def went_on(record: AnyRecord) -> bool:
    """True for a script that continued from files of an earlier run."""
    return isinstance(record, ScriptRecord) and WENT_ON_CODE in record.seen_codes


def apart_by(reason: ApartBy) -> Callable[[AnyRecord], bool]:
    """Return a test for scripts whose ranks trained apart, as `reason` shows."""
    return lambda record: isinstance(record, ScriptRecord) and record.apart_by == reason
