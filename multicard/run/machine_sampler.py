"""Samples CPU and memory of this node once a second while ranks run, in a thread of the controller.

A sample reads two files of /proc, which takes a ten-thousandth of the second. A failure here ends no run.
"""

from array import array
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

import numpy as np

from multicard.measure.timing import clock_s
from multicard.records import rank_files, run_folder

INTERVAL_S = 1.0
COLUMNS = ("time_s", "cpu", "memory")  # seconds since training began; shares of all cores and of the memory, 0 to 1


class MachineSampler:
    """Samples while it is open.

    Args:
        attempt: the number of this start of the run, from 0.
        enabled: not of a cell of a race, in whose pauses others train.
    """

    def __init__(self, folder: Path, attempt: int, enabled: bool = True) -> None:
        self._folder, self._attempt, self._enabled = folder, attempt, enabled
        self._values = array("d")  # samples one after the other, as COLUMNS, on `clock_s`
        self._opened_s = 0.0
        self._done = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._opened_s = clock_s()
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._enabled:
            self._thread.join()

    def _run(self) -> None:
        import psutil

        psutil.cpu_percent()  # what follows is since the previous call
        ended = False
        while not ended:
            ended = self._done.wait(INTERVAL_S)
            self._values.extend((clock_s(), psutil.cpu_percent() / 100, psutil.virtual_memory().percent / 100))

    def write(self) -> None:
        """Add the samples to machine.parquet, after the ranks have ended; a folder that was removed stays so."""
        table = np.array(self._values).reshape(-1, len(COLUMNS))
        if not len(table) or not self._folder.exists():
            return
        starts_s = [report.started_s for report in rank_files.read(self._folder)]
        began_s = next(filter(None, starts_s), self._opened_s)
        table[:, 0] -= began_s if began_s >= self._opened_s else self._opened_s  # else it is of an earlier start
        columns = {"start": np.full(len(table), self._attempt, np.int32)}
        columns |= {name: table[:, number] for number, name in enumerate(COLUMNS)}
        with suppress(OSError):  # a full disk, say
            earlier = run_folder.read_machine(self._folder)
            if earlier is not None:
                columns = {name: np.concatenate([earlier[name].to_numpy(), own]) for name, own in columns.items()}
            run_folder.write_parquet(self._folder / run_folder.MACHINE, columns)
