"""What a GPU holds beside a run's tensors: a table of terms, each with a stated default, its source and its interval.

No torch. A default is what public documents and issues say; `learned` replaces a term by what records of this machine
say, where they hold both what tensors took and what the GPU gave.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multicard.estimate import gpus
from multicard.estimate.memory.result import Extra
from multicard.records.schema import AnyRecord

MIB = 1 << 20
# Half of the least interval of learned extras, as a share of active bytes, by whether runs are compiled: which tensors
# Inductor makes at all changes with their shapes, and nobody published by how much. An assumption, a third of what
# `compiling` has where half of the active bytes are made in the step.
LEAST_SPREAD = {False: 0.01, True: 0.05}
CUBLAS_BYTES, CUBLAS_HOPPER_BYTES = 8_519_680, 32 * MIB  # torch's own defaults, per stream that multiplies matrices


class Situation(NamedTuple):
    """What the terms depend on.

    active_bytes, made_bytes: of tensors at the peak, and those that compiling may fuse: activations and temporaries.
    torch: the version, (major, minor). gpu: its name, as `NVIDIA H100`. ranks: of the run on a node.
    """

    active_bytes: int
    made_bytes: int
    torch: tuple[int, int]
    gpu: str
    ranks: int
    convolutions: bool
    benchmark: bool = False
    compiled: bool = False
    cuda_graphs: bool = False
    dali_bytes: int = 0

    @property
    def hopper(self) -> bool:
        return (gpus.capability(self.gpu) or (0, 0)) >= (9, 0)


@dataclass(frozen=True)
class Term:
    """One cause of memory: its bytes, (low, expected, high), of a situation; None where it does not arise.

    allocated: whether it comes from torch's allocator, and so is in `peak_memory_bytes` of a record.
    source: where the default is from.
    """

    bytes: Callable[[Situation], tuple[float, float, float] | None]
    allocated: bool
    source: str


def cublas(now: Situation) -> tuple[float, float, float]:
    each = CUBLAS_HOPPER_BYTES if now.hopper else CUBLAS_BYTES
    return each, each, 3 * each  # the most: cuBLASLt's own, and a second stream's


def cudnn(now: Situation) -> tuple[float, float, float] | None:
    if not now.convolutions:
        return None
    return (0, 256 * MIB, 2048 * MIB) if now.benchmark else (0, 32 * MIB, 512 * MIB)


def compiling(now: Situation) -> tuple[float, float, float] | None:
    if not now.compiled:
        return None
    higher = 0.15 if now.torch >= (2, 10) else 0.0
    low, expected, high = (factor * now.made_bytes for factor in (-0.5, -0.2, higher))
    return low, expected, high + (0.1 * now.active_bytes if now.cuda_graphs else 0.0)


def slack(now: Situation) -> tuple[float, float, float]:
    # segments are of 2 or 20 MiB, or of what a larger request needs
    return 2 * MIB, 20 * MIB + 0.05 * now.active_bytes, 60 * MIB + 0.15 * now.active_bytes


def nccl(now: Situation) -> tuple[float, float, float] | None:
    if now.ranks == 1:
        return None
    return 200 * MIB, (544 if now.ranks == 2 else 688) * MIB, 1600 * MIB


TERMS: dict[str, Term] = {
    "cublas": Term(
        cublas,
        True,
        "torch allocates 8.125 MiB, on Hopper 32 MiB: discuss.pytorch.org/t/178671, pytorch/pytorch pull 120925",
    ),
    "cudnn": Term(
        cudnn,
        True,
        "an assumption: 1 x 1 and depthwise convolutions need little; TORCH_CUDNN_V8_API and cudnn.benchmark choose",
    ),
    "compile": Term(
        compiling,
        True,
        "a fifth less in pytorch/torchdynamo issue 1479, a third less of a published LoRA figure; more in "
        "pytorch/pytorch issue 122512 and from torch 2.10 on",
    ),
    "slack": Term(
        slack,
        False,
        "reserved 11 % above allocated in pytorch/pytorch issue 40989; segments are of 2 or 20 MiB",
    ),
    "context": Term(
        lambda now: (300 * MIB, (520 if now.hopper else 400) * MIB, 900 * MIB),
        False,
        "300 MB and more since kernels are loaded lazily: pytorch/pytorch issue 107667",
    ),
    "nccl": Term(nccl, False, "544 MB on 2 GPUs and 688 MB on 4: NVIDIA/nccl issue 964; up to 1.6 GB: issue 864"),
    "dali": Term(
        lambda now: (now.dali_bytes, 2 * now.dali_bytes, 5 * now.dali_bytes) if now.dali_bytes else None,
        False,
        "an assumption: DALI's own pool holds its queue of batches, and the stages before it",
    ),
}


class Measured(NamedTuple):
    """A run of which both are known: `active_bytes` of its tensors as predicted, and what was `measured_bytes`, by
    torch's allocator. `ran_out`: it needed more than that."""

    active_bytes: int
    measured_bytes: int
    ran_out: bool = False


