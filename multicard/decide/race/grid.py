"""Cells of a race before it starts: in what they differ, their estimates, and whether they have its figure."""

import math
from collections.abc import Sequence
from typing import Any

from multicard.config.base import plain
from multicard.config.job import Device
from multicard.config.keys import require
from multicard.config.vision import VisionConfig
from multicard.decide.race import processes
from multicard.decide.race.posterior import NORMAL_90, Prior
from multicard.estimate import estimates, totals
from multicard.machine.shares import machine
from multicard.records import comparable
from multicard.records.journal import Journal
from multicard.sweep.cells import Cell

MANY = 10**7  # images, so many that the last batch of an epoch does not count


def settings(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The values in which cells differ, by axis. A group with several options (loader.name) is one axis with all its
    keys."""
    known = [comparable.measured_settings(plain(cell.config)) for cell in cells]
    keys = sorted({key for own in known for key in own if any(own[key] != other.get(key) for other in known)})
    axes = {key: group if f"{group}.name" in keys else key for key in keys for group in [key.partition(".")[0]]}
    own_keys = {axis: [key for key in keys if axes[key] == axis] for axis in axes.values()}
    return [{axis: str([own.get(key) for key in names]) for axis, names in own_keys.items()} for own in known]


def refuse(figure: str, cells: Sequence[Cell]) -> None:
    """
    Raises:
        ValueError: the entry, or the machine, does not have the figure, or cells are the same run.
    """
    workload, own = cells[0].workload, f"{cells[0].workload.unit}_per_s"
    require(figure == own or not figure.endswith("_per_s"), f"race={figure}: {workload.entry} has race={own}")
    if figure == "energy_joules":
        on_gpus = any(cell.config.device is not Device.cpu for cell in cells)
        counted = on_gpus and processes.joules(machine().gpus) is not None
        require(counted, f"race={figure}: no GPU here has an energy counter; take race={own}")
    distinct = len({cell.config.identity() for cell in cells})
    require(distinct == len(cells), f"race={figure}: several cells are the same run; leave repetition out")


def kept_priors(cells: Sequence[Cell], journal: Journal) -> list[Prior | None]:
    """The estimates of when the race first started: later ones would rest on its own blocks."""
    known: dict[str, Any] | None = next((entry["priors"] for entry in journal.entries if "priors" in entry), None)
    if known is None:
        known = dict(zip((cell.config.identity() for cell in cells), priors(cells), strict=True))
        journal.add(priors=known)
    saved = [known.get(cell.config.identity()) for cell in cells]
    return [None if prior is None else Prior(*prior) for prior in saved]


def priors(cells: Sequence[Cell]) -> list[Prior | None]:
    """Each cell's log images/s by its estimate; None without records of this machine, for other figures, and for
    tuning, where the tokens of a step are not known before."""
    found: list[Prior | None] = [None] * len(cells)
    if cells[0].config.race.figure != "images_per_s":
        return found
    with estimates.printing_errors():
        for place, each in enumerate(estimates.estimate([cell.config for cell in cells], cells[0].folder)):
            config, step_s = each.config, each.prediction.step_s
            if isinstance(config, VisionConfig) and step_s is not None and each.basis.is_own and step_s.low > 0:
                images = MANY / totals.length_of_images(config, MANY, 0).steps
                sd = math.log(step_s.high / step_s.low) / (2 * NORMAL_90)
                found[place] = Prior(math.log(images / step_s.value), sd, str(each.basis), each.may_exclude)
    return found
