"""Which blocks tell most about the rivals of a race's leader.

In a Gaussian model it is known before a block is measured how much it will tell. The next blocks
are those that resolve most of the uncertainty per second.
"""

import numpy as np

from multicard.decide.race.posterior import FLOOR

MOST_CELLS = 8  # in a round
WORTH_ROUND = 0.5  # least gain per second of a block, relative to the first block of its round
WORTH_GOING_ON = 0.02  # least share of the uncertainty that a block resolves


def most_telling(
    covariance: np.ndarray,
    leader: int,
    mass: np.ndarray,
    can_run: np.ndarray,
    seconds: np.ndarray,
) -> list[int]:
    """The blocks of the next round, best first: below n a block of a cell's last process, and
    from n on one of a fresh process.

    Args:
        covariance: of the cells and of both kinds of blocks (3n, 3n), see `Model.outlook`.
        mass: how likely each cell is the best one beyond the leader (n,).
        can_run: blocks that can run (2n,).
        seconds: of each (2n,).
    """
    count = len(mass)
    rivals = np.flatnonzero(mass)
    own = np.diag(covariance)
    before = np.maximum(own[leader] + own[rivals] - 2 * covariance[leader, rivals], FLOOR)
    can_run = can_run.copy()
    picked: list[int] = []
    first_rate = 0.0
    while len(picked) < MOST_CELLS and can_run.any():
        tells = covariance[count:, leader, None] - covariance[count:, rivals]
        # nothing is left of blocks picked before
        own = np.maximum(np.diag(covariance)[count:, None], FLOOR)
        resolved = np.square(tells) / own / before @ mass[rivals]
        rates = np.where(can_run & (resolved >= WORTH_GOING_ON), resolved / seconds, 0.0)
        turn = int(rates.argmax())
        if not rates[turn] or rates[turn] < WORTH_ROUND * first_rate:
            break
        first_rate = first_rate or float(rates[turn])
        picked.append(turn)
        can_run[[turn % count, turn % count + count]] = False
        column = covariance[:, count + turn]
        covariance = covariance - np.outer(column, column) / column[count + turn]
    return picked
