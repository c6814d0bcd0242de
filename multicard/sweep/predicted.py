"""Estimates before a start: `predict=true` shows those of a sweep's cells, or of a single run, and
starts nothing; `fit=warn|refuse|off` is about cells that the GPU's memory will not hold.
"""

from collections.abc import Sequence

from multicard.config.base import Scale
from multicard.config.job import Device, count, resources
from multicard.config.sweeps import AUTO, LEAST_AUTO, Fit, is_elsewhere, repeats
from multicard.estimate import peaks
from multicard.estimate.estimates import Effort, Estimate, estimate, printing_errors
from multicard.estimate.target import TargetMachine, find_gpu, targets
from multicard.machine import devices, environment
from multicard.measure.timing import clock_s
from multicard.messages import Message, say
from multicard.records import comparable, text_table
from multicard.records.text_table import in_bytes
from multicard.sweep import cells, prediction_table, slurm_submit
from multicard.sweep.cells import NAMED_CELLS, Cell, Sweep
from multicard.sweep.prediction_table import PredictionRow

SLURM_NODES = {  # by device
    "cuda": Message(
        "predict.slurm-gpus",
        "SLURM's nodes are not known here; name their GPU, as `predict.gpu=h100-80gb`",
        key="predict.gpu",
    ),
    "cpu": Message(
        "predict.slurm-cpus", "SLURM's nodes are taken to have this machine's processor"
    ),
}
# by workload; in training every GPU holds the whole model, so that more of them do not help
REMEDIES = {
    "vision": "use a smaller batch_size or dataset.image_size",
    "llm": "use a smaller batch_size, `method=lora`, `method=qlora`, or more GPUs",
    "script": "use a smaller batch, as the script's arguments have it",
}
Predicted = tuple[Cell, Estimate]


def show(sweep: Sweep, on_slurm: bool = False) -> None:
    """Print estimates of the cells, those measured before too, and which of them are refused; of
    jobs of SLURM without what only their own nodes can answer. Refuses a predict.gpu that is no
    known GPU.
    """
    left = sweep.left
    cells.check(sweep, left, on_slurm or any(is_elsewhere(cell.cfg) for cell in left))
    sound = sorted(sweep.cells, key=lambda cell: cell.number)
    members: list[tuple[Cell, TargetMachine]] = []
    for cell, target in zip(
        sound, targets([cell.config for cell in sound], on_slurm=on_slurm), strict=True
    ):
        crowd = _crowd(cell, target, on_slurm) if cell.result is None else ""
        if crowd:
            sweep.refuse(cell, crowd)
        else:
            members.append((cell, target))
    if on_slurm:
        for line in dict.fromkeys(
            SLURM_NODES[to.device_type] for cell, to in members if not is_elsewhere(cell.cfg)
        ):
            say(line)
    if members:
        configs = [cell.config for cell, _ in members]
        where = [target for _, target in members]
        answers = estimate(configs, members[0][0].folder, where, Effort.all)
        _show([(cell, answer) for (cell, _), answer in zip(members, answers, strict=True)])
    cells.say_refused(sweep)


def _crowd(cell: Cell, target: TargetMachine, on_slurm: bool) -> str:
    """The reason for which more CPU ranks than cores are not predicted; empty for others."""
    config = cell.config
    cores = resources(config).cpus if on_slurm else environment.cores()
    if target.device_type != "cpu" or config.gpus <= cores:
        return ""
    crowd = (
        f"{config.gpus} CPU ranks would take turns on {count(cores, 'core')}, whose time no run"
        " tells"
    )
    sentence = f"gpus={config.gpus}: {crowd}; use `gpus={cores}` or fewer"
    return Message("predict.crowd", sentence, key="gpus", value=config.gpus, cores=cores)


def _show(predicted: Sequence[Predicted]) -> None:
    # of `experiment=all` one for each experiment
    sections: dict[str, dict[str, list[Predicted]]] = {}
    for cell, answer in predicted:  # repetitions of a cell are together
        experiment = str(cell.composed.hydra.runtime.choices.get("experiment") or "")
        sections.setdefault(experiment, {}).setdefault(cell.config.identity(), []).append(
            (cell, answer)
        )
    where = ", ".join(dict.fromkeys(answer.target.in_words for _, answer in predicted))
    sentence = (
        f"predict=true: nothing is started. Predicted for {where}, with 90% intervals and (runs)"
        " behind them:"
    )
    say(Message("predict.title", sentence, key="predict", where=where))
    every = list[PredictionRow]()
    for experiment, groups in sections.items():
        rows = _rows([*groups.values()])
        title = ["", f"experiment={experiment}"] if len(sections) > 1 else []
        say("\n".join([*title, *prediction_table.table(rows, text_table.terminal_width())]))
        every += rows
    on_gpus = any(answer.target.device_type == "cuda" for _, answer in predicted)
    say("\n".join([*prediction_table.notes(every), prediction_table.sums(every, on_gpus)]))


def _rows(groups: Sequence[Sequence[Predicted]]) -> list[PredictionRow]:
    """A row a cell, with the axes of the final table."""
    records = [cell.as_record(answer.target.device_type) for (cell, answer), *_ in groups]
    axes = comparable.varied(records, groups[0][0][0].workload.record.always)
    shown = [{axis: comparable.cell(record, axis) for axis in axes} for record in records]
    left = [sum(cell.result is None for cell, _ in group) for group in groups]
    return [
        PredictionRow(own, group[0][1], len(group), n)
        for own, group, n in zip(shown, groups, left, strict=True)
    ]


