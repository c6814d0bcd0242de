"""Bytes of live storages by kind, counted where operators are
dispatched: for fake tensors and real ones.

torch's own `torch.distributed._tools.MemTracker` counts the same totals, and
`tests/helpers/real_peaks.py` compares the two. It is not used here because it sees neither what is
inside NF4 tensors, which have no `__tensor_flatten__`, nor which kind FSDP's buffers are,
and it keeps statistics of each module that triple the time of a step.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from multicard.estimate.memory.torch_internals import sharding_unseen
from multicard.records.rank_files import ModelSizes

# no roles: kinds of bytes
KINDS = (  # of a run's active bytes
    "weights",  # parameters and buffers; gathered copies are buckets
    "gradients",  # of the parameters, until the optimiser drops them
    "optimizer",  # its states
    "activations",  # made in the forward pass
    # DDP's buckets, FSDP's gathered weights and the gradients that it is about to reduce
    "buckets",
    "batch",  # images and labels, or tokens, labels and masks, on the device
    "resident",  # the data set of loader=device
    "temporaries",  # made in the backward pass or by the optimiser, and none of the others
)
HOST = "host"  # the kind of what a rank that offloads has in the host's memory instead
CUDA_BLOCK_BYTES = 512  # the unit in which the caching allocator counts
NF4_PARTS = ("quantized_scalers", "quantization_factor", "scaler_mean", "quantized_data", "nf4")
# dispatched again on the tensors inside
WRAPPERS = ("DTensor", "NF4Tensor", "AsyncCollectiveTensor")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storages of their own that a tensor is made of: itself,
    unless it wraps others.
    """
    if type(tensor).__name__ == "NF4Tensor":
        for name in NF4_PARTS:
            yield getattr(tensor, name)
    elif is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
    else:
        yield tensor


@dataclass(slots=True)
class _Live:
    """A storage that is in memory, until `end`."""

    kind: str
    end: weakref.finalize
    bytes: int = 0


class Tracker(TorchDispatchMode):
    """Follows the storages of one kind of device while it is entered.

    A storage counts from the operator that makes it until Python and autograd have dropped it, at
    the size that
    `resize_` gives it: FSDP frees and refills gathered weights by it. Its kind is the one that it
    was noted as, else `activations` if it was made in the forward pass, else `temporaries`.

    Args:
        block_bytes: storages are rounded up to a multiple of it; 1 counts them as they are.
        offloads: parameters, their gradients and the optimiser's states are in the host's memory,
            and count nothing.

    Attributes:
        is_forward: the run is in a forward pass, as set from outside.
        now: bytes by kind; peak_bytes, peak_now: when they were most together.
        kinds: that were there at any time.
        sizes: of a folder's model, as set from outside.
        operators: the result types seen for each operator, by its name without the overload;
            for assertions.
    """

    def __init__(
        self, device_type: str, block_bytes: int = CUDA_BLOCK_BYTES, offloads: bool = False
    ) -> None:
        super().__init__()
        self.offloads = offloads
        self.device_type = device_type
        self.block_bytes = block_bytes
        self.is_forward = False
        self.now: dict[str, int] = dict.fromkeys((*KINDS, HOST), 0)
        self.total = self.peak_bytes = 0
        self.peak_now = dict(self.now)
        self.operators: dict[str, set[torch.dtype]] = {}
        self.kinds: set[str] = set()
        self.sizes: ModelSizes | None = None
        self._paused = False
        self._patches = []
        self._live: dict[int, _Live] = {}  # by the address of the storage's implementation

    def restart_peak(self) -> None:
        """Forget the peak so far, as a run does before it trains."""
        self.peak_bytes = 0
        self._compare()

    def note(
        self, tensors: Iterable[torch.Tensor | None] | torch.Tensor | None, kind: str | None = None
    ) -> None:
        """Count the storages of tensors, as of a kind if one is named."""
        for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors or ():
            if tensor is not None:
                for part in plain_tensors(tensor):
                    if part.device.type == self.device_type:
                        self._note(part.untyped_storage(), kind)
        self._compare()

    def note_model(self, model: nn.Module) -> None:
        """Count parameters and buffers as weights,
        and each gradient as such as soon as it is accumulated.
        """
        self.note(model.buffers(), "weights")
        self.note(model.parameters(), self._held("weights"))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda p: self.note(p.grad, self._held("gradients"))
                )

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Count an optimiser's states as such."""
        for state in optimizer.state.values():
            values = [value for value in state.values() if isinstance(value, torch.Tensor)]
            self.note(values, self._held("optimizer"))

    def make_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimiser step once without a batch,
        and count the states that it has in every step but the first.
        """
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.note_states(optimizer)

    def _held(self, kind: str) -> str:
        """The kind of what belongs to the parameters."""
        return HOST if self.offloads else kind

    def _note(self, storage: torch.UntypedStorage, kind: str | None) -> None:
        address = storage._cdata
        live = self._live.get(address)
        if live is None:
            if not storage.nbytes() and kind is None:
                return
            end = weakref.finalize(storage, self._gone, address)
            end.atexit = False
            first = "activations" if self.is_forward else "temporaries"
            live = self._live[address] = _Live(kind or first, end)
        elif kind is not None and live.kind != kind:
            self.now[live.kind] -= live.bytes
            self.now[kind] += live.bytes
            live.kind = kind
        self.kinds.add(live.kind)
        self._resized(live, storage)

    def _resized(self, live: _Live, storage: torch.UntypedStorage) -> None:
        now_bytes = (
            0 if live.kind == HOST else -(-storage.nbytes() // self.block_bytes) * self.block_bytes
        )
        change = now_bytes - live.bytes
        if change:
            self.now[live.kind] += change
            self.total += change
            live.bytes = now_bytes

    def _gone(self, address: int) -> None:
        live = self._live.pop(address)
        self.now[live.kind] -= live.bytes
        self.total -= live.bytes

    def _compare(self) -> None:
        if self.total > self.peak_bytes:
            self.peak_bytes = self.total
            self.peak_now = dict(self.now)

    def __enter__(self) -> "Tracker":
        resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            live = self._live.get(storage._cdata)
            if live is not None:
                self._resized(live, storage)
                self._compare()
            elif size:  # FSDP refills the memory of gathered weights
                self._note(storage, "buckets")
                self._compare()
            return result

        pause = partial(setattr, self, "_paused")
        self._patches = [
            mock.patch.object(torch.UntypedStorage, "resize_", resize_),
            sharding_unseen(pause),
        ]
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for patch in self._patches:
            patch.stop()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ in WRAPPERS for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if self._paused:
            return out
        name = func._schema.name
        seen = self.operators.setdefault(name, set())
        for result in tree_leaves(out):
            if isinstance(result, torch.Tensor):
                seen.add(result.dtype)
                if result.device.type == self.device_type:
                    self._note(result.untyped_storage(), None)
        if name.startswith("c10d::"):
            self._note_collective(name, args)
        self._compare()
        return out

    def _note_collective(self, name: str, args: Any) -> None:
        """Count what a collective reads and writes as buckets;
        what FSDP reduces into becomes gradients.
        """
        reduces = "reduce_scatter" in name
        for place, arg in enumerate(args[:2]):
            kind = self._held("gradients") if reduces and place == 0 else "buckets"
            for tensor in tree_leaves(arg):
                if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device_type:
                    storage = tensor.untyped_storage()
                    live = self._live.get(storage._cdata)
                    if live is None or live.kind in ("activations", "temporaries"):
                        self._note(storage, kind)
