"""Which step trained on which batch, also where a loader reads ahead of the training.

A batch is handed out before the step that trains on it; how long before depends on the loader. One
that knows which of its batches is the last (Accelerate, and so Hugging Face's Trainer, TRL and
diffusers) or copies the next batch while the model computes (a prefetcher) holds one back, or
several. Calls of backward show it: the first batches of a pass are handed out with none between
them, and some come after the pass has ended. They also say when a batch is trained on.

A pass that is left before its end may leave batches that nobody trains on: a look by
`next(iter(loader))`, or the batch at which a loop breaks. No call of backward comes after those
before the same loader is drawn from in another pass.

A script may skip a batch, too. Those that no call came after, before the pass ended, nobody trained
on. Where a call comes after two batches and usually after one, one of them was skipped or its loss
was added: nobody knows. Where it usually comes after two, `contributions.py` has watched some of
them. Nor is it known of a step with more calls than usual, before which gradients may have been
cleared; and of steps from which a loader is missing that was beside another until its pass ended,
as its batches may have been kept.

Batches that another thread draws are trained on in their turn, or nobody knows: see `streams.py`.

Where batches do not fit into memory, a script may begin again with smaller ones. Those of the
failed attempt since its last step were not trained on, whether backward was called or not.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.script.doubts import has_more, lacks_a_source, share_a_gap, shares_call
from multicard.script.passes import NEVER, UNKNOWN, Pass, Reach, StepData, StepEnd
from multicard.script.streams import in_turn


@dataclass(eq=False)
class _Trained:
    """What the batches of a pass were for.

    Attributes:
        of_training: flags, of all its batches. steps: of those. trained_by: calls of backward, from
            1, of those.
        reads_ahead: steps are those of the calls, as the batches were handed out before.
    """

    one: Pass
    of_training: np.ndarray
    steps: np.ndarray
    trained_by: np.ndarray
    reads_ahead: bool


def attribute(
    passes: Sequence[Pass], ends: Sequence[StepEnd], total_calls: int = 0, is_stopped: bool = False
) -> StepData:
    """Give each step the batches that it trained on.

    Args:
        passes: those that training draws from, in the order of their first batches.
        ends: of the steps, in their order.
        total_calls: of backward, those after the last step included.
        is_stopped: the run was stopped before its end.
    """
    backwards = np.array([end.backwards for end in ends], dtype=np.int64)
    calls = np.diff(backwards, prepend=0)
    calls_tell = bool(2 * (calls > 0).sum() > len(ends))
    total_calls = max(total_calls, int(backwards[-1]) if len(ends) else 0)
    in_threads = in_turn(passes, total_calls, is_stopped)
    is_known = in_threads is not None and (calls_tell or not in_threads)
    trained = _trained(passes, ends, calls_tell, in_threads or {}, total_calls)
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


def _trained(
    passes: Sequence[Pass],
    ends: Sequence[StepEnd],
    calls_tell: bool,
    in_threads: Mapping[int, np.ndarray],
    total_calls: int,
) -> list[_Trained]:
    """Of each pass the batches that are trained on.

    Args:
        calls_tell: most steps have a call of backward.
        in_threads: the calls that train on batches that another thread drew, by the number of the
            pass.
        total_calls: of backward, in the whole run.
    """
    backwards = np.array([end.backwards for end in ends], dtype=np.int64)
    handed_out = np.array([end.handed_out for end in ends], dtype=np.int64)
    following = _next_training(passes, int(backwards[-1]) if len(ends) else 0)
    consumed_by = _consumption(passes, following, in_threads)
    left_at = _left_at(passes) if calls_tell else [None] * len(passes)
    failed_at = _failed_at(passes)
    found = []
    for number, one in enumerate(passes):
        by = consumed_by[number]
        last_call = left_at[number]
        failed = failed_at[number]
        trains = np.frombuffer(bytes(one.trains), dtype=np.uint8) > 0
        trained_by = np.array(one.backwards) + 1 if by is None else by
        if by is None:
            steps = np.searchsorted(handed_out, np.array(one.places), side="right")
        else:
            steps = np.searchsorted(backwards, by, side="left")
            # a pass is one loop's: its last batches may follow the last known step
            trains |= trains.any()
        if last_call is not None:
            trains &= trained_by <= last_call
        elif calls_tell and by is None and one.ended is None:
            trains &= trained_by <= total_calls  # the run ended before a call followed
        if failed is not None:
            trains &= steps < np.searchsorted(handed_out, failed, side="right")
        if calls_tell and by is None and one.ended is not None:
            # nobody trained on those that no call follows
            trains &= trained_by <= max(one.ended[0], following[number])
        found.append(_Trained(one, trains, steps[trains], trained_by[trains], by is not None))
    return found


def _without_cleared(trained: Sequence[_Trained], ends: Sequence[StepEnd]) -> np.ndarray:
    """Leave out the batches whose gradients were cleared before a step that others make (a batch
    that has further calls after that is trained on). Returns of each step the last call whose
    gradients it does not have (steps,).
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


