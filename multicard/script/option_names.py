"""The options that a script takes, from its source or usage, and how it spells them.

A script is not imported for it. Only names that stand in the text are known.
"""

import re
from collections.abc import Iterable
from pathlib import Path

OPTION = re.compile(r"(?<![\w-])--([A-Za-z][\w-]*)")
# The lines by which argparse ("train.py: error: ...") and click ("Error: ...") refuse arguments.
USAGE_ERROR = re.compile(r"^(?:\S.*: error: |Error: ).+$", re.MULTILINE)
LONGEST_SOURCE = 1_000_000  # Bytes of a source, or of the end of a log, that are read.


def options_in(text: str) -> set[str]:
    """Return the names of the options in a text, without their dashes."""
    return {*OPTION.findall(text)}


def options_of(script: str) -> set[str]:
    """Return the options in the source of `script=FILE`; none for a module or without a file."""
    try:
        with Path(script).open("rb") as file:
            return options_in(file.read(LONGEST_SOURCE).decode(errors="replace"))
    except (OSError, ValueError):
        return set()


def spelling(name: str, options: Iterable[str]) -> str:
    """Return a name as the script spells it: `batch_size` is `batch-size` if only that is known."""
    known = {*options}
    same = [option for option in known if option.replace("-", "_") == name.replace("-", "_")]
    return same[0] if name not in known and len(same) == 1 else name


def usage_error(log: str) -> tuple[str, str]:
    """Return the last line by which a script refuses its arguments, and the text before the line.

    Both are empty if the log has no such line.
    """
    found = [*USAGE_ERROR.finditer(log)]
    return (found[-1][0].strip(), log[: found[-1].start()]) if found else ("", "")


def end_of(log: Path) -> str:
    """Return the end of a log; nothing if it cannot be read."""
    try:
        return log.read_bytes()[-LONGEST_SOURCE:].decode(errors="replace")
    except OSError:
        return ""
