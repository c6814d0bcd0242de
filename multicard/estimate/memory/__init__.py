"""The most memory that a run takes, by kind, predicted in seconds without weights or a GPU.

    (peak,) = predict_all([config], Machine("cuda", "NVIDIA H100", 94 * 10**9))

The steps of the run are taken with tensors that have no values, in a process of its own: this one imports no torch.
"""

from collections.abc import Sequence

import msgspec

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.estimate import gpus
from multicard.estimate.memory import answers, extras
from multicard.estimate.memory.answers import Active, Request
from multicard.estimate.memory.extras import Measured
from multicard.estimate.memory.facts import Facts, Machine, TextFacts
from multicard.records.schema_parts import Interval

ERROR = 0.02  # half-width of the 90 % interval of active bytes where the sizes of the data are known, as a share
FLEX_ATTENTION = (7, 5)  # the compute capability from which torchtune masks packed rows by flex attention


class PeakMemory(msgspec.Struct, frozen=True):
    """The most memory that a rank of a run takes, in bytes.

    Fields:
        active: the bytes of tensors, by kind.
        extras: what is added to them, by name.
        allocated: what the record's `peak_memory_bytes` will say: active bytes, and the workspaces that come from
            torch's allocator.
        total: what the GPU must have: with the allocator's slack, the CUDA context and NCCL.
        basis: what the prediction rests on, in words.
    """

    active: Active
    extras: dict[str, Interval]
    allocated: Interval
    total: Interval
    basis: str


def predict_all(
    configs: Sequence[RunConfig],
    machine: Machine,
    sizes: Sequence[Facts],
    measured: Sequence[Sequence[Measured]] = (),
    compute: bool = True,
) -> list[PeakMemory | str]:
    """The peaks of one rank's memory in runs, all by one process; of one that has no prediction, the reason.

    Args:
        sizes: of each run's data set (`facts.facts_of`).
        measured: for each run, those of this machine like it (`extras.learn`); three or more replace the stated extras
            that torch's allocator knows.
        compute: False: only from answers in the cache, so that no process is started.
    """
    cells = [(config, size, _requests(config, size, machine)) for config, size in zip(configs, sizes, strict=True)]
    active = iter(answers.answer_all([request for *_, requests in cells for request in requests], compute))
    predictions: list[PeakMemory | str] = []
    for number, (config, size, requests) in enumerate(cells):
        at_lengths = [next(active) for _ in requests]
        problem = next((answer for answer in at_lengths if isinstance(answer, str)), None) or _refused(config, machine)
        known = [answer for answer in at_lengths if isinstance(answer, Active)]
        like = measured[number] if measured else ()
        predictions.append(problem or _peak(config, machine, size, known, like))
    return predictions


def _requests(config: RunConfig, size: Facts, machine: Machine) -> list[Request]:
    """One for each length that rows may have."""
    if not isinstance(size, TextFacts):
        return [answers.request(config, size, machine)]
    return [answers.request(config, TextFacts(size.vocabulary, length), machine) for length in size.lengths]


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
    added = extras.extras_of(config, machine, active) if machine.device_type == "cuda" else {}
    basis = "steps without values"
    if isinstance(size, TextFacts):
        ends = "" if size.low is None else f", between {size.low} and {size.high}: the rows are not at hand"
        basis += f", rows of {size.length} tokens{ends}"
    learned = extras.learned(measured, active.active_bytes, extras.is_compiled(config, machine))
    if learned is not None and added:
        added = {"learned": learned} | {name: term for name, term in added.items() if name not in extras.ALLOCATED}
        basis += ", extras of runs on this GPU"
    ends = [answer.active_bytes for answer in lengths]
    tensors = Interval(active.active_bytes, round((1 - ERROR) * min(ends)), round((1 + ERROR) * max(ends)))
    allocated = [term for name, term in added.items() if name in extras.ALLOCATED]
    totals = extras.summed([tensors, *allocated]), extras.summed([tensors, *added.values()])
    return PeakMemory(active, added, *totals, basis)
