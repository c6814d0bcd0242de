"""`predict=true`: estimates of a sweep's cells, or of a single run. Nothing is started, nothing is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from multicard import workloads
from multicard.config.base import Scale, plain
from multicard.config.job import count, resources
from multicard.config.sweeps import is_elsewhere
from multicard.estimate import estimates, history, observations
from multicard.estimate.estimates import Effort, Estimate
from multicard.estimate.target import UNKNOWN_NODE, Target, targets
from multicard.machine import environment
from multicard.messages import say
from multicard.records import comparable, run_folder, table, text_table
from multicard.sweep import dry_run, fewest_probes, prediction_table
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.command import Command
from multicard.sweep.prediction_table import WIDTH, Row

# Words that a command of probes leaves out, or sets itself
LEFT_OUT = ("-m", "--multirun", "predict.", "probe.enabled=", "dry_run=", "repeat", "repetition=", "rerun=")
SLURM_NODES = {  # by device
    "cuda": "SLURM's nodes are not known here: name their GPU with predict.gpu, as predict.gpu=h100-80gb",
    "cpu": "SLURM's nodes are taken to have this machine's processor",
}


@dataclass(frozen=True)
class Predicted:
    cell: Cell
    estimate: Estimate


def show(sweep: Sweep, on_slurm: bool = False) -> None:
    """Print estimates of the cells, those measured before too, and which of them are refused.

    Args:
        on_slurm: leave out what only the job's own nodes can answer.

    Raises:
        ValueError: predict.gpu names no GPU that is known.
    """
    left = sweep.left
    dry_run.check(sweep, left, on_slurm or any(is_elsewhere(cell.cfg) for cell in left))
    sound = sorted(sweep.cells, key=lambda cell: cell.number)
    members: list[tuple[Cell, Target]] = []
    for cell, target in zip(sound, targets([cell.config for cell in sound], on_slurm=on_slurm), strict=True):
        crowd = _crowd(cell, target, on_slurm) if cell.result is None else ""
        if crowd:
            sweep.refuse(cell, crowd)
        else:
            members.append((cell, target))
    if on_slurm:
        for line in dict.fromkeys(SLURM_NODES[to.device_type] for cell, to in members if not is_elsewhere(cell.cfg)):
            say(line)
    if members:
        configs, where = [cell.config for cell, _ in members], [target for _, target in members]
        answers = estimates.estimate(configs, members[0][0].folder, where, Effort.all)
        _show(sweep.command, [Predicted(cell, answer) for (cell, _), answer in zip(members, answers, strict=True)])
    dry_run.say_refused(sweep)


def _crowd(cell: Cell, target: Target, on_slurm: bool) -> str:
    """The reason for which more CPU ranks than cores are not predicted; empty for others."""
    config = cell.config
    cores = resources(config).cpus if on_slurm else environment.cores()
    ranks = cell.workload.processes(config)
    if target.device_type != "cpu" or ranks <= cores:
        return ""
    crowd = f"gpus={config.gpus}: {ranks} CPU ranks would take turns on {count(cores, 'core')}"
    return f"{crowd}, of which no run tells the time; use gpus={cores} or fewer"


def _show(command: Command, predicted: Sequence[Predicted]) -> None:
    width = text_table.terminal_width()
    sections: dict[str, dict[str, list[Predicted]]] = {}  # of `experiment=all` one for each experiment
    for each in predicted:  # repetitions of a cell are together
        sections.setdefault(_experiment(each.cell), {}).setdefault(each.cell.config.identity(), []).append(each)
    rows = {name: _rows(list(groups.values())) for name, groups in sections.items()}
    where = ", ".join(dict.fromkeys(each.estimate.target.in_words for each in predicted))
    say(f"predict=true: nothing is started. Predicted for {where}, with 90% intervals and (runs) behind them:")
    for name, own in rows.items():
        title = ["", f"experiment={name}"] * (len(rows) > 1)
        say("\n".join([*title, *prediction_table.table(own, width)]))
    every = [row for own in rows.values() for row in own]
    lines = prediction_table.notes(every)
    for name, groups in sections.items():
        lines += _probes(command, [group[0] for group in groups.values()], name)
    lines.append(prediction_table.sums(every, any(each.estimate.target.device_type == "cuda" for each in predicted)))
    say("\n".join(lines))


def _experiment(cell: Cell) -> str:
    return str(cell.composed.hydra.runtime.choices.get("experiment") or "")


def _rows(groups: Sequence[Sequence[Predicted]]) -> list[Row]:
    """A row a cell, with the axes of the final table."""
    records = [group[0].cell.as_record(group[0].estimate.target.device_type) for group in groups]
    axes = comparable.varied(records, table.ALWAYS[groups[0][0].cell.workload.name])
    rows = []
    for record, group in zip(records, groups, strict=True):
        values = {axis: comparable.cell(record, axis) for axis in axes}
        left = sum(each.cell.result is None for each in group)
        rows.append(Row(values, group[0].estimate, len(group), left))
    return rows


def _probes(command: Command, members: Sequence[Predicted], experiment: str) -> list[str]:
    """The fewest probes after which each cell's times rest on this machine's, and their commands."""
    members = [each for each in members if each.estimate.target != UNKNOWN_NODE]  # whose probes would be of any GPU
    if not members:
        return []
    swept, words = _words(command, members, experiment)
    known = [each.estimate.basis.is_own for each in members]
    wanted = [
        not is_known and each.cell.result is None and each.estimate.fits != "no"
        for each, is_known in zip(members, known, strict=True)
    ]
    settings = [history.setting(plain(each.cell.config)) for each in members]
    chosen = fewest_probes.fewest(settings, [str(each.estimate.target.hardware) for each in members], known, wanted)
    if not chosen:
        return []
    where = " on such a node" if is_elsewhere(members[0].cell.cfg) else ""
    seconds = members[0].cell.config.probe.seconds
    lasting = f"each trains for {seconds:g} s at most"
    line = f"to know the times of {count(sum(wanted), 'cell')}, probe {len(chosen)}{where} ({lasting}):"
    before = _finished_probes(members[0].cell.folder.parent)
    again = [place for place in chosen if _axes(plain(members[place].cell.config)) in before]
    commands = fewest_probes.commands(swept, [place for place in chosen if place not in again], words)
    commands += fewest_probes.commands(swept, again, [*words, "rerun=true"])
    return [*wrap(line, WIDTH), *(f"  {command}" for command in commands)]


def _finished_probes(sweep: Path) -> list[dict[str, str]]:
    """The axes of finished probes in the sweep's folder, whose records a command would take."""
    runs = [run_folder.finished(folder) for folder in sweep.glob("*-probe")]
    return [_axes(run.record.config) for run in runs if run is not None]


