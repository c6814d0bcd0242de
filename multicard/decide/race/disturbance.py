"""Find the blocks and full runs of a race that other load disturbed, and estimate by how much."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from multicard.decide.race.blocks import Block
from multicard.records.limits import BUSY_SHARE

# A block is disturbed if another block of its cell was faster by at least OUTLYING standard errors
# and by at least LEAST_SLOWED in the logarithm. On shared machines, stretches of 2 s differ by a
# tenth, and so do processes.
OUTLYING = 5.0
LEAST_SLOWED = 0.3
# If other load had this share of the cores or more, the rest of a block's figure tells little.
MOST_BUSY = 0.95
# There are bursts if at least this many blocks, and this share of all blocks, were disturbed. Of
# full runs, BURST_RUNS is the share.
BURST_BLOCKS = 3
BURST_SHARE = 0.1
BURST_RUNS = 0.5
# A cell has slow spells of its own if at least SPELLS of its blocks are slow, and if other load,
# which can hit any cell, would cause that many with a probability of at most CHANCE.
SPELLS = 2
CHANCE = 0.05
LEAST_FULL = 2  # From this number of full runs on, a cell can be judged by these alone.


def with_slowdowns(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with an estimate of how much other load slowed down each.

    A block was slowed down if other processes were busy meanwhile, or if another block of its cell
    was far faster. A full run shows it in its steps. If a cell has slow spells of its own, its slow
    blocks are no sign of other load.
    """
    behind_their_cells = [_behind_its_cell(block, blocks) for block in blocks]
    cells_of_spells = cells_with_spells(
        [
            block
            for block, log_slowdown in zip(blocks, behind_their_cells, strict=True)
            if log_slowdown
        ],
        blocks,
    )
    estimated_blocks = list[Block]()
    for block, log_slowdown in zip(blocks, behind_their_cells, strict=True):
        slowed = 0.0 if block.cell in cells_of_spells else max(block.slowed, log_slowdown)
        if _ran_under_load(block):
            slowed = max(slowed, -math.log1p(-min(block.busy, MOST_BUSY)))
        estimated_blocks.append(replace(block, slowed=slowed))
    return estimated_blocks


def blocks_for_figures(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks that count for their cells' figures once some cells ran in full.

    Suppose a block was far slower than another of its cell, but no load was seen. Either a burst
    slowed it down, or the cell has slow spells. A short series is then too fast without the block
    or too slow with it. Full runs are longer than either, so such a cell is judged by them alone.
    """
    full = Counter(block.cell for block in blocks if block.is_full)
    doubtful = {
        block.cell
        for block in blocks
        if full[block.cell] >= LEAST_FULL
        and not _ran_under_load(block)
        and _behind_its_cell(block, blocks) > 0
    }
    return [block for block in blocks if block.is_full or block.cell not in doubtful]


def cells_with_spells(slow: Sequence[Block], blocks: Sequence[Block]) -> set[int]:
    """Return the cells with slow spells of their own: more blocks are slow than chance explains.

    Other load slows whatever block runs. If it had caused all slow blocks (`slow`), each cell's
    number of slow blocks would follow the hypergeometric distribution (Fisher's exact test,
    one-sided).
    """
    from scipy.stats import hypergeom

    unloaded_blocks = [
        block for block in blocks if not block.is_full and not _ran_under_load(block)
    ]
    slow_counts = Counter(block.cell for block in slow if not _ran_under_load(block))
    block_counts = Counter(block.cell for block in unloaded_blocks)
    cells = set[int]()
    for cell, number in slow_counts.items():
        if number < SPELLS:
            continue
        chance = hypergeom.sf(
            number - 1, len(unloaded_blocks), slow_counts.total(), block_counts[cell]
        )
        if chance <= CHANCE:
            cells.add(cell)
    return cells


def are_bursts(blocks: Sequence[Block]) -> bool:
    """Return True if enough blocks, or enough full runs, were disturbed.

    Several slow blocks of one cell without load nearby count as a single sign.
    """
    short = [block for block in blocks if not block.is_full]
    full = [block.slowed > 0 for block in blocks if block.is_full]
    disturbed = [block for block in short if block.slowed]
    under_load = sum(_ran_under_load(block) for block in disturbed)
    unexplained_cells = {block.cell for block in disturbed if not _ran_under_load(block)}
    in_blocks = under_load + len(unexplained_cells) >= max(BURST_BLOCKS, BURST_SHARE * len(short))
    return in_blocks or sum(full) > BURST_RUNS * len(full)


def _ran_under_load(block: Block) -> bool:
    return block.busy > BUSY_SHARE


def _behind_its_cell(block: Block, blocks: Sequence[Block]) -> float:
    """Return by how much a block is behind the fastest of its cell, or 0 for a full run."""
    if block.is_full:
        return 0.0
    others = (other for other in blocks if other.cell == block.cell and not other.is_full)
    return max(_behind(block, other) for other in others)


def _behind(block: Block, other: Block) -> float:
    """Return by how much a block is slower than another of its cell; 0 for usual differences."""
    apart = other.log_figure - block.log_figure
    usual = max(LEAST_SLOWED, OUTLYING * math.hypot(block.error, other.error))
    return apart if apart > usual else 0.0
