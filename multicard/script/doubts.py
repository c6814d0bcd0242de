"""Finds steps that trained on nobody knows what, by the order of batches and calls of backward."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from multicard.script.passes import NEVER, Pass

FEW = 3  # At most one call in so many differs from what the script usually does.


def share_a_gap(data_pass: Pass, reads_ahead: bool) -> np.ndarray:
    """Return which batches of a pass were handed out with others between two calls of backward.

    Args:
        reads_ahead: the loader reads ahead, so its first batches show no habit of the script. How
            far it reads beside other loaders is not known.
    """
    _, places, counts = np.unique(
        np.array(data_pass.backwards), return_inverse=True, return_counts=True
    )
    if reads_ahead:
        return np.full(len(places), (counts[1:] > 1).any())
    return counts[places] > 1


def has_more(batches: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Return the steps with more batches, and more calls of backward, than steps usually have.

    Gradients before such a step may have been cleared: those of a pass without steps, or of the
    last batches of a pass.
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
    """Return the steps after a pass that stood beside another in each of its steps, until its
    loader is drawn from again.

    The script may keep its batches and train on them again, as by `itertools.cycle`. No loader
    hands those out.
    """
    lacks = np.zeros(count, dtype=bool)
    # The steps that trained on a source, by source.
    has = defaultdict[int, np.ndarray](lambda: np.zeros(count, dtype=bool))
    for data_pass, steps in zip(passes, steps_of, strict=True):
        has[id(data_pass.source)][steps[steps < count]] = True
    if len(has) < 2:
        return lacks
    sources = np.sum([*has.values()], axis=0)
    for data_pass, pass_steps in zip(passes, steps_of, strict=True):
        source_steps = has[id(data_pass.source)]
        steps = pass_steps[pass_steps < count]
        # In a single step it stands beside another by chance.
        if data_pass.ended is None or len({*steps.tolist()}) < 2:
            continue
        first = int(steps.min())
        last = int(steps.max())
        if not source_steps[first : last + 1].all() or sources[first : last + 1].min() < 2:
            continue
        again = np.flatnonzero(source_steps[last + 1 :])
        end = last + 1 + int(again[0]) if len(again) else count
        lacks[last + 1 : end] |= sources[last + 1 : end] > 0
    return lacks


def shares_call(trained_by: np.ndarray) -> np.ndarray:
    """Return which batches of a source share their call of backward with more others than usual.

    Args:
        trained_by: the call of backward, from 1, after each batch that is trained on.
    """
    calls, places, counts = np.unique(trained_by, return_inverse=True, return_counts=True)
    known = counts[calls < NEVER]
    if not len(known):
        return np.zeros(len(trained_by), dtype=bool)
    more = (counts > np.bincount(known).argmax()) & (calls < NEVER)
    if FEW * more.sum() > len(known):  # There are as many numbers as calls: it is no habit.
        return np.zeros(len(trained_by), dtype=bool)
    return more[places]
