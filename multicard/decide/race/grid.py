"""The cells of a race before it starts: by what they differ, what estimates say, and whether they have its figure."""

import math
from collections.abc import Sequence
from typing import Any

from multicard.config.base import plain
from multicard.config.job import Device
from multicard.config.keys import require
from multicard.config.vision import VisionConfig
from multicard.decide.race import processes
from multicard.decide.race.posterior import NORMAL_90, Prior
from multicard.estimate import before_run, lengths
from multicard.machine.shares import machine
from multicard.records import comparable
from multicard.records.journal import Journal, code_and_machine
from multicard.sweep.cells import Cell

FOLDER = ".race"  # of a sweep: the journals of its races
MANY = 10**7  # images, by which the last batch of an epoch does not count


def settings(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """What differs between cells, by axis: a group of which other options are chosen (loader.name) is one axis with all
    its keys."""
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
    if figure == "total_s":
        accuracy = "is the time to an accuracy"
        has_one = "target_accuracy" in cells[0].cfg
        require(has_one, f"race=total_s: {accuracy}, which train_vision.py has; {workload.entry} has race={own}")
        remedy = f"race=total_s: {accuracy}; set target_accuracy=0.97 or another, and stop_at_target=true"
        require(all(cell.cfg.get("target_accuracy") and cell.cfg.stop_at_target for cell in cells), remedy)
    if figure == "energy_joules":
        on_gpus = any(cell.config.device is not Device.cpu for cell in cells)
        counted = on_gpus and processes.joules(machine().gpus) is not None
        require(counted, f"race={figure}: no GPU here has an energy counter; take race={own} or race=peak_memory")
    distinct = len({cell.config.identity() for cell in cells})
    require(distinct == len(cells), f"race={figure}: several cells are the same run; leave repetition out")


def open_journal(cell: Cell) -> Journal:
    """The journal of a race of cells beside this one, for its figure."""
    folder = cell.folder.parent
    path = folder / FOLDER / f"{cell.config.race.figure}.jsonl"
    return Journal(path, f"name={folder.name}: its race", code_and_machine(), anew=bool(cell.cfg.rerun))


def kept_priors(cells: Sequence[Cell], journal: Journal) -> list[Prior | None]:
    """What estimates said of the cells when the race first started: since then they rest on its own blocks."""
    known: dict[str, Any] | None = next((entry["priors"] for entry in journal.entries if "priors" in entry), None)
    if known is None:
        known = dict(zip((cell.config.identity() for cell in cells), priors(cells), strict=True))
        journal.add(priors=known)
    saved = [known.get(cell.config.identity()) for cell in cells]
    return [None if prior is None else Prior(*prior) for prior in saved]


def priors(cells: Sequence[Cell]) -> list[Prior | None]:
    """The logarithm of each cell's images/s by its estimate; None where nothing of this machine tells it, for other
    figures, and for tuning, of which the tokens of a step are not known before."""
    found: list[Prior | None] = [None] * len(cells)
    if cells[0].config.race.figure not in ("images_per_s", "total_s"):
        return found
    with before_run.no_reason_to_stop():
        from multicard.estimate.estimates import estimate

        for place, each in enumerate(estimate([cell.config for cell in cells], cells[0].folder)):
            config, step_s = each.config, each.step_s
            if isinstance(config, VisionConfig) and step_s is not None and step_s.basis.is_own and step_s.low > 0:
                images = MANY / lengths.of_images(config, MANY, 0).steps
                sd = math.log(step_s.high / step_s.low) / (2 * NORMAL_90)
                found[place] = Prior(math.log(images / step_s.value), sd, str(step_s.basis), step_s.may_exclude)
    return found
