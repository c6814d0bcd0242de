"""Shows on the terminal how far a run is. A thread of the controller: the ranks do not wait for it."""

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from multicard.measure.timing import clock_s
from multicard.records.progress import Board

REFRESH_S = 0.25


class Watch:
    """While it is open: a progress bar where stderr is a terminal, and `tick` once a second where there is one."""

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
        show = self._bar() if sys.stderr.isatty() else None
        ticked_s = clock_s()
        while not self._done.wait(REFRESH_S):
            if show is not None:
                show.send(None)
            if self._tick is not None and clock_s() - ticked_s >= 1:
                self._tick()
                ticked_s = clock_s()
        if show is not None:
            show.close()

    def _bar(self):
        bar = self._draw()
        next(bar)
        return bar

    def _draw(self):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %  {task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
            task = progress.add_task("starting", total=None, figures="")
            first: tuple[float, int] | None = None
            while True:
                yield
                mine = self._board.read(0)
                trained = sum(self._board.read(rank).samples for rank in range(self._ranks))
                if mine.steps:
                    first = first or (clock_s(), trained)
                    elapsed_s = clock_s() - first[0]
                    figures = [] if math.isnan(mine.loss) else [f"loss {mine.loss:.3f}"]
                    with suppress(ZeroDivisionError):
                        figures.append(f"{(trained - first[1]) / elapsed_s:,.0f} {self._unit}/s")
                    epoch = f"epoch {mine.epoch + 1}/{self._epochs}"
                    progress.update(
                        task, total=mine.of, completed=mine.steps, description=epoch, figures="  ".join(figures)
                    )
                progress.refresh()
