"""Logs of ranks that stay small: of one that grows long, the first and the last part are kept."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from multicard.machine import private

MOST_BYTES, KEPT_BYTES = 16 << 20, 1 << 20  # of a log, and of each part of one that grew longer
LOOK_S = 0.5


@contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """Shorten the logs of a run while it goes on, and at its end."""
    ended, left_out = Event(), dict[Path, int]()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            shorten(folder, left_out)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shorten(folder, left_out)


def shorten(folder: Path, left_out: dict[Path, int]) -> None:
    """Shorten the logs that are too long. Their writers append, and go on behind what is kept.

    Args:
        left_out: bytes by log; added to.
    """
    for path in folder.glob("logs/r*.log"):
        with suppress(OSError), os.fdopen(private.no_link(path, os.O_RDWR | os.O_APPEND), "rb+") as log:
            size = log.seek(0, os.SEEK_END)
            if size <= MOST_BYTES:
                continue
            log.seek(size - KEPT_BYTES)
            last = log.read()
            left_out[path] = left_out.get(path, 0) + size - 2 * KEPT_BYTES
            log.truncate(KEPT_BYTES)
            note = f"\n... about {left_out[path]:,} bytes are left out here: a log keeps its first and last part ...\n"
            log.write(note.encode() + last)
