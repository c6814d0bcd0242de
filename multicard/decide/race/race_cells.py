"""How the cells of a race differ, and what is predicted of them before it begins."""

import math
from collections.abc import Sequence

from multicard.config.base import plain
from multicard.config.vision import VisionConfig
from multicard.decide.race.posterior import Prior
from multicard.estimate import estimates, totals
from multicard.estimate.observations import NORMAL_90
from multicard.records import comparable
from multicard.sweep.cells import Cell

# With this many images, the last, smaller batch of an epoch does not count.
MANY_IMAGES = 10**7


def settings(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """Return the settings in which the cells differ, by axis, for each cell.

    A group with several options (loader.name) is one axis that covers all its keys.
    """
    cell_settings = [comparable.measured_settings(plain(cell.config)) for cell in cells]
    differing = set[str]()
    for one_cell in cell_settings:
        differing.update(
            key
            for key in one_cell
            if any(one_cell[key] != other.get(key) for other in cell_settings)
        )
    keys = sorted(differing)
    axes = {}
    for key in keys:
        group = key.partition(".")[0]
        axes[key] = group if f"{group}.name" in keys else key
    keys_of_axis = {axis: [key for key in keys if axes[key] == axis] for axis in axes.values()}
    return [
        {axis: str([one_cell.get(key) for key in names]) for axis, names in keys_of_axis.items()}
        for one_cell in cell_settings
    ]


def priors(cells: Sequence[Cell]) -> list[Prior | None]:
    """Return each cell's predicted log images/s, or None where there is no prediction.

    Predictions need records of this machine. Tuning and scripts have none, because the tokens or
    samples of a step are not known before it runs.
    """
    cell_priors: list[Prior | None] = [None] * len(cells)
    if cells[0].config.race.figure != "images_per_s":
        return cell_priors
    with estimates.printing_errors():
        for place, cell_estimate in enumerate(
            estimates.estimate([cell.config for cell in cells], cells[0].folder)
        ):
            config = cell_estimate.config
            step_s = cell_estimate.prediction.step_s
            if (
                isinstance(config, VisionConfig)
                and step_s is not None
                and cell_estimate.basis.is_own
                and step_s.low > 0
            ):
                images = MANY_IMAGES / totals.length_of_images(config, MANY_IMAGES, 0).steps
                sd = math.log(step_s.high / step_s.low) / (2 * NORMAL_90)
                cell_priors[place] = Prior(
                    math.log(images / step_s.value), sd, str(cell_estimate.basis)
                )
    return cell_priors
