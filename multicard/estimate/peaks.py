"""Peak memory of runs on a target: by their steps without values, and by the peaks of earlier runs.

The steps are taken with tensors that have no values, in seconds,
in a process of its own: this one imports no torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import msgspec

from multicard.config import compilation, schema
from multicard.config.base import RunConfig, plain
from multicard.config.llm import Attention, Engine, Kernels, LlmConfig, OptimizerChoice
from multicard.config.llm_models import HfConfig
from multicard.config.roles import Role
from multicard.config.vision import VisionConfig
from multicard.estimate.history import PastRun, setting
from multicard.estimate.memory import answers, facts
from multicard.estimate.memory.answers import Active, Request
from multicard.estimate.memory.facts import Facts, TextFacts
from multicard.estimate.observations import Basis, axes
from multicard.estimate.target import TargetMachine
from multicard.estimate.totals import summed
from multicard.machine.gpu_models import capability
from multicard.messages import Message
from multicard.records.rank_files import ModelSizes
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.vision.strategy import compiles

# half-width of the 90 % interval of active bytes where the sizes of the data are known, as a share
ERROR = 0.02
MEASURED = 0.02  # half-width of the interval of a peak that was measured before, as a share
# the compute capability from which torchtune masks packed rows by flex attention
FLEX_ATTENTION = (7, 5)
# The `memory_basis` where that is why it does not fit
RAN_OUT = Message("memory.ran-out", "a run of this cell ran out of memory before")
NULL = "null"
MIB = 1 << 20
# from torch's allocator: in `peak_memory_bytes` of a record
ALLOCATED = ("cublas", "cudnn", "compile")


def add(
    predictions: Sequence[Prediction],
    configs: Sequence[RunConfig],
    target: TargetMachine,
    here: Sequence[PastRun],
    compute: bool,
) -> None:
    """Complete predictions by the most memory that a rank of each run takes,
    or by the reason that it is not known.

    Args:
        here: runs on GPUs of this name, those out of memory too.
        compute: False: only what was computed before.
    """
    sizes = [facts.sizes(config) for config in configs]
    asked = [_requests(config, size, target) for config, size in zip(configs, sizes, strict=True)]
    every_request = list(chain.from_iterable(asked))
    found = iter(answers.answer_all(every_request, compute))
    for prediction, config, size, requests in zip(predictions, configs, sizes, asked, strict=True):
        at_lengths = [next(found) for _ in requests]
        problems = [
            said
            for said in (size, *at_lengths, _dense_masks(config, target))
            if isinstance(said, str)
        ]
        prediction.gpu_memory_bytes = target.memory_bytes if target.device_type == "cuda" else None
        if problems or isinstance(size, str):
            prediction.memory_basis = problems[0]
        else:
            _write(
                prediction,
                config,
                target,
                size,
                [peak for peak in at_lengths if isinstance(peak, Active)],
            )
        if config.predict.memory is None:
            _believe_runs(prediction, config, here)


def folder_sizes(
    configs: Sequence[LlmConfig], target: TargetMachine, compute: bool
) -> list[ModelSizes | None]:
    """The sizes of the folder's model that each run tunes, as they are counted on its step without
    values; None of models that are known by their names, and where the step cannot be taken.

    Optimisers, kernels and attentions of which no step is taken without values change no size, so
    that the plain ones stand for them.
    """
    asked = dict[int, Request]()
    for place, config in enumerate(configs):
        size = facts.sizes(config)
        if isinstance(config.model, HfConfig) and isinstance(size, TextFacts):
            plain_axes = {
                "optimizer": OptimizerChoice(),
                "kernels": Kernels.torch,
                "attention": Attention.auto,
            }
            asked[place] = _requests(replace(config, **plain_axes), size, target)[0]
    if not asked:
        return [None] * len(configs)
    found = dict(zip(asked, answers.answer_all([*asked.values()], compute), strict=True))
    sizes = list[ModelSizes | None]()
    for place in range(len(configs)):
        answer = found.get(place)
        sizes.append(answer.sizes if isinstance(answer, Active) else None)
    return sizes


def _dense_masks(config: RunConfig, target: TargetMachine) -> Message | None:
    """Why the memory of packed rows is not predicted on an old GPU; None for other runs."""
    is_packed = isinstance(config, LlmConfig) and config.packed and target.device_type == "cuda"
    if not is_packed or (capability(target.gpu) or FLEX_ATTENTION) >= FLEX_ATTENTION:
        return None
    sentence = (
        f"packed=true: has masks of S x S on {target.gpu}, which no prediction was compared with"
    )
    return Message("memory.dense-masks", sentence, key="packed", gpu=target.gpu)


def _requests(config: RunConfig, size: Facts | str, target: TargetMachine) -> list[Request]:
    """One for each length that rows may have."""
    if isinstance(size, str):
        return []
    each: list[Facts] = [size]
    if isinstance(size, TextFacts):
        each = [
            msgspec.structs.replace(size.of_memory, length=n, low=None, high=None)
            for n in size.lengths
        ]
    return [Request(config, own, target.device_type, target.memory_bytes) for own in each]


def _write(
    prediction: Prediction,
    config: RunConfig,
    target: TargetMachine,
    size: Facts,
    at_lengths: Sequence[Active],
) -> None:
    """Write computed peaks into a prediction, on a GPU with what it holds beside tensors."""
    active = at_lengths[0]
    ends = [peak.active_bytes for peak in at_lengths]
    least = (1 - ERROR) * min(ends)
    if is_paged(config):
        least -= active.by_kind.get("optimizer", 0)
    tensors = PredictedInterval(active.active_bytes, least, (1 + ERROR) * max(ends))
    extras = extras_of(config, target, active) if target.device_type == "cuda" else {}
    prediction.active_bytes = active.active_bytes
    prediction.memory_basis = _without_values(config, target, size)
    prediction.memory_bytes = _whole_bytes([tensors, *extras.values()])
    if target.device_type == "cuda":
        prediction.allocated_bytes = _whole_bytes(
            [tensors, *(extras[name] for name in ALLOCATED if name in extras)]
        )
        prediction.fits = fits(prediction.memory_bytes, target.memory_bytes)


def _without_values(config: RunConfig, target: TargetMachine, size: Facts) -> Message:
    """What computed peaks rest on."""
    sentence = "steps without values"
    notes: list[str] = []
    lengths: list[int] = []
    if isinstance(size, TextFacts):
        lengths = [*size.lengths]
        sentence += f", rows of {size.length} tokens"
        if size.low is not None:
            sentence += f", between {size.low} and {size.high} as the rows are not at hand"
    if target.device_type != "cuda":
        notes.append(
            "of a rank's tensors alone: the record's peak memory is its process's, with Python and"
            " libraries"
        )
    elif getattr(config, "engine", None) is Engine.trl:
        notes.append("engine=trl: compared on CPU ranks alone, as if all tokens were labelled")
    uncompared = _uncompared(config) if isinstance(config, LlmConfig) else {}
    notes += [f"{note}, not compared with a run" for note in uncompared.values()]
    return Message(
        "memory.without-values",
        "; ".join([sentence, *notes]),
        lengths=lengths,
        device=target.device_type,
        uncompared=[*uncompared],
    )


def is_paged(config: RunConfig) -> bool:
    """True where the optimiser's states leave a GPU that has too little memory."""
    return isinstance(config, LlmConfig) and config.optimizer.is_paged


