"""`predict=true`: what the cells of a sweep, or a single run, would take. Nothing is started, nothing is written."""

import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from multicard import workloads
from multicard.config.base import RunConfig, plain
from multicard.config.job import count
from multicard.config.prediction import is_elsewhere
from multicard.controller.session import SESSION, say
from multicard.records import comparable, table, text_table
from multicard.sweep import dry_run, fewest_probes, prediction_table, predictions
from multicard.sweep.plan import Cell
from multicard.sweep.prediction_table import WIDTH, PredictedCell
from multicard.sweep.predictions import Predicted

KNOWN = ("measured", "probed", "scaled")  # bases that rest on this machine
# Words that a command of probes leaves out
LEFT_OUT = ("-m", "--multirun", "predict.", "probe.enabled=", "dry_run=", "repeat", "repetition=")


def show(cells: Sequence[Cell], left: list[Cell], on_slurm: bool = False) -> None:
    """Print predictions of the cells, those measured before too, and which of them are refused.

    Args:
        left: those to be measured.
        on_slurm: leave out what only the job's own nodes can answer.

    Raises:
        ValueError: predict.gpu names no GPU that is known.
    """
    dry_run.check(left, on_slurm or any(is_elsewhere(cell.cfg) for cell in left))
    predicted = predictions.of([cell for cell in cells if not cell.problem])
    if predicted:
        _show(predicted)
    if on_slurm and not is_elsewhere(cells[0].cfg):
        say("SLURM's nodes are not known here: name their GPU with predict.gpu, as predict.gpu=h100-80gb")
    dry_run.say_refused(cells)


def _show(predicted: Sequence[Predicted]) -> None:
    width = text_table.terminal_width()
    sections: dict[str, dict[str, list[Predicted]]] = {}  # of `experiment=all` one for each experiment
    for each in predicted:  # repetitions of a cell are together
        identity = _config(each.cell).identity()
        sections.setdefault(_experiment(each.cell), {}).setdefault(identity, []).append(each)
    rows = {name: _rows(list(groups.values())) for name, groups in sections.items()}
    where = ", ".join(dict.fromkeys(predictions.in_words(each.target) for each in predicted))
    say(f"predict=true: nothing is started. Predicted for {where}, with 90% intervals and (runs) behind them:")
    for name, own in rows.items():
        title = ["", f"experiment={name}"] * (len(rows) > 1)
        say("\n".join([*title, *prediction_table.rows(own, width)]))
    every = [row for own in rows.values() for row in own]
    lines = prediction_table.notes(every)
    for name, groups in sections.items():
        lines += _probes([group[0] for group in groups.values()], name)
    lines.append(prediction_table.sums(every, any(each.target.device_type == "cuda" for each in predicted)))
    say("\n".join(lines))


def _experiment(cell: Cell) -> str:
    return str(cell.composed.hydra.runtime.choices.get("experiment") or "")


def _rows(groups: Sequence[Sequence[Predicted]]) -> list[PredictedCell]:
    """A row for each cell."""
    records = [_as_record(group[0]) for group in groups]
    assert SESSION.workload is not None
    axes = comparable.varied(records, table.ALWAYS[SESSION.workload.name])
    rows = []
    for record, group in zip(records, groups, strict=True):
        config = _config(group[0].cell)
        values = {axis: comparable.cell(record, axis) for axis in axes}
        left = sum(each.cell.result is None for each in group)
        rows.append(PredictedCell(values, config.gpus * config.nodes, group[0].prediction, len(group), left))
    return rows


def _as_record(predicted: Predicted) -> dict[str, Any]:
    """What tells a record from others, as the final table has it."""
    assert SESSION.workload is not None
    axes = SESSION.workload.axes(predicted.cell.cfg, predicted.target.device_type)
    return {"axes": axes, "config": plain(_config(predicted.cell))}


def _config(cell: Cell) -> RunConfig:
    assert cell.config is not None
    return cell.config


def _probes(members: Sequence[Predicted], experiment: str) -> list[str]:
    """The fewest probes after which each cell's times rest on this machine's, and their commands."""
    swept, words = _words(members, experiment)
    known = [each.prediction.basis in KNOWN for each in members]
    wanted = [
        not is_known and each.cell.result is None and each.prediction.fits != "no"
        for each, is_known in zip(members, known, strict=True)
    ]
    chosen = fewest_probes.fewest(swept, known, wanted)
    if not chosen:
        return []
    where = " on such a node" if is_elsewhere(members[0].cell.cfg) else ""
    seconds = _config(members[0].cell).probe.seconds
    lasting = f"each trains for {seconds:g} s at most"
    line = f"to know the times of {count(sum(wanted), 'cell')}, probe {len(chosen)}{where} ({lasting}):"
    return [*wrap(line, WIDTH), *(f"  {command}" for command in fewest_probes.commands(swept, chosen, words))]


def _words(members: Sequence[Predicted], experiment: str) -> tuple[list[dict[str, str]], list[str]]:
    """The swept keys of each cell, and the rest of the command."""
    assert SESSION.workload is not None
    overrides = [
        dict(str(word).split("=", 1) for word in each.cell.composed.hydra.overrides.task if "=" in word)
        for each in members
    ]
    keys = dict.fromkeys(key for own in overrides for key in own)
    differ = [key for key in keys if len({own.get(key) for own in overrides}) > 1]
    rest = [word for word in sys.argv[1:] if not word.startswith(LEFT_OUT) and word.split("=", 1)[0] not in differ]
    rest = workloads.with_experiment(rest, experiment) if experiment else rest
    several = ["-m"] * (len(members) > 1)
    return [{key: own[key] for key in differ if key in own} for own in overrides], [
        "python",
        SESSION.workload.entry,
        *several,
        *rest,
    ]
