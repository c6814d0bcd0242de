"""What of a record limits what may be said of it.
`multicard.records.limits` says what each fact forbids.
"""

from collections.abc import Callable

from multicard.config.base import ProfileWindow
from multicard.config.job import count
from multicard.messages import Message
from multicard.records.schema import AnyRecord, ScriptRecord
from multicard.records.trained_weights import ApartBy

SEEN_SHARE = 0.01  # of the test images, trained on too, from which accuracy is limited
MOST_NAMED = 8  # slow steps, in a sentence
# What the recorder of a script's steps saw, and how the oldest records say it
APART_CODE = "script.no-process-group"
OLD_APART = "no process group"
WENT_ON_CODE = "script.went-on"


def is_crowded(record: AnyRecord) -> bool:
    """True where a node ran more CPU ranks than it had cores."""
    ranks = int(record.axes.get("gpus") or 1)
    return record.axes.get("device") == "cpu" and record.cores is not None and ranks > record.cores


def is_traced(record: AnyRecord) -> bool:
    profile = record.config.get("profile")
    return isinstance(profile, dict) and profile.get("window") == ProfileWindow.start


def is_stalled(record: AnyRecord) -> bool:
    return record.steps is not None and bool(record.steps.stalled_count)


def slow_steps(record: AnyRecord) -> list[int]:
    return [] if record.steps is None else record.steps.slow_steps


def tell_slow_steps(record: AnyRecord) -> Message:
    """The sentence of a record with slow steps, which names the first of them."""
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
    """True for a script whose ranks did not join a process group, as its recorder saw."""
    if not isinstance(record, ScriptRecord):
        return False
    if record.trained is not None:
        return record.apart_by == ApartBy.group
    return APART_CODE in record.seen_codes or any(
        text.startswith(OLD_APART) for text in record.seen
    )


def went_on(record: AnyRecord) -> bool:
    """True for a script that went on from what an earlier run left."""
    return isinstance(record, ScriptRecord) and WENT_ON_CODE in record.seen_codes


def apart_by(reason: ApartBy) -> Callable[[AnyRecord], bool]:
    """True for a script whose ranks trained apart, as this shows."""
    return lambda record: isinstance(record, ScriptRecord) and record.apart_by == reason
