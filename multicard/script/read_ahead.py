"""Finds the call of backward that first trains on each batch of a loader that reads ahead.

`attribution.py` explains the terms, and has the example that the docstrings here refer to.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from multicard.script.passes import NEVER, Pass


def infer_first_calls(
    passes: Sequence[Pass],
    calls_before_next: Sequence[int],
    thread_calls: Mapping[int, np.ndarray],
    total_calls: int,
) -> list[np.ndarray | None]:
    """Return the call that first trains on each batch of each pass.

    An entry is None if the loader of the pass does not read ahead. Each batch is then trained on
    by the first call after it.

    Args:
        calls_before_next: for each pass, the calls before the first batch that was handed out
            after the pass had ended.
        thread_calls: the first calls for the batches of a pass that another thread draws from, by
            the number of the pass.
        total_calls: calls in the whole run.
    """
    inferred_calls = dict(thread_calls)
    # A pass that was left shows less, so it reads ahead as the ended passes of its source did.
    depths_by_source = defaultdict[int, list[int]](list)
    for number, data_pass in enumerate(passes):
        if data_pass.ended is None or not any(data_pass.trains) or data_pass.in_thread:
            continue
        first_calls = None
        if data_pass.holds_back is not False:
            first_calls = _first_calls_of_ended_pass(
                data_pass, calls_before_next[number], total_calls
            )
        depth = 0
        if first_calls is not None:
            inferred_calls[number] = first_calls
            depth = _depth(data_pass) or 1
        depths_by_source[id(data_pass.source)].append(depth)
    for number, data_pass in enumerate(passes):
        if data_pass.ended is not None or not any(data_pass.trains) or data_pass.in_thread:
            continue
        known_depths = depths_by_source[id(data_pass.source)]
        depth = _depth(data_pass)
        if depth is None or (known_depths and not max(known_depths)):
            depth = known_depths[-1] if known_depths else 0
        if depth and len(data_pass.places) > depth:
            inferred_calls[number] = _first_calls_at_depth(data_pass, depth)
    return [inferred_calls.get(number) for number in range(len(passes))]


def calls_before_next_batch(passes: Sequence[Pass], total_calls: int) -> list[int]:
    """Return, for each pass, the calls before the first batch of any pass after its end.

    Only batches that are trained on count. If there is none, or if the pass was left, the entry is
    `total_calls`.
    """
    draws = []
    for data_pass in passes:
        batches = zip(data_pass.places, data_pass.backwards, data_pass.trains, strict=True)
        draws.extend((place, calls) for place, calls, is_trained in batches if is_trained)
    draws.sort()
    places = np.array([place for place, _ in draws], dtype=np.int64)
    calls_before_next = []
    for data_pass in passes:
        calls = total_calls
        if data_pass.ended is not None:
            next_draw = np.searchsorted(places, data_pass.ended.handed_out)
            if next_draw < len(draws):
                calls = draws[next_draw][1]
        calls_before_next.append(calls)
    return calls_before_next


def _first_calls_of_ended_pass(
    data_pass: Pass, calls_before_next: int, total_calls: int
) -> np.ndarray | None:
    """Return the first call for each batch of a pass that ended; None if it does not read ahead.

    In the example, 0, 0 and 1 calls come before the three batches, 2 before the end, and 3
    before the next batch. The result is 1, 2, 3.
    """
    assert data_pass.ended is not None
    count = len(data_pass.places)
    calls_before_first = data_pass.backwards[0]
    calls_before_end = data_pass.ended.calls
    batches_before_any_call = sum(calls == calls_before_first for calls in data_pass.backwards)
    is_one_batch_ahead = count == 1 and calls_before_end == calls_before_first
    if batches_before_any_call == 1 and not is_one_batch_ahead:
        return None  # A call follows the first batch at once.
    if calls_before_next == calls_before_end:
        # The last batches of the run may have calls that no step follows. How many there are says
        # nothing, as a later evaluation may call backward too.
        may_hold_back = data_pass.holds_back and calls_before_end < total_calls
        depth = _depth(data_pass) if may_hold_back else None
        return _first_calls_at_depth(data_pass, depth) if depth else None
    order = np.arange(count)
    calls_per_batch, remainder = divmod(calls_before_next - calls_before_first, count)
    if calls_before_end == calls_before_first:
        return calls_before_first + order + 1  # All batches came before the first call.
    first_calls = calls_before_first + calls_per_batch * order + 1
    is_after_batch = bool((first_calls > np.array(data_pass.backwards)).all())
    if calls_per_batch and not remainder and is_after_batch:
        return first_calls  # Each batch has the same number of calls, as in the example.
    # Some batch was skipped, or several share a call: only the depth is left as a clue.
    depth = _depth(data_pass)
    if depth == 0:
        # A step draws all its batches at once, so the end is seen before the last call.
        return None
    return _first_calls_at_depth(data_pass, 1 if depth is None else depth)


def _depth(data_pass: Pass) -> int | None:
    """Return how many batches a pass was ahead; None if all batches came in one gap.

    The depth is the number of batches before the first call, minus the usual number in a later gap.
    If 0, 0 and 1 calls come before three batches, it is 2 - 1 = 1.
    """
    gaps, batches_in_gap = np.unique(np.array(data_pass.backwards), return_counts=True)
    if len(gaps) < 2:
        return None
    usual = int(np.bincount(batches_in_gap[1:]).argmax())
    return max(0, int(batches_in_gap[0]) - usual)


def _first_calls_at_depth(data_pass: Pass, depth: int) -> np.ndarray:
    """Return the first call for each batch of a pass whose loader is `depth` batches ahead.

    A batch is trained on by the first call after `depth` further batches. The last `depth` batches
    are trained on after the end, one after the other. If 0, 0 and 1 calls come before three
    batches, the depth is 1, and 2 calls come before the end, then batches 1 and 2 give the calls
    0 + 1 and 1 + 1 for batches 0 and 1. Batch 2 gets the first call after the end, 2 + 1.

    If the pass was left, the last `depth` batches get NEVER.
    """
    calls_before_batch = np.array(data_pass.backwards, dtype=np.int64)
    earlier_calls = calls_before_batch[depth:] + 1
    held_count = min(depth, len(calls_before_batch))
    if data_pass.ended is None:
        return np.append(earlier_calls, np.full(held_count, NEVER))
    calls_before_end = data_pass.ended.calls
    trained_before_end = max(1, len(calls_before_batch) - depth)
    calls_in_pass = calls_before_end - int(calls_before_batch[0])
    order = np.arange(held_count)
    if 0 < calls_in_pass < trained_before_end:
        # A call trains on several batches, for instance if one rank draws them for all ranks.
        batches_per_call = max(1, round(trained_before_end / calls_in_pass))
        held_calls = calls_before_end + 1 + order // batches_per_call
    else:
        calls_per_batch = max(1, round(calls_in_pass / trained_before_end))
        held_calls = calls_before_end + 1 + calls_per_batch * order
    return np.append(earlier_calls, held_calls)
