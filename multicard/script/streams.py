"""Finds the call of backward that trains on each batch if another thread draws the batches.

How far such a thread is ahead of the training is a race, so the order of events says nothing. But
the thread hands batches on in the order in which it drew them. If there are as many calls of
backward as batches, or a whole number of calls for each, each batch was trained on in its turn: the
first by the first call, and so on. Otherwise the script skips batches, adds losses or leaves a
pass, and nobody knows which step trained on which batch.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from multicard.script.passes import NEVER, Pass

FEW = 4  # Batches that a thread may be ahead only at the end.


def in_turn(
    passes: Sequence[Pass], calls: int, is_stopped: bool = False
) -> dict[int, np.ndarray] | None:
    """Return the calls of backward, from 1, that first train on each batch of another thread.

    Args:
        passes: the passes that training draws from, in the order of their first batches.
        calls: calls of backward in the whole run.
        is_stopped: the run was stopped, so some batches may wait to be trained on.

    Returns:
        The calls, by the number of the pass; None if nobody knows.
    """
    drawn = [number for number, data_pass in enumerate(passes) if data_pass.in_thread]
    if not drawn:
        return {}
    streams = [drawn]
    is_alone = _follow([passes[number] for number in drawn])
    if not is_alone:
        of_sources = defaultdict[int, list[int]](list)
        for number in drawn:
            of_sources[id(passes[number].source)].append(number)
        streams = [*of_sources.values()]
    calls_by_pass = dict[int, np.ndarray]()
    for stream in streams:
        may_call_again = is_alone and len(drawn) == len(passes)
        of_stream = _of_stream(
            [passes[number] for number in stream], calls, may_call_again, is_stopped
        )
        if of_stream is None:
            return None
        calls_by_pass |= dict(zip(stream, of_stream, strict=True))
    return calls_by_pass


def _follow(passes: Sequence[Pass]) -> bool:
    """Return True if each pass was drawn from after the one before."""
    return all(before.places[-1] < data_pass.places[0] for before, data_pass in pairwise(passes))


def _of_stream(
    passes: Sequence[Pass], calls: int, may_call_again: bool, is_stopped: bool
) -> list[np.ndarray] | None:
    """As `in_turn`, for passes that follow one another.

    Args:
        may_call_again: a batch may have several calls, for instance one for a discriminator and one
            for a generator. False if some calls may be for other data.
    """
    if not _follow(passes) or any(data_pass.ended is None for data_pass in passes[:-1]):
        return None
    count = sum(len(data_pass.places) for data_pass in passes)
    each = max(1, -(-calls // count)) if may_call_again else 1
    ahead = count - calls // each
    is_between = bool(calls % each)
    before = np.concatenate([np.array(data_pass.backwards) for data_pass in passes])
    lead = np.arange(count) - before // each
    if ahead < 0 or lead.min() < 0:
        return None
    if ahead or is_between:
        # In a run that went on to its end, batches must have been skipped.
        is_cut_short = is_stopped or passes[-1].ended is None
        if not is_cut_short or not _reads_as_far(lead, ahead, _are_of_one_size(passes)):
            return None
    trained_by = np.arange(count) * each + 1
    trained_by[trained_by > calls] = NEVER
    return np.split(trained_by, np.cumsum([len(data_pass.places) for data_pass in passes])[:-1])


def _are_of_one_size(passes: Sequence[Pass]) -> bool:
    sizes = set()
    for data_pass in passes:
        sizes.update(data_pass.sizes)
    return len(sizes) == 1


def _reads_as_far(lead: np.ndarray, ahead: int, is_alike: bool) -> bool:
    """Return True if a run that was cut short read no further ahead at its end than at first.

    A script that skips batches seems to read further and further.

    Args:
        lead: when each batch was drawn, how many were drawn and not yet trained on.
        ahead: the same number at the end of the run.
        is_alike: all batches have as many samples, so that it does not matter which batch it was.
    """
    half = len(lead) // 2
    at_first = int(lead[:half].max()) if half else 0
    at_last = max(int(lead[half:].max()), ahead - 1)
    return at_last <= max(at_first, FEW if is_alike else 0)
