"""Whether a script trains on each of several batches that it is handed between two calls of backward.

The order of calls does not show it: the script may add their losses, or train on one of them and skip the others. The
operations between show it. Each tensor that is computed from a batch is known as that batch's, up to the losses of
which gradients are computed. A few steps of such a script are watched in this way, which makes them slower: they are
left out of its times.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from multicard.script.passes import Pass

DEEPEST = 8  # levels of a batch that are looked at
ENOUGH = 2  # groups of several batches that are watched
LATER = 2  # groups after which a batch that was read ahead has been trained on
LONGEST = 24  # groups that are watched at most
NO_BATCHES = frozenset[int]()


class Contributions:
    """Watches which batches reach a call of backward, where several are handed out before it.

    Attributes:
        is_open: operations are watched now.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._seen_before: list[Any] = []  # sources of which several batches came before a call of backward
        self._found: list[tuple[Any, bool | None]] = []  # sources, and whether each batch is trained on
        self._window: _Window | None = None
        self._operations = _Operations()

    def trains_on_all(self, source: Any) -> bool | None:
        """True where each batch of several was trained on, False where one was not, None where nobody knows."""
        return next((found for each, found in self._found if each is source), None)

    def receives(self, one: Pass, trains: bool, batch: Any) -> None:
        """A batch was handed out, and is the last of its pass."""
        if one.in_thread:
            return
        begins_group = len(one.backwards) < 2 or one.backwards[-1] != one.backwards[-2]
        if self._window is not None and one.source is self._window.source and trains:
            if begins_group:
                self._begins_group(self._window)
        elif self._window is None and trains and begins_group and self._may_open(one.source):
            self._window = _Window(one.source)
            self._window.groups.append([])
            self.is_open = True
        elif trains and not begins_group and one.backwards[-1] != one.backwards[0]:  # no first ones, read ahead
            self._seen_before.append(one.source)
        if self._window is not None and one.source is self._window.source and trains:
            number = self._window.add()
            self._operations.marks(_tensors(batch), number)
        if self.is_open and trains:
            self._operations.watch()
        else:
            self._operations.rest()

    def _may_open(self, source: Any) -> bool:
        if any(each is source for each, _ in self._found) or _has_compiled():
            return False
        return any(each is source for each in self._seen_before)

    def _begins_group(self, window: "_Window") -> None:
        if window.may_end():
            self._found.append((window.source, window.verdict()))
            self.close()
        else:
            window.groups.append([])

    def computes(self, losses: Any) -> None:
        """Gradients of these are about to be computed."""
        if self._window is not None:
            self._window.reached |= self._operations.batches_of(tree_leaves(losses))
        self._operations.rest()

    def computed(self) -> None:
        """They were computed."""
        if self.is_open:
            self._operations.watch()

    def rest(self) -> None:
        """Watch nothing before the next batch, as where processes are forked."""
        self._operations.rest()

    def close(self) -> None:
        """Watch nothing any more."""
        self.is_open, self._window = False, None
        self._operations.rest()
        self._operations.clear()


@dataclass
class _Window:
    """Groups of batches of a source that were handed out between two calls of backward, while they are watched.

    Attributes:
        groups: numbers of their batches. reached: of batches from which a loss was computed.
    """

    source: Any
    groups: list[list[int]] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)
    _count: int = 0

    def add(self) -> int:
        """Number a further batch of the last group."""
        self._count += 1
        self.groups[-1].append(self._count)
        return self._count

    def may_end(self) -> bool:
        """True where enough groups have ended long enough ago."""
        several = [place for place, group in enumerate(self.groups) if len(group) > 1]
        is_enough = len(several) >= ENOUGH and len(self.groups) > several[ENOUGH - 1] + LATER
        return is_enough or len(self.groups) >= LONGEST

    def verdict(self) -> bool | None:
        """As `Contributions.trains_on_all`."""
        if not self.reached:  # what computes the losses hides what it computes from
            return None
        settled = self.groups[: max(0, len(self.groups) - LATER)]
        return all(number in self.reached for group in settled for number in group)


class _Operations(TorchDispatchMode):
    """Carries the numbers of batches along the operations that read them."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: Any = WeakTensorKeyDictionary()  # numbers, by the tensor that was computed from them
        self._is_active = False

    def watch(self) -> None:
        if not self._is_active:
            self._is_active = True
            self.__enter__()

    def rest(self) -> None:
        """Stop, unless the script has begun to watch by itself: then when that has ended."""
        if self._is_active and _get_current_dispatch_mode() is self:
            self._is_active = False
            self.__exit__(None, None, None)

    def clear(self) -> None:
        self._batches = WeakTensorKeyDictionary()

    def marks(self, tensors: Iterable[Tensor], number: int) -> None:
        """These are of that batch."""
        for tensor in tensors:
            self._batches[tensor] = self._batches.get(tensor, NO_BATCHES) | {number}

    def batches_of(self, values: Iterable[Any]) -> frozenset[int]:
        """The batches from which any of these was computed."""
        found = [self._batches.get(value, NO_BATCHES) for value in values if isinstance(value, Tensor)]
        return NO_BATCHES.union(*found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        batches = self.batches_of(tree_leaves((args, kwargs)))
        if batches:
            for value in tree_leaves(result):
                if isinstance(value, Tensor):
                    self._batches[value] = self._batches.get(value, NO_BATCHES) | batches
        return result


def _has_compiled() -> bool:
    """True where torch.compile is in use: its graphs hide their operations, and a mode would have it compile anew."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in a batch."""
    if isinstance(value, Tensor):
        yield value
        return
    if depth == DEEPEST or isinstance(value, (str, bytes)):
        return
    for part in _parts(value):
        yield from _tensors(part, depth + 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if is_dataclass(value):
        return [getattr(value, each.name, None) for each in fields(value)]
    return vars(value).values() if hasattr(value, "__dict__") and not callable(value) else ()