# ---- fit=


def check_fit(sweep: Sweep, on_slurm: bool = False) -> None:
    """Name the cells to be measured that will not fit, and those that may not, each in a line; with
    fit=refuse those that will not are refused instead, and a race leaves them out.

    Args:
        on_slurm: they run on other nodes, whose GPU is known by `predict.gpu` or `predict.memory`
            alone; those in the queue already stay there.

    Raises:
        ValueError: predict.gpu names no known GPU, or SLURM does not answer.
    """
    left = sweep.left
    for name in {cell.cfg.predict.gpu for cell in left} - {None}:
        find_gpu(name)  # Refuse a wrong name even if nothing needs the GPU.
    asked = [
        cell for cell in left if _needs_check(cell) and (not on_slurm or is_elsewhere(cell.cfg))
    ]
    if not asked or not (on_slurm or devices.visible_gpus()):
        return
    began_s = clock_s()
    estimated = _fitted(asked, on_slurm)
    sweep.command.foreseen_s += clock_s() - began_s
    remedy = REMEDIES[sweep.command.workload.name]
    # by verdict and cell, once for all repetitions
    unfit: dict[str, dict[str, str]] = {"no": {}, "tight": {}}
    for cell, found in estimated:
        fits = found.prediction.fits
        if fits == "no" and cell.cfg.race.figure is not None:
            needs = _needs(found)
            reason = Message(
                "fit.not-raced", f"{needs}; `fit=off` tries it", key="fit", needs=needs
            )
            sweep.refuse(cell, reason, is_mistake=False)
        elif fits == "no" and cell.cfg.fit == Fit.refuse:
            needs = _needs(found)
            sentence = f"fit=refuse: {needs}; {remedy}, or try it with `fit=warn`"
            sweep.refuse(cell, Message("fit.refused", sentence, key="fit", needs=needs))
        elif fits in unfit:
            unfit[fits].setdefault(cell.config.identity(), _unfit_cell(cell, found))
    if members := [*unfit["no"].values()]:
        named_cells = prediction_table.listed(members, NAMED_CELLS)
        sentence = (
            f"{count(len(members), 'cell')} will not fit: {named_cells}; {remedy}, or `fit=off`"
        )
        say(
            Message("fit.will-not", sentence, key="fit", cells=len(members), named=named_cells),
            error=True,
        )
    if members := [*unfit["tight"].values()]:
        named_cells = prediction_table.listed(members, NAMED_CELLS)
        sentence = f"{count(len(members), 'cell')} may not fit: {named_cells}"
        say(
            Message("fit.may-not", sentence, key="fit", cells=len(members), named=named_cells),
            error=True,
        )


def _unfit_cell(cell: Cell, found: Estimate) -> Message:
    needs = _needs(found)
    sentence = f"{cell.label}{cell.folder.name} {needs}"
    return Message(
        "fit.cell", sentence, cell=cell.label.strip(), folder=cell.folder.name, needs=needs
    )


def _fitted(asked: list[Cell], on_slurm: bool) -> list[tuple[Cell, Estimate]]:
    """The estimates for GPUs; none where they fail."""
    queued = slurm_submit.queued_jobs(asked) if on_slurm else {}
    asked = [cell for cell in asked if cell.number not in queued]
    configs = [cell.config for cell in asked]
    with printing_errors():
        where = targets(configs, here=not on_slurm)
        found = estimate(configs, asked[0].folder, where, Effort.gpus) if asked else []
        return [
            pair for pair in zip(asked, found, strict=True) if pair[1].target.device_type == "cuda"
        ]
    return []


def _needs_check(cell: Cell) -> bool:
    """False for cells that only try the code, and for those that
    were measured as often as `repeat` says already.
    """
    cfg = cell.cfg
    first = LEAST_AUTO if cfg.repeat == AUTO else repeats(cfg.repeat)
    again = cfg.repeat != "1" and cfg.repetition > first
    no_figure = cfg.scale == Scale.smoke or cfg.device == Device.cpu or cfg.oversubscribe
    return not (cfg.fit == Fit.off or no_figure or again)


def _needs(found: Estimate) -> str:
    """The memory that a cell needs, and that of the GPU."""
    gpu = found.target.gpu or "the GPU"
    prediction = found.prediction
    memory = prediction.memory_bytes
    if prediction.memory_basis == peaks.RAN_OUT:
        return Message("fit.ran-out", f"ran out of memory on {gpu} before", gpu=gpu)
    if memory is None:
        sentence = f"{prediction.memory_basis} ({gpu})"
        return Message("fit.unknown", sentence, gpu=gpu, reason=prediction.memory_basis)
    has_bytes = prediction.gpu_memory_bytes
    needed = f"{in_bytes(memory.value)} ({in_bytes(memory.low)} to {in_bytes(memory.high)})"
    sentence = f"needs {needed} of memory, and {gpu} has {in_bytes(has_bytes)}"
    ends = [memory.value, memory.low, memory.high]
    return Message("fit.needs", sentence, gpu=gpu, bytes=ends, has_bytes=has_bytes)
