"""A race: the best cell of a grid for a fraction of the grid's time.

`posterior` estimates all cells from the blocks of some; `rules` decides which cells run next, which drop out and when
it is over; `live` carries that out by `processes`; `readings` makes figures of blocks and full runs; `command` is a
race from its cells to the lines at its end.
"""
