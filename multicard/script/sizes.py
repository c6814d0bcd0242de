"""Finds out how many samples a batch has, as far as its content shows."""

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

DEEPEST = 8  # Levels of a batch that are looked at.
LONG = 64  # Elements of a list from which only its ends are looked at.
CHANNELS = (1, 3, 4)  # Of an image.
LISTS = (list, tuple)
ARRAYS = (Tensor, np.ndarray)
SCALARS = (str, bytes, int, float, complex, np.generic)

Sizes = frozenset[int]  # Numbers of samples that a batch may have; empty if its parts disagree.
NONE = Sizes()


class SampleSizes:
    """Finds the numbers of samples that the parts of a batch show.

    Args:
        has_batch_size: the loader collates. Then a batch is no single sample, so a scalar in it is
            a remark on the batch. In a batch of other loaders, a scalar shows that it is a sample.

    Attributes:
        seen: all sizes that any part shows.
    """

    def __init__(self, has_batch_size: bool) -> None:
        self._has_batch_size = has_batch_size
        self.seen = set[int]()

    def sizes(self, value: Any, depth: int = 0) -> Sizes | None:
        """Return the sizes that a batch, or a part of one, may have; None if it shows nothing."""
        if isinstance(value, ARRAYS):
            return self._one(int(value.shape[0])) if value.ndim else None
        if value is None or depth == DEEPEST or isinstance(value, SCALARS):
            return None
        kind = type(value)
        if kind is list or kind is tuple:
            return self._of_list(value, depth)
        known_size = None if kind is dict else _known_size(value)
        if known_size is not None:
            return self._one(known_size)
        if isinstance(value, LISTS) and not hasattr(value, "_fields"):
            return self._of_list(value, depth)
        parts = _columns(value)
        return None if parts is None else self._of_columns(parts, depth)

    def _one(self, size: int) -> Sizes:
        self.seen.add(size)
        return Sizes((size,))

    def _of_columns(self, parts: Iterable[Any], depth: int) -> Sizes | None:
        """Return the sizes that all columns show: each has an entry for each sample."""
        columns = list(parts)
        common_sizes = None
        for part in columns:
            sizes = self.sizes(part, depth + 1)
            if sizes is not None:
                common_sizes = sizes if common_sizes is None else common_sizes & sizes
        has_scalar = any(map(_is_scalar, columns))
        if common_sizes is not None and not self._has_batch_size and has_scalar:
            return NONE
        return common_sizes

    def _of_list(self, parts: Any, depth: int) -> Sizes | None:
        """Return the sizes that a list of columns or of samples shows."""
        count = len(parts)
        if not count:
            return None
        if isinstance(parts[0], ARRAYS) and parts[0].ndim and not _may_be_samples(parts):
            return self._of_columns(parts, depth)
        ends = (parts[0], parts[-1])
        if all(map(_is_scalar, parts if count <= LONG else ends)):
            self.seen.add(count)
            # At the top, these may be the numbers of a single sample.
            return Sizes((count,)) if depth else NONE
        if all(map(_has_scalars, parts)):  # Each is a sample, as an image and its class.
            return self._one(count)
        if not _may_be_samples(parts):
            return self._of_columns(parts, depth)
        columns = self._of_columns(parts, depth)
        if columns == NONE:  # They are parts of samples: any size that was seen is possible.
            columns = Sizes(self.seen)
        return self._one(count) | (columns or NONE)


def samples(batch: Any, batch_size: int | None) -> int | None:
    """Return the samples of a batch of a stream, or of a data set that makes batches itself; None
    if it does not show them.

    The samples are the first dimension that all tensors of a batch have, or the length of a list of
    samples. If parts disagree, or a list may hold samples or columns, the loader's batch size
    decides, provided that it is among the sizes.
    """
    shown = SampleSizes(has_batch_size=batch_size is not None)
    sizes = shown.sizes(batch)
    if sizes is None:
        return None
    if batch_size is None:
        return next(iter(sizes)) if len(sizes) == 1 else None
    if batch_size in sizes or (not sizes and batch_size in shown.seen):
        return batch_size
    fitting = [size for size in sizes if size < batch_size]
    return fitting[0] if len(fitting) == 1 else None


