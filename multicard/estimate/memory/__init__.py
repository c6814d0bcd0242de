"""The most memory that a run takes, by kind, predicted in seconds without weights or a GPU.

    predict(config, Machine("cuda", "NVIDIA H100", 94 * 10**9)).fits(94 * 10**9)

The steps of the run are taken with tensors that have no values, in a process of its own: this one imports no torch.
"""

from collections.abc import Sequence
from importlib.metadata import version

from multicard.config import compilation
from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.vision import VisionConfig
from multicard.estimate import gpus
from multicard.estimate.memory import answers, extras, facts, requests
from multicard.estimate.memory.extras import Measured
from multicard.estimate.memory.facts import Facts, Machine, TextFacts
from multicard.estimate.memory.result import Active, PeakMemory
from multicard.vision.strategy import compiles

ERROR = 0.02  # half-width of the 90 % interval of active bytes where the sizes of the data are known, as a share
FLEX_ATTENTION = (7, 5)  # the compute capability from which torchtune masks packed rows by flex attention


class UnpredictableError(Exception):
    """No prediction; the text says why."""


def predict(
    config: RunConfig,
    machine: Machine | None = None,
    known: Facts | None = None,
    measured: Sequence[Measured] = (),
) -> PeakMemory:
    """The peak of one rank's memory in a run.

    Args:
        machine: where it is to run; a GPU of unknown memory if not said.
        known: sizes of the data set; read if not said.
        measured: runs of this machine like it (`extras.learn`); three or more replace the stated extras that torch's
            allocator knows.

    Raises:
        UnpredictableError: the steps cannot be taken without values, or not as a real run takes them.
        ValueError: from reading the data set, with the key and the remedy.
    """
    (answer,) = predict_all([config], machine, None if known is None else [known], measured)
    if isinstance(answer, str):
        raise UnpredictableError(answer)
    return answer


def predict_all(
    configs: Sequence[RunConfig],
    machine: Machine | None = None,
    known: Sequence[Facts] | None = None,
    measured: Sequence[Measured] = (),
    compute: bool = True,
) -> list[PeakMemory | str]:
    """As `predict`, of several runs by one process; of one that has no prediction, the reason.

    Args:
        compute: False: only from answers in the cache, so that no process is started.
    """
    machine = machine or Machine()
    sizes = known or [facts.of(config) for config in configs]
    cells = list(zip(configs, sizes, strict=True))
    asked = [request for config, size in cells for request in _requests(config, size, machine)]
    active = iter(answers.of(asked, compute))
    predictions: list[PeakMemory | str] = []
    for config, size in cells:
        at_lengths = [next(active) for _ in _requests(config, size, machine)]
        problem = next((answer for answer in at_lengths if isinstance(answer, str)), None)
        whole = [answer for answer in at_lengths if isinstance(answer, Active)]
        predictions.append(problem or _refused(config, machine) or _peak(config, machine, size, whole, measured))
    return predictions


def _requests(config: RunConfig, size: Facts, machine: Machine) -> list[requests.Request]:
    """One for each length that rows may have."""
    if not isinstance(size, TextFacts):
        return [requests.request(config, size, machine)]
    return [requests.request(config, TextFacts(size.vocabulary, length), machine) for length in size.lengths]


def _refused(config: RunConfig, machine: Machine) -> str | None:
    """Why a run has no prediction on this machine."""
    capability = gpus.capability(machine.gpu)
    masked = isinstance(config, LlmConfig) and config.packed and machine.device_type == "cuda"
    if masked and capability is not None and capability < FLEX_ATTENTION:
        return f"packed=true: has masks of S x S on {machine.gpu}, which no prediction was compared with"
    return None


def _peak(
    config: RunConfig, machine: Machine, size: Facts, lengths: Sequence[Active], measured: Sequence[Measured]
) -> PeakMemory:
    active = lengths[0]
    situation = _situation(config, machine, active)
    added = extras.of(situation) if machine.device_type == "cuda" else {}
    allocated = {name: extra for name, extra in added.items() if extras.TERMS[name].allocated}
    basis = "steps without values"
    if isinstance(size, TextFacts):
        ends = "" if size.low is None else f", between {size.low} and {size.high}: the rows are not at hand"
        basis += f", rows of {size.length} tokens{ends}"
    learned = extras.learned(measured, active.active_bytes, situation.compiled)
    if learned is not None and allocated:
        allocated = {"learned": learned}
        added = allocated | {name: extra for name, extra in added.items() if not extras.TERMS[name].allocated}
        basis += ", extras of runs on this GPU"
    bounds = [answer.active_bytes for answer in lengths]
    span = extras.Extra(active.active_bytes, round((1 - ERROR) * min(bounds)), round((1 + ERROR) * max(bounds)))
    return PeakMemory(
        active_bytes=active.active_bytes,
        by_kind=active.by_kind,
        phase=active.phase,
        operator=active.operator,
        by_phase=active.by_phase,
        extras=added,
        basis=basis,
        seconds=sum(answer.seconds for answer in lengths),
        **_interval("allocated", extras.summed([span, *allocated.values()])),
        **_interval("", extras.summed([span, *added.values()])),
    )


def _interval(prefix: str, values: tuple[int, int, int]) -> dict[str, int]:
    names = (
        ("allocated_bytes", "allocated_low_bytes", "allocated_high_bytes")
        if prefix
        else ("total_bytes", "low_bytes", "high_bytes")
    )
    return dict(zip(names, values, strict=True))


def torch_version() -> tuple[int, int]:
    """Of the torch that is installed here: (major, minor)."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def _situation(config: RunConfig, machine: Machine, active: Active) -> extras.Situation:
    made = sum(active.by_kind.get(kind, 0) for kind in ("activations", "temporaries"))
    compile_value = getattr(config, "compile", False)
    is_vision = isinstance(config, VisionConfig)
    compiled = compiles(config, machine.device_type) if isinstance(config, VisionConfig) else bool(compile_value)
    dali = is_vision and config.loader.name == "dali"
    return extras.Situation(
        active.active_bytes,
        made,
        torch_version(),
        machine.gpu,
        config.gpus * config.nodes if is_vision or not isinstance(config, LlmConfig) else config.world_size,
        convolutions=is_vision,
        benchmark=bool(getattr(config, "cudnn_benchmark", False)),
        compiled=compiled,
        cuda_graphs=compiled and compilation.has_cuda_graphs(compile_value),
        dali_bytes=active.by_kind.get("batch", 0) * 3 if dali else 0,
    )