def _uncompared(config: LlmConfig) -> dict[str, str]:
    """How a tuning's memory was counted that was never compared with a run, as no CPU rank has it,
    by its key.
    """
    notes: dict[str, str] = {}
    if is_paged(config):
        notes["optimizer"] = (
            f"optimizer={config.optimizer.name}: from none to all of its states on the GPU"
        )
    if config.attention in (Attention.flash, Attention.flex):
        notes["attention"] = f"attention={config.attention}: counted as attention=sdpa"
    if config.offloads:
        notes["sharding"] = f"sharding={config.sharding}: without shards, gradients and optimiser"
    if config.kernels is Kernels.liger:
        notes["kernels"] = "kernels=liger: by the code around its kernels"
    return notes


def _whole_bytes(parts: Sequence[PredictedInterval]) -> PredictedInterval:
    total = summed(parts)
    return PredictedInterval(round(total.value), round(total.low), round(total.high))


def fits(needed: PredictedInterval, memory_bytes: int | None) -> str | None:
    """Verdict on a GPU's memory: "yes" where it holds the whole interval, "no" where none of it,
    else "tight".
    """
    if memory_bytes is None:
        return None
    return "yes" if needed.high <= memory_bytes else "no" if needed.low > memory_bytes else "tight"


def _believe_runs(prediction: Prediction, config: RunConfig, here: Sequence[PastRun]) -> None:
    """Replace a prediction by what earlier runs took that had the same steps and a GPU for each
    rank, and met the same data; those that ran out of memory may have met a part of it.
    """
    own = setting(plain(config))
    same_steps = axes(own)
    is_padded = isinstance(config, LlmConfig) and not config.packed
    is_drawn = is_padded and any(own.get(key, NULL) != NULL for key in schema.keys(Role.drawn))
    parts = schema.keys(Role.part)
    keys = (*parts, "seed") if is_drawn else parts
    runs = [run for run in here if run.has_steps_of(same_steps) and not run.record.oversubscribed]
    runs = [
        run
        for run in runs
        if all(own.get(key, NULL) in (NULL, run.setting.get(key)) for key in keys)
    ]
    # The peak of padded rows is that of the longest, which a probe may not have met
    ended = [run for run in runs if run.record.status != "oom" and not (run.is_probe and is_padded)]
    whole = [run for run in ended if all(run.setting.get(key) == own.get(key) for key in parts)]
    peaks = [run.peak_bytes for run in whole if run.peak_bytes is not None]
    # Where another process was at work on its GPUs, it may have had the memory that the run lacked
    failed = [run.record.gpu for run in runs if run.record.status == "oom"]
    ran_out = sum(gpu is None or not gpu.disturbed_by for gpu in failed)
    if peaks:
        most = max(peaks)
        before = prediction.allocated_bytes
        needed = prediction.memory_bytes
        if before is not None and needed is not None:
            more = most - before.value
            prediction.memory_bytes = PredictedInterval(
                needed.value + more, max(needed.low + more, most), needed.high + more
            )
        prediction.allocated_bytes = PredictedInterval(
            most, most * (1 - MEASURED), most * (1 + MEASURED)
        )
        # its first word is for Basis.of_memory
        sentence = f"{Basis.measured} in {len(peaks)} of this cell's runs"
        if ran_out:
            sentence += f"; {ran_out} ran out of memory"
        prediction.memory_basis = Message(
            "memory.measured", sentence, runs=len(peaks), ran_out=ran_out
        )
        prediction.fits = "tight" if ran_out else "yes"
    elif ran_out:
        prediction.memory_basis = RAN_OUT
        prediction.fits = "no"


