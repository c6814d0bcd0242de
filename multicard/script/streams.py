"""Which call of backward trains on which batch, where another thread draws the batches.

How far such a thread is ahead of the training is a race, so that the order of events says nothing.
It hands batches on in the order in which it drew them. Where there were as many calls of backward
as batches (or a whole number of calls for each), each batch was trained on in its turn, whatever
the race: the first by the first call, and so on. Where there were not, a script skips batches,
adds losses, or leaves a pass: nobody knows which step trained on what.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from multicard.script.passes import NEVER, Pass

FEW = 4  # batches that a thread may be ahead at the end, and not before


def in_turn(
    passes: Sequence[Pass], calls: int, is_stopped: bool = False
) -> dict[int, np.ndarray] | None:
    """Of each pass of which another thread drew batches, by its number, the call of backward, from
    1, that first trains on each of them. None where nobody knows.

    Args:
        passes: those that training draws from, in the order of their first batches.
        calls: of backward, in the whole run.
        is_stopped: the run was, so that batches may be left that it would have trained on.
    """
    drawn = [number for number, one in enumerate(passes) if one.in_thread]
    if not drawn:
        return {}
    streams = [drawn]
    is_alone = _follow([passes[number] for number in drawn])
    if not is_alone:
        of_sources = defaultdict[int, list[int]](list)
        for number in drawn:
            of_sources[id(passes[number].source)].append(number)
        streams = [*of_sources.values()]
    found = dict[int, np.ndarray]()
    for stream in streams:
        may_call_again = is_alone and len(drawn) == len(passes)
        of_stream = _of_stream(
            [passes[number] for number in stream], calls, may_call_again, is_stopped
        )
        if of_stream is None:
            return None
        found |= dict(zip(stream, of_stream, strict=True))
    return found


def _follow(passes: Sequence[Pass]) -> bool:
    """True of passes each of which was drawn after the one before."""
    return all(before.places[-1] < one.places[0] for before, one in pairwise(passes))


def _of_stream(
    passes: Sequence[Pass], calls: int, may_call_again: bool, is_stopped: bool
) -> list[np.ndarray] | None:
    """As `in_turn`, of passes that follow one another.

    Args:
        may_call_again: several calls may be of a batch, as of a discriminator and a generator; not
            where others of them may be of other data.
    """
    if not _follow(passes) or any(one.ended is None for one in passes[:-1]):
        return None
    count = sum(len(one.places) for one in passes)
    each = max(1, -(-calls // count)) if may_call_again else 1
    ahead = count - calls // each
    is_between = bool(calls % each)
    before = np.concatenate([np.array(one.backwards) for one in passes])
    lead = np.arange(count) - before // each
    if ahead < 0 or lead.min() < 0:
        return None
    if ahead or is_between:
        is_cut_short = is_stopped or passes[-1].ended is None  # or batches were skipped
        if not is_cut_short or not _reads_as_far(lead, ahead, _are_of_one_size(passes)):
            return None
    trained_by = np.arange(count) * each + 1
    trained_by[trained_by > calls] = NEVER
    return np.split(trained_by, np.cumsum([len(one.places) for one in passes])[:-1])


def _are_of_one_size(passes: Sequence[Pass]) -> bool:
    sizes = set()
    for one in passes:
        sizes.update(one.sizes)
    return len(sizes) == 1


def _reads_as_far(lead: np.ndarray, ahead: int, is_alike: bool) -> bool:
    """True where a run that was cut short had read no further ahead at last than at first: a script
    that skips batches seems to read further and further.

    Args:
        lead: batches that were drawn and not yet trained on, when each was drawn. ahead: at the end
            of the run.
        is_alike: all batches have as many samples,
            so that it does not matter which of them one was.
    """
    half = len(lead) // 2
    at_first = int(lead[:half].max()) if half else 0
    at_last = max(int(lead[half:].max()), ahead - 1)
    return at_last <= max(at_first, FEW if is_alike else 0)
