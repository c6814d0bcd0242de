"""The fewest probes that make the cells of a sweep predictable, and the commands that run them.

The logarithm of a cell's step is taken as a sum: a term for each value of each swept key, and one that is proportional
to the logarithm of a number of GPUs or nodes, which two counts tell. A cell is predictable where its terms follow from
those of cells that are known. Such sets are the independent sets of a matroid, so that taking the cheapest cell that
adds something, again and again, gives the fewest and the cheapest.
"""

import math
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from multicard.predict.time.observations import WITHOUT_EFFECT

COUNTED = ("gpus", "nodes")
SAME_STEP = WITHOUT_EFFECT | {"name", "repeat", "repetition", "rerun"}
TOLERANCE = 1e-9

Values = Mapping[str, str]  # of the swept keys, as a command has them


def fewest(swept: Sequence[Values], known: Sequence[bool], wanted: Sequence[bool]) -> list[int]:
    """Which cells to probe, by their place in `swept`, those of the fewest GPUs first.

    Args:
        known: whether the step of each cell is known.
        wanted: whether it is to be; it can be probed too.
    """
    design = _design(swept)
    basis: list[np.ndarray] = []
    for row, is_known in zip(design, known, strict=True):
        if is_known:
            _extend(basis, row)
    cheapest = sorted((place for place, asked in enumerate(wanted) if asked), key=lambda place: _ranks(swept[place]))
    return [place for place in cheapest if _extend(basis, design[place])]


def commands(swept: Sequence[Values], chosen: Sequence[int], words: Sequence[str]) -> list[str]:
    """Commands whose cells are the chosen ones.

    Args:
        words: the rest of each command, up to the swept keys.
    """
    cells = [{key: value for key, value in swept[place].items() if key not in SAME_STEP} for place in chosen]
    return [shlex.join([*words, *swept_words, "probe=true"]) for swept_words in products(cells)]


def products(cells: Sequence[Values]) -> list[list[str]]:
    """Cells as sweeps, of which each has all combinations of its values: ["precision=fp64,fp32", "gpus=1"]."""
    blocks = [{key: (value,) for key, value in cell.items()} for cell in cells]
    while (pair := _pair(blocks)) is not None:
        first, second, key = pair
        merged = {**blocks[first], key: (*blocks[first][key], *blocks[second][key])}
        blocks = [merged if place == first else block for place, block in enumerate(blocks) if place != second]
    return [[f"{key}={','.join(values)}" for key, values in block.items()] for block in blocks]


def _pair(blocks: Sequence[Mapping[str, tuple[str, ...]]]) -> tuple[int, int, str] | None:
    """Two blocks that differ in one key alone, and the key."""
    for second, block in enumerate(blocks):
        for first, earlier in enumerate(blocks[:second]):
            differing = [key for key in block if block[key] != earlier.get(key)]
            if len(differing) == 1 and block.keys() == earlier.keys():
                return first, second, differing[0]
    return None


def _ranks(values: Values) -> float:
    return math.prod(float(values.get(key, 1)) for key in COUNTED)


def _design(swept: Sequence[Values]) -> np.ndarray:
    """The terms of each cell's step, (cells, terms)."""
    columns = [np.ones(len(swept))]
    for key in dict.fromkeys(key for values in swept for key in values if key not in SAME_STEP):
        values = [each.get(key, "") for each in swept]
        if key in COUNTED:
            columns.append(np.log([float(value or 1) for value in values]))
        else:
            columns += [np.array([value == other for value in values], float) for other in sorted({*values})[1:]]
    return np.stack(columns, axis=1)


def _extend(basis: list[np.ndarray], row: np.ndarray) -> bool:
    """Add what of `row` is at a right angle to the basis. Returns whether something is."""
    rest = row / np.linalg.norm(row)
    for _ in range(2):  # once more for what rounding has left
        for direction in basis:
            rest = rest - (rest @ direction) * direction
    length = float(np.linalg.norm(rest))
    if length < TOLERANCE:
        return False
    basis.append(rest / length)
    return True
