"""The cells of a race before it starts: by what they differ, and whether they have its figure."""

from collections.abc import Sequence
from typing import Any

from multicard.config.job import Device
from multicard.config.keys import require
from multicard.decide.race import gpus, to_target
from multicard.records import comparable
from multicard.sweep.cells import Cell
from multicard.sweep.shares import machine


def settings(configs: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """What differs between cells, by axis: a group of which other options are chosen (loader.name) is one axis with all
    its keys."""
    known = [comparable.measured_settings(config) for config in configs]
    keys = sorted({key for own in known for key in own if any(own[key] != other.get(key) for other in known)})
    axes = {key: group if f"{group}.name" in keys else key for key in keys for group in [key.partition(".")[0]]}
    own_keys = {axis: [key for key in keys if axes[key] == axis] for axis in axes.values()}
    return [{axis: str([own.get(key) for key in names]) for axis, names in own_keys.items()} for own in known]


def refuse(figure: str, cells: Sequence[Cell]) -> None:
    """
    Raises:
        ValueError: the entry, or the machine, does not have the figure, or cells are the same run.
    """
    workload = cells[0].workload
    own = f"{workload.unit}_per_s"
    rates = figure.endswith("_per_s") and figure != own
    require(not rates, f"race={figure}: {workload.entry} has race={own}")
    if figure == "total_s":
        to_target.refuse(cells)
    if figure == "energy_joules":
        counted = any(cell.cfg.device != Device.cpu for cell in cells) and gpus.joules(machine().gpus) is not None
        require(counted, f"race={figure}: no GPU here has an energy counter; take race={own} or race=peak_memory")
    distinct = len({cell.config.identity() for cell in cells if cell.config is not None})
    require(distinct == len(cells), f"race={figure}: several cells are the same run; leave repetition out")
