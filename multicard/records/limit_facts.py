"""Functions that find limiting facts in a record.

`multicard.records.limits` defines what each fact forbids.
"""

from collections.abc import Callable

from multicard.config.base import ProfileWindow
from multicard.config.job import count
from multicard.messages import Message
from multicard.records.schema import AnyRecord, ScriptRecord
from multicard.records.trained_weights import ApartBy

# If at least this share of the test images is also trained on, accuracy is not taken at face value.
SEEN_SHARE = 0.01
MOST_NAMED = 8  # A sentence lists at most this many slow steps.
# Codes of facts that the recorder of a script's steps observed.
APART_CODE = "script.no-process-group"
WENT_ON_CODE = "script.went-on"
OLD_APART = "no process group"  # Begins the text of that fact in records that have no codes.


def is_crowded(record: AnyRecord) -> bool:
    """True if a node ran more CPU ranks than it had cores."""
    ranks = int(record.axes.get("gpus") or 1)
    return record.axes.get("device") == "cpu" and record.cores is not None and ranks > record.cores


def is_traced(record: AnyRecord) -> bool:
    """True if the measured steps themselves were profiled."""
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
    """True if too many of the test images are also trained on."""
    repeated = record.data and record.data.repeated
    return repeated is not None and repeated.share_in_both >= SEEN_SHARE


def lacks_process_group(record: AnyRecord) -> bool:
    """True for a script whose ranks joined no process group, so that each trained by itself."""
    if not isinstance(record, ScriptRecord):
        return False
    if record.trained is not None:  # Records of compared weights name the evidence.
        return record.apart_by == ApartBy.group
    return APART_CODE in record.seen_codes or any(
        text.startswith(OLD_APART) for text in record.seen
    )


def went_on(record: AnyRecord) -> bool:
    """True for a script that continued from files of an earlier run."""
    return isinstance(record, ScriptRecord) and WENT_ON_CODE in record.seen_codes


def is_apart_by(reason: ApartBy) -> Callable[[AnyRecord], bool]:
    """Return a test: True for scripts whose ranks trained apart, with `reason` as the evidence."""
    return lambda record: isinstance(record, ScriptRecord) and record.apart_by == reason
