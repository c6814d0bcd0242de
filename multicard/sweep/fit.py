"""`fit=warn|refuse|off`: before runs are started or submitted, those that the GPU's memory will not hold."""

from collections.abc import Sequence

from multicard.config.base import Scale
from multicard.config.job import Device, count
from multicard.config.sweeps import AUTO, LEAST_AUTO, Fit, is_elsewhere
from multicard.estimate import peaks, target
from multicard.estimate.estimates import Effort, Estimate, estimate, no_reason_to_stop
from multicard.machine import devices
from multicard.measure.timing import clock_s
from multicard.messages import say
from multicard.records.text_table import in_bytes
from multicard.sweep import slurm_submit
from multicard.sweep.cells import NAMED_CELLS, Cell, Sweep

REMEDIES = {  # by workload; in training every GPU holds the whole model, so that more of them do not help
    "vision": "use a smaller batch_size or dataset.image_size",
    "llm": "use a smaller batch_size, method=lora or qlora, or more GPUs",
}


def check(sweep: Sweep, on_slurm: bool = False) -> None:
    """Name the cells to be measured that will not fit, and those that may not, each in a line; with fit=refuse those
    that will not are refused instead, and a race leaves them out.

    Args:
        on_slurm: they run on other nodes, whose GPU is known by `predict.gpu` or `predict.memory` alone; those in the
            queue already stay there.

    Raises:
        ValueError: predict.gpu names no known GPU, or SLURM does not answer.
    """
    left = sweep.left
    for name in {cell.cfg.predict.gpu for cell in left} - {None}:
        target.named(name)  # a wrong name is refused even where nothing needs the GPU
    asked = [cell for cell in left if _is_asked(cell) and (not on_slurm or is_elsewhere(cell.cfg))]
    if not asked or not (on_slurm or devices.visible_gpus()):
        return
    began_s = clock_s()
    estimated = _estimated(asked, on_slurm)
    sweep.command.foreseen_s += clock_s() - began_s
    remedy = REMEDIES[sweep.command.workload.name]
    named: dict[str, dict[str, str]] = {"no": {}, "tight": {}}  # by verdict and cell, once for all repetitions
    for cell, found in estimated:
        fits = found.prediction.fits
        if fits == "no" and cell.cfg.race.figure is not None:
            sweep.refuse(cell, f"{_needs(found)}; fit=off tries it", is_mistake=False)
        elif fits == "no" and cell.cfg.fit == Fit.refuse:
            sweep.refuse(cell, f"fit=refuse: {_needs(found)}; {remedy}, or fit=warn to try")
        elif fits in named:
            named[fits].setdefault(cell.config.identity(), f"{cell.label}{cell.folder.name} {_needs(found)}")
    _name("will not fit", [*named["no"].values()], f"; {remedy}, or fit=off")
    _name("may not fit", [*named["tight"].values()], "")


def _estimated(asked: list[Cell], on_slurm: bool) -> list[tuple[Cell, Estimate]]:
    """The estimates for GPUs; none where they fail."""
    queued = slurm_submit.queued_jobs(asked) if on_slurm else {}
    asked = [cell for cell in asked if cell.number not in queued]
    configs = [cell.config for cell in asked]
    with no_reason_to_stop():
        where = target.targets(configs, here=not on_slurm)
        found = estimate(configs, asked[0].folder, where, Effort.gpus) if asked else []
        return [pair for pair in zip(asked, found, strict=True) if pair[1].target.device_type == "cuda"]
    return []


def _is_asked(cell: Cell) -> bool:
    """False for cells that only try the code, and for rounds of repeat=auto after the first."""
    cfg = cell.cfg
    again = cfg.repeat == AUTO and cfg.repetition > LEAST_AUTO
    no_figure = cfg.scale == Scale.smoke or cfg.device == Device.cpu or cfg.oversubscribe
    return not (cfg.fit == Fit.off or no_figure or again)


def _name(verdict: str, cells: Sequence[str], remedy: str) -> None:
    """Print cells and their needs in a line."""
    if cells:
        more = [f"and {len(cells) - NAMED_CELLS} more"] * (len(cells) > NAMED_CELLS)
        say(f"{count(len(cells), 'cell')} {verdict}: {'; '.join([*cells[:NAMED_CELLS], *more])}{remedy}", error=True)


def _needs(found: Estimate) -> str:
    """The memory that a cell needs, and that of the GPU."""
    gpu, prediction = found.target.gpu or "the GPU", found.prediction
    memory = prediction.memory_bytes
    if prediction.memory_basis == peaks.RAN_OUT:
        return f"ran out of memory on {gpu} before"
    if memory is None:
        return f"{prediction.memory_basis} ({gpu})"
    interval = f"{in_bytes(memory.low)} to {in_bytes(memory.high)}"
    return (
        f"needs {in_bytes(memory.value)} ({interval}) of memory, and {gpu} has {in_bytes(prediction.gpu_memory_bytes)}"
    )
