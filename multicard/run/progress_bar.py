"""A run's progress, drawn on the terminal by a thread of
the controller: the ranks do not wait for it.

Without a terminal it is a line now and then, each after twice as long as the one before: who
follows a log sees that something runs.
"""

import math
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import Event, Thread
from typing import Any, NamedTuple, Self

from multicard.measure.timing import clock_s, in_hours
from multicard.messages import say
from multicard.records.progress import Board

REFRESH_S = 0.25
TICK_S = 1.0
FIRST_LINE_S = 20.0  # after which a run without a terminal says how far it is
SPEED_OVER_S = 3600.0  # steps of this long tell the time left
ROOMY = 110  # width of a terminal from which the bar of a cell has its figures too
ALMOST = 0.99  # the largest share that is shown while a run evaluates


class InSweep(NamedTuple):
    """A run's place in the sweep that this process measures.

    title: of its cell: its number, and what tells it from the others. left_s: seconds until the
    sweep has ended; None where that is not known.
    """

    title: str
    left_s: Callable[[], float | None]


ALONE = InSweep("", lambda: None)


class ProgressBar:
    """While it is open: a progress bar where stderr is a terminal that redraws, else a line now and
    then, and `tick` once a second where there is one.
    """

    def __init__(
        self,
        board: Board,
        ranks: int,
        epochs: int,
        unit: str,
        tick: Callable[[], None] | None = None,
        cell: InSweep = ALONE,
    ) -> None:
        self._board = board
        self._ranks = ranks
        self._epochs = epochs
        self._unit = unit
        self._tick = tick
        self._cell = cell
        # time and samples when training was first seen
        self._first: tuple[float, int] | None = None
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        ticked_s = said_s = began_s = clock_s()
        silent_s = FIRST_LINE_S
        has_bar = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        with _bar(self._cell.title) if has_bar else nullcontext() as bar:
            while not self._done.wait(REFRESH_S):
                now_s = clock_s()
                fields = self.fields(now_s)
                left_s = self._cell.left_s()
                sweep = "" if left_s is None else f"  sweep: {in_hours(left_s)} left"
                if bar is not None:
                    bar.update(bar.task_ids[0], sweep=sweep, **fields)
                    bar.refresh()
                elif now_s - said_s >= silent_s:
                    # else the lines would be the same
                    how_far = f"starting, for {in_hours(now_s - began_s)}"
                    if fields:
                        how_far = f"{fields['description']}  {fields['figures']}".rstrip()
                    say(f"{self._cell.title or '  '}{how_far}{sweep}")
                    said_s, silent_s = now_s, 2 * silent_s
                if self._tick is not None and now_s - ticked_s >= TICK_S:
                    self._tick()
                    ticked_s = now_s

    def fields(self, now_s: float) -> dict[str, Any]:
        """The fields of the bar, from what the ranks post; none before training,
        when nothing is posted.
        """
        posted = self._board.read(0)
        if not posted.of:
            return {}
        samples = sum(self._board.read(rank).samples for rank in range(self._ranks))
        first_s, first_samples = self._first = self._first or (now_s, samples)
        figures = [] if math.isnan(posted.loss) else [f"loss {posted.loss:.3f}"]
        if samples > first_samples and now_s > first_s:
            figures.append(f"{(samples - first_samples) / (now_s - first_s):,.0f} {self._unit}/s")
        return {
            "description": (
                f"epoch {posted.epoch + 1}/{self._epochs}" + ", evaluating" * posted.evaluating
                if posted.of > 0
                else f"step {posted.steps}"
            ),
            "total": posted.of if posted.of > 0 else None,
            "completed": min(posted.steps, abs(posted.of) * (ALMOST if posted.evaluating else 1.0)),
            "figures": "  ".join(figures),
        }


def _bar(title: str) -> Any:
    """rich's bar, which derives the time left from the last 1000 advances.

    By default it looks at 30 s alone, in which a slow step may not advance twice: then no time left
    is shown. It advances by steps only, so that evaluations count for the time between two of them.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    rest = [TextColumn("{task.fields[figures]}"), TimeRemainingColumn()]
    bar = Progress(
        TextColumn(f"{escape(title or '  ')}{{task.description}}"),
        BarColumn(10 if title else 40),
        TextColumn("{task.percentage:3.0f} %{task.fields[sweep]}"),
        *(rest if not title or console.width >= ROOMY else []),
        console=console,
        speed_estimate_period=SPEED_OVER_S,
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("starting", total=None, figures="", sweep="")
    return bar