def of(now: Situation) -> dict[str, Extra]:
    """The extras of a situation, by the terms' names."""
    values = {name: term.bytes(now) for name, term in TERMS.items()}
    return {
        name: Extra(round(expected), round(low), round(high))
        for name, value in values.items()
        if value is not None
        for low, expected, high in (value,)
    }


def summed(terms: Sequence[Extra]) -> tuple[int, int, int]:
    """The sum, and the ends of its 90 % interval: the deviations of independent terms add as squares."""
    expected = sum(term.bytes for term in terms)
    low, high = (
        sum(deviation**2 for deviation in side) ** 0.5
        for side in ([term.bytes - term.low_bytes for term in terms], [term.high_bytes - term.bytes for term in terms])
    )
    return expected, round(expected - low), round(expected + high)


def learn(records: Sequence[AnyRecord]) -> list[Measured]:
    """What records of one GPU and one version of torch say, of whole runs with like extras: those that ended, and those
    that ran out of memory. A record says nothing that has no prediction of its active bytes."""
    runs: list[Measured] = []
    for record in records:
        active_bytes = record.prediction.active_bytes if record.prediction is not None else None
        peak, cause = record.peak_memory_bytes, record.cause
        if not active_bytes or record.oversubscribed:
            continue
        if record.status == "ok" and peak is not None and peak.kind == "cuda_allocated" and peak.max:
            runs.append(Measured(active_bytes, peak.max))
        elif record.status == "oom" and cause is not None and cause.memory_bytes:
            runs.append(Measured(active_bytes, cause.memory_bytes, ran_out=True))
    return runs


def learned(runs: Sequence[Measured], active_bytes: int, compiled: bool = False) -> Extra | None:
    """What runs of this machine take beyond their tensors, for a run like theirs: one extra in the place of the terms
    that torch's allocator knows. None for fewer than three that ended, of which nothing is known of the spread.

    Its interval is from the median to the median grown with the active bytes, each with twice the spread of the middle
    half (the quartiles' distance), at least LEAST_SPREAD of the active bytes: a few runs do not show the worst. A run
    with no more tensors that ran out of memory raises the upper end: this one may take what that one had at the least.
    """
    ended = [run for run in runs if not run.ran_out]
    if len(ended) < 3:
        return None
    beyond = sorted(run.measured_bytes - run.active_bytes for run in ended)
    lower, middle, upper = statistics.quantiles(beyond, n=4, method="inclusive")
    grown = middle * active_bytes / statistics.median(run.active_bytes for run in ended)
    reach = max(2 * (upper - lower), LEAST_SPREAD[compiled] * active_bytes)
    ran_out = [run for run in runs if run.ran_out and run.active_bytes <= active_bytes]
    exceeded = [run.measured_bytes - run.active_bytes for run in ran_out]
    low, high = min(middle, grown) - reach, max(middle, grown) + reach
    return Extra(round(middle), round(low), round(max([high, *exceeded])))
