"""The fewest probes that make the cells of a sweep predictable, and the commands that run them.

Cells are taken from the fewest GPUs on; a cell is chosen that the known and the chosen ones do not make predictable
(`multicard.estimate.steps`). In the end those go that later ones have made needless.
"""

import math
import shlex
from collections.abc import Mapping, Sequence

from multicard.estimate import steps
from multicard.estimate.observations import WITHOUT_EFFECT, StepObservation

COUNTED = ("gpus", "nodes")
SAME_STEP = WITHOUT_EFFECT | {"name", "repeat", "repetition", "rerun"}

Setting = Mapping[str, str]  # "group.key" to JSON text
Values = Mapping[str, str]  # of the swept keys, as a command has them


def fewest(
    settings: Sequence[Setting], machines: Sequence[str], known: Sequence[bool], wanted: Sequence[bool]
) -> list[int]:
    """The cells to probe, by their place in `settings`, those of the fewest GPUs first.

    Args:
        machines: of each cell, as records have it.
        known: True for cells whose step is known.
        wanted: True for cells whose step is to be known; they can be probed.
    """
    seen = [
        StepObservation(setting, 1.0, 0.0, False, machine, None)
        for setting, machine in zip(settings, machines, strict=True)
    ]
    before = [each for each, is_known in zip(seen, known, strict=True) if is_known]
    asked = sorted(
        (place for place, is_asked in enumerate(wanted) if is_asked), key=lambda place: _ranks(settings[place])
    )

    def is_predictable(place: int, chosen: Sequence[int]) -> bool:
        observed = [*before, *(seen[other] for other in chosen)]
        return steps.step(settings[place], machines[place], None, observed) is not None

    chosen: list[int] = []
    for place in asked:
        if not is_predictable(place, chosen):
            chosen.append(place)
    for place in chosen[::-1]:
        others = [other for other in chosen if other != place]
        if all(is_predictable(each, others) for each in asked):
            chosen = others
    return chosen


def commands(swept: Sequence[Values], chosen: Sequence[int], words: Sequence[str]) -> list[str]:
    """Commands of the chosen cells.

    Args:
        words: the rest of each command, up to the swept keys.
    """
    cells = [{key: value for key, value in swept[place].items() if key not in SAME_STEP} for place in chosen]
    return [shlex.join([*words, *swept_words, "probe=true"]) for swept_words in products(cells)]


def products(cells: Sequence[Values]) -> list[list[str]]:
    """Cells as sweeps, each of all combinations of its values: ["precision=fp64,fp32", "gpus=1"]."""
    blocks = [{key: (value,) for key, value in cell.items()} for cell in cells]
    while (pair := _pair(blocks)) is not None:
        first, second, key = pair
        merged = {**blocks[first], key: (*blocks[first][key], *blocks[second][key])}
        blocks = [merged if place == first else block for place, block in enumerate(blocks) if place != second]
    return [[f"{key}={','.join(values)}" for key, values in block.items()] for block in blocks]


def _pair(blocks: Sequence[Mapping[str, tuple[str, ...]]]) -> tuple[int, int, str] | None:
    """Two blocks that differ in one key alone, with the key."""
    for second, block in enumerate(blocks):
        for first, earlier in enumerate(blocks[:second]):
            differing = [key for key in block if block[key] != earlier.get(key)]
            if len(differing) == 1 and block.keys() == earlier.keys():
                return first, second, differing[0]
    return None


def _ranks(setting: Setting) -> float:
    return math.prod(float(setting.get(key, 1)) for key in COUNTED)
