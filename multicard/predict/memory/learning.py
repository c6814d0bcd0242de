"""What finished runs say of the memory that no tensor of theirs holds. No torch."""

from collections.abc import Sequence

from multicard.config.vision import VisionConfig
from multicard.predict import gpus
from multicard.predict.memory import answers, facts, requests
from multicard.predict.memory.extras import Measured
from multicard.predict.memory.facts import Machine
from multicard.predict.memory.requests import Request
from multicard.predict.memory.result import Active
from multicard.records.schema import AnyRecord
from multicard.vision.strategy import compiles

MOST_RECORDS = 50  # the newest


def learn(records: Sequence[AnyRecord], machine: Machine, compute: bool = True) -> list[Measured]:
    """What the runs among `records` that were on the machine's GPU, and ended or ran out of memory, held by torch's
    allocator. Their tensors are computed as those of a prediction, of which the cache has most.

    Args:
        records: decoded ones, the newest last, all of one version of torch: it is in environment.json beside them.
            Those with a configuration of an older form, or whose data is gone, are left out.
        compute: as of `memory.predict_all`.
    """
    runs = [(record, run) for record in records if (run := _measured(record, machine)) is not None]
    asked: list[tuple[Request, Measured]] = []
    for record, run in runs[-MOST_RECORDS:]:
        try:
            config = requests.config_of(Request(str(record.kind), record.config, {}))
            request = requests.request(config, facts.of(config), machine)
        except Exception:  # of OmegaConf's, or a data set's, which have no common base
            continue
        is_vision = isinstance(config, VisionConfig)
        compiled = compiles(config, "cuda") if is_vision else bool(getattr(config, "compile", False))
        asked.append((request, run._replace(convolutions=is_vision, compiled=compiled)))
    active = answers.of([request for request, _ in asked], compute)
    return [
        run._replace(active_bytes=answer.active_bytes)
        for (_, run), answer in zip(asked, active, strict=True)
        if isinstance(answer, Active)
    ]


def _measured(record: AnyRecord, machine: Machine) -> Measured | None:
    """What the record says of memory, without its active bytes; None where that is nothing of this GPU."""
    if record.oversubscribed or not _same_gpu(record.hardware, machine.gpu):
        return None
    peak, cause = record.peak_memory_bytes, record.cause
    if record.status == "ok" and peak is not None and peak.kind == "cuda_allocated" and peak.max:
        return Measured(0, peak.max)
    held = cause.memory_bytes if record.status == "oom" and cause is not None else None
    return Measured(0, held, ran_out=True) if held else None


def _same_gpu(hardware: str | None, gpu: str) -> bool:
    known = gpus.of_product(gpu)
    products = known.products if known else (gpu,)
    return hardware is not None and hardware in products
