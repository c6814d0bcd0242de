"""Show a run's progress on the terminal.

A thread of the controller draws it, so that the ranks do not wait. Without a terminal it prints a
line from time to time, each after twice the time of the one before. So a log shows that the run
goes on.
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
FIRST_LINE_S = 20.0  # Without a terminal, the first line is printed after this time.
SPEED_OVER_S = 3600.0  # The time left is estimated from the steps of this period.
MIN_WIDTH_FOR_FIGURES = (
    110  # From this width of a terminal on, the bar of a cell has its figures too.
)
MAX_SHARE_EVALUATING = 0.99  # While a run evaluates, the bar shows at most this share.


class InSweep(NamedTuple):
    """A run's place in the sweep that this process measures.

    Attributes:
        title: The cell's title: its number, and how it differs from the other cells.
        left_s: Returns the seconds until the sweep ends, or None if they are not known.
    """

    title: str
    left_s: Callable[[], float | None]


ALONE = InSweep("", lambda: None)


class ProgressBar:
    """Shows the progress while it is open, as a context manager.

    It draws a bar if stderr is a terminal that redraws, and prints lines otherwise. It also calls
    `tick` once a second, if there is one.
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
        # The time and the samples when training was first seen.
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
                    # Before training, the time makes each line differ from the one before.
                    progress = f"starting, for {in_hours(now_s - began_s)}"
                    if fields:
                        progress = f"{fields['description']}  {fields['figures']}".rstrip()
                    say(f"{self._cell.title or '  '}{progress}{sweep}")
                    said_s = now_s
                    silent_s = 2 * silent_s
                if self._tick is not None and now_s - ticked_s >= TICK_S:
                    self._tick()
                    ticked_s = now_s

    def fields(self, now_s: float) -> dict[str, Any]:
        """Return the fields of the bar, from the ranks' progress on the board.

        They are empty before training, when no rank has published its progress.
        """
        posted = self._board.read(0)
        if not posted.of:
            return {}
        samples = sum(self._board.read(rank).samples for rank in range(self._ranks))
        if self._first is None:
            self._first = (now_s, samples)
        first_s, first_samples = self._first
        figures = [] if math.isnan(posted.loss) else [f"loss {posted.loss:.3f}"]
        if samples > first_samples and now_s > first_s:
            figures.append(f"{(samples - first_samples) / (now_s - first_s):,.0f} {self._unit}/s")
        description = f"step {posted.steps}"
        if posted.of > 0:
            evaluating = ", evaluating" if posted.evaluating else ""
            description = f"epoch {posted.epoch + 1}/{self._epochs}{evaluating}"
        return {
            "description": description,
            "total": posted.of if posted.of > 0 else None,
            "completed": min(
                posted.steps, abs(posted.of) * (MAX_SHARE_EVALUATING if posted.evaluating else 1.0)
            ),
            "figures": "  ".join(figures),
        }


def _bar(title: str) -> Any:
    """Return rich's progress bar, which estimates the time left from the last 1000 advances.

    By default rich looks at the last 30 s only. If a slow step does not advance twice in this time,
    it shows no time left. The bar advances with steps only. So an evaluation counts as time between
    two steps.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    figure_columns = [TextColumn("{task.fields[figures]}"), TimeRemainingColumn()]
    bar = Progress(
        TextColumn(f"{escape(title or '  ')}{{task.description}}"),
        BarColumn(10 if title else 40),
        TextColumn("{task.percentage:3.0f} %{task.fields[sweep]}"),
        *(figure_columns if not title or console.width >= MIN_WIDTH_FOR_FIGURES else []),
        console=console,
        speed_estimate_period=SPEED_OVER_S,
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("starting", total=None, figures="", sweep="")
    return bar
