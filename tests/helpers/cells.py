"""Cells of sweeps, made without Hydra."""

from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from multicard.config.vision import VisionConfig
from multicard.sweep.cells import Cell, RefusedCell, Sweep
from multicard.sweep.command import Command
from multicard.vision.workload import WORKLOAD
from tests.conftest import typed


def cell(number: int = 1, folder: Path = Path("x"), **values: Any) -> Cell:
    """A cell with empty configurations, where `values` do not say otherwise."""
    return Cell(**{**_place(number, folder), "config": default_config(), **values})


@cache
def default_config() -> VisionConfig:
    return typed()


def refused(number: int, reason: str, folder: Path = Path("x"), **values: Any) -> RefusedCell:
    return RefusedCell(**{**_place(number, folder), "reason": reason, **values})


def sweep(*members: Cell | RefusedCell) -> Sweep:
    """A sweep of a command of its own."""
    return Sweep.of(Command(WORKLOAD), members)


def _place(number: int, folder: Path) -> dict[str, Any]:
    empty = {"composed": DictConfig({}), "cfg": DictConfig({})}
    return {"number": number, "folder": folder, "workload": WORKLOAD, **empty}
