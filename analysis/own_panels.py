"""Which runs are shown as an experiment's, if the user names no folder of runs."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from multicard.messages import Refusal, typed
from multicard.records.short_names import MULTIRUN

from .experiments import Experiment, Panel


def own_panels(
    command: str, experiment: Experiment, panels: Sequence[Panel], folders: Sequence[Path]
) -> list[Panel]:
    """Return the panels to show.

    If no folder is named, the runs may be of any sweep, such as one of the user's photographs. Then
    only panels with the experiment's options or name are shown.

    Args:
        command: the command that shows them: table or figure.

    Raises:
        Refusal: all panels are of other sweeps.
    """
    is_named = list(folders) != [MULTIRUN]
    shown = [panel for panel in panels if is_named or panel.is_of_experiment]
    if shown or not panels:
        return shown
    sweep = panels[0].runs[0].folder.parent
    shows = f"{typed('-m analysis')} {command} {experiment.name} {shlex.quote(str(sweep))}"
    raise Refusal(
        "analysis.of-other-sweeps",
        f"{experiment.name} is not measured; `{experiment.command}` measures it. Runs of other"
        f" sweeps have some of its cells: `{shows}` shows them",
        experiment=experiment.name,
        command=experiment.command,
        shows=shows,
    )
