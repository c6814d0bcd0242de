"""Watches the operations of a script, to find the batches that a loss was computed from.

torch keeps a mode in its thread-local state. Several contexts save that state when they begin, and
restore it when they end. A mode that begins within `torch.inference_mode()` and ends after it
leaves torch in a state that fails at the next operation. This mode begins at one hook and ends at
another. So it is taken off wherever the script enters or leaves such a context, and put on again
afterwards.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

DEEPEST = 8  # Levels of a batch that are looked at.
NO_BATCHES = frozenset[int]()
OUTSIDE = -1  # The number of the backward pass if there is none.


class Operations(TorchDispatchMode):
    """Carries the numbers of batches along the operations that read them.

    A model may compute something from a batch without gradients, or detach it: a teacher's answers,
    for instance, or a threshold. These are constants. A loss does not belong to the batches of its
    constants.
    """

    def __init__(self) -> None:
        super().__init__()
        # Numbers of batches, by the tensor that was computed from them.
        self._batches: Any = WeakTensorKeyDictionary()
        self._constants: Any = WeakTensorKeyDictionary()  # All values are True.
        self._thread = threading.get_ident()  # A mode belongs to one thread.
        self._is_wanted = False
        # torch has the mode. If it cannot be taken off, it passes operations on unwatched.
        self._is_on = False
        self._state: object = None  # The state of torch when the mode was put on.

    def use_this_thread(self) -> None:
        """Watch this thread, since it trains."""
        if not self._is_on:
            self._thread = threading.get_ident()

    def watch(self) -> None:
        self._is_wanted = True
        self._put_on()

    def pause(self) -> None:
        self._is_wanted = False
        self._take_off()

    @contextmanager
    def crossed(self, context: object = None) -> Iterator[None]:
        """Watch nothing while the script enters or leaves a context that may save torch's state.

        Args:
            context: the context. If it is this mode, the script has nothing to do with it.
        """
        if context is self:
            yield
            return
        self._take_off()
        try:
            yield
        finally:
            if self._is_wanted:
                self._put_on()

    def _put_on(self) -> None:
        if self._is_on or not self._may_change():
            return
        self._is_on = True
        self._state = _state()
        self.__enter__()

    def _take_off(self) -> None:
        if not self._is_on or not self._may_change():
            return
        if _get_current_dispatch_mode() is not self or _state() != self._state:
            return
        self.__exit__(None, None, None)
        self._is_on = False

    def _may_change(self) -> bool:
        """Return False in other threads, and in hooks of a backward pass: torch restores its state
        after them.
        """
        return (
            threading.get_ident() == self._thread and torch._C._current_graph_task_id() == OUTSIDE
        )

    def clear(self) -> None:
        self._batches = WeakTensorKeyDictionary()
        self._constants = WeakTensorKeyDictionary()

    def mark(self, tensors: Iterable[Tensor], number: int) -> None:
        """Note that these tensors belong to a batch."""
        for tensor in tensors:
            self._batches[tensor] = self._batches.get(tensor, NO_BATCHES) | {number}

    def batches_of(self, values: Iterable[Any]) -> frozenset[int]:
        """Return the batches from which any of these values was computed."""
        found = [
            self._batches.get(value, NO_BATCHES) for value in values if isinstance(value, Tensor)
        ]
        return NO_BATCHES.union(*found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._is_wanted:
            return result
        read = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        ends = not torch.is_grad_enabled() or func is torch.ops.aten.detach.default
        if ends and any(value.requires_grad or value in self._constants for value in read):
            for value in made:
                self._constants[value] = True
            return result
        batches = self.batches_of(read)
        for value in made if batches else ():
            self._batches[value] = self._batches.get(value, NO_BATCHES) | batches
        return result


def _state() -> object:
    """Return what contexts of torch change that save and restore its state.

    It shows contexts, too, that no hook sees.
    """
    without_autograd = torch._C._dispatch_tls_is_dispatch_key_excluded("AutogradCPU")
    return torch.is_inference_mode_enabled(), without_autograd


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Yield the tensors in a batch."""
    if isinstance(value, Tensor):
        yield value
        return
    if depth == DEEPEST or isinstance(value, (str, bytes)):
        return
    for part in _parts(value):
        yield from tensors_in(part, depth + 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if is_dataclass(value):
        return [getattr(value, each.name, None) for each in fields(value)]
    return vars(value).values() if hasattr(value, "__dict__") and not callable(value) else ()
