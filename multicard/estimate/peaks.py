"""What memory runs will take on a target: by their steps without values, and by what runs alike took."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multicard.config.base import RunConfig, plain
from multicard.config.llm import LlmConfig
from multicard.estimate import memory
from multicard.estimate.alike import LENGTH
from multicard.estimate.history import PastRun, setting
from multicard.estimate.memory import PeakMemory, extras
from multicard.estimate.memory.extras import Measured
from multicard.estimate.memory.facts import Facts, Machine
from multicard.estimate.time.observations import axes
from multicard.records.schema_parts import Interval, Prediction

# Keys, beside the model's, of runs with the same extras
ALIKE = ("compile", "precision.name", "method.name", "strategy.name", "recipe", "loader.name", "cudnn_benchmark")
ROWS = tuple(key for key in LENGTH if key != "epochs")  # keys on which it depends what a run meets of its data
DRAWN = ("dataset.rows", "max_steps")  # of them, those with which the seed decides it
MEASURED = 0.02  # half-width of the interval of a peak that was measured before, as a share
RAN_OUT = "a run of this cell ran out of memory before"  # the `memory_basis` where that is why it does not fit
NULL = "null"


class Past(NamedTuple):
    """What the runs of a cell took at their peaks, in bytes of torch's allocator: those that are the whole of it, and
    all, shorter ones too. ran_out: how many ran out of memory that no other process had."""

    whole: list[int]
    all: list[int]
    ran_out: int


def add(
    predictions: Sequence[Prediction],
    configs: Sequence[RunConfig],
    machine: Machine,
    here: Sequence[PastRun],
    sizes: Sequence[Facts | str],
    compute: bool,
) -> None:
    """Complete predictions by their memory.

    Args:
        here: runs on GPUs of this name, those out of memory too.
        sizes: of each run's data, or why they cannot be read.
        compute: False: by answers of earlier calls alone.
    """
    readable = [(config, size) for config, size in zip(configs, sizes, strict=True) if not isinstance(size, str)]
    wanted, known = [config for config, _ in readable], [size for _, size in readable]
    measured = [_measured(config, here) for config in wanted]
    answers = iter(memory.predict_all(wanted, machine, known, measured, compute))
    for prediction, config, size in zip(predictions, configs, sizes, strict=True):
        past = _past(config, here if config.predict.memory is None else [])
        _complete(prediction, size if isinstance(size, str) else next(answers), machine, past)


def fits(needed: Interval, memory_bytes: int | None) -> str | None:
    """Whether a GPU holds a run: "yes" where it holds the whole interval, "no" where none of it, else "tight"."""
    if memory_bytes is None:
        return None
    return "yes" if needed.high <= memory_bytes else "no" if needed.low > memory_bytes else "tight"


def _complete(prediction: Prediction, answer: PeakMemory | str, machine: Machine, past: Past) -> None:
    """Write what is predicted, and what earlier runs of the same steps on this GPU say, into a prediction."""
    prediction.gpu_memory_bytes = machine.memory_bytes if machine.device_type == "cuda" else None
    if isinstance(answer, str):
        prediction.memory_basis = answer
    else:
        prediction.memory_bytes, prediction.active_bytes = answer.total, answer.active.active_bytes
        prediction.memory_basis = answer.basis
        if machine.device_type == "cuda":
            prediction.allocated_bytes, prediction.fits = answer.allocated, fits(answer.total, machine.memory_bytes)
        else:
            prediction.memory_basis += "; tensors alone, of a rank's memory of the host"
    if past.whole:
        peak, failed = max(past.whole), f"; {past.ran_out} ran out of memory" if past.ran_out else ""
        _shift(prediction, Interval(peak, peak * (1 - MEASURED), peak * (1 + MEASURED)), peak)
        prediction.memory_basis = f"measured in {len(past.whole)} of this cell's runs{failed}"
        prediction.fits = "tight" if failed else "yes"
    elif past.ran_out:
        prediction.memory_basis, prediction.fits = RAN_OUT, "no"
    else:
        _raise(prediction, max(past.all, default=0))


def _raise(prediction: Prediction, least: int) -> None:
    """Have a prediction take no less than shorter runs did."""
    before = prediction.allocated_bytes
    if before is None or before.low >= least:
        return
    more = max(least - before.value, 0)
    _shift(prediction, Interval(before.value + more, least, before.high + more), least)
    if prediction.memory_bytes is not None and prediction.gpu_memory_bytes is not None:
        prediction.fits = fits(prediction.memory_bytes, prediction.gpu_memory_bytes)
    prediction.memory_basis += ", no less than shorter runs took"


def _shift(prediction: Prediction, allocated: Interval, least: int) -> None:
    """Replace the allocator's peak; what the GPU must have moves by as much, and is `least` at the least."""
    before, whole = prediction.allocated_bytes, prediction.memory_bytes
    prediction.allocated_bytes = allocated
    if before is not None and whole is not None:
        more = allocated.value - before.value
        prediction.memory_bytes = Interval(whole.value + more, max(whole.low + more, least), whole.high + more)


def _past(config: RunConfig, here: Sequence[PastRun]) -> Past:
    """The runs with the same steps that had a GPU for each rank, and met none of the data that this one does not."""
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
    ran_out = sum(run.record.status == "oom" and not _is_disturbed(run) for run in runs)
    return Past(whole, [peak for _, peak in ended], ran_out)


def _rows_matter(config: RunConfig) -> bool:
    """Whether the peak is that of the longest row, which a run may not have met: of texts that are not packed."""
    return isinstance(config, LlmConfig) and not config.packed


def _is_disturbed(run: PastRun) -> bool:
    """Whether another process was at work on its GPUs, which may have had the memory that it lacked."""
    return run.record.gpu is not None and bool(run.record.gpu.disturbed_by)


def _measured(config: RunConfig, here: Sequence[PastRun]) -> list[Measured]:
    """Of runs with like extras, the bytes of tensors that were predicted and what was measured."""
    own, torch = _causes(setting(plain(config))), extras.torch_version()
    like = [run for run in here if run.torch == torch and _causes(run.setting) == own]
    if _rows_matter(config):  # of which the longest was predicted
        like = [run for run in like if not run.is_probe and run.setting.get("max_steps", NULL) == NULL]
    return extras.learn([run.record for run in like])


def _causes(setting: Mapping[str, str]) -> dict[str, str]:
    """The keys on which extras depend."""
    return {key: value for key, value in setting.items() if key in ALIKE or key.startswith("model.")}
