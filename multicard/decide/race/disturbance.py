"""Which blocks and full runs of a race others disturbed, and by how much."""

import math
from collections.abc import Sequence
from dataclasses import replace

from multicard.decide.race.posterior import Block
from multicard.records.limits import BUSY_SHARE

# Behind another block of its cell, a block is disturbed: by so many standard errors, and in the
# logarithm by so much. Shared machines make stretches of 2 s differ by a tenth, and processes
# differ by as much.
OUTLYING, LEAST_SLOWED = 5.0, 0.3
MOST_BUSY = 0.95  # of the cores, for others: what is left of a block's figure tells little
# Disturbed blocks from which on there are bursts: this many, and this share of all; of full runs
# this share
BURST_BLOCKS, BURST_SHARE, BURST_RUNS = 3, 0.1, 0.5


def told(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with how much others slowed each.

    A block shows it by the load of others, or by another block of its cell that was far faster.
    What a full run's own steps say of it stays.
    """
    found = list[Block]()
    for block in blocks:
        slowed = block.slowed
        if block.busy > BUSY_SHARE:
            slowed = max(slowed, -math.log1p(-min(block.busy, MOST_BUSY)))
        if not block.is_full:
            peers = (other for other in blocks if other.cell == block.cell and not other.is_full)
            slowed = max([slowed, *(_behind(block, other) for other in peers)])
        found.append(replace(block, slowed=slowed))
    return found


def are_bursts(blocks: Sequence[Block]) -> bool:
    """True where enough blocks, or enough full runs, were disturbed."""
    short = [block.slowed > 0 for block in blocks if not block.is_full]
    full = [block.slowed > 0 for block in blocks if block.is_full]
    in_blocks = sum(short) >= max(BURST_BLOCKS, BURST_SHARE * len(short))
    return in_blocks or sum(full) > BURST_RUNS * len(full)


def _behind(block: Block, other: Block) -> float:
    """By how much a block is slower than another of its cell; 0 within what blocks differ by."""
    apart = other.log_figure - block.log_figure
    usual = max(LEAST_SLOWED, OUTLYING * math.hypot(block.error, other.error))
    return apart if apart > usual else 0.0
