"""Peak memory of runs on a target: by their steps without values, and by the peaks of earlier runs.

    (peak,) = predict_all([config], Target(gpu="NVIDIA H100", memory_bytes=94 * 10**9), [facts.facts_of(config)])

The steps are taken with tensors that have no values, in seconds, in a process of its own: this one imports no torch.
"""

from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from multicard.config import compilation
from multicard.config.base import RunConfig, plain
from multicard.config.llm import LlmConfig
from multicard.config.vision import VisionConfig
from multicard.estimate.history import PastRun, setting
from multicard.estimate.memory import answers, facts
from multicard.estimate.memory.answers import Active, Request
from multicard.estimate.memory.facts import Facts, TextFacts
from multicard.estimate.observations import axes
from multicard.estimate.target import Target, capability
from multicard.estimate.totals import LENGTH, summed
from multicard.records.schema_parts import Interval, Prediction
from multicard.vision.strategy import compiles

ERROR = 0.02  # half-width of the 90 % interval of active bytes where the sizes of the data are known, as a share
MEASURED = 0.02  # half-width of the interval of a peak that was measured before, as a share
FLEX_ATTENTION = (7, 5)  # the compute capability from which torchtune masks packed rows by flex attention
ROWS = tuple(key for key in LENGTH if key != "epochs")  # keys that decide which of the data a run meets
DRAWN = ("dataset.rows", "max_steps")  # of them, those with which the seed decides it
RAN_OUT = "a run of this cell ran out of memory before"  # the `memory_basis` where that is why it does not fit
NULL = "null"
MIB = 1 << 20
ALLOCATED = ("cublas", "cudnn", "compile")  # from torch's allocator: in `peak_memory_bytes` of a record


class PeakMemory(msgspec.Struct, frozen=True):
    """The most memory that a rank of a run takes, in bytes.

    Fields:
        active: bytes of tensors, by kind.
        allocated: the record's `peak_memory_bytes`: active bytes, and the workspaces that come from torch's allocator.
        total: needed of the GPU, with the allocator's slack, the CUDA context and NCCL.
        basis: of the prediction, in words.
    """

    active: Active
    allocated: Interval
    total: Interval
    basis: str


def add(
    predictions: Sequence[Prediction],
    configs: Sequence[RunConfig],
    target: Target,
    here: Sequence[PastRun],
    compute: bool,
) -> None:
    """Complete predictions by their memory.

    Args:
        here: runs on GPUs of this name, those out of memory too.
        compute: False: by answers of earlier calls alone.
    """
    peaks = predict_all(configs, target, [facts.sizes(config) for config in configs], compute)
    for prediction, config, peak in zip(predictions, configs, peaks, strict=True):
        _write(prediction, peak, target)
        if config.predict.memory is None:
            _believe_runs(prediction, config, here)


def predict_all(
    configs: Sequence[RunConfig],
    target: Target,
    sizes: Sequence[Facts | str],
    compute: bool = True,
) -> list[PeakMemory | str]:
    """The peaks of one rank's memory in runs, all by one process; for one without prediction, the reason.

    Args:
        sizes: of each run's data set (`facts.facts_of`), or the reason for which they cannot be read.
        compute: False: only from answers in the cache, so that no process is started.
    """
    asked = [_requests(config, size, target) for config, size in zip(configs, sizes, strict=True)]
    found = iter(answers.answer_all([request for requests in asked for request in requests], compute))
    peaks: list[PeakMemory | str] = []
    for config, size, requests in zip(configs, sizes, asked, strict=True):
        at_lengths = [next(found) for _ in requests]
        problems = [answer for answer in (size, *at_lengths, _refused(config, target)) if isinstance(answer, str)]
        known = [answer for answer in at_lengths if isinstance(answer, Active)]
        peaks.append(problems[0] if problems or isinstance(size, str) else _peak(config, target, size, known))
    return peaks


def _requests(config: RunConfig, size: Facts | str, target: Target) -> list[Request]:
    """One for each length that rows may have."""
    if isinstance(size, str):
        return []
    each = [TextFacts(size.vocabulary, length) for length in size.lengths] if isinstance(size, TextFacts) else [size]
    return [Request(config, own, target.device_type, target.memory_bytes) for own in each]


def _refused(config: RunConfig, target: Target) -> str | None:
    """The reason for which a run has no prediction on this target."""
    known = capability(target.gpu)
    masked = isinstance(config, LlmConfig) and config.packed and target.device_type == "cuda"
    if masked and known is not None and known < FLEX_ATTENTION:
        return f"packed=true: has masks of S x S on {target.gpu}, which no prediction was compared with"
    return None


