"""`fit=warn|refuse|off`: before runs are started or submitted, which of them the GPU's memory will not hold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from multicard.config.base import Scale
from multicard.config.job import Device, count
from multicard.config.prediction import Fit, is_elsewhere
from multicard.config.repetition import AUTO, LEAST_AUTO
from multicard.estimate import before_run, gpus
from multicard.machine import devices
from multicard.measure.timing import clock_s
from multicard.records.text_table import in_bytes
from multicard.run.session import say
from multicard.sweep.cells import NAMED_CELLS, Cell, Sweep

if TYPE_CHECKING:
    from multicard.sweep.predictions import Predicted

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
        ValueError: predict.gpu names no GPU that is known, or SLURM does not answer.
    """
    left = sweep.left
    for name in {cell.cfg.predict.gpu for cell in left} - {None}:
        gpus.named(name)  # a wrong name is not ignored where nothing asks for the GPU
    asked = [cell for cell in left if _is_asked(cell) and (not on_slurm or is_elsewhere(cell.cfg))]
    if not asked or not (on_slurm or devices.visible_gpus()):
        return
    began_s = clock_s()
    predicted = _predicted(asked, on_slurm)
    sweep.command.foreseen_s += clock_s() - began_s
    unfit = [each for each in predicted if each.prediction.fits == "no"]
    remedy, warned = REMEDIES[sweep.command.workload.name], []
    for each in unfit:
        if each.cell.cfg.race.figure is not None:
            sweep.refuse(each.cell, f"{_needs(each)}; fit=off tries it", is_mistake=False)
        elif each.cell.cfg.fit == Fit.refuse:
            sweep.refuse(each.cell, f"fit=refuse: {_needs(each)}; {remedy}, or fit=warn to try")
        else:
            warned.append(each)
    _name("will not fit", warned, f"; {remedy}, or fit=off")
    _name("may not fit", [each for each in predicted if each not in unfit and each.prediction.fits == "tight"], "")


def _predicted(asked: list[Cell], on_slurm: bool) -> "list[Predicted]":
    """The predictions for GPUs; none where they fail."""
    from multicard.estimate import run  # which most commands on CPU ranks need not import
    from multicard.sweep import predictions

    if on_slurm:
        from multicard.sweep import slurm_submit

        queued = slurm_submit.queued_jobs(asked)
        asked = [cell for cell in asked if cell.number not in queued]
    targets = run.targets([cell.config for cell in asked], here=not on_slurm)
    with before_run.no_reason_to_stop():
        return [each for each in predictions.of(asked, targets) if each.target.device_type == "cuda"]
    return []


def _is_asked(cell: Cell) -> bool:
    """Whether a cell is to be checked: not what only tries the code, nor rounds of repeat=auto after the first."""
    cfg = cell.cfg
    again = cfg.repeat == AUTO and cfg.repetition > LEAST_AUTO
    no_figure = cfg.scale == Scale.smoke or cfg.device == Device.cpu or cfg.oversubscribe
    return not (cfg.fit == Fit.off or no_figure or again)


def _name(verdict: str, members: "Sequence[Predicted]", remedy: str) -> None:
    """Name cells in a line, once for all repetitions."""
    settings: dict[str, Predicted] = {}
    for each in members:
        settings.setdefault(each.cell.config.identity(), each)
    if not settings:
        return
    named = [f"{each.cell.label}{each.cell.folder.name} {_needs(each)}" for each in settings.values()]
    more = [f"and {len(named) - NAMED_CELLS} more"] * (len(named) > NAMED_CELLS)
    say(f"{count(len(named), 'cell')} {verdict}: {'; '.join([*named[:NAMED_CELLS], *more])}{remedy}", error=True)


def _needs(each: "Predicted") -> str:
    """What a cell needs, and what there is."""
    from multicard.estimate import peaks

    gpu, memory = each.target.gpu or "the GPU", each.prediction.memory_bytes
    if each.prediction.memory_basis == peaks.RAN_OUT:
        return f"ran out of memory on {gpu} before"
    if memory is None:
        return f"{each.prediction.memory_basis} ({gpu})"
    interval = f"{in_bytes(memory.low)} to {in_bytes(memory.high)}"
    has = in_bytes(each.prediction.gpu_memory_bytes)
    return f"needs {in_bytes(memory.value)} ({interval}) of memory, and {gpu} has {has}"
