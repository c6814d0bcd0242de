"""Which blocks and full runs of a race others disturbed, and by how much."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from multicard.decide.race.blocks import Block
from multicard.records.limits import BUSY_SHARE

# Behind another block of its cell, a block is disturbed: by so many standard errors, and in the
# logarithm by so much. Shared machines make stretches of 2 s differ by a tenth, and processes
# differ by as much.
OUTLYING = 5.0
LEAST_SLOWED = 0.3
MOST_BUSY = 0.95  # of the cores, for others: what is left of a block's figure tells little
# Disturbed blocks from which on there are bursts: this many, and this share of all; of full runs
# this share
BURST_BLOCKS = 3
BURST_SHARE = 0.1
BURST_RUNS = 0.5
# Slow blocks of a cell that has slow spells of its own: this many at least, and so many that
# others' load, which comes to any cell, would bring them with no more than this probability
SPELLS = 2
CHANCE = 0.05
LEAST_FULL = 2  # full runs of a cell, from which on they can tell of it alone


def told(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with how much others slowed each.

    A block shows it by the load of others, or by another block of its cell that was far faster; a
    full run shows it in its own steps. Slow blocks of a cell with slow spells of its own are no
    sign of others.
    """
    behind = [_behind_its_cell(block, blocks) for block in blocks]
    of_spells = with_spells([block for block, by in zip(blocks, behind, strict=True) if by], blocks)
    found = list[Block]()
    for block, by in zip(blocks, behind, strict=True):
        slowed = 0.0 if block.cell in of_spells else max(block.slowed, by)
        if _is_beside_load(block):
            slowed = max(slowed, -math.log1p(-min(block.busy, MOST_BUSY)))
        found.append(replace(block, slowed=slowed))
    return found


def counted(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that tell of their cells' figures once some cells ran in full.

    A block that was far slower than another of its cell, though nobody saw load, is of a burst or
    of the cell's own spells: left out or not, it makes a short series too fast or too slow. Full
    runs are longer than either, so that those of such a cell tell of it alone.
    """
    full = Counter(block.cell for block in blocks if block.is_full)
    doubtful = {
        block.cell
        for block in blocks
        if full[block.cell] >= LEAST_FULL
        and not _is_beside_load(block)
        and _behind_its_cell(block, blocks) > 0
    }
    return [block for block in blocks if block.is_full or block.cell not in doubtful]


def with_spells(slow: Sequence[Block], blocks: Sequence[Block]) -> set[int]:
    """Cells with slow spells of their own: of which more blocks are slow than chance would have it.

    Others' load slows whatever block runs. Were all slow blocks (`slow`) by it, those of a cell
    would follow the hypergeometric distribution (Fisher's exact test, one-sided).
    """
    from scipy.stats import hypergeom

    alone = [block for block in blocks if not block.is_full and not _is_beside_load(block)]
    slow_alone = Counter(block.cell for block in slow if not _is_beside_load(block))
    count = Counter(block.cell for block in alone)
    found = set[int]()
    for cell, number in slow_alone.items():
        if number < SPELLS:
            continue
        chance = hypergeom.sf(number - 1, len(alone), slow_alone.total(), count[cell])
        if chance <= CHANCE:
            found.add(cell)
    return found


def are_bursts(blocks: Sequence[Block]) -> bool:
    """True where enough blocks, or enough full runs, were disturbed.

    Several slow blocks of one cell, beside which nobody saw load, are one sign of it.
    """
    short = [block for block in blocks if not block.is_full]
    full = [block.slowed > 0 for block in blocks if block.is_full]
    disturbed = [block for block in short if block.slowed]
    beside_load = sum(_is_beside_load(block) for block in disturbed)
    unseen = {block.cell for block in disturbed if not _is_beside_load(block)}
    in_blocks = beside_load + len(unseen) >= max(BURST_BLOCKS, BURST_SHARE * len(short))
    return in_blocks or sum(full) > BURST_RUNS * len(full)


def _is_beside_load(block: Block) -> bool:
    return block.busy > BUSY_SHARE


def _behind_its_cell(block: Block, blocks: Sequence[Block]) -> float:
    """By how much a block is behind another of its cell; 0 of a full run."""
    if block.is_full:
        return 0.0
    others = (other for other in blocks if other.cell == block.cell and not other.is_full)
    return max(_behind(block, other) for other in others)


def _behind(block: Block, other: Block) -> float:
    """By how much a block is slower than another of its cell; 0 within what blocks differ by."""
    apart = other.log_figure - block.log_figure
    usual = max(LEAST_SLOWED, OUTLYING * math.hypot(block.error, other.error))
    return apart if apart > usual else 0.0
