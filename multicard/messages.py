"""Lines that a command prints, at once: refusals of its options, and the commands that they name."""

import argparse
import difflib
import os
import re
import sys
from pathlib import Path
from typing import NoReturn, TextIO

INSTALLED = {"-m analysis": "multicard", "train_vision.py": "multicard vision", "tune_llm.py": "multicard tune"}


def typed(entry: str) -> str:
    """The beginning of a command, as this one began: "multicard vision", or "python train_vision.py"."""
    return INSTALLED[entry] if Path(sys.argv[0]).name == "multicard" else f"python {entry}"


def say(line: str, error: bool = False) -> None:
    """Print a line. Where it cannot be written now (a full disk), it is tried again with the next; where nobody reads
    any more (`| head`), further ones are dropped: what is being measured goes on."""
    stream = sys.stderr if error else sys.stdout
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        drop(stream)
    except OSError:
        return  # the stream keeps the line


def drop(stream: TextIO) -> None:
    """Discard what is still written to a stream whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line."""

    def error(self, message: str) -> NoReturn:
        word = re.split("[ =]", message.removeprefix("unrecognized arguments: "))[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1)
        say("; ".join([f"refused: {message}", *(f"did you mean {option}?" for option in near)]), error=True)
        sys.exit(1)