def _added_up(trained: Sequence[_Trained], calls: np.ndarray) -> StepData:
    """Samples and batches of each step."""
    count = len(calls)
    samples, batches = (np.zeros(count, dtype=np.int64) for _ in range(2))
    unknown = np.zeros(count, dtype=bool)
    for each in trained:
        for step, size in zip(each.steps, np.array(each.one.sizes)[each.of_training], strict=True):
            if step == count:
                continue  # read ahead when the run ended
            batches[step] += 1
            unknown[step] |= size == UNKNOWN
            samples[step] += max(0, size)
    return StepData(samples, batches, unknown, calls)


def _doubt(data: StepData, trained: Sequence[_Trained]) -> None:
    """Mark the steps of which calls of backward do not tell what they trained on."""
    count = len(data.calls)
    unknown = data.unknown
    unknown |= has_more(data.batches, data.calls)
    unknown |= lacks_a_source(
        [each.one for each in trained], [each.steps for each in trained], count
    )
    taken = defaultdict[int, list[_Trained]](list)  # by source
    for each in trained:
        if not each.one.in_thread:
            taken[id(each.one.source)].append(each)
    for of_source in taken.values():
        trained_by = np.concatenate([each.trained_by for each in of_source])
        doubtful = np.concatenate([each.steps for each in of_source])[shares_call(trained_by)]
        unknown[doubtful[doubtful < count]] = True
    skipping = np.zeros(count, dtype=bool)
    for each in trained:
        reach = each.one.reach
        if each.one.in_thread or reach is Reach.every:
            continue
        data.skips |= reach in (Reach.some, Reach.none)
        several = each.steps[share_a_gap(each.one, each.reads_ahead)[each.of_training]]
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
    """Of each pass the call of backward, from 1, that first trains on each batch; None for a pass
    whose batches are trained on as they are handed out.

    Args:
        nexts: the calls of backward before the first batch
            that was handed out after each pass had ended.
    """
    found = dict(in_threads)
    depths = defaultdict[int, list[int]](list)  # by source, of whole passes
    for number, (one, next_backwards) in enumerate(zip(passes, nexts, strict=True)):
        if one.ended is not None and any(one.trains) and not one.in_thread:
            consumed = None if one.holds_back is False else _of_whole_pass(one, next_backwards)
            if consumed is not None:
                found[number] = consumed
            depths[id(one.source)].append(0 if consumed is None else _depth(one) or 1)
    for number, one in enumerate(passes):
        if one.ended is None and any(one.trains) and not one.in_thread:
            known = depths[id(one.source)]
            depth = _depth(one)
            if depth is None or (known and not max(known)):
                depth = known[-1] if known else 0
            if depth and len(one.places) > depth:
                found[number] = _after(one, depth)
    return [found.get(number) for number in range(len(passes))]


def _left_at(passes: Sequence[Pass]) -> list[int | None]:
    """Of each pass that was left before its end the last call of backward that can have trained on
    its batches: the last one before its loader was drawn from in another pass.
    None of other passes.

    A later pass counts from its first batch. One that was begun before and goes on counts only
    where no backward came between the batches of the pass: two iterators that are read in turn are
    not left. Such batches may also lie between one of that pass and its training: a look, unless
    most batches of that pass have others beside them.
    """
    # by source: place, calls of backward, number of pass
    draws = defaultdict[int, list[tuple[int, int, int]]](list)
    for number, one in enumerate(passes):
        of_pass = zip(one.places, one.backwards, strict=True)
        draws[id(one.source)] += [(place, calls, number) for place, calls in of_pass]
    for of_source in draws.values():
        of_source.sort()
    found: list[int | None] = [None] * len(passes)
    # by the pass within which they are: passes that may be looks
    beside = defaultdict[int, list[int]](list)
    for number, one in enumerate(passes):
        # a thread may begin the next pass before the last is trained on
        if one.ended is not None or one.in_thread:
            continue
        of_source = draws[id(one.source)]
        is_look = one.backwards[0] == one.backwards[-1]
        following = bisect_right(of_source, one.places[-1], key=lambda draw: draw[0])
        for _, calls, other in of_source[following:]:
            if is_look or passes[other].places[0] > one.places[-1]:
                found[number] = calls
                break
        preceding = following - len(one.places) - 1
        if is_look and preceding >= 0:
            _, calls, other = of_source[preceding]
            if calls == one.backwards[0] and passes[other].places[-1] > one.places[-1]:
                beside[other].append(number)
    for number, calls in _left_for_other_data(passes).items():
        last_call = found[number]
        found[number] = calls if last_call is None else min(last_call, calls)
    for other, looks in beside.items():
        if 2 * len(looks) <= len(passes[other].places) and not passes[other].in_thread:
            for number in looks:
                found[number] = passes[number].backwards[0]
    return found


