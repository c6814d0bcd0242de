"""Unions of intervals of integer nanoseconds."""

import numpy as np


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends (M,) of the disjoint, ascending intervals that cover the same as intervals (N,) in any order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    return start[opens], reach[np.concatenate([opens[1:], [True]])]


def covered(start: np.ndarray, end: np.ndarray) -> int:
    """Length of the union of intervals (N,)."""
    first, last = union(start, end)
    return int((last - first).sum())


def covered_by_group(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Length of the union of each group's intervals.

    Args:
        start, end: (N,).
        group: (N,) integers from 0.

    Returns:
        Lengths (G,), G the largest group + 1.
    """
    if not len(start):
        return np.zeros(0, np.int64)
    first, stretch = start.min(), end.max() - start.min() + 1  # each group gets a stretch of the axis of its own
    shift = group * stretch - first
    opens, closes = union(start + shift, end + shift)
    return sums_by_group(closes - opens, opens // stretch, int(group.max()) + 1)


def sums_by_group(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Exact sums (count,) of integers (N,) by group; bincount would sum them as floats."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums
