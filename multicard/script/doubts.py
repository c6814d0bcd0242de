"""Steps of which nobody knows what they trained on,
by the order of batches and of calls of backward.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from multicard.script.passes import NEVER, Pass

FEW = 3  # up to one in so many calls differ from what a script usually does


def share_a_gap(one: Pass, reads_ahead: bool) -> np.ndarray:
    """Which batches of a pass were handed out with others of it between two calls of backward.

    Args:
        reads_ahead: the first ones are no habit of the script's,
            and how far it reads is not known beside others.
    """
    _, places, counts = np.unique(np.array(one.backwards), return_inverse=True, return_counts=True)
    if reads_ahead:
        return np.full(len(places), (counts[1:] > 1).any())
    return counts[places] > 1


def has_more(batches: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """The steps with more batches, and more calls of backward, than steps usually have.

    Gradients before such a step may have been cleared: those of a pass without steps, or of a rest.
    """
    known = batches > 0
    if not known.any():
        return known
    more = (batches > np.bincount(batches[known]).argmax()) & (
        calls > np.bincount(calls[known]).argmax()
    )
    return more if FEW * more.sum() <= known.sum() else np.zeros_like(known)


def lacks_a_source(
    passes: Sequence[Pass], steps_of: Sequence[np.ndarray], count: int
) -> np.ndarray:
    """The steps after a pass that was beside another in each of its steps,
    until its loader is drawn from again.

    Its batches may be kept and trained on again, as by `itertools.cycle`,
    which no loader hands out.
    """
    lacks = np.zeros(count, dtype=bool)
    # by source: the steps that trained on it
    has = defaultdict[int, np.ndarray](lambda: np.zeros(count, dtype=bool))
    for one, steps in zip(passes, steps_of, strict=True):
        has[id(one.source)][steps[steps < count]] = True
    if len(has) < 2:
        return lacks
    sources = np.sum([*has.values()], axis=0)
    for one, found in zip(passes, steps_of, strict=True):
        own = has[id(one.source)]
        steps = found[found < count]
        # in one step it is beside another by chance
        if one.ended is None or len({*steps.tolist()}) < 2:
            continue
        first = int(steps.min())
        last = int(steps.max())
        if not own[first : last + 1].all() or sources[first : last + 1].min() < 2:
            continue
        again = np.flatnonzero(own[last + 1 :])
        end = last + 1 + int(again[0]) if len(again) else count
        lacks[last + 1 : end] |= sources[last + 1 : end] > 0
    return lacks


def shares_call(trained_by: np.ndarray) -> np.ndarray:
    """Which batches of a source share their call of backward
    with more others than its batches usually do.

    Args:
        trained_by: the call of backward, from 1, after each batch that is trained on.
    """
    calls, places, counts = np.unique(trained_by, return_inverse=True, return_counts=True)
    known = counts[calls < NEVER]
    if not len(known):
        return np.zeros(len(trained_by), dtype=bool)
    more = (counts > np.bincount(known).argmax()) & (calls < NEVER)
    if FEW * more.sum() > len(known):  # each call has its own number: no habit of the script's
        return np.zeros(len(trained_by), dtype=bool)
    return more[places]
