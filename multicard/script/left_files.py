"""Finds files of an earlier run from which a script goes on.

All runs of a sweep have the working folder of the command. A script may save a checkpoint there,
and look for one when it starts. Then the second run trains only what the first one left to do.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_NAMED = 3  # Files in a sentence.
COARSE_S = 0.1  # Times of files may lie before those of the clock by so much.


class LeftFiles:
    """The files that torch.load read and that existed before this process began.

    A script goes on from such a file in two cases. It loads the state of an optimizer before its
    first step, or it writes the file anew. Otherwise it starts from weights, as fine-tuning does.

    Attributes:
        makes_optimizer: the script made an optimizer.
    """

    def __init__(self) -> None:
        self._began_s = time.time() - COARSE_S
        self._read: dict[Path, None] = {}
        self._loads_state = False
        self.makes_optimizer = False

    def note_read(self, file: Any) -> None:
        """Note that torch.load is about to read a file, which may be open."""
        place = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
        if not isinstance(place, str | os.PathLike):
            return
        path = Path(os.fsdecode(place)).resolve()
        if self._is_older(path):
            self._read[path] = None

    def note_loaded_state(self) -> None:
        """Note that an optimizer loads its state before the first step."""
        self._loads_state |= bool(self._read)

    @property
    def read(self) -> list[str]:
        """The names of the files that existed before and that the script read."""
        return [path.name for path in self._read][:MOST_NAMED]

    def went_on_from(self) -> list[str]:
        """Return the names of the files that the training went on from."""
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
