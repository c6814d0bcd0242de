"""Memory of a GPU beside a run's tensors, in bytes: stated by public documents and issues, with a 90 % interval.

No torch. `learned` replaces the part of torch's allocator by that of records of this machine.
"""

import statistics
from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

from multicard.config import compilation
from multicard.config.base import RunConfig
from multicard.config.vision import VisionConfig
from multicard.estimate.memory.answers import Active
from multicard.estimate.target import Target, capability
from multicard.records.schema import AnyRecord
from multicard.records.schema_parts import Interval
from multicard.vision.strategy import compiles

MIB = 1 << 20
ALLOCATED = ("cublas", "cudnn", "compile", "learned")  # from torch's allocator: in `peak_memory_bytes` of a record
# Half of the least interval of learned extras, as a share of active bytes, by whether runs are compiled: which tensors
# Inductor makes at all changes with their shapes, and nobody published by how much. An assumption, a third of what
# compiled runs have below where half of the active bytes are made in the step.
LEAST_SPREAD = {False: 0.01, True: 0.05}


def torch_version() -> tuple[int, int]:
    """The installed torch's version: (major, minor)."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def is_compiled(config: RunConfig, device_type: str) -> bool:
    if isinstance(config, VisionConfig):
        return compiles(config, device_type)
    return bool(getattr(config, "compile", False))


def extras_of(config: RunConfig, target: Target, active: Active) -> dict[str, Interval]:
    """The extras of a run on a GPU, by name."""
    hopper = (capability(target.gpu) or (0, 0)) >= (9, 0)
    ranks, vision = config.gpus * config.nodes, isinstance(config, VisionConfig)
    # what torch allocates for each stream that multiplies matrices (discuss.pytorch.org/t/178671, pytorch/pytorch pull
    # 120925); at most cuBLASLt's own too, and a second stream's
    cublas = 32 * MIB if hopper else 8_519_680
    terms: dict[str, tuple[float, float, float]] = {"cublas": (cublas, cublas, 3 * cublas)}
    if vision:  # an assumption: 1 x 1 and depthwise convolutions need little; what is chosen depends on cudnn.benchmark
        searched = bool(getattr(config, "cudnn_benchmark", False))
        terms["cudnn"] = (0, 256 * MIB, 2048 * MIB) if searched else (0, 32 * MIB, 512 * MIB)
    if is_compiled(config, target.device_type):
        # of what compiling may fuse a fifth less in pytorch/torchdynamo issue 1479, a third less in a published LoRA
        # figure; more in pytorch/pytorch issue 122512 and from torch 2.10 on
        made = sum(active.by_kind.get(kind, 0) for kind in ("activations", "temporaries"))
        highest = (0.15 if torch_version() >= (2, 10) else 0.0) * made
        graphs = 0.1 * active.active_bytes if compilation.has_cuda_graphs(getattr(config, "compile", False)) else 0.0
        terms["compile"] = -0.5 * made, -0.2 * made, highest + graphs
    # reserved 11 % above allocated in pytorch/pytorch issue 40989; segments are of 2 or 20 MiB, or of what a larger
    # request needs
    slack = 20 * MIB + 0.05 * active.active_bytes, 60 * MIB + 0.15 * active.active_bytes
    terms["slack"] = (2 * MIB, *slack)
    # 300 MB and more since kernels are loaded lazily: pytorch/pytorch issue 107667
    terms["context"] = 300 * MIB, (520 if hopper else 400) * MIB, 900 * MIB
    if ranks > 1:  # 544 MB on 2 GPUs and 688 MB on 4: NVIDIA/nccl issue 964; up to 1.6 GB: issue 864
        terms["nccl"] = 200 * MIB, (544 if ranks == 2 else 688) * MIB, 1600 * MIB
    if isinstance(config, VisionConfig) and config.loader.name == "dali" and "batch" in active.by_kind:
        # an assumption: DALI's own pool holds its queue of batches, and the stages before it
        queue = 3 * active.by_kind["batch"]
        terms["dali"] = queue, 2 * queue, 5 * queue
    return {name: Interval(round(value), round(low), round(high)) for name, (low, value, high) in terms.items()}


class Measured(NamedTuple):
    """Bytes of a run: `active_bytes` of its tensors as predicted, `measured_bytes` of torch's allocator.
    ran_out: the run needed more."""

    active_bytes: int
    measured_bytes: int
    ran_out: bool = False


def learn(records: Sequence[AnyRecord]) -> list[Measured]:
    """The bytes of records of one GPU and one version of torch, with like extras: whole runs that ended, and those that
    ran out of memory. A record without a prediction of its active bytes does not count."""
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


def learned(runs: Sequence[Measured], active_bytes: int, compiled: bool = False) -> Interval | None:
    """Memory of runs of this machine beyond their tensors, for a run like theirs: one extra in the place of the terms
    that torch's allocator knows. None for fewer than three that ended, whose spread is not known.

    Its interval is from the median to the median grown with the active bytes, each with twice the quartiles' distance,
    at least LEAST_SPREAD of the active bytes: a few runs do not show the worst. A run with no more tensors that ran out
    of memory raises the upper end: this one may take at least what that one had.
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
    return Interval(round(middle), round(low), round(max([high, *exceeded])))
