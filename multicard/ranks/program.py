"""Start a program: each entry calls `begin` before all other imports.

So this module imports nothing except Python's own modules and `interruption`.
"""

import os
import sys
from collections.abc import Sequence

from multicard.ranks import interruption

OPTIMISE = "PYTHONOPTIMIZE"  # This variable has the effect of -O and -OO.
# The value of these options of Python may be the next word.
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def begin() -> None:
    """Let signals end this process at once, and restart it if Python leaves out docstrings.

    Without docstrings (-O, -OO), Altair cannot be imported, and torch compiles no model.
    """
    interruption.end_at_once()
    if sys.flags.optimize and sys.executable:
        os.environ.pop(OPTIMISE, None)
        os.execv(sys.executable, [sys.executable, *without_optimisation(sys.orig_argv[1:])])


def without_optimisation(words: Sequence[str]) -> list[str]:
    """Remove -O and -OO from the words after `python` on a command line.

    They are also removed from a word with several options, as in -BOO.
    """
    kept_words = list[str]()
    remaining_words = list(words)
    while (
        remaining_words
        and remaining_words[0].startswith("-")
        and not remaining_words[0].startswith(("-m", "-c"))
        and remaining_words[0] != "-"
    ):
        word = remaining_words.pop(0)
        if word in OPTIONS_WITH_VALUE and remaining_words:
            kept_words += [word, remaining_words.pop(0)]
        elif word.startswith(("--", *OPTIONS_WITH_VALUE)):
            kept_words.append(word)
        elif word.replace("O", "") != "-":
            kept_words.append(word.replace("O", ""))
    return kept_words + remaining_words