def _axes(config: Mapping[str, Any]) -> dict[str, str]:
    return observations.axes(history.setting(config))


def _words(command: Command, members: Sequence[Predicted], experiment: str) -> tuple[list[dict[str, str]], list[str]]:
    """The values of each cell that the rest of the command does not set, and that rest."""
    cell = members[0].cell
    typed = {word.get_key_element(): word for word in command.overrides}
    params, smoke = cell.composed.hydra.sweeper.get("params") or {}, cell.composed.hydra.experiment.smoke
    set_anyway = {**params, **(smoke if cell.cfg.scale == Scale.smoke else {})}
    overrides = [
        dict(str(word).split("=", 1) for word in each.cell.composed.hydra.overrides.task if "=" in word)
        for each in members
    ]

    def is_swept(key: str) -> bool:
        if key in typed:
            return typed[key].is_sweep_override()
        return any(own.get(key) != str(set_anyway.get(key)) for own in overrides)

    swept = [key for key in dict.fromkeys(key for own in overrides for key in own) if is_swept(key)]
    rest = [word for word in command.words if not word.startswith(LEFT_OUT) and word.split("=", 1)[0] not in swept]
    rest = workloads.with_experiment(rest, experiment) if experiment else rest
    line = ["python", command.workload.entry, *["-m"] * bool(cell.label), *rest]
    return [{key: own[key] for key in swept if key in own} for own in overrides], line
