"""Lines that a command prints, at once: refusals of its options, and the commands that they name."""

import argparse
import difflib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from rich.text import Text

INSTALLED = {
    "-m analysis": "multicard",
    "train_vision.py": "multicard vision",
    "tune_llm.py": "multicard tune",
    "measure_script.py": "multicard script",
}


def typed(entry: str) -> str:
    """The beginning of a command, as this one began: "multicard vision", or "python train_vision.py"."""
    return INSTALLED[entry] if Path(sys.argv[0]).name == "multicard" else f"python {entry}"


def say(line: "str | Text", error: bool = False) -> None:
    """Print a line. Where it cannot be written now (a full disk), it is tried again with the next; where nobody reads
    any more (`| head`), further ones are dropped: what is being measured goes on."""
    stream = sys.stderr if error else sys.stdout
    try:
        print(line if isinstance(line, str) else _styled(line, stream), file=stream, flush=True)
    except BrokenPipeError:
        drop(stream)
    except OSError:
        return  # the stream keeps the line


def drop(stream: TextIO) -> None:
    """Discard what is still written to a stream whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def link(path: Path) -> "Text":
    """The path as it can be typed here; it opens where the terminal has links."""
    from rich.text import Text

    full = path.absolute()
    short = full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full
    return Text(f"{short}/", f"link {full.as_uri()}")


def _styled(line: "Text", stream: TextIO) -> str:
    """The line with what this terminal shows of its colours and links: nothing in a file or a dumb terminal, no colours
    where NO_COLOR is set."""
    from rich.console import Console

    console = Console(file=stream)
    with console.capture() as captured:
        console.print(line, soft_wrap=True, end="")
    return captured.get()


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line."""

    def error(self, message: str) -> NoReturn:
        word = re.split("[ =]", message.removeprefix("unrecognized arguments: "))[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1, cutoff=0.65)
        say("; ".join([f"refused: {message}", *(f"did you mean {option}?" for option in near)]), error=True)
        sys.exit(1)
