"""Collect Python's garbage at fixed steps, the same on every rank.

By itself, Python collects after a certain number of new objects. Ranks would then collect at
different times and wait for each other. From time to time, Python would also search all objects of
torch and its libraries.
"""

import gc

COLLECT_EVERY = 100  # Number of steps between collections of the young generation.


def begin() -> None:
    """Collect once, exclude present objects from later collections, and stop automatic ones."""
    gc.collect()
    gc.freeze()
    gc.disable()


def epoch_began() -> None:
    gc.collect(1)


def step_ended(steps: int) -> None:
    """Collect if it is time after `steps` steps of the run."""
    if steps % COLLECT_EVERY == 0:
        gc.collect(0)


def end() -> None:
    """Return to Python's automatic collections."""
    gc.unfreeze()
    gc.enable()
