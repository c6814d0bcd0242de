"""Peak memory of runs on a target: by their steps without values, and by the peaks of earlier runs.

    (peak,) = predict_all([config], Target(gpu="NVIDIA H100", memory_bytes=94 * 10**9), [facts.facts_of(config)])

The steps are taken with tensors that have no values, in seconds, in a process of its own: this one imports no torch.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from multicard.config.base import RunConfig, plain
from multicard.config.llm import LlmConfig
from multicard.estimate.history import PastRun, setting
from multicard.estimate.memory import answers, extras
from multicard.estimate.memory.answers import Active, Request
from multicard.estimate.memory.extras import Measured
from multicard.estimate.memory.facts import Facts, TextFacts
from multicard.estimate.observations import axes
from multicard.estimate.target import Target, capability
from multicard.estimate.totals import LENGTH, summed
from multicard.records.schema_parts import Interval, Prediction

ERROR = 0.02  # half-width of the 90 % interval of active bytes where the sizes of the data are known, as a share
MEASURED = 0.02  # half-width of the interval of a peak that was measured before, as a share
FLEX_ATTENTION = (7, 5)  # the compute capability from which torchtune masks packed rows by flex attention
# Keys, beside the model's, of runs with the same extras
ALIKE = ("compile", "precision.name", "method.name", "strategy.name", "recipe", "loader.name", "cudnn_benchmark")
ROWS = tuple(key for key in LENGTH if key != "epochs")  # keys that decide which of the data a run meets
DRAWN = ("dataset.rows", "max_steps")  # of them, those with which the seed decides it
RAN_OUT = "a run of this cell ran out of memory before"  # the `memory_basis` where that is why it does not fit
NULL = "null"


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


class Past(NamedTuple):
    """Peaks of a cell's earlier runs, in bytes of torch's allocator: of its whole runs, and of all, shorter ones too.
    ran_out: runs that ran out of memory that no other process had."""

    whole: list[int]
    all: list[int]
    ran_out: int


def add(
    predictions: Sequence[Prediction],
    configs: Sequence[RunConfig],
    target: Target,
    here: Sequence[PastRun],
    sizes: Sequence[Facts | str],
    compute: bool,
) -> None:
    """Complete predictions by their memory.

    Args:
        here: runs on GPUs of this name, those out of memory too.
        sizes: of each run's data, or the reason for which they cannot be read.
        compute: False: by answers of earlier calls alone.
    """
    measured = [_measured(config, here) for config in configs]
    peaks = predict_all(configs, target, sizes, measured, compute)
    for prediction, config, peak in zip(predictions, configs, peaks, strict=True):
        _complete(prediction, peak, target, _past(config, here if config.predict.memory is None else []))


def predict_all(
    configs: Sequence[RunConfig],
    target: Target,
    sizes: Sequence[Facts | str],
    measured: Sequence[Sequence[Measured]] = (),
    compute: bool = True,
) -> list[PeakMemory | str]:
    """The peaks of one rank's memory in runs, all by one process; for one without prediction, the reason.

    Args:
        sizes: of each run's data set (`facts.facts_of`), or the reason for which they cannot be read.
        measured: for each run, those of this machine like it (`extras.learn`); three or more replace the stated extras
            that torch's allocator knows.
        compute: False: only from answers in the cache, so that no process is started.
    """
    asked = [_requests(config, size, target) for config, size in zip(configs, sizes, strict=True)]
    found = iter(answers.answer_all([request for requests in asked for request in requests], compute))
    peaks: list[PeakMemory | str] = []
    for place, (config, size) in enumerate(zip(configs, sizes, strict=True)):
        at_lengths = [next(found) for _ in asked[place]]
        problems = [answer for answer in (size, *at_lengths, _refused(config, target)) if isinstance(answer, str)]
        known = [answer for answer in at_lengths if isinstance(answer, Active)]
        like = measured[place] if measured else ()
        peaks.append(problems[0] if problems or isinstance(size, str) else _peak(config, target, size, known, like))
    return peaks


def _requests(config: RunConfig, size: Facts | str, target: Target) -> list[Request]:
    """One for each length that rows may have."""
    if isinstance(size, str):
        return []
    each = [TextFacts(size.vocabulary, length) for length in size.lengths] if isinstance(size, TextFacts) else [size]
    return [answers.request(config, facts, target) for facts in each]


def _refused(config: RunConfig, target: Target) -> str | None:
    """The reason for which a run has no prediction on this target."""
    known = capability(target.gpu)
    masked = isinstance(config, LlmConfig) and config.packed and target.device_type == "cuda"
    if masked and known is not None and known < FLEX_ATTENTION:
        return f"packed=true: has masks of S x S on {target.gpu}, which no prediction was compared with"
    return None


def _peak(
    config: RunConfig, target: Target, size: Facts, lengths: Sequence[Active], measured: Sequence[Measured]
) -> PeakMemory:
    active, basis = lengths[0], "steps without values"
    if isinstance(size, TextFacts):
        ends = "" if size.low is None else f", between {size.low} and {size.high}: the rows are not at hand"
        basis += f", rows of {size.length} tokens{ends}"
    added = extras.extras_of(config, target, active) if target.device_type == "cuda" else {}
    learned = extras.learned(measured, active.active_bytes, extras.is_compiled(config, target.device_type))
    if learned is not None and added:
        added = {"learned": learned} | {name: term for name, term in added.items() if name not in extras.ALLOCATED}
        basis += ", extras of runs on this GPU"
    ends = [answer.active_bytes for answer in lengths]
    tensors = Interval(active.active_bytes, round((1 - ERROR) * min(ends)), round((1 + ERROR) * max(ends)))
    allocated = [term for name, term in added.items() if name in extras.ALLOCATED]
    sums = (summed([tensors, *terms]) for terms in (allocated, added.values()))
    totals = [Interval(round(each.value), round(each.low), round(each.high)) for each in sums]
    return PeakMemory(active, totals[0], totals[1], basis)


def fits(needed: Interval, memory_bytes: int | None) -> str | None:
    """Verdict on a GPU's memory: "yes" where it holds the whole interval, "no" where none of it, else "tight"."""
    if memory_bytes is None:
        return None
    return "yes" if needed.high <= memory_bytes else "no" if needed.low > memory_bytes else "tight"


