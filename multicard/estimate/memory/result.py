"""What a prediction of memory says. No torch."""

from typing import Literal

import msgspec

# Of a run's active bytes:
#   weights: parameters and buffers; gathered copies are buckets
#   gradients: of the parameters, until the optimiser drops them
#   optimizer: its states
#   activations: made in the forward pass
#   buckets: DDP's buckets, FSDP's gathered weights and the gradients that it is about to reduce
#   batch: images and labels, or tokens, labels and masks, on the device
#   resident: the data set of loader=device
#   temporaries: made in the backward pass or by the optimiser, and none of the others
KINDS: tuple[str, ...] = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "buckets",
    "batch",
    "resident",
    "temporaries",
)
Fits = Literal["yes", "tight", "no"]


class Active(msgspec.Struct, frozen=True):
    """The tensors of a step without values; the fields are those of `PeakMemory`."""

    active_bytes: int
    by_kind: dict[str, int]
    phase: str
    operator: str
    by_phase: dict[str, int]
    seconds: float


class Extra(msgspec.Struct, frozen=True):
    """Memory of a GPU that no tensor of the run holds, in bytes, with its 90 % interval."""

    bytes: int
    low_bytes: int
    high_bytes: int


class PeakMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory that a rank of a run takes, in bytes.

    Fields:
        active_bytes: of tensors, as `torch.cuda.max_memory_allocated` counts them, workspaces of libraries left out.
        by_kind: what they are at the peak; the sum is `active_bytes`.
        phase: in which the peak is: setup, data, forward, backward or optimizer; operator: that reached it.
        by_phase: the peak of each phase.
        extras: what is added to them, by name.
        allocated_bytes, allocated_low_bytes, allocated_high_bytes: what the record's `peak_memory_bytes` will say, and
            its 90 % interval: active bytes, and the workspaces that come from torch's allocator.
        total_bytes, low_bytes, high_bytes: what the GPU must have: with the allocator's slack, the CUDA context and
            NCCL, and the 90 % interval of it.
        basis: what the prediction rests on, in words.
        seconds: that it took to compute.
    """

    active_bytes: int
    by_kind: dict[str, int]
    phase: str
    operator: str
    by_phase: dict[str, int]
    extras: dict[str, Extra]
    allocated_bytes: int
    allocated_low_bytes: int
    allocated_high_bytes: int
    total_bytes: int
    low_bytes: int
    high_bytes: int
    basis: str
    seconds: float

    def fits(self, memory_bytes: int) -> Fits:
        """Whether a GPU of so much memory holds the run: "yes" where the whole interval does, "no" where none of it
        does, and "tight" between."""
        return fits(self.low_bytes, self.high_bytes, memory_bytes)


def fits(low_bytes: float, high_bytes: float, memory_bytes: int) -> Fits:
    """`PeakMemory.fits` of any interval."""
    if high_bytes <= memory_bytes:
        return "yes"
    return "no" if low_bytes > memory_bytes else "tight"
