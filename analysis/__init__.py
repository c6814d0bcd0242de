"""Analysis of runs, from their folders alone (result.json, steps.parquet, environment.json)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multicard.sweep.command import Conclusion


def conclusion(folders: Sequence[Path]) -> "Conclusion":
    """Return the last lines of a sweep: what to run, how to train it, and how to open the page.

    The analysis is imported only when this is called.

    Args:
        folders: the folders of the sweep's runs.
    """
    import shlex

    from rich.text import Text

    from multicard.messages import link, typed
    from multicard.records import text_table
    from multicard.sweep.command import Conclusion

    from . import training_command
    from .answers import MAX_ANSWERS, answers, recommended_runs, sentences_of
    from .runs import load

    shown_answers = [
        answer
        for answer in answers(load.read_runs(folders).runs)
        if len(answer.ranking.settings) > 1 or answer.ranking.lengths
    ][:MAX_ANSWERS]
    waiting_lines = [answer.waits.sentence for answer in shown_answers if answer.waits is not None][
        :1
    ]
    alternatives = []
    training_lines = []
    if len(shown_answers) == 1:
        (answer,) = shown_answers
        if answer.passed_over is not None:
            alternatives.append(answer.passed_over)
        alternatives += answer.other_options
        if answer.training is not None:
            description = training_command.description(answer.best.runs[0]["kind"])
            training_lines = [f"{answer.training.command}   # {description}"]
    width = text_table.terminal_width()
    bold_lines = [
        Text(line, "bold") for line in text_table.folded(sentences_of(shown_answers), width)
    ]
    plain_lines = text_table.folded([*alternatives, *waiting_lines], width)
    folder = shlex.quote(link(folders[0].parent).plain)
    report_line = f"{typed('-m analysis')} report {folder}   # the page"
    return Conclusion(
        ["", *bold_lines, *plain_lines, *training_lines, report_line],
        [run.folder for run in recommended_runs(shown_answers)],
    )