def _left_for_other_data(passes: Sequence[Pass]) -> dict[int, int]:
    """Find passes that a script left to begin one of other data, as of its next task or client.

    A loop that ends by `if number == 10: break` has drawn a batch by then that nobody trains on. In
    a step that adds the losses of several loaders, the batches of a pass have those of other
    loaders between them. Here they have none.

    Returns:
        The calls of backward before the first batch of the other pass,
        by the number of the pass that was left.
    """
    drawn = []
    for number, one in enumerate(passes):
        drawn.extend((place, number) for place in one.places)
    drawn.sort()
    places = [place for place, _ in drawn]
    found = {}
    for number, one in enumerate(passes):
        is_look = one.backwards[0] == one.backwards[-1]
        if one.ended is not None or one.in_thread or is_look:
            continue
        first = bisect_right(places, one.places[0])
        following = bisect_right(places, one.places[-1])
        is_alone = following - first == len(one.places) - 1
        if not is_alone or following == len(drawn):
            continue
        place, other = drawn[following]
        if passes[other].places[0] == place and passes[other].source is not one.source:
            found[number] = passes[other].backwards[0]
    return found


def _failed_at(passes: Sequence[Pass]) -> list[int | None]:
    """Of each pass that failed, the place of the first batch of the next attempt.
    None of other passes.

    It was left, smaller batches of the same data came after it,
    and its loader was drawn from no more.
    """
    last = dict[int, int]()  # by source: place
    for one in passes:
        last[id(one.source)] = max(last.get(id(one.source), 0), one.places[-1])
    found: list[int | None] = [None] * len(passes)
    for number, one in enumerate(passes):
        if one.ended is not None or one.places[-1] < last[id(one.source)]:
            continue
        again = [
            other.places[0]
            for other in passes
            if other.places[0] > one.places[-1] and _tries_again(other.source, one.source)
        ]
        found[number] = min(again, default=None)
    return found


def _tries_again(source: Any, before: Any) -> bool:
    tries_again = getattr(source, "tries_again", None)
    return tries_again is not None and tries_again(before)


def _next_training(passes: Sequence[Pass], total: int) -> list[int]:
    """The calls of backward before the first batch that
    was handed out after each pass had ended.
    """
    drawn = []
    for one in passes:
        batches = zip(one.places, one.backwards, one.trains, strict=True)
        drawn.extend((place, backwards) for place, backwards, trains in batches if trains)
    drawn.sort()
    places = np.array([place for place, _ in drawn], dtype=np.int64)
    following = []
    for one in passes:
        place = np.searchsorted(places, one.ended[1]) if one.ended is not None else len(drawn)
        following.append(drawn[place][1] if place < len(drawn) else total)
    return following


def _of_whole_pass(one: Pass, next_backwards: int) -> np.ndarray | None:
    """As `_consumption`, of a pass whose loader ended."""
    assert one.ended is not None
    count = len(one.places)
    first = one.backwards[0]
    end = one.ended[0]
    reads_ahead = sum(each == first for each in one.backwards) > 1 or (count == 1 and end == first)
    if not reads_ahead or next_backwards == end:  # nothing was trained on after the end
        return None
    order = np.arange(count)
    calls, rest = divmod(next_backwards - first, count)
    if end == first:  # all were there before the first was trained on
        return first + order + 1
    consumed = first + calls * order + 1
    if calls and not rest and bool((consumed > np.array(one.backwards)).all()):
        return consumed
    depth = _depth(one)
    # the batches of a step are drawn at once, and so the end is seen before the last is trained on
    if depth == 0:
        return None
    return _after(one, 1 if depth is None else depth)


def _depth(one: Pass) -> int | None:
    """How many batches a pass was ahead: those before the first call of backward, less those before
    a later one. None where there was no later one.
    """
    values, counts = np.unique(np.array(one.backwards), return_counts=True)
    if len(values) < 2:
        return None
    usual = int(np.bincount(counts[1:]).argmax())
    return max(0, int(counts[0]) - usual)


def _after(one: Pass, depth: int) -> np.ndarray:
    """The first call of backward after so many further batches were handed out, of each batch; of
    the last ones after the end, one after the other. Past any call where nobody knows.
    """
    backwards = np.array(one.backwards, dtype=np.int64)
    if one.ended is None:
        return np.append(backwards[depth:] + 1, np.full(min(depth, len(backwards)), NEVER))
    end = one.ended[0]
    ahead = max(1, len(backwards) - depth)
    spent = end - int(backwards[0])
    order = np.arange(min(depth, len(backwards)))
    # several batches are trained on by a call, as those of all ranks that one rank draws
    if 0 < spent < ahead:
        last = end + 1 + order // max(1, round(ahead / spent))
    else:
        last = end + 1 + max(1, round(spent / ahead)) * order
    return np.append(backwards[depth:] + 1, last)
