"""Peak memory of runs on a target, simulated, or measured by earlier runs.

A simulated step uses tensors without values. It takes seconds, in a separate process: this process
imports no torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import msgspec

from multicard.config import compilation, schema
from multicard.config.base import RunConfig, plain
from multicard.config.llm import Attention, Kernels, LlmConfig, OptimizerChoice
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
from multicard.llm import engines
from multicard.machine.gpu_models import capability
from multicard.messages import Message
from multicard.records.rank_files import ModelSizes
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.vision.strategy import compiles

# Half-width of the 90 % interval of active bytes if the sizes of the data are known, as a share.
COMPUTED_ERROR = 0.02
MEASURED_ERROR = 0.02  # Half-width of the interval of a peak that was measured, as a share.
# torchtune masks packed rows by flex attention from this compute capability on.
FLEX_ATTENTION = (7, 5)
# The `memory_basis` of a run that does not fit because an earlier one ran out of memory.
RAN_OUT = Message("memory.ran-out", "a run of this cell ran out of memory before")
NULL = "null"
MIB = 1 << 20
# Extras that torch's allocator holds, so that a record's `peak_memory_bytes` includes them.
ALLOCATED = ("cublas", "cudnn", "compile")


def add_peaks(
    predictions: Sequence[Prediction],
    configs: Sequence[RunConfig],
    target: TargetMachine,
    here: Sequence[PastRun],
    compute: bool,
) -> None:
    """Add to each prediction the peak memory of a rank, or the reason why it is not known.

    Args:
        here: runs on GPUs of this name, including runs out of memory.
        compute: False to use only peaks that were computed before.
    """
    sizes = [facts.sizes(config) for config in configs]
    requests_per_run = [
        _requests(config, size, target) for config, size in zip(configs, sizes, strict=True)
    ]
    every_request = list(chain.from_iterable(requests_per_run))
    peaks = iter(answers.answer_all(every_request, compute))
    for prediction, config, size, requests in zip(
        predictions, configs, sizes, requests_per_run, strict=True
    ):
        at_lengths = [next(peaks) for _ in requests]
        problems = [
            part
            for part in (size, *at_lengths, _dense_masks(config, target))
            if isinstance(part, str)
        ]
        prediction.gpu_memory_bytes = target.memory_bytes if target.device_type == "cuda" else None
        if problems or isinstance(size, str):
            prediction.memory_basis = problems[0]
        else:
            _write_computed_peaks(
                prediction,
                config,
                target,
                size,
                [peak for peak in at_lengths if isinstance(peak, Active)],
            )
        if config.predict.memory is None:
            _apply_measured_peaks(prediction, config, here)


def folder_sizes(
    configs: Sequence[LlmConfig], target: TargetMachine, compute: bool
) -> list[ModelSizes | None]:
    """Return the sizes of the folder's model that each run tunes, counted on its simulated step.

    None for models that are known by name, and if the step cannot be simulated. Some optimizers,
    kernels and attentions cannot be simulated. They change no size, so plain ones replace them.
    """
    requests = dict[int, Request]()
    for index, config in enumerate(configs):
        size = facts.sizes(config)
        if isinstance(config.model, HfConfig) and isinstance(size, TextFacts):
            plain_axes = {
                "optimizer": OptimizerChoice(),
                "kernels": Kernels.torch,
                "attention": Attention.auto,
            }
            requests[index] = _requests(replace(config, **plain_axes), size, target)[0]
    if not requests:
        return [None] * len(configs)
    answer_by_index = dict(
        zip(requests, answers.answer_all([*requests.values()], compute), strict=True)
    )
    sizes = list[ModelSizes | None]()
    for index in range(len(configs)):
        answer = answer_by_index.get(index)
        sizes.append(answer.sizes if isinstance(answer, Active) else None)
    return sizes


def _dense_masks(config: RunConfig, target: TargetMachine) -> Message | None:
    """Return why the memory of packed rows is not predicted on an old GPU, or None."""
    is_packed = isinstance(config, LlmConfig) and config.packed and target.device_type == "cuda"
    if not is_packed or (capability(target.gpu) or FLEX_ATTENTION) >= FLEX_ATTENTION:
        return None
    sentence = (
        f"packed=true: {target.gpu} has masks of S x S, whose memory was never compared with a run"
    )
    return Message("memory.dense-masks", sentence, key="packed", gpu=target.gpu)


def _requests(config: RunConfig, size: Facts | str, target: TargetMachine) -> list[Request]:
    """Return a request for each length that rows may have."""
    if isinstance(size, str):
        return []
    facts_by_length: list[Facts] = [size]
    if isinstance(size, TextFacts):
        facts_by_length = [
            msgspec.structs.replace(size.of_memory, length=length, low=None, high=None)
            for length in size.lengths
        ]
    return [
        Request(config, row_facts, target.device_type, target.memory_bytes)
        for row_facts in facts_by_length
    ]


def _write_computed_peaks(
    prediction: Prediction,
    config: RunConfig,
    target: TargetMachine,
    size: Facts,
    at_lengths: Sequence[Active],
) -> None:
    """Write computed peaks into a prediction. A GPU's include the extras next to its tensors."""
    active = at_lengths[0]
    peaks_bytes = [peak.active_bytes for peak in at_lengths]
    least = (1 - COMPUTED_ERROR) * min(peaks_bytes)
    if is_paged(config):
        least -= active.by_kind.get("optimizer", 0)
    tensors = PredictedInterval(active.active_bytes, least, (1 + COMPUTED_ERROR) * max(peaks_bytes))
    extras = extras_of(config, target, active) if target.device_type == "cuda" else {}
    prediction.active_bytes = active.active_bytes
    prediction.memory_basis = _computed_basis(config, target, size)
    prediction.memory_bytes = _whole_bytes([tensors, *extras.values()])
    if target.device_type == "cuda":
        prediction.allocated_bytes = _whole_bytes(
            [tensors, *(extras[name] for name in ALLOCATED if name in extras)]
        )
        prediction.fits = fits(prediction.memory_bytes, target.memory_bytes)


