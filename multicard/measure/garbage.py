"""Python's garbage collection at fixed steps, the same on every rank,
so that no rank waits for one that collects.

Left to itself, Python collects when so many objects were made, now on one rank and now on another,
and goes through all objects of torch and its libraries from time to time.
"""

import gc

COLLECT_EVERY = 100  # steps between collections of the young generation


def begin() -> None:
    """Collect once, leave what is there out of later collections, and collect by itself no more."""
    gc.collect()
    gc.freeze()
    gc.disable()


def epoch_began() -> None:
    gc.collect(1)


def step_ended(steps: int) -> None:
    """Collect where it is time, after so many steps of the run."""
    if steps % COLLECT_EVERY == 0:
        gc.collect(0)


def end() -> None:
    """Collect as Python does again."""
    gc.unfreeze()
    gc.enable()
