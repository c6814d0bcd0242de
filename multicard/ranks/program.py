"""The start of a program: each entry calls `begin` before all other imports.

Imports nothing but Python and `interruption`.
"""

import os
import sys
from collections.abc import Sequence

from multicard.ranks import interruption

OPTIMISE = "PYTHONOPTIMIZE"  # the variable that does what -O and -OO do
# Options of Python whose value may be the next word
TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def begin() -> None:
    """Have signals end this process at once, and start it anew if Python leaves out docstrings.

    Without them (-O, -OO), Altair cannot be imported and torch compiles no model.
    """
    interruption.end_at_once()
    if sys.flags.optimize and sys.executable:
        os.environ.pop(OPTIMISE, None)
        os.execv(sys.executable, [sys.executable, *without_optimisation(sys.orig_argv[1:])])


def without_optimisation(words: Sequence[str]) -> list[str]:
    """The words after `python` on a command line, without -O and -OO,
    also in one word as in -BOO.
    """
    kept = list[str]()
    left = list(words)
    while (
        left and left[0].startswith("-") and not left[0].startswith(("-m", "-c")) and left[0] != "-"
    ):
        word = left.pop(0)
        if word in TAKES_VALUE and left:
            kept += [word, left.pop(0)]
        elif word.startswith(("--", *TAKES_VALUE)):
            kept.append(word)
        elif word.replace("O", "") != "-":
            kept.append(word.replace("O", ""))
    return kept + left
