"""A race: the best cell of a grid for a fraction of the grid's time.

`blocks` says what is measured, and how large its error may be. `posterior` estimates all cells from
the blocks of some, and `look` evaluates draws from it. `rules` decides which cells run next, which
drop out and when the race is over. It uses `next_blocks`, `elimination`, `disturbance` (blocks that
other load slowed down) and `budget` (seconds). `outcome` holds states and the verdict.

`live` carries the decisions out with `processes`, and `readings` turns blocks and full runs into
figures. `command` runs a race from its cells to the lines at its end.
"""