def samples_collated(batch: Any, batch_size: int | None, count: int | None) -> int | None:
    """Return the samples of a batch.

    A loader with `batch_size=1` may hand on batches that a stream has made. Then a batch that shows
    another size has no known samples.

    Args:
        count: the rows that the loader collated; None if nobody knows.
    """
    if count is None:
        return samples(batch, batch_size)
    if count == 1 and batch_size == 1:
        sizes = SampleSizes(has_batch_size=True).sizes(batch)
        return count if not sizes or count in sizes else None
    return count


class Collated:
    """Collates as a loader does, and counts the samples that it is given.

    Attributes:
        count: the samples of the last batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self.count: int | None = None

    def __call__(self, rows: Any) -> Any:
        self.count = len(rows) if isinstance(rows, Sized) else None
        return self._collate(rows)


def counted_by(batches: Any) -> Collated | None:
    """Have the iterator of a loader count the samples of a stream if it collates in this process.

    Return None for others: workers collate in their processes, and a batch that a data set makes
    is not collated.
    """
    fetcher = getattr(batches, "_dataset_fetcher", None)
    if type(fetcher) is not _IterableDatasetFetcher or not fetcher.auto_collation:
        return None
    if not isinstance(fetcher.collate_fn, Collated):
        fetcher.collate_fn = Collated(fetcher.collate_fn)
    return fetcher.collate_fn


def _known_size(value: Any) -> int | None:
    """Return the samples of a batch that knows them: of graphs, sequences or a TensorDict."""
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    if isinstance(value, (*LISTS, dict)):
        return None
    for name in ("num_graphs", "batch_size"):
        own = getattr(value, name, None)
        if isinstance(own, torch.Size):
            own = own[0] if own else None
        if isinstance(own, int) and not isinstance(own, bool):
            return own
    return None


def _columns(value: Any) -> Iterable[Any] | None:
    """Return the columns of a mapping, a named tuple or an object with attributes; None for
    anything without parts.
    """
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple):
        return value
    if is_dataclass(value):
        return [getattr(value, field.name, None) for field in fields(value)]
    if callable(value) or not hasattr(value, "__dict__"):
        return None
    return vars(value).values()


def _is_scalar(value: Any) -> bool:
    if isinstance(value, ARRAYS):
        return value.ndim == 0
    return isinstance(value, SCALARS) and not isinstance(value, bool)


def _has_scalars(value: Any) -> bool:
    """Return True for a structure that holds a number or a text directly."""
    if isinstance(value, LISTS):
        return (
            0 < len(value) <= LONG
            and any(map(_is_scalar, value))
            and not all(map(_is_scalar, value))
        )
    return isinstance(value, Mapping) and any(map(_is_scalar, value.values()))


def _may_be_samples(parts: Any) -> bool:
    """Return True if a list may hold samples as well as columns: its elements are of one kind.

    Two tensors are columns: inputs and targets of a language model are of one kind. Tokens of two
    dimensions are columns, too. A picture of a few channels may be a sample.
    """
    first = parts[0]
    if not isinstance(first, ARRAYS):
        return all(_kind(part) == _kind(first) for part in parts)
    if not all(isinstance(part, ARRAYS) and part.ndim == first.ndim for part in parts):
        return False
    if any(part.dtype != first.dtype for part in parts):
        return False
    if first.ndim == 3 and first.shape[0] in CHANNELS:
        return True
    is_tokens = first.ndim == 2 and str(first.dtype).rpartition(".")[2].startswith("int")
    return len(parts) > 2 and not is_tokens


def _kind(value: Any) -> Any:
    """Return a value that is equal for structures of the same form."""
    if isinstance(value, Mapping):
        return type(value), tuple(value)
    if isinstance(value, LISTS):
        return type(value), len(value), type(value[0]) if value else None
    return type(value)