def _peak(config: RunConfig, target: Target, size: Facts, lengths: Sequence[Active]) -> PeakMemory:
    active, basis = lengths[0], "steps without values"
    if isinstance(size, TextFacts):
        ends = "" if size.low is None else f", between {size.low} and {size.high}: the rows are not at hand"
        basis += f", rows of {size.length} tokens{ends}"
    added = extras_of(config, target, active) if target.device_type == "cuda" else {}
    ends = [answer.active_bytes for answer in lengths]
    tensors = Interval(active.active_bytes, round((1 - ERROR) * min(ends)), round((1 + ERROR) * max(ends)))
    allocated = [term for name, term in added.items() if name in ALLOCATED]
    sums = (summed([tensors, *terms]) for terms in (allocated, added.values()))
    totals = [Interval(round(each.value), round(each.low), round(each.high)) for each in sums]
    return PeakMemory(active, totals[0], totals[1], basis)


def fits(needed: Interval, memory_bytes: int | None) -> str | None:
    """Verdict on a GPU's memory: "yes" where it holds the whole interval, "no" where none of it, else "tight"."""
    if memory_bytes is None:
        return None
    return "yes" if needed.high <= memory_bytes else "no" if needed.low > memory_bytes else "tight"


def _write(prediction: Prediction, peak: PeakMemory | str, target: Target) -> None:
    """Write a computed peak into a prediction, or the reason that there is none."""
    on_gpu = target.device_type == "cuda"
    prediction.gpu_memory_bytes = target.memory_bytes if on_gpu else None
    if isinstance(peak, str):
        prediction.memory_basis = peak
        return
    prediction.memory_bytes, prediction.active_bytes = peak.total, peak.active.active_bytes
    prediction.memory_basis = peak.basis + "; tensors alone, of a rank's memory of the host" * (not on_gpu)
    if on_gpu:
        prediction.allocated_bytes, prediction.fits = peak.allocated, fits(peak.total, target.memory_bytes)


def _believe_runs(prediction: Prediction, config: RunConfig, here: Sequence[PastRun]) -> None:
    """Replace a prediction by what earlier runs took that had the same steps and a GPU for each rank, and met only data
    that this one meets."""
    own = setting(plain(config))
    same_steps, misses_rows = axes(own), _rows_matter(config)
    drawn = misses_rows and any(own.get(key, NULL) != NULL for key in DRAWN)
    keys = (*ROWS, "seed") if drawn else ROWS
    runs = [run for run in here if run.has_steps_of(same_steps) and not run.record.oversubscribed]
    runs = [run for run in runs if all(own.get(key, NULL) in (NULL, run.setting.get(key)) for key in keys)]
    ended = [(run, run.peak_bytes) for run in runs if run.peak_bytes is not None and run.record.status != "oom"]
    whole = [
        peak
        for run, peak in ended
        if not (run.is_probe and misses_rows) and all(run.setting.get(key) == own.get(key) for key in ROWS)
    ]
    # Where another process was at work on its GPUs, it may have had the memory that the run lacked
    failed = [run.record.gpu for run in runs if run.record.status == "oom"]
    ran_out = sum(gpu is None or not gpu.disturbed_by for gpu in failed)
    if whole:
        most, also = max(whole), f"; {ran_out} ran out of memory" if ran_out else ""
        _shift(prediction, Interval(most, most * (1 - MEASURED), most * (1 + MEASURED)), most)
        prediction.memory_basis = f"measured in {len(whole)} of this cell's runs{also}"
        prediction.fits = "tight" if ran_out else "yes"
    elif ran_out:
        prediction.memory_basis, prediction.fits = RAN_OUT, "no"
    else:
        _raise(prediction, max((peak for _, peak in ended), default=0))


def _raise(prediction: Prediction, least: int) -> None:
    """Raise a prediction to what shorter runs took."""
    before = prediction.allocated_bytes
    if before is None or before.low >= least:
        return
    more = max(least - before.value, 0)
    _shift(prediction, Interval(before.value + more, least, before.high + more), least)
    if prediction.memory_bytes is not None and prediction.gpu_memory_bytes is not None:
        prediction.fits = fits(prediction.memory_bytes, prediction.gpu_memory_bytes)
    prediction.memory_basis += ", no less than shorter runs took"


def _shift(prediction: Prediction, allocated: Interval, least: int) -> None:
    """Replace the allocator's peak; the needed memory moves by as much, and is at least `least`."""
    before, whole = prediction.allocated_bytes, prediction.memory_bytes
    prediction.allocated_bytes = allocated
    if before is not None and whole is not None:
        more = allocated.value - before.value
        prediction.memory_bytes = Interval(whole.value + more, max(whole.low + more, least), whole.high + more)


def _rows_matter(config: RunConfig) -> bool:
    """True for texts that are not packed: the peak is that of the longest row, which a run may not have met."""
    return isinstance(config, LlmConfig) and not config.packed


# ---- memory of a GPU beside a run's tensors: stated by public documents and issues


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
