"""Predictions of cells of a sweep: from the records that lie beside it, each for the machine that it is to run on."""

from collections.abc import Sequence
from typing import NamedTuple

from multicard.config.base import RunConfig
from multicard.estimate import history
from multicard.estimate.run import Predictor, Target
from multicard.machine import environment, private
from multicard.records.schema_parts import Prediction
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell


class Predicted(NamedTuple):
    cell: Cell
    target: Target
    prediction: Prediction


def of(cells: Sequence[Cell], targets: Sequence[Target], memory: bool = True) -> list[Predicted]:
    """Predictions of cells that have a configuration, each for its target, in their order.

    Args:
        memory: also of memory that is not known yet, which takes a process some seconds a cell.
    """
    members: dict[Target, list[tuple[int, RunConfig]]] = {}
    for place, (cell, target) in enumerate(zip(cells, targets, strict=True)):
        assert cell.config is not None
        members.setdefault(target, []).append((place, cell.config))
    if not members:
        return []
    known = history.read(history.history_folders(cells[0].folder))
    commit = history.commit_of(environment.git(private.ROOT))
    predicted: dict[int, Predicted] = {}
    for where, configs in members.items():
        answers = Predictor(where, known, commit).predict_all([config for _, config in configs], memory)
        for (place, _), answer in zip(configs, answers, strict=True):
            predicted[place] = Predicted(cells[place], where, answer)
    return [predicted[place] for place in range(len(cells))]


def in_words(where: Target) -> str:
    """What is predicted for: "NVIDIA H100 of 99.9 GB"."""
    if where.device_type == "cpu":
        return f"CPU ranks on {where.hardware or 'this machine'}"
    gpu = where.gpu or "a GPU"
    return gpu if where.memory_bytes is None else f"{gpu} of {in_bytes(where.memory_bytes)}"
