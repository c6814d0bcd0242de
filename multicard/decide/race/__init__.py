"""A race: the best cell of a grid for a fraction of the grid's time.

`blocks` is what is measured, and how far off it may be. `posterior` estimates all cells from the
blocks of some, and `look` is what draws from it show. `rules` decides which cells run next, which
drop out and when it is over, with the help of `next_blocks`, `elimination`, `disturbance` (blocks
that others slowed) and `budget` (seconds); `outcome` is what becomes of it. `live` carries that out
by `processes`; `readings` makes figures of blocks and full runs; `command` is a race from its cells
to the lines at its end.
"""
