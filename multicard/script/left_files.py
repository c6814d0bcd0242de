"""What an earlier run left in the working folder, and a script goes on from.

All runs of a sweep have the working folder of the command. A script that saves a checkpoint there
and looks for one when it starts, trains in the second run only what the first one left to do.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_NAMED = 3  # files, in a sentence
COARSE_S = 0.1  # by which the times of files may lie before those of the clock


class LeftFiles:
    """The files that torch.load read and that lay there before this process began.

    A script goes on from one if it also loads the state of an optimiser before its first step, or
    writes that file anew. One that only reads it starts from weights, as a fine-tuning does.

    Attributes:
        makes_optimizer: the script made an optimiser.
    """

    def __init__(self) -> None:
        self._began_s = time.time() - COARSE_S
        self._read: dict[Path, None] = {}
        self._loads_state = False
        self.makes_optimizer = False

    def reads(self, file: Any) -> None:
        """torch.load is about to read a file, or an open one."""
        place = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
        if not isinstance(place, str | os.PathLike):
            return
        path = Path(os.fsdecode(place)).resolve()
        if self._is_older(path):
            self._read[path] = None

    def loads_state(self) -> None:
        """An optimiser loads its state, before the first step."""
        self._loads_state |= bool(self._read)

    @property
    def read(self) -> list[str]:
        """The names of the files that were there before and that it read."""
        return [path.name for path in self._read][:MOST_NAMED]

    def went_on_from(self) -> list[str]:
        """The names of the files that the training went on from."""
        if self._loads_state:
            return self.read
        return [path.name for path in self._written_anew()][:MOST_NAMED]

    def _written_anew(self) -> Iterator[Path]:
        for path in self._read:
            if path.exists() and not self._is_older(path):
                yield path

    def _is_older(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime < self._began_s
        except OSError:
            return False
