"""Choose the next blocks of a race: the ones that tell most about the rivals of its leader.

In a Gaussian model, the gain from a block is known before the block is measured. The next blocks
are the ones that resolve most of the uncertainty per second.
"""

import numpy as np

from multicard.decide.race.posterior import FLOOR

MOST_CELLS = 8  # At most this many cells run in a round.
# A round takes another block if that gains at least this much per second, relative to the round's
# first block.
WORTH_ROUND = 0.5
WORTH_GOING_ON = 0.02  # A block must resolve at least this share of the uncertainty.


def most_telling(
    covariance: np.ndarray,
    leader: int,
    mass: np.ndarray,
    can_run: np.ndarray,
    seconds: np.ndarray,
) -> list[int]:
    """Return the blocks of the next round, the best first.

    With n cells, number i below n is a block of cell i's last process. Number n + i is a block of a
    new process of cell i.

    Args:
        covariance: of the cells and of both kinds of blocks (3n, 3n), see `Model.outlook`.
        mass: how likely each cell is the best one beyond the leader (n,).
        can_run: True for each block that can run (2n,).
        seconds: time of each block (2n,).
    """
    count = len(mass)
    rivals = np.flatnonzero(mass)
    variances = np.diag(covariance)
    variance_before = np.maximum(
        variances[leader] + variances[rivals] - 2 * covariance[leader, rivals], FLOOR
    )
    can_run = can_run.copy()
    picked_blocks: list[int] = []
    first_rate = 0.0
    while len(picked_blocks) < MOST_CELLS and can_run.any():
        tells = covariance[count:, leader, None] - covariance[count:, rivals]
        # A block that was picked before has no variance left.
        variances = np.maximum(np.diag(covariance)[count:, None], FLOOR)
        resolved = np.square(tells) / variances / variance_before @ mass[rivals]
        rates = np.where(can_run & (resolved >= WORTH_GOING_ON), resolved / seconds, 0.0)
        turn = int(rates.argmax())
        if not rates[turn] or rates[turn] < WORTH_ROUND * first_rate:
            break
        first_rate = first_rate or float(rates[turn])
        picked_blocks.append(turn)
        can_run[[turn % count, turn % count + count]] = False
        column = covariance[:, count + turn]
        covariance = covariance - np.outer(column, column) / column[count + turn]
    return picked_blocks