def _complete(prediction: Prediction, peak: PeakMemory | str, target: Target, past: Past) -> None:
    """Write a computed peak, and what earlier runs of the same steps on this GPU took, into a prediction."""
    on_gpu = target.device_type == "cuda"
    prediction.gpu_memory_bytes = target.memory_bytes if on_gpu else None
    if isinstance(peak, str):
        prediction.memory_basis = peak
    else:
        prediction.memory_bytes, prediction.active_bytes = peak.total, peak.active.active_bytes
        prediction.memory_basis = peak.basis + "; tensors alone, of a rank's memory of the host" * (not on_gpu)
        if on_gpu:
            prediction.allocated_bytes, prediction.fits = peak.allocated, fits(peak.total, target.memory_bytes)
    if past.whole:
        most, failed = max(past.whole), f"; {past.ran_out} ran out of memory" if past.ran_out else ""
        _shift(prediction, Interval(most, most * (1 - MEASURED), most * (1 + MEASURED)), most)
        prediction.memory_basis = f"measured in {len(past.whole)} of this cell's runs{failed}"
        prediction.fits = "tight" if failed else "yes"
    elif past.ran_out:
        prediction.memory_basis, prediction.fits = RAN_OUT, "no"
    else:
        _raise(prediction, max(past.all, default=0))


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


def _past(config: RunConfig, here: Sequence[PastRun]) -> Past:
    """The runs with the same steps that had a GPU for each rank, and met only data that this one meets."""
    own = setting(plain(config))
    same_steps = axes(own)
    runs = [run for run in here if run.has_steps_of(same_steps) and not run.record.oversubscribed]
    drawn = _rows_matter(config) and any(own.get(key, NULL) != NULL for key in DRAWN)
    keys = (*ROWS, "seed") if drawn else ROWS
    runs = [run for run in runs if all(own.get(key, NULL) in (NULL, run.setting.get(key)) for key in keys)]
    ended = [(run, run.peak_bytes) for run in runs if run.peak_bytes is not None and run.record.status != "oom"]
    whole = [
        peak
        for run, peak in ended
        if not (run.is_probe and _rows_matter(config)) and all(run.setting.get(key) == own.get(key) for key in ROWS)
    ]
    # Where another process was at work on its GPUs, it may have had the memory that the run lacked
    failed = [run.record.gpu for run in runs if run.record.status == "oom"]
    ran_out = sum(gpu is None or not gpu.disturbed_by for gpu in failed)
    return Past(whole, [peak for _, peak in ended], ran_out)


def _rows_matter(config: RunConfig) -> bool:
    """True for texts that are not packed: the peak is that of the longest row, which a run may not have met."""
    return isinstance(config, LlmConfig) and not config.packed


def _measured(config: RunConfig, here: Sequence[PastRun]) -> list[Measured]:
    """The predicted bytes of tensors and the measured ones of runs with like extras."""
    own, torch = _causes(setting(plain(config))), extras.torch_version()
    like = [run for run in here if run.torch == torch and _causes(run.setting) == own]
    if _rows_matter(config):  # the longest was predicted
        like = [run for run in like if not run.is_probe and run.setting.get("max_steps", NULL) == NULL]
    return extras.learn([run.record for run in like])


def _causes(setting: Mapping[str, str]) -> dict[str, str]:
    """The keys on which extras depend."""
    return {key: value for key, value in setting.items() if key in ALIKE or key.startswith("model.")}
