"""A run's progress on the terminal, drawn by a thread of the controller: the ranks do not wait for it."""

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import Event, Thread
from typing import Any, Self

from multicard.measure.timing import clock_s
from multicard.records.progress import Board

REFRESH_S = 0.25
TICK_S = 1.0
SPEED_OVER_S = 3600.0  # steps of this long tell the time left
ALMOST = 0.99  # the largest share that is shown while a run evaluates


class ProgressBar:
    """While it is open: a progress bar where stderr is a terminal, and `tick` called once a second where there is
    one."""

    def __init__(
        self, board: Board, ranks: int, epochs: int, unit: str, tick: Callable[[], None] | None = None
    ) -> None:
        self._board, self._ranks, self._epochs, self._unit, self._tick = board, ranks, epochs, unit, tick
        self._first: tuple[float, int] | None = None  # time and samples when training was first seen
        self._done = Event()
        self._thread: Thread | None = None
        if sys.stderr.isatty() or tick is not None:
            self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        ticked_s = clock_s()
        with _bar() if sys.stderr.isatty() else nullcontext() as bar:
            while not self._done.wait(REFRESH_S):
                if bar is not None:
                    bar.update(bar.task_ids[0], **self.fields(clock_s()))
                    bar.refresh()
                if self._tick is not None and clock_s() - ticked_s >= TICK_S:
                    self._tick()
                    ticked_s = clock_s()

    def fields(self, now_s: float) -> dict[str, Any]:
        """The fields of the bar, from what the ranks post; none before training, when nothing is posted."""
        posted = self._board.read(0)
        if not posted.of:
            return {}
        samples = sum(self._board.read(rank).samples for rank in range(self._ranks))
        first_s, first_samples = self._first = self._first or (now_s, samples)
        figures = [] if math.isnan(posted.loss) else [f"loss {posted.loss:.3f}"]
        if samples > first_samples and now_s > first_s:
            figures.append(f"{(samples - first_samples) / (now_s - first_s):,.0f} {self._unit}/s")
        return {
            "description": f"epoch {posted.epoch + 1}/{self._epochs}" + ", evaluating" * posted.evaluating,
            "total": posted.of,
            "completed": min(posted.steps, posted.of * (ALMOST if posted.evaluating else 1.0)),
            "figures": "  ".join(figures),
        }


def _bar() -> Any:
    """rich's bar, which derives the time left from the last 1000 advances.

    By default it looks at 30 s alone, in which a slow step may not advance twice: then no time left is shown. It
    advances by steps only, so that evaluations count for the time between two of them.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[figures]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        speed_estimate_period=SPEED_OVER_S,
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("starting", total=None, figures="")
    return bar
