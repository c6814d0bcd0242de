"""How far a prediction of memory is, where it takes seconds. No torch."""

import sys

from multicard.config.job import count
from multicard.measure.timing import clock_s

AFTER_S = 3.0  # nothing is said of what is done by then


class Progress:
    """Lines on the standard error: at a terminal one that is rewritten, elsewhere a single one."""

    def __init__(self, total: int) -> None:
        self.total, self.started_s, self.shown = total, clock_s(), False
        self.first_s = self.started_s

    def show(self, done: int) -> None:
        """Say how many answers are there, and when the others will be."""
        now_s, terminal = clock_s(), sys.stderr.isatty()
        if done == 1:
            self.first_s = now_s  # that took the start of the process too
        is_early = done < 2 or now_s - self.started_s < AFTER_S
        if is_early or done == self.total or (self.shown and not terminal):
            return
        left_s = (now_s - self.first_s) / (done - 1) * (self.total - done)
        line = f"predicting the memory of {count(self.total, 'setting')}: {done} done, about {left_s:.0f} s left"
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        self.shown = True

    def end(self) -> None:
        if self.shown and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