# ---- memory of a GPU beside a run's tensors: stated by public documents and issues


def extras_of(
    config: RunConfig, target: TargetMachine, active: Active
) -> dict[str, PredictedInterval]:
    """The extras of a run on a GPU, by name."""
    hopper = (capability(target.gpu) or (0, 0)) >= (9, 0)
    ranks = config.gpus * config.nodes
    vision = isinstance(config, VisionConfig)
    # what torch allocates for each stream that multiplies matrices (discuss.pytorch.org/t/178671,
    # pytorch/pytorch pull 120925); at most cuBLASLt's own too, and a second stream's
    cublas = 32 * MIB if hopper else 8_519_680
    terms: dict[str, tuple[float, float, float]] = {"cublas": (cublas, cublas, 3 * cublas)}
    # an assumption: 1 x 1 and depthwise convolutions need little;
    # what is chosen depends on cudnn.benchmark
    if vision:
        searched = bool(getattr(config, "cudnn_benchmark", False))
        terms["cudnn"] = (0, 256 * MIB, 2048 * MIB) if searched else (0, 32 * MIB, 512 * MIB)
    compiled = (
        compiles(config, "cuda")
        if isinstance(config, VisionConfig)
        else getattr(config, "compile", False)
    )
    if compiled:
        # of what compiling may fuse a fifth less in pytorch/torchdynamo issue 1479, a third less in
        # a published LoRA figure; more in pytorch/pytorch issue 122512 and with torch 2.10
        made = sum(active.by_kind.get(kind, 0) for kind in ("activations", "temporaries"))
        graphs = (
            0.1 * active.active_bytes
            if compilation.has_cuda_graphs(getattr(config, "compile", False))
            else 0.0
        )
        terms["compile"] = -0.5 * made, -0.2 * made, 0.15 * made + graphs
    # reserved 11 % above allocated in pytorch/pytorch issue 40989; segments are of 2 or 20 MiB, or
    # of what a larger request needs
    slack = 20 * MIB + 0.05 * active.active_bytes, 60 * MIB + 0.15 * active.active_bytes
    terms["slack"] = (2 * MIB, *slack)
    # 300 MB and more since kernels are loaded lazily: pytorch/pytorch issue 107667
    terms["context"] = 300 * MIB, (520 if hopper else 400) * MIB, 900 * MIB
    # 544 MB on 2 GPUs and 688 MB on 4: NVIDIA/nccl issue 964; up to 1.6 GB: issue 864
    if ranks > 1:
        terms["nccl"] = 200 * MIB, (544 if ranks == 2 else 688) * MIB, 1600 * MIB
    if (
        isinstance(config, VisionConfig)
        and config.loader.name == "dali"
        and "batch" in active.by_kind
    ):
        # an assumption: DALI's own pool holds its queue of batches, and the stages before it
        queue = 3 * active.by_kind["batch"]
        terms["dali"] = queue, 2 * queue, 5 * queue
    return {
        name: PredictedInterval(round(value), round(low), round(high))
        for name, (low, value, high) in terms.items()
    }
