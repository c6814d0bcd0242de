"""Attributes batches to the steps that train on them, even if a loader reads ahead.

A batch is handed out before the step that trains on it. How long before depends on the loader. Some
loaders hold one batch back, because they know which batch is the last: those of Accelerate, and so
of Hugging Face's Trainer, TRL and diffusers. Prefetchers hold back one or several, and copy them
while the model computes. Calls of backward show it. No call comes between the first batches of such
a pass, and some calls come after the pass has ended. They also say when a batch is trained on.

A pass that is left before its end may leave batches that nobody trains on: a look by
`next(iter(loader))`, or the batch at which a loop breaks. No call of backward comes after them
before the same loader is drawn from in another pass.

A script may skip a batch, too:

- Nobody trained on the batches that no call followed before the pass ended.
- A call may come after two batches, though it usually comes after one. Then one of them was skipped
  or its loss was added: nobody knows.
- If a call usually comes after two, `contributions.py` has watched some of them.
- A step with more calls than usual is unknown: gradients may have been cleared before it.
- So is a step from which a loader is missing that stood beside another until its pass ended: the
  script may have kept the batches.

Batches that another thread draws are trained on in their order, or nobody knows: see `streams.py`.

If batches do not fit into memory, a script may begin again with smaller ones. The batches of the
failed attempt since its last step were not trained on, even if backward was called.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from multicard.script.doubts import has_more, lacks_a_source, share_a_gap, shares_call
from multicard.script.left_passes import (
    last_calls_of_left_passes,
    next_attempts_of_failed_passes,
)
from multicard.script.passes import NEVER, UNKNOWN, Pass, Reach, StepData, StepEnd
from multicard.script.streams import in_turn


@dataclass(eq=False)
class _TrainedBatches:
    """What the batches of a pass were for.

    Attributes:
        of_training: a flag for each batch of the pass: it is trained on.
        steps: the step of each batch that is trained on.
        trained_by: the call of backward, from 1, of each batch that is trained on.
        reads_ahead: `steps` follow from the calls, since the batches were handed out before.
    """

    data_pass: Pass
    of_training: np.ndarray
    steps: np.ndarray
    trained_by: np.ndarray
    reads_ahead: bool


def attribute(
    passes: Sequence[Pass], ends: Sequence[StepEnd], total_calls: int = 0, is_stopped: bool = False
) -> StepData:
    """Return what each step trained on.

    Args:
        passes: the passes that training draws from, in the order of their first batches.
        ends: the ends of the steps, in order.
        total_calls: calls of backward, including those after the last step.
        is_stopped: the run was stopped before its end.
    """
    backwards = np.array([end.backwards for end in ends], dtype=np.int64)
    calls = np.diff(backwards, prepend=0)
    calls_tell = bool(2 * (calls > 0).sum() > len(ends))
    total_calls = max(total_calls, int(backwards[-1]) if len(ends) else 0)
    in_threads = in_turn(passes, total_calls, is_stopped)
    is_known = in_threads is not None and (calls_tell or not in_threads)
    trained = _trained_batches(passes, ends, calls_tell, in_threads or {}, total_calls)
    if calls_tell:
        calls = backwards - np.maximum(
            _without_cleared(trained, ends), np.append(0, backwards[:-1])
        )
    data = _added_up(trained, calls)
    if calls_tell:
        _doubt(data, trained)
    if passes:
        data.unknown |= (calls > 0) & (data.batches == 0)
    if not is_known:
        data.unknown[:] = True
        data.batches[:] = 0
    data.samples[data.unknown] = 0
    return data


def _trained_batches(
    passes: Sequence[Pass],
    ends: Sequence[StepEnd],
    calls_tell: bool,
    in_threads: Mapping[int, np.ndarray],
    total_calls: int,
) -> list[_TrainedBatches]:
    """Find the batches of each pass that are trained on.

    Args:
        calls_tell: most steps have a call of backward.
        in_threads: for passes that another thread draws from, the calls that train on their
            batches, by the number of the pass.
        total_calls: calls of backward in the whole run.
    """
    backwards = np.array([end.backwards for end in ends], dtype=np.int64)
    handed_out = np.array([end.handed_out for end in ends], dtype=np.int64)
    following = _next_training(passes, int(backwards[-1]) if len(ends) else 0)
    consumed_by = _consumption(passes, following, in_threads)
    left_at = last_calls_of_left_passes(passes) if calls_tell else [None] * len(passes)
    failed_at = next_attempts_of_failed_passes(passes)
    trained = []
    for number, data_pass in enumerate(passes):
        by = consumed_by[number]
        last_call = left_at[number]
        failed = failed_at[number]
        trains = np.frombuffer(bytes(data_pass.trains), dtype=np.uint8) > 0
        trained_by = np.array(data_pass.backwards) + 1 if by is None else by
        if by is None:
            steps = np.searchsorted(handed_out, np.array(data_pass.places), side="right")
        else:
            steps = np.searchsorted(backwards, by, side="left")
            # A pass belongs to one loop: its last batches may follow the last known step.
            trains |= trains.any()
        if last_call is not None:
            trains &= trained_by <= last_call
        elif calls_tell and by is None and data_pass.ended is None:
            trains &= trained_by <= total_calls  # The run ended before a call followed.
        if failed is not None:
            trains &= steps < np.searchsorted(handed_out, failed, side="right")
        if calls_tell and by is None and data_pass.ended is not None:
            # Nobody trained on batches that no call follows.
            trains &= trained_by <= max(data_pass.ended[0], following[number])
        trained.append(
            _TrainedBatches(data_pass, trains, steps[trains], trained_by[trains], by is not None)
        )
    return trained


def _without_cleared(trained: Sequence[_TrainedBatches], ends: Sequence[StepEnd]) -> np.ndarray:
    """Leave out batches whose gradients were cleared before a step of other batches.

    A batch with further calls after that is trained on.

    Returns:
        For each step, the last call whose gradients it does not have (steps,).
    """
    count = len(ends)
    latest = np.zeros(count + 1, dtype=np.int64)
    for each in trained:
        np.maximum.at(latest, each.steps, each.trained_by)
    cleared = np.array([*(end.cleared for end in ends), 0], dtype=np.int64)
    cleared[latest <= cleared] = 0
    for each in trained:
        is_kept = each.trained_by > cleared[each.steps]
        each.of_training[np.flatnonzero(each.of_training)[~is_kept]] = False
        each.steps, each.trained_by = each.steps[is_kept], each.trained_by[is_kept]
    return cleared[:count]


def _added_up(trained: Sequence[_TrainedBatches], calls: np.ndarray) -> StepData:
    """Add up the samples and batches of each step."""
    count = len(calls)
    samples, batches = (np.zeros(count, dtype=np.int64) for _ in range(2))
    unknown = np.zeros(count, dtype=bool)
    for each in trained:
        for step, size in zip(
            each.steps, np.array(each.data_pass.sizes)[each.of_training], strict=True
        ):
            if step == count:
                continue  # The batch was read ahead when the run ended.
            batches[step] += 1
            unknown[step] |= size == UNKNOWN
            samples[step] += max(0, size)
    return StepData(samples, batches, unknown, calls)


def _doubt(data: StepData, trained: Sequence[_TrainedBatches]) -> None:
    """Mark the steps for which calls of backward do not show what they trained on."""
    count = len(data.calls)
    unknown = data.unknown
    unknown |= has_more(data.batches, data.calls)
    unknown |= lacks_a_source(
        [each.data_pass for each in trained], [each.steps for each in trained], count
    )
    by_source = defaultdict[int, list[_TrainedBatches]](list)
    for each in trained:
        if not each.data_pass.in_thread:
            by_source[id(each.data_pass.source)].append(each)
    for of_source in by_source.values():
        trained_by = np.concatenate([each.trained_by for each in of_source])
        doubtful = np.concatenate([each.steps for each in of_source])[shares_call(trained_by)]
        unknown[doubtful[doubtful < count]] = True
    skipping = np.zeros(count, dtype=bool)
    for each in trained:
        reach = each.data_pass.reach
        if each.data_pass.in_thread or reach is Reach.every:
            continue
        data.skips |= reach in (Reach.some, Reach.none)
        several = each.steps[share_a_gap(each.data_pass, each.reads_ahead)[each.of_training]]
        if reach in (Reach.none, Reach.unsure):
            several = each.steps
        several = several[several < count]
        if reach is None:
            several = several[data.calls[several] < data.batches[several]]
        skipping[several] = True
    unknown |= skipping
    data.batches[skipping] = 0


def _consumption(
    passes: Sequence[Pass], nexts: Sequence[int], in_threads: Mapping[int, np.ndarray]
) -> list[np.ndarray | None]:
    """Return the call of backward, from 1, that first trains on each batch of each pass.

    An entry is None if the batches of its pass are trained on as they are handed out.

    Args:
        nexts: for each pass, the calls of backward before the first batch that was handed out
            after the pass had ended.
    """
    consumed_by = dict(in_threads)
    depths = defaultdict[int, list[int]](list)  # Of whole passes, by source.
    for number, (data_pass, next_backwards) in enumerate(zip(passes, nexts, strict=True)):
        if data_pass.ended is not None and any(data_pass.trains) and not data_pass.in_thread:
            consumed = (
                None if data_pass.holds_back is False else _of_whole_pass(data_pass, next_backwards)
            )
            if consumed is not None:
                consumed_by[number] = consumed
            depths[id(data_pass.source)].append(0 if consumed is None else _depth(data_pass) or 1)
    for number, data_pass in enumerate(passes):
        if data_pass.ended is None and any(data_pass.trains) and not data_pass.in_thread:
            known = depths[id(data_pass.source)]
            depth = _depth(data_pass)
            if depth is None or (known and not max(known)):
                depth = known[-1] if known else 0
            if depth and len(data_pass.places) > depth:
                consumed_by[number] = _after(data_pass, depth)
    return [consumed_by.get(number) for number in range(len(passes))]


def _next_training(passes: Sequence[Pass], total: int) -> list[int]:
    """Return the calls of backward before the first batch after the end of each pass."""
    drawn = []
    for data_pass in passes:
        batches = zip(data_pass.places, data_pass.backwards, data_pass.trains, strict=True)
        drawn.extend((place, backwards) for place, backwards, trains in batches if trains)
    drawn.sort()
    places = np.array([place for place, _ in drawn], dtype=np.int64)
    following = []
    for data_pass in passes:
        place = (
            np.searchsorted(places, data_pass.ended[1])
            if data_pass.ended is not None
            else len(drawn)
        )
        following.append(drawn[place][1] if place < len(drawn) else total)
    return following


def _of_whole_pass(data_pass: Pass, next_backwards: int) -> np.ndarray | None:
    """As `_consumption`, for a pass whose loader ended."""
    assert data_pass.ended is not None
    count = len(data_pass.places)
    first = data_pass.backwards[0]
    end = data_pass.ended[0]
    reads_ahead = sum(each == first for each in data_pass.backwards) > 1 or (
        count == 1 and end == first
    )
    if not reads_ahead or next_backwards == end:  # Nothing was trained on after the end.
        return None
    order = np.arange(count)
    calls, rest = divmod(next_backwards - first, count)
    if end == first:  # All batches were there before the first was trained on.
        return first + order + 1
    consumed = first + calls * order + 1
    if calls and not rest and bool((consumed > np.array(data_pass.backwards)).all()):
        return consumed
    depth = _depth(data_pass)
    # The batches of a step are drawn at once, so the end is seen before the last is trained on.
    if depth == 0:
        return None
    return _after(data_pass, 1 if depth is None else depth)


def _depth(data_pass: Pass) -> int | None:
    """Return how many batches a pass was ahead; None if there was only one call of backward.

    These are the batches before the first call, minus the usual number before a later one.
    """
    values, counts = np.unique(np.array(data_pass.backwards), return_counts=True)
    if len(values) < 2:
        return None
    usual = int(np.bincount(counts[1:]).argmax())
    return max(0, int(counts[0]) - usual)


def _after(data_pass: Pass, depth: int) -> np.ndarray:
    """Return the call that trains on each batch: the first after `depth` further batches.

    The last batches are trained on after the end, one after the other. NEVER if nobody knows.
    """
    backwards = np.array(data_pass.backwards, dtype=np.int64)
    if data_pass.ended is None:
        return np.append(backwards[depth:] + 1, np.full(min(depth, len(backwards)), NEVER))
    end = data_pass.ended[0]
    ahead = max(1, len(backwards) - depth)
    spent = end - int(backwards[0])
    order = np.arange(min(depth, len(backwards)))
    # A call trains on several batches, for instance if one rank draws those of all ranks.
    if 0 < spent < ahead:
        last = end + 1 + order // max(1, round(ahead / spent))
    else:
        last = end + 1 + max(1, round(spent / ahead)) * order
    return np.append(backwards[depth:] + 1, last)
