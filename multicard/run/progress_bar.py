"""A run's progress on the terminal, drawn by a thread of the controller: the ranks do not wait for it."""

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import Event, Thread
from typing import Any, Self

from multicard.measure.timing import clock_s, in_hours
from multicard.records.progress import Board

REFRESH_S = 0.25
TICK_S = 1.0
ALMOST = 0.99  # the largest share that is shown while a run evaluates


class ProgressBar:
    """While it is open: a progress bar where stderr is a terminal, and `tick` called once a second where there is
    one."""

    def __init__(
        self, board: Board, ranks: int, epochs: int, unit: str, tick: Callable[[], None] | None = None
    ) -> None:
        self._board, self._ranks, self._epochs, self._unit, self._tick = board, ranks, epochs, unit, tick
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
        view = ProgressView(self._board, self._ranks, self._epochs, self._unit)
        ticked_s = clock_s()
        with _bar() if sys.stderr.isatty() else nullcontext() as bar:
            while not self._done.wait(REFRESH_S):
                if bar is not None:
                    bar.update(bar.task_ids[0], **view.look(clock_s()))
                    bar.refresh()
                if self._tick is not None and clock_s() - ticked_s >= TICK_S:
                    self._tick()
                    ticked_s = clock_s()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[figures]}"),
        TextColumn("{task.fields[left]}", style="progress.remaining"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("starting", total=None, figures="", left="")
    return bar


class ProgressView:
    """The fields of the bar, from what the ranks post."""

    def __init__(self, board: Board, ranks: int, epochs: int, unit: str) -> None:
        self._board, self._ranks, self._epochs, self._unit = board, ranks, epochs, unit
        self._first: tuple[float, int, int] | None = None  # time, steps and samples when training was first seen
        self._last = (0.0, 0)  # time and steps when the steps last changed

    def look(self, now_s: float) -> dict[str, Any]:
        """The fields now. From the first step on they have the time left: at the mean time of a step so far."""
        posted = self._board.read(0)
        if not posted.of:
            return {}  # nothing is posted before training
        samples = sum(self._board.read(rank).samples for rank in range(self._ranks))
        first_s, first_step, first_samples = self._first = self._first or (now_s, posted.steps, samples)
        if self._last[1] != posted.steps:
            self._last = (now_s, posted.steps)
        last_s, steps = self._last
        figures = [] if math.isnan(posted.loss) else [f"loss {posted.loss:.3f}"]
        left = "-:--:--"
        if steps > first_step and last_s > first_s:
            figures.append(f"{(samples - first_samples) / (now_s - first_s):,.0f} {self._unit}/s")
            step_s = (last_s - first_s) / (steps - first_step)
            since_s = min(now_s - last_s, step_s)  # of the next step, unless the run evaluates
            left = in_hours(max(0.0, step_s * (posted.of - steps) - since_s))
        return {
            "description": f"epoch {posted.epoch + 1}/{self._epochs}" + ", evaluating" * posted.evaluating,
            "total": 1.0,
            "completed": min(posted.steps / posted.of, ALMOST if posted.evaluating else 1.0),
            "figures": "  ".join(figures),
            "left": left,
        }
