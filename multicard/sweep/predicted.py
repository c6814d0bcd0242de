"""Predict cells before they start, for `predict=true` and `fit=warn|refuse|off`.

`predict=true` shows the predictions of a sweep's cells, or of a single run, and starts nothing.
`fit` handles cells that the GPU's memory will not hold.
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
from multicard.sweep import cell_checks, prediction_table, slurm_submit
from multicard.sweep.cells import NAMED_CELLS, Cell, Sweep
from multicard.sweep.prediction_table import PredictionRow

SLURM_NODES = {  # Messages by device.
    "cuda": Message(
        "predict.slurm-gpus",
        "SLURM's nodes are not known here; name their GPU, as `predict.gpu=h100-80gb`",
        key="predict.gpu",
    ),
    "cpu": Message(
        "predict.slurm-cpus", "SLURM's nodes are assumed to have this machine's processor"
    ),
}
# Remedies by workload. In vision training, every GPU holds the whole model, so more GPUs do not
# help.
REMEDIES = {
    "vision": "use a smaller batch_size or dataset.image_size",
    "llm": "use a smaller batch_size, `method=lora`, `method=qlora`, or more GPUs",
    "script": "use a smaller batch, as the script's arguments have it",
}
PredictedCell = tuple[Cell, Estimate]


def show(sweep: Sweep, on_slurm: bool = False) -> None:
    """Print predictions of the cells, including cells measured before, and the refused cells.

    For jobs of SLURM, predictions leave out whatever only their nodes can answer. A predict.gpu
    that is not a known GPU is refused.
    """
    remaining = sweep.left
    cell_checks.check_cells(
        sweep, remaining, on_slurm or any(is_elsewhere(cell.cfg) for cell in remaining)
    )
    sound_cells = sorted(sweep.cells, key=lambda cell: cell.number)
    members: list[tuple[Cell, TargetMachine]] = []
    for cell, target in zip(
        sound_cells, targets([cell.config for cell in sound_cells], on_slurm=on_slurm), strict=True
    ):
        crowd_reason = _crowd_reason(cell, target, on_slurm) if cell.result is None else ""
        if crowd_reason:
            sweep.refuse(cell, crowd_reason)
        else:
            members.append((cell, target))
    if on_slurm:
        for line in dict.fromkeys(
            SLURM_NODES[to.device_type] for cell, to in members if not is_elsewhere(cell.cfg)
        ):
            say(line)
    if members:
        configs = [cell.config for cell, _ in members]
        machines = [target for _, target in members]
        answers = estimate(configs, members[0][0].folder, machines, Effort.all)
        _show([(cell, answer) for (cell, _), answer in zip(members, answers, strict=True)])
    cell_checks.say_refused(sweep)


def _crowd_reason(cell: Cell, target: TargetMachine, on_slurm: bool) -> str:
    """Return why more CPU ranks than cores are not predicted, or "" if there are enough cores."""
    config = cell.config
    cores = resources(config).cpus if on_slurm else environment.cores()
    if target.device_type != "cpu" or config.gpus <= cores:
        return ""
    crowd = (
        f"{config.gpus} CPU ranks would take turns on {count(cores, 'core')}, and no run shows how"
        " long that takes"
    )
    sentence = f"gpus={config.gpus}: {crowd}; use `gpus={cores}` or fewer"
    return Message("predict.crowd", sentence, key="gpus", value=config.gpus, cores=cores)


def _show(predicted: Sequence[PredictedCell]) -> None:
    # With `experiment=all`, each experiment is a section.
    sections: dict[str, dict[str, list[PredictedCell]]] = {}
    for cell, answer in predicted:  # Repetitions of a cell share a row.
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
    all_rows = list[PredictionRow]()
    for experiment, groups in sections.items():
        rows = _rows([*groups.values()])
        title = ["", f"experiment={experiment}"] if len(sections) > 1 else []
        say("\n".join([*title, *prediction_table.table_lines(rows, text_table.terminal_width())]))
        all_rows += rows
    on_gpus = any(answer.target.device_type == "cuda" for _, answer in predicted)
    say(
        "\n".join(
            [*prediction_table.note_lines(all_rows), prediction_table.sums_line(all_rows, on_gpus)]
        )
    )


def _rows(groups: Sequence[Sequence[PredictedCell]]) -> list[PredictionRow]:
    """Return one row for each cell, with the axes of the final table."""
    records = [cell.as_record(answer.target.device_type) for (cell, answer), *_ in groups]
    axes = comparable.varied(records, groups[0][0][0].workload.record.always)
    shown = [{axis: comparable.cell(record, axis) for axis in axes} for record in records]
    left_by_group = [sum(cell.result is None for cell, _ in group) for group in groups]
    return [
        PredictionRow(row_axes, group[0][1], len(group), left_runs)
        for row_axes, group, left_runs in zip(shown, groups, left_by_group, strict=True)
    ]


# ---- fit=


def check_fit(sweep: Sweep, on_slurm: bool = False) -> None:
    """Print a line on the cells that will not fit, and a line on the cells that may not fit.

    With fit=refuse, cells that will not fit are refused instead. A race leaves such cells out.

    Args:
        on_slurm: the cells run on other nodes, whose GPU is only known from `predict.gpu` or
            `predict.memory`. Cells that are in the queue stay there.

    Raises:
        ValueError: predict.gpu names no known GPU, or SLURM does not answer.
    """
    remaining = sweep.left
    for name in {cell.cfg.predict.gpu for cell in remaining} - {None}:
        find_gpu(name)  # A wrong name is refused even if nothing needs the GPU.
    cells_to_check = [
        cell
        for cell in remaining
        if _needs_check(cell) and (not on_slurm or is_elsewhere(cell.cfg))
    ]
    if not cells_to_check or not (on_slurm or devices.visible_gpus()):
        return
    began_s = clock_s()
    estimated = _estimates_on_gpus(cells_to_check, on_slurm)
    sweep.command.foreseen_s += clock_s() - began_s
    remedy = REMEDIES[sweep.command.workload.name]
    # By verdict and cell, so that all repetitions of a cell are named once.
    unfit: dict[str, dict[str, str]] = {"no": {}, "tight": {}}
    for cell, cell_estimate in estimated:
        fits = cell_estimate.prediction.fits
        if fits == "no" and cell.cfg.race.figure is not None:
            needs = _needs(cell_estimate)
            reason = Message(
                "fit.not-raced", f"{needs}; `fit=off` tries it", key="fit", needs=needs
            )
            sweep.refuse(cell, reason, is_mistake=False)
        elif fits == "no" and cell.cfg.fit == Fit.refuse:
            needs = _needs(cell_estimate)
            sentence = f"fit=refuse: {needs}; {remedy}, or try it with `fit=warn`"
            sweep.refuse(cell, Message("fit.refused", sentence, key="fit", needs=needs))
        elif fits in unfit:
            unfit[fits].setdefault(cell.config.identity(), _unfit_cell(cell, cell_estimate))
    if members := [*unfit["no"].values()]:
        named_cells = prediction_table.list_first(members, NAMED_CELLS)
        sentence = (
            f"{count(len(members), 'cell')} will not fit: {named_cells}; {remedy}, or `fit=off`"
        )
        say(
            Message("fit.will-not", sentence, key="fit", cells=len(members), named=named_cells),
            error=True,
        )
    if members := [*unfit["tight"].values()]:
        named_cells = prediction_table.list_first(members, NAMED_CELLS)
        sentence = f"{count(len(members), 'cell')} may not fit: {named_cells}"
        say(
            Message("fit.may-not", sentence, key="fit", cells=len(members), named=named_cells),
            error=True,
        )


def _unfit_cell(cell: Cell, cell_estimate: Estimate) -> Message:
    needs = _needs(cell_estimate)
    sentence = f"{cell.label}{cell.folder.name} {needs}"
    return Message(
        "fit.cell", sentence, cell=cell.label.strip(), folder=cell.folder.name, needs=needs
    )


def _estimates_on_gpus(cells_to_check: list[Cell], on_slurm: bool) -> list[tuple[Cell, Estimate]]:
    """Return the predictions for GPUs, or none if predicting fails."""
    queued = slurm_submit.queued_jobs(cells_to_check) if on_slurm else {}
    cells_to_check = [cell for cell in cells_to_check if cell.number not in queued]
    configs = [cell.config for cell in cells_to_check]
    with printing_errors():
        machines = targets(configs, here=not on_slurm)
        cell_estimates = (
            estimate(configs, cells_to_check[0].folder, machines, Effort.gpus)
            if cells_to_check
            else []
        )
        return [
            pair
            for pair in zip(cells_to_check, cell_estimates, strict=True)
            if pair[1].target.device_type == "cuda"
        ]
    return []


def _needs_check(cell: Cell) -> bool:
    """Return False for cells that only try the code, or were repeated often enough already."""
    cfg = cell.cfg
    first_repetitions = LEAST_AUTO if cfg.repeat == AUTO else repeats(cfg.repeat)
    is_extra_repetition = cfg.repeat != "1" and cfg.repetition > first_repetitions
    has_no_figure = cfg.scale == Scale.smoke or cfg.device == Device.cpu or cfg.oversubscribe
    return not (cfg.fit == Fit.off or has_no_figure or is_extra_repetition)


def _needs(cell_estimate: Estimate) -> str:
    """Describe the memory that a cell needs, and the memory of the GPU."""
    gpu = cell_estimate.target.gpu or "the GPU"
    prediction = cell_estimate.prediction
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
