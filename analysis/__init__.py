"""Analysis of runs, from their folders alone (result.json, steps.parquet, environment.json)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multicard.sweep.command import Conclusion

MOST = 3  # workloads whose answers end a sweep


def conclusion(folders: Sequence[Path]) -> "Conclusion":
    """What a sweep of runs in these folders ends with: what to run,
    and the commands that train it and open the page.

    It imports the analysis only when it is called.
    """
    import shlex

    from rich.text import Text

    from multicard.messages import link, typed
    from multicard.records import text_table
    from multicard.sweep.command import Conclusion

    from . import training_command
    from .answers import answers, recommended_runs
    from .runs import load

    found = [
        answer
        for answer in answers(load.read(folders).runs)
        if len(answer.ranking.settings) > 1 or answer.ranking.lengths
    ][:MOST]
    sentences = [
        f"{answer.work}: {answer.sentence}" if len(found) > 1 else answer.sentence
        for answer in found
    ]
    waits = [answer.waits.sentence for answer in found if answer.waits is not None][:1]
    trains = []
    if len(found) == 1 and found[0].training is not None:
        does = training_command.keeps(found[0].best.runs[0]["kind"])
        trains = [f"{found[0].training.command}   # {does}"]
    width = text_table.terminal_width()
    bold = [Text(line, "bold") for line in text_table.folded(sentences, width)]
    plain = text_table.folded(waits, width)
    folder = shlex.quote(link(folders[0].parent).plain)
    opens = f"{typed('-m analysis')} report {folder}   # the page"
    return Conclusion(
        ["", *bold, *plain, *trains, opens], [run.folder for run in recommended_runs(found)]
    )
