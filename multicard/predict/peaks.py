"""What memory runs will take on a target: by their steps without values, and by what runs alike took."""

from collections.abc import Sequence

from multicard.config.base import RunConfig, plain
from multicard.predict import memory
from multicard.predict.history import PastRun, setting
from multicard.predict.memory import extras
from multicard.predict.memory.extras import Measured
from multicard.predict.memory.facts import Facts, Machine
from multicard.predict.memory.result import PeakMemory
from multicard.predict.time.observations import axes
from multicard.records.schema_parts import Interval, Prediction

ALIKE = ("compile", "method.name", "strategy.name", "recipe", "loader.name")  # keys of runs with the same extras
RAN_OUT = "a run of this cell ran out of memory on this GPU"  # the `memory_basis` where that is the verdict's reason
MEASURED = 0.02  # half-width of the interval of a peak that was measured before, as a share


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
    if compute and readable:  # all by one process; what follows is in the cache
        memory.predict_all([config for config, _ in readable], machine, [size for _, size in readable])
    for prediction, config, size in zip(predictions, configs, sizes, strict=True):
        past = _runs_of(config, here)
        if isinstance(size, str):
            answer: PeakMemory | str = size
        else:
            (answer,) = memory.predict_all([config], machine, [size], _measured(config, here), compute=False)
        _complete(prediction, answer, machine, past if config.predict.memory is None else [])


def _complete(prediction: Prediction, answer: PeakMemory | str, machine: Machine, past: Sequence[PastRun]) -> None:
    """Write what is predicted, and what earlier runs of the same steps on this GPU say, into a prediction."""
    prediction.gpu_memory_bytes = machine.memory_bytes if machine.device_type == "cuda" else None
    if isinstance(answer, str):
        prediction.memory_basis = answer
    else:
        _predicted(prediction, answer, machine)
    peaks = [run.peak_bytes for run in past if run.peak_bytes is not None and run.record.status != "oom"]
    if peaks:
        peak = max(peaks)
        before = prediction.allocated_bytes
        prediction.allocated_bytes = Interval(peak, peak * (1 - MEASURED), peak * (1 + MEASURED))
        if before is not None and prediction.memory_bytes is not None:
            whole, shift = prediction.memory_bytes, peak - before.value
            prediction.memory_bytes = Interval(whole.value + shift, max(whole.low + shift, peak), whole.high + shift)
        prediction.memory_basis, prediction.fits = f"measured in {len(peaks)} of this cell's runs", "yes"
    elif any(run.record.status == "oom" for run in past):  # of CPU ranks no peak is known either
        prediction.memory_basis, prediction.fits = RAN_OUT, "no"


def _predicted(prediction: Prediction, answer: PeakMemory, machine: Machine) -> None:
    prediction.memory_bytes = Interval(answer.total_bytes, answer.low_bytes, answer.high_bytes)
    prediction.active_bytes, prediction.memory_basis = answer.active_bytes, answer.basis
    if machine.device_type != "cuda":
        prediction.memory_basis += "; tensors alone, of a rank's memory of the host"
        return
    prediction.allocated_bytes = Interval(
        answer.allocated_bytes, answer.allocated_low_bytes, answer.allocated_high_bytes
    )
    prediction.fits = None if machine.memory_bytes is None else answer.fits(machine.memory_bytes)


def _runs_of(config: RunConfig, here: Sequence[PastRun]) -> list[PastRun]:
    """The runs with the same steps that had a GPU for each rank, and ended or ran out of memory."""
    own = axes(setting(plain(config)))
    return [run for run in here if run.has_steps_of(own) and not run.record.oversubscribed]


def _measured(config: RunConfig, here: Sequence[PastRun]) -> list[Measured]:
    """Of runs with like extras, the bytes of tensors that were predicted and what was measured."""
    own = setting(plain(config))
    like = [run for run in here if all(run.setting.get(key) == own.get(key) for key in ALIKE)]
    return extras.learn([run.record for run in like])
