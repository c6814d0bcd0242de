"""Count the bytes of live storages by kind, at each dispatched operator.

It works for fake and real tensors. torch's `torch.distributed._tools.MemTracker` counts the same
totals, and `tests/helpers/real_peaks.py` compares the two. It is not used here for three reasons:
it does not see inside NF4 tensors, which have no `__tensor_flatten__`; it does not know the kind of
FSDP's buffers; its statistics of each module triple the time of a step.
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

from multicard.estimate.memory.torch_internals import pausing_for_sharding_propagation
from multicard.records.rank_files import ModelSizes

# no roles: kinds of bytes
KINDS = (  # Of a run's active bytes.
    "weights",  # Parameters and buffers. Gathered copies are buckets.
    "gradients",  # Of the parameters, until the optimizer drops them.
    "optimizer",  # Optimizer state.
    "activations",  # Made in the forward pass.
    # DDP's buckets, FSDP's gathered weights, and the gradients that it is about to reduce.
    "buckets",
    "batch",  # Images and labels, or tokens, labels and masks, on the device.
    "resident",  # The data set of loader=device.
    "temporaries",  # Made in the backward pass or by the optimizer, if of no other kind.
)
HOST = "host"  # The kind of tensors that an offloading rank keeps in the host's memory.
CUDA_BLOCK_BYTES = 512  # The caching allocator counts in units of this size.
NF4_PARTS = ("quantized_scalers", "quantization_factor", "scaler_mean", "quantized_data", "nf4")
# Tensor subclasses whose operators are dispatched again on the tensors inside.
WRAPPERS = ("DTensor", "NF4Tensor", "AsyncCollectiveTensor")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with storages of their own that make up a tensor.

    A tensor that wraps no others yields itself.
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
class LiveStorage:
    """A storage in memory. `end` is called when it is freed."""

    kind: str
    end: weakref.finalize
    bytes: int = 0


class Tracker(TorchDispatchMode):
    """Follows the storages on one kind of device while it is entered.

    A storage counts from the operator that makes it until Python and autograd have dropped it. Its
    size is the size after the last `resize_`, by which FSDP frees and refills gathered weights. Its
    kind is the one it was noted as. Without a note, it is `activations` if made in the forward
    pass, and otherwise `temporaries`.

    Args:
        block_bytes: storages are rounded up to a multiple of it. 1 means no rounding.
        offloads: True if parameters, their gradients and the optimizer's states are in the host's
            memory. They then count as zero bytes.

    Attributes:
        is_forward: True during a forward pass. Callers set it.
        now: bytes by kind.
        peak_bytes, peak_now: the largest total so far, and the bytes by kind at that time.
        kinds: the kinds that existed at any time.
        sizes: sizes of a folder's model. Callers set it.
        operators: result types of each operator, by its name without the overload. Checks use it.
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
        self._live: dict[int, LiveStorage] = {}  # By the address of the storage's implementation.

    def restart_peak(self) -> None:
        """Forget the peak so far, as a run does before it trains."""
        self.peak_bytes = 0
        self._update_peak()

    def note(
        self, tensors: Iterable[torch.Tensor | None] | torch.Tensor | None, kind: str | None = None
    ) -> None:
        """Count the storages of tensors. If a kind is given, count them as this kind."""
        for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors or ():
            if tensor is not None:
                for part in plain_tensors(tensor):
                    if part.device.type == self.device_type:
                        self._note(part.untyped_storage(), kind)
        self._update_peak()

    def note_model(self, model: nn.Module) -> None:
        """Count parameters and buffers as weights, and each gradient once it is accumulated."""
        self.note(model.buffers(), "weights")
        self.note(model.parameters(), self._parameter_kind("weights"))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda p: self.note(p.grad, self._parameter_kind("gradients"))
                )

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Count the states of an optimizer."""
        for state in optimizer.state.values():
            values = [value for value in state.values() if isinstance(value, torch.Tensor)]
            self.note(values, self._parameter_kind("optimizer"))

    def make_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer step once without a batch, and count its states.

        In every step except the first, they exist from the start.
        """
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.note_states(optimizer)

    def _parameter_kind(self, kind: str) -> str:
        """Return the kind of memory that belongs to the parameters: HOST if they are offloaded."""
        return HOST if self.offloads else kind

    def _note(self, storage: torch.UntypedStorage, kind: str | None) -> None:
        address = storage._cdata
        live = self._live.get(address)
        if live is None:
            if not storage.nbytes() and kind is None:
                return
            end = weakref.finalize(storage, self._forget_storage, address)
            end.atexit = False
            default_kind = "activations" if self.is_forward else "temporaries"
            live = self._live[address] = LiveStorage(kind or default_kind, end)
        elif kind is not None and live.kind != kind:
            self.now[live.kind] -= live.bytes
            self.now[kind] += live.bytes
            live.kind = kind
        self.kinds.add(live.kind)
        self._update_size(live, storage)

    def _update_size(self, live: LiveStorage, storage: torch.UntypedStorage) -> None:
        now_bytes = (
            0 if live.kind == HOST else -(-storage.nbytes() // self.block_bytes) * self.block_bytes
        )
        change = now_bytes - live.bytes
        if change:
            self.now[live.kind] += change
            self.total += change
            live.bytes = now_bytes

    def _forget_storage(self, address: int) -> None:
        live = self._live.pop(address)
        self.now[live.kind] -= live.bytes
        self.total -= live.bytes

    def _update_peak(self) -> None:
        if self.total > self.peak_bytes:
            self.peak_bytes = self.total
            self.peak_now = dict(self.now)

    def __enter__(self) -> "Tracker":
        resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            live = self._live.get(storage._cdata)
            if live is not None:
                self._update_size(live, storage)
                self._update_peak()
            elif size:  # FSDP refills the memory of gathered weights.
                self._note(storage, "buckets")
                self._update_peak()
            return result

        pause = partial(setattr, self, "_paused")
        self._patches = [
            mock.patch.object(torch.UntypedStorage, "resize_", resize_),
            pausing_for_sharding_propagation(pause),
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
        dtypes = self.operators.setdefault(name, set())
        for result in tree_leaves(out):
            if isinstance(result, torch.Tensor):
                dtypes.add(result.dtype)
                if result.device.type == self.device_type:
                    self._note(result.untyped_storage(), None)
        if name.startswith("c10d::"):
            self._note_collective(name, args)
        self._update_peak()
        return out

    def _note_collective(self, name: str, args: Any) -> None:
        """Count the inputs and outputs of a collective as buckets.

        The output of FSDP's reduction becomes gradients.
        """
        reduces = "reduce_scatter" in name
        for index, arg in enumerate(args[:2]):
            kind = self._parameter_kind("gradients") if reduces and index == 0 else "buckets"
            for tensor in tree_leaves(arg):
                if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device_type:
                    storage = tensor.untyped_storage()
                    live = self._live.get(storage._cdata)
                    if live is None or live.kind in ("activations", "temporaries"):
                        self._note(storage, kind)
