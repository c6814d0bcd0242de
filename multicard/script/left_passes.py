"""Finds the passes that a script left before their end, and what that shows of their batches."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from multicard.script.passes import Pass


def last_calls_of_left_passes(passes: Sequence[Pass]) -> list[int | None]:
    """Return the last call of backward that can have trained on the batches of each pass that was
    left before its end: the last one before another pass drew from its loader.

    An entry is None for other passes.

    A later pass counts from its first batch. A pass that was begun before and goes on counts only
    if no call of backward came between the batches of the pass. Otherwise two iterators are read
    alternately, and neither is left. The batches without a call in between may be a look within the
    other pass, unless most batches of that pass have others beside them.
    """
    # Place, calls of backward and number of the pass, by source.
    draws = defaultdict[int, list[tuple[int, int, int]]](list)
    for number, data_pass in enumerate(passes):
        of_pass = zip(data_pass.places, data_pass.backwards, strict=True)
        draws[id(data_pass.source)] += [(place, calls, number) for place, calls in of_pass]
    for of_source in draws.values():
        of_source.sort()
    left_at: list[int | None] = [None] * len(passes)
    # Passes that may be looks, by the pass within which they are.
    beside = defaultdict[int, list[int]](list)
    for number, data_pass in enumerate(passes):
        # A thread may begin the next pass before the last is trained on.
        if data_pass.ended is not None or data_pass.in_thread:
            continue
        of_source = draws[id(data_pass.source)]
        is_look = data_pass.backwards[0] == data_pass.backwards[-1]
        following = bisect_right(of_source, data_pass.places[-1], key=lambda draw: draw[0])
        for _, calls, other in of_source[following:]:
            if is_look or passes[other].places[0] > data_pass.places[-1]:
                left_at[number] = calls
                break
        preceding = following - len(data_pass.places) - 1
        if is_look and preceding >= 0:
            _, calls, other = of_source[preceding]
            if calls == data_pass.backwards[0] and passes[other].places[-1] > data_pass.places[-1]:
                beside[other].append(number)
    for number, calls in _left_for_other_data(passes).items():
        last_call = left_at[number]
        left_at[number] = calls if last_call is None else min(last_call, calls)
    for other, looks in beside.items():
        if 2 * len(looks) <= len(passes[other].places) and not passes[other].in_thread:
            for number in looks:
                left_at[number] = passes[number].backwards[0]
    return left_at


def _left_for_other_data(passes: Sequence[Pass]) -> dict[int, int]:
    """Find passes that a script left to begin a pass over other data, as for its next task.

    A loop that ends by `if number == 10: break` has drawn a batch by then that nobody trains on. In
    a step that adds the losses of several loaders, batches of other loaders lie between those of a
    pass. Here they do not.

    Returns:
        The calls of backward before the first batch of the other pass, by the number of the pass
        that was left.
    """
    drawn = []
    for number, data_pass in enumerate(passes):
        drawn.extend((place, number) for place in data_pass.places)
    drawn.sort()
    places = [place for place, _ in drawn]
    left_at = {}
    for number, data_pass in enumerate(passes):
        is_look = data_pass.backwards[0] == data_pass.backwards[-1]
        if data_pass.ended is not None or data_pass.in_thread or is_look:
            continue
        first = bisect_right(places, data_pass.places[0])
        following = bisect_right(places, data_pass.places[-1])
        is_alone = following - first == len(data_pass.places) - 1
        if not is_alone or following == len(drawn):
            continue
        place, other = drawn[following]
        if passes[other].places[0] == place and passes[other].source is not data_pass.source:
            left_at[number] = passes[other].backwards[0]
    return left_at


def next_attempts_of_failed_passes(passes: Sequence[Pass]) -> list[int | None]:
    """Return, for each pass that failed, the place of the first batch of the next attempt.

    An entry is None for other passes. A pass failed if it was left, smaller batches of the same
    data came after it, and its loader was not drawn from again.
    """
    last = dict[int, int]()  # The place of the last batch, by source.
    for data_pass in passes:
        last[id(data_pass.source)] = max(last.get(id(data_pass.source), 0), data_pass.places[-1])
    failed_at: list[int | None] = [None] * len(passes)
    for number, data_pass in enumerate(passes):
        if data_pass.ended is not None or data_pass.places[-1] < last[id(data_pass.source)]:
            continue
        again = [
            other.places[0]
            for other in passes
            if other.places[0] > data_pass.places[-1]
            and _tries_again(other.source, data_pass.source)
        ]
        failed_at[number] = min(again, default=None)
    return failed_at


def _tries_again(source: Any, before: Any) -> bool:
    tries_again = getattr(source, "tries_again", None)
    return tries_again is not None and tries_again(before)