def _computed_basis(config: RunConfig, target: TargetMachine, size: Facts) -> Message:
    """Return the basis of computed peaks, in words."""
    sentence = "steps without values"
    notes: list[str] = []
    lengths: list[int] = []
    if isinstance(size, TextFacts):
        lengths = [*size.lengths]
        sentence += f", rows of {size.length} tokens"
        if size.low is not None:
            sentence += f", between {size.low} and {size.high} as the rows are not available"
    if target.device_type != "cuda":
        notes.append(
            "only the tensors of a rank: the record's peak memory is that of the whole process,"
            " with Python and libraries"
        )
    elif isinstance(config, LlmConfig) and (note := engines.kind_of(config).memory_note):
        notes.append(note)
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
    """True if the optimizer's states leave a GPU that runs short of memory."""
    return isinstance(config, LlmConfig) and config.optimizer.is_paged


def _uncompared(config: LlmConfig) -> dict[str, str]:
    """Return how memory was counted that was never compared with a run, by the key of its cause.

    CPU ranks do not have it.
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
    """Return whether a GPU holds the peak.

    "yes" if the whole interval fits, "no" if none of it does, otherwise "tight".
    """
    if memory_bytes is None:
        return None
    if needed.high <= memory_bytes:
        return "yes"
    if needed.low > memory_bytes:
        return "no"
    return "tight"


def _apply_measured_peaks(
    prediction: Prediction, config: RunConfig, here: Sequence[PastRun]
) -> None:
    """Replace a predicted peak by the peaks of earlier runs of the same steps on the same data.

    Each rank of these runs had a GPU of its own. A run out of memory may have met only a part of
    the data.
    """
    setting_of_run = setting(plain(config))
    same_steps = axes(setting_of_run)
    is_padded = isinstance(config, LlmConfig) and not config.packed
    is_drawn = is_padded and any(
        setting_of_run.get(key, NULL) != NULL for key in schema.keys(Role.drawn)
    )
    parts = schema.keys(Role.part)
    keys = (*parts, "seed") if is_drawn else parts
    runs = [run for run in here if run.has_steps_of(same_steps) and not run.record.oversubscribed]
    runs = [
        run
        for run in runs
        if all(setting_of_run.get(key, NULL) in (NULL, run.setting.get(key)) for key in keys)
    ]
    # The longest row determines the peak of padded rows. A probe may not have met it.
    ended_runs = [
        run for run in runs if run.record.status != "oom" and not (run.is_probe and is_padded)
    ]
    comparable_runs = [
        run
        for run in ended_runs
        if all(run.setting.get(key) == setting_of_run.get(key) for key in parts)
    ]
    peaks = [run.peak_bytes for run in comparable_runs if run.peak_bytes is not None]
    # If another process used its GPUs, it may have held the memory that the run lacked.
    gpus_out_of_memory = [run.record.gpu for run in runs if run.record.status == "oom"]
    ran_out = sum(gpu is None or not gpu.disturbed_by for gpu in gpus_out_of_memory)
    if peaks:
        highest = max(peaks)
        computed = prediction.allocated_bytes
        needed = prediction.memory_bytes
        if computed is not None and needed is not None:
            excess = highest - computed.value
            prediction.memory_bytes = PredictedInterval(
                needed.value + excess, max(needed.low + excess, highest), needed.high + excess
            )
        prediction.allocated_bytes = PredictedInterval(
            highest, highest * (1 - MEASURED_ERROR), highest * (1 + MEASURED_ERROR)
        )
        # `Basis.of_memory` reads its first word.
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


# ---- memory of a GPU in addition to a run's tensors, by public documents and issues


def extras_of(
    config: RunConfig, target: TargetMachine, active: Active
) -> dict[str, PredictedInterval]:
    """Return the additional memory of a run on a GPU, by name."""
    hopper = (capability(target.gpu) or (0, 0)) >= (9, 0)
    ranks = config.gpus * config.nodes
    vision = isinstance(config, VisionConfig)
    # torch allocates a workspace for each stream that multiplies matrices
    # (discuss.pytorch.org/t/178671, pytorch/pytorch pull 120925). At most, cuBLASLt's workspace and
    # a second stream's are added.
    cublas = 32 * MIB if hopper else 8_519_680
    terms: dict[str, tuple[float, float, float]] = {"cublas": (cublas, cublas, 3 * cublas)}
    # An assumption: 1 x 1 and depthwise convolutions need little. The choice of algorithms depends
    # on cudnn.benchmark.
    if vision:
        is_searched = bool(getattr(config, "cudnn_benchmark", False))
        terms["cudnn"] = (0, 256 * MIB, 2048 * MIB) if is_searched else (0, 32 * MIB, 512 * MIB)
    is_compiled = (
        compiles(config, "cuda")
        if isinstance(config, VisionConfig)
        else getattr(config, "compile", False)
    )
    if is_compiled:
        # Compiling may fuse intermediate tensors: they took a fifth less in pytorch/torchdynamo
        # issue 1479, a third less in a published LoRA figure. They took more in pytorch/pytorch
        # issue 122512, and with torch 2.10.
        intermediate_bytes = sum(
            active.by_kind.get(kind, 0) for kind in ("activations", "temporaries")
        )
        graphs = (
            0.1 * active.active_bytes
            if compilation.has_cuda_graphs(getattr(config, "compile", False))
            else 0.0
        )
        terms["compile"] = (
            -0.5 * intermediate_bytes,
            -0.2 * intermediate_bytes,
            0.15 * intermediate_bytes + graphs,
        )
    # Reserved memory was 11 % above allocated memory in pytorch/pytorch issue 40989. Segments have
    # 2 or 20 MiB, or the size that a larger request needs.
    slack = 20 * MIB + 0.05 * active.active_bytes, 60 * MIB + 0.15 * active.active_bytes
    terms["slack"] = (2 * MIB, *slack)
    # 300 MB and more since kernels are loaded lazily: pytorch/pytorch issue 107667.
    terms["context"] = 300 * MIB, (520 if hopper else 400) * MIB, 900 * MIB
    # 544 MB on 2 GPUs and 688 MB on 4: NVIDIA/nccl issue 964. Up to 1.6 GB: issue 864.
    if ranks > 1:
        terms["nccl"] = 200 * MIB, (544 if ranks == 2 else 688) * MIB, 1600 * MIB
    if (
        isinstance(config, VisionConfig)
        and config.loader.name == "dali"
        and "batch" in active.by_kind
    ):
        # An assumption: DALI's pool holds its queue of batches and the stages before it.
        queue = 3 * active.by_kind["batch"]
        terms["dali"] = queue, 2 * queue, 5 * queue
    return {
        name: PredictedInterval(round(value), round(low), round(high))
        for name, (low, value, high) in terms.items()
    }
