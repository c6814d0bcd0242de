"""Lines that a command prints, at once."""

import os
import sys


def say(line: str, error: bool = False) -> None:
    """Print a line. Where nobody reads any more (`| head`), or nothing can be written, further ones are dropped: what
    is being measured goes on."""
    stream = sys.stderr if error else sys.stdout
    try:
        print(line, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
