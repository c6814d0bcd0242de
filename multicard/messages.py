"""Lines that a command prints, at once."""

import sys


def say(line: str, error: bool = False) -> None:
    print(line, file=sys.stderr if error else sys.stdout, flush=True)
