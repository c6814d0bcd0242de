"""How many samples a batch has, as far as what is in it shows."""

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

DEEPEST = 8  # levels of a batch that are looked at
LONG = 64  # elements of a list, of which the ends tell what the others are
CHANNELS = (1, 3, 4)  # of an image
LISTS = (list, tuple)
ARRAYS = (Tensor, np.ndarray)
SCALARS = (str, bytes, int, float, complex, np.generic)

Sizes = frozenset[int]  # what the samples of a batch may be; none where parts of it disagree
NONE = Sizes()


class SampleSizes:
    """What the parts of a batch show of its samples.

    Args:
        has_batch_size: of a loader that collates. Its batches have no samples as they are, so a
            scalar in one is a remark on the batch. Of other loaders,
            a scalar shows a sample that is no batch.

    Attributes:
        seen: all sizes that any part shows.
    """

    def __init__(self, has_batch_size: bool) -> None:
        self._has_batch_size = has_batch_size
        self.seen = set[int]()

    def sizes(self, value: Any, depth: int = 0) -> Sizes | None:
        """The sizes that a batch, or a part of one, may have; None for what shows nothing."""
        if isinstance(value, ARRAYS):
            return self._one(int(value.shape[0])) if value.ndim else None
        if value is None or depth == DEEPEST or isinstance(value, SCALARS):
            return None
        kind = type(value)
        if kind is list or kind is tuple:
            return self._of_list(value, depth)
        own = None if kind is dict else _own_size(value)
        if own is not None:
            return self._one(own)
        if isinstance(value, LISTS) and not hasattr(value, "_fields"):
            return self._of_list(value, depth)
        parts = _columns(value)
        return None if parts is None else self._of_columns(parts, depth)

    def _one(self, size: int) -> Sizes:
        self.seen.add(size)
        return Sizes((size,))

    def _of_columns(self, parts: Iterable[Any], depth: int) -> Sizes | None:
        """Columns have an entry for each sample, all of them."""
        columns = list(parts)
        found = None
        for part in columns:
            sizes = self.sizes(part, depth + 1)
            if sizes is not None:
                found = sizes if found is None else found & sizes
        if found is not None and not self._has_batch_size and any(map(_is_scalar, columns)):
            return NONE
        return found

    def _of_list(self, parts: Any, depth: int) -> Sizes | None:
        """A list is of columns or of samples."""
        count = len(parts)
        if not count:
            return None
        if isinstance(parts[0], ARRAYS) and parts[0].ndim and not _may_be_samples(parts):
            return self._of_columns(parts, depth)
        ends = (parts[0], parts[-1])
        if all(map(_is_scalar, parts if count <= LONG else ends)):
            self.seen.add(count)
            return Sizes((count,)) if depth else NONE  # else a sample of several numbers, perhaps
        if all(map(_has_scalars, parts)):  # as an image and its class: a sample each
            return self._one(count)
        if not _may_be_samples(parts):
            return self._of_columns(parts, depth)
        columns = self._of_columns(parts, depth)
        if columns == NONE:  # those of samples: which of them, nobody knows
            columns = Sizes(self.seen)
        return self._one(count) | (columns or NONE)


def samples(batch: Any, batch_size: int | None) -> int | None:
    """The samples of a batch of a stream, or of what a data set gives as a batch;
    None where it does not show.

    They are the first dimension that all tensors of a batch have, or the length of a list of
    samples. Where parts disagree, or a list may be of samples and of columns,
    the loader's batch size decides, if it is among the sizes.
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
    """The samples of a batch of which a loader collated so many; None: that is not known.

    A loader with `batch_size=1` may hand on what a stream had made a batch of: then a batch that
    shows another size has no known samples.
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
        count: of the last batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self.count: int | None = None

    def __call__(self, rows: Any) -> Any:
        self.count = len(rows) if isinstance(rows, Sized) else None
        return self._collate(rows)


def counted_by(batches: Any) -> Collated | None:
    """Have the iterator of a loader count the samples of a stream,
    which it collates in this process.

    None for others: workers collate in their own processes,
    and a batch of a data set is not collated.
    """
    fetcher = getattr(batches, "_dataset_fetcher", None)
    if type(fetcher) is not _IterableDatasetFetcher or not fetcher.auto_collation:
        return None
    if not isinstance(fetcher.collate_fn, Collated):
        fetcher.collate_fn = Collated(fetcher.collate_fn)
    return fetcher.collate_fn


def _own_size(value: Any) -> int | None:
    """The samples of a batch that knows them: of graphs, of sequences, or of a TensorDict."""
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
    """The columns of a mapping, a named tuple or an object with attributes;
    None for what has no parts.
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
    """True for a structure with a number or a text of its own."""
    if isinstance(value, LISTS):
        return (
            0 < len(value) <= LONG
            and any(map(_is_scalar, value))
            and not all(map(_is_scalar, value))
        )
    return isinstance(value, Mapping) and any(map(_is_scalar, value.values()))


def _may_be_samples(parts: Any) -> bool:
    """True where the elements of a list are of one kind,
    so that they may be samples as well as columns.

    Two tensors are columns: inputs and targets of a language model are of one kind. So are tokens
    of two dimensions. A picture of a few channels may be a sample.
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
    """Equal for structures that are made alike."""
    if isinstance(value, Mapping):
        return type(value), tuple(value)
    if isinstance(value, LISTS):
        return type(value), len(value), type(value[0]) if value else None
    return type(value)
