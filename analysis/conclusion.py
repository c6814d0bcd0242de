"""What a sweep ends with, below its table: what to run, and the command that opens the page."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from multicard.messages import link, typed
from multicard.records import text_table

MOST = 3  # workloads whose answers are printed


def of_sweep(folders: Sequence[Path]) -> list[str | Text]:
    """The lines, by the folders of the sweep's runs. It imports the analysis only when it is called."""
    from analysis.answers import answers
    from analysis.runs import load

    found = [answer for answer in answers(load.read(folders).runs) if len(answer.ranking.settings) > 1][:MOST]
    sentences = [f"{answer.work}: {answer.sentence}" if len(found) > 1 else answer.sentence for answer in found]
    bold = [Text(line, "bold") for line in text_table.folded(sentences, text_table.terminal_width())]
    folder = shlex.quote(link(folders[0].parent).plain)
    return ["", *bold, f"{typed('-m analysis')} report {folder}   # the page"]
